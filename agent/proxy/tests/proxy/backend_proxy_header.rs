//! PROXY protocol to backends: each connection begins with one header, before all else, and carries
//! nothing but what is of the client connection that the header names.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis_model::{
    Admission, Backend, BackendName, BackendProtocol, Encryption, Filter, Listener, Mirror, OtherPeers,
    Probe, ProxyHeader, ProxyProtocol, Share,
};
use ppp::{HeaderResult, PartialResult, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::support;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};
use crate::support::l4::{exchange, passthrough, tcp, terminated, tls_backend};
use crate::support::resilience::checks;
use crate::support::rules::{backend_name, rule};
use crate::support::tls_origin::Authority;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};
use crate::support::{client, l4};

const VERSIONS: [ProxyHeader; 2] = [ProxyHeader::V1, ProxyHeader::V2];

/// The header of a connection: its version, and client and destination if it names them.
type Announced = (ProxyHeader, Option<(SocketAddr, SocketAddr)>);

/// Takes the header, and not a byte more.
async fn told(stream: &mut TcpStream) -> Option<Announced> {
    let mut bytes = Vec::new();
    loop {
        bytes.push(stream.read_u8().await.ok()?);
        let is_begun_line = bytes.starts_with(b"P") && !bytes.ends_with(b"\n");
        let parsed = HeaderResult::parse(&bytes);
        match &parsed {
            _ if is_begun_line || parsed.is_incomplete() => {}
            HeaderResult::V1(Ok(header)) => {
                let ends = match header.addresses {
                    v1::Addresses::Unknown => None,
                    v1::Addresses::Tcp4(it) => Some((
                        (it.source_address, it.source_port).into(),
                        (it.destination_address, it.destination_port).into(),
                    )),
                    v1::Addresses::Tcp6(it) => Some((
                        (it.source_address, it.source_port).into(),
                        (it.destination_address, it.destination_port).into(),
                    )),
                };
                return Some((ProxyHeader::V1, ends));
            }
            HeaderResult::V2(Ok(header)) => {
                let ends = match (header.command, header.addresses) {
                    (v2::Command::Local, _) => None,
                    (v2::Command::Proxy, v2::Addresses::IPv4(it)) => Some((
                        (it.source_address, it.source_port).into(),
                        (it.destination_address, it.destination_port).into(),
                    )),
                    (v2::Command::Proxy, v2::Addresses::IPv6(it)) => Some((
                        (it.source_address, it.source_port).into(),
                        (it.destination_address, it.destination_port).into(),
                    )),
                    (v2::Command::Proxy, _) => panic!("{header:?}"),
                };
                return Some((ProxyHeader::V2, ends));
            }
            _ => panic!("no header: {}", bytes.escape_ascii()),
        }
    }
}

/// A backend that wants a header, and answers each request with the number of its connection.
#[derive(Clone, Default)]
struct Origin {
    /// HTTP/2 without TLS.
    is_http2: bool,
    /// The client of TLS chooses.
    acceptor: Option<TlsAcceptor>,
    open: Arc<AtomicUsize>,
    /// The headers of connections, with the requests that followed.
    seen: Arc<Mutex<Vec<(Announced, usize)>>>,
}

impl Origin {
    async fn start(self) -> SocketAddr {
        l4::backend(move |mut stream| {
            let origin = self.clone();
            async move {
                stream.set_nodelay(true).unwrap();
                let Some(told) = told(&mut stream).await else { return };
                origin.open.fetch_add(1, Ordering::SeqCst);
                let number = {
                    let mut seen = origin.seen.lock().unwrap();
                    seen.push((told, 0));
                    seen.len() - 1
                };
                match &origin.acceptor {
                    None => origin.serve(stream, origin.is_http2, number).await,
                    Some(acceptor) => {
                        let stream = acceptor.accept(stream).await.unwrap();
                        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        origin.serve(stream, is_http2, number).await;
                    }
                }
                origin.open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await
    }

    async fn serve<S>(&self, stream: S, is_http2: bool, number: usize)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = hyper::service::service_fn(move |_: Request<Incoming>| {
            let (_, requests) = &mut self.seen.lock().unwrap()[number];
            *requests += 1;
            async move { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(number.to_string())))) }
        });
        let stream = TokioIo::new(stream);
        let _ = match is_http2 {
            true => http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
            false => http1::Builder::new().serve_connection(stream, service).await,
        };
    }

    fn seen(&self) -> Vec<(Announced, usize)> {
        self.seen.lock().unwrap().clone()
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

/// The backend `echo` with this header, by the rule for everything, over both ports.
async fn world(
    header: ProxyHeader,
    protocol: BackendProtocol,
    encryption: Encryption,
    to: SocketAddr,
) -> World {
    let mut world = World::new();
    world.encrypted("echo", protocol, encryption, &[to]);
    world.backends[0].proxy_header = Some(header);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    world
}

/// The backend of all rules.
fn to(endpoint: SocketAddr) -> Backend {
    Backend::new(BackendName("app/it:1".into()), vec![endpoint])
}

async fn serve(gateway: &Gateway, listener: Listener, backend: Backend) {
    let mut snapshot = snapshot(gateway.address, [listener], &[]);
    snapshot.backends.insert(backend.name.0.clone(), Arc::new(backend));
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
}

/// Each client connection has backend connections of its own, which end with it; over all kinds of
/// clients and backends.
#[tokio::test]
async fn no_connection_is_for_two_clients() {
    let authority = Authority::new();
    for header in VERSIONS {
        for protocol in [BackendProtocol::Http1, BackendProtocol::H2c, BackendProtocol::Negotiated] {
            let is_http2 = protocol == BackendProtocol::H2c;
            let mut origin = Origin { is_http2, ..Origin::default() };
            let mut encryption = Encryption::None;
            if protocol == BackendProtocol::Negotiated {
                let key = rustls::sign::CertifiedKey::clone(&authority.issue(&["a.example"]).key);
                let resolver = rustls::sign::SingleCertAndKey::from(key);
                let config = rustls::ServerConfig::builder().with_no_client_auth();
                let mut config = config.with_cert_resolver(Arc::new(resolver));
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
                origin.acceptor = Some(TlsAcceptor::from(Arc::new(config)));
                encryption = authority.policy("a.example", &[]);
            }
            let world = world(header, protocol, encryption, origin.clone().start().await).await;
            let mut clients = Vec::new();
            for via in Via::ALL {
                for _ in 0..2 {
                    clients.push((via, Client::connect(via, world.address(via), "any.test").await));
                }
            }
            for _ in 0..3 {
                for (number, (_, client)) in clients.iter_mut().enumerate() {
                    let reply = client.send("GET /").await;
                    assert_eq!(
                        (reply.status.as_u16(), reply.body),
                        (200, number.to_string()),
                        "{protocol:?}"
                    );
                }
            }
            let seen = origin.seen();
            assert_eq!(seen.len(), clients.len());
            let mut sources = BTreeSet::new();
            for ((told, requests), (via, _)) in seen.iter().zip(&clients) {
                let (version, Some((client, local))) = told else { panic!("{told:?}") };
                assert_eq!((*version, *local, *requests), (header, world.address(*via), 3));
                assert!(client.ip().is_loopback() && sources.insert(*client));
            }
            // One ends with its client, all others stay.
            let all = clients.len();
            drop(clients.pop());
            eventually("the last one's connection ends", async || origin.open() == all - 1).await;
            for (number, (_, client)) in clients.iter_mut().enumerate() {
                assert_eq!(client.send("GET /").await.body, number.to_string());
            }
            assert_eq!(origin.seen().len(), all);
            drop(clients);
            eventually("all connections end", async || origin.open() == 0).await;
        }
    }
}

#[tokio::test]
async fn requests_at_once_of_one_client_have_its_header_each() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let origin = Origin { is_http2: protocol == BackendProtocol::H2c, ..Origin::default() };
        let address = origin.clone().start().await;
        let world = world(ProxyHeader::V2, protocol, Encryption::None, address).await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Client::connect(Via::H2c, world.plain, "any.test").await);
        }
        for client in &mut clients {
            let mut begun = Vec::new();
            for _ in 0..32 {
                begun.push(client.start("GET /").await.unwrap());
            }
            drop(begun);
        }
        let seen = origin.seen();
        let sources: BTreeSet<_> = seen.iter().map(|((_, ends), _)| ends.unwrap().0).collect();
        assert_eq!(sources.len(), clients.len());
        assert_eq!(seen.iter().map(|(_, requests)| requests).sum::<usize>(), 32 * clients.len());
        if protocol == BackendProtocol::H2c {
            assert_eq!(seen.len(), clients.len());
        }
    }
}

#[tokio::test]
async fn the_client_is_the_one_that_a_proxy_in_front_names() {
    for header in VERSIONS {
        let origin = Origin::default();
        let address = origin.clone().start().await;
        let levels = vec![vec!["127.0.0.0/8".parse().unwrap()]];
        let proxies = ProxyProtocol { levels, others: OtherPeers::Accept };
        let admission = Admission { proxies: Some(Arc::new(proxies)), ..Admission::default() };
        let routes = vec![RouteSpec::to("/", "app/it:1")];
        let listener = ListenerSpec::new("web", "*", false, routes).build();
        let listener = Listener { admission: admission.into(), ..listener };
        let gateway = Gateway::start();
        let told = Backend { proxy_header: Some(header), ..to(address) };
        serve(&gateway, listener, told).await;
        let port = gateway.address;
        let in_ipv6 = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port.port()));
        let request = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.1.1.1\r\nconnection: close\r\n\r\n";
        for (first, client, local) in [
            ("PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n", "192.0.2.7:4711", port),
            // The families differ.
            ("PROXY TCP6 2001:db8::7 ::1 4712 443\r\n", "[2001:db8::7]:4712", in_ipv6),
        ] {
            let answer = client::raw(port, format!("{first}{request}").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            let (last, _) = *origin.seen().last().unwrap();
            assert_eq!(last, (header, Some((client.parse().unwrap(), local))));
        }
        // For itself.
        let answer = client::raw(port, format!("PROXY UNKNOWN\r\n{request}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let ((_, ends), _) = *origin.seen().last().unwrap();
        assert!(ends.unwrap().0.ip().is_loopback());
    }
}

/// A backend that takes the header, says what it was told, and goes on as the other one.
async fn relaying(to: SocketAddr, heard: Arc<Mutex<Vec<Announced>>>) -> SocketAddr {
    l4::backend(move |mut stream| {
        let heard = heard.clone();
        async move {
            let Some(told) = told(&mut stream).await else { return };
            heard.lock().unwrap().push(told);
            let mut other = TcpStream::connect(to).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
        }
    })
    .await
}

#[tokio::test]
async fn connections_begin_with_it_whatever_follows() {
    for header in VERSIONS {
        let heard = Arc::<Mutex<Vec<Announced>>>::default();
        let plain = relaying(l4::echo("plain ").await, heard.clone()).await;
        let tls = relaying(tls_backend("a.pass.net").await, heard.clone()).await;
        let authority = Authority::new();
        for (listener, encryption, endpoint, name, expected) in [
            (tcp("app/it:1"), Encryption::None, plain, None, "plain hello"),
            (passthrough("a.pass.net", "app/it:1"), Encryption::None, tls, Some("a.pass.net"), "a.pass.net"),
            (terminated("a.example", "app/it:1"), Encryption::None, plain, Some("a.example"), "plain hello"),
            // Nothing that follows is what the policy wants: it is not sent.
            (
                terminated("a.example", "app/it:1"),
                authority.policy("x.example", &[]),
                tls,
                Some("a.example"),
                "",
            ),
        ] {
            let gateway = Gateway::start();
            serve(&gateway, listener, Backend { proxy_header: Some(header), encryption, ..to(endpoint) })
                .await;
            let stream = TcpStream::connect(gateway.address).await.unwrap();
            let own = stream.local_addr().unwrap();
            let mut answer = String::new();
            match name {
                None => {
                    let mut stream = stream;
                    stream.write_all(b"hello").await.unwrap();
                    stream.shutdown().await.unwrap();
                    stream.read_to_string(&mut answer).await.unwrap();
                }
                Some(name) => {
                    let mut stream = client::tls(stream, Some(name), b"any").await.unwrap();
                    let _ = stream.write_all(b"hello").await;
                    let _ = stream.shutdown().await;
                    let _ = stream.read_to_string(&mut answer).await;
                }
            }
            assert_eq!(answer, expected);
            let told = heard.lock().unwrap().drain(..).collect::<Vec<_>>();
            assert_eq!(told, [(header, Some((own, gateway.address)))]);
        }
    }
}

#[tokio::test]
async fn a_header_that_a_client_writes_is_what_follows() {
    let heard = Arc::<Mutex<Vec<Announced>>>::default();
    let echo = relaying(l4::echo("").await, heard.clone()).await;
    let gateway = Gateway::start();
    serve(&gateway, tcp("app/it:1"), Backend { proxy_header: Some(ProxyHeader::V2), ..to(echo) }).await;
    let forged = b"PROXY TCP4 10.9.9.9 10.9.9.9 1 1\r\n";
    assert_eq!(exchange(gateway.address, forged).await.unwrap(), forged);
    let (_, ends) = heard.lock().unwrap()[0];
    assert!(ends.unwrap().0.ip().is_loopback());
}

#[tokio::test]
async fn checks_are_for_no_client() {
    let probes = [support::resilience::http_check(), Probe::Tcp];
    for (header, probe) in VERSIONS.into_iter().flat_map(|header| probes.clone().map(|probe| (header, probe)))
    {
        let origin = Origin::default();
        let mut world = World::new();
        world.backend("echo", BackendProtocol::Http1, &[origin.clone().start().await]);
        world.backends[0].proxy_header = Some(header);
        world.backends[0].resilience = Some(checks(probe).into());
        world.http("*", vec![rule()]);
        world.apply().await;
        eventually("checks pass", async || {
            let stats = world.proxy.stats().await.backends.remove(&backend_name("echo"));
            stats.is_some_and(|stats| stats.passed_checks > 2 && stats.failed_checks == 0)
        })
        .await;
        eventually("headers come", async || !origin.seen().is_empty()).await;
        assert!(origin.seen().iter().all(|(told, _)| *told == (header, None)));
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
        let named = origin.seen().iter().filter(|((_, ends), _)| ends.is_some()).count();
        assert_eq!(named, 1);
    }
}

#[tokio::test]
async fn mirrors_are_told_of_the_client_that_is_copied() {
    let origin = Origin::default();
    let mirror = Origin::default();
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[origin.clone().start().await]);
    world.backend("mirror", BackendProtocol::Http1, &[mirror.clone().start().await]);
    for backend in &mut world.backends {
        backend.proxy_header = Some(ProxyHeader::V1);
    }
    let to_mirror = Filter::Mirror(Mirror { backend: backend_name("mirror"), share: Share::ALL });
    world.http("*", vec![rule().filter(to_mirror)]);
    world.apply().await;
    for _ in 0..3 {
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        assert_eq!(client.send("GET /").await.status, 200);
        assert_eq!(client.send("GET /").await.status, 200);
    }
    let of =
        |origin: &Origin| origin.seen().iter().map(|((_, ends), _)| ends.unwrap().0).collect::<BTreeSet<_>>();
    eventually("all are copied", async || {
        mirror.seen().iter().map(|(_, requests)| requests).sum::<usize>() == 6
    })
    .await;
    assert_eq!((of(&origin).len(), of(&mirror)), (3, of(&origin)));
    eventually("no connection is left", async || origin.open() + mirror.open() == 0).await;
}

/// A connection that was made by other terms carries nothing more.
#[tokio::test]
async fn other_terms_make_other_connections() {
    let origin = Origin::default();
    let address = origin.clone().start().await;
    let mut world = world(ProxyHeader::V1, BackendProtocol::Http1, Encryption::None, address).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    assert_eq!(client.send("GET /").await.body, "0");
    assert_eq!(client.send("GET /").await.body, "0");
    world.backends[0].proxy_header = Some(ProxyHeader::V2);
    world.apply().await;
    assert_eq!(client.send("GET /").await.body, "1");
    eventually("the first one ends", async || origin.open() == 1).await;
    let versions: Vec<_> = origin.seen().iter().map(|((version, _), _)| *version).collect();
    assert_eq!(versions, VERSIONS);
    // An endpoint that comes back is another one.
    for endpoints in [vec![], vec![address]] {
        world.backends[0].endpoints = endpoints;
        world.apply().await;
        client.send("GET /").await;
    }
    assert_eq!(client.send("GET /").await.body, "2");
    eventually("the second one ends", async || origin.open() == 1).await;
}
