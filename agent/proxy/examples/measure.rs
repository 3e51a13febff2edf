//! The cost of the data plane: the gateway, a bare proxy on the same HTTP library that does the
//! least a gateway must, and an origin behind either. Both speak HTTP/1 and HTTP/2, plain on the
//! address given and TLS on the port after it. Load comes from outside (`wrk`, `h2load`); CPU time
//! per request is read from `/proc/PID/stat`.
//!
//! ```text
//! measure origin 127.0.0.1:9000
//! measure gateway 127.0.0.1:9001 127.0.0.1:9000 [ROUTES]
//! measure bare 127.0.0.1:9011 127.0.0.1:9000
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a tool for developers")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use portcullis_model::{
    Action, Backend, BackendName, BackendTarget, Certificate, Entry, FrontendKey, Gateway, HostPattern,
    Listener, ListenerId, ObjectName, ParentKind, PathMatch, PathTable, Port, PortKey, PortListeners,
    Precedence, RouteMatch, RouteOrigin, RouteTable, Rule, RuleId, Serves, Snapshot, Split, Timeouts,
    TlsTermination, WeightedBackend,
};
use portcullis_proxy::{Proxy, Settings};
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio_rustls::TlsAcceptor;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |at: usize| arguments[at].parse::<SocketAddr>().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    match arguments[0].as_str() {
        "origin" => runtime.block_on(origin(address(1))),
        "bare" => runtime.block_on(bare(address(1), address(2))),
        "gateway" => {
            let routes = arguments.get(3).map_or(1, |routes| routes.parse().unwrap());
            runtime.block_on(gateway(address(1), address(2), routes));
        }
        other => panic!("unknown role {other:?}"),
    }
}

fn tls_address(plain: SocketAddr) -> SocketAddr {
    SocketAddr::new(plain.ip(), plain.port() + 1)
}

/// The same kind of key as the benchmarks' sites have: ECDSA on P-256.
fn certified_key() -> Arc<CertifiedKey> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key))
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

// --- origin ---

async fn origin(address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let io = TokioIo::new(accept(&listener).await);
        let service = hyper::service::service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(&[b'x'; 1024]))))
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
        tokio::task::spawn_local(connection);
    }
}

// --- gateway ---

async fn gateway(address: SocketAddr, origin: SocketAddr, routes: usize) {
    let proxy = Proxy::start(Settings { cores: 1, ..Settings::default() }).unwrap();
    assert!(proxy.apply(Arc::new(snapshot(address, origin, routes))).await.is_empty());
    std::future::pending().await
}

fn snapshot(address: SocketAddr, origin: SocketAddr, routes: usize) -> Snapshot {
    let name = BackendName::new("bench", "origin", PortKey::tcp(80));
    let mut table = RouteTable::default();
    let entries = (0..routes).map(|index| entry(index, &name)).collect();
    table.insert(&HostPattern::Any, Arc::new(PathTable::new(entries)));
    let table = Arc::new(table);
    let certificate =
        Certificate { fingerprint: [0; 32], names: Arc::new([]), not_after: i64::MAX, key: certified_key() };
    let tls = TlsTermination { certificates: [certificate].into(), ..TlsTermination::default() };
    let backend = Backend::new(name.clone(), vec![origin]);
    let frontends = [
        frontend(address, Serves::Http(table.clone())),
        frontend(tls_address(address), Serves::Https { tls, routes: table }),
    ];
    Snapshot {
        generation: 1,
        frontends: frontends.into(),
        backends: [(name.0, Arc::new(backend))].into_iter().collect(),
        ..Snapshot::default()
    }
}

fn frontend(address: SocketAddr, serves: Serves) -> (FrontendKey, Arc<Port>) {
    let gateway = ObjectName::new("bench", "gateway");
    let id = ListenerId {
        gateway: gateway.clone(),
        kind: ParentKind::Gateway,
        parent: gateway.clone(),
        name: address.port().to_string().into(),
    };
    let listeners = PortListeners::of(Arc::new(Listener {
        id,
        hostname: HostPattern::Any,
        serves,
        admission: Arc::default(),
        filters: Arc::default(),
        policy: None,
    }));
    let frontend = FrontendKey::tcp(address);
    let gateway = Arc::new(Gateway::new(gateway));
    (frontend, Arc::new(Port::new(gateway, frontend.port_key(), listeners)))
}

/// Route 0 takes `/`, the others a prefix of their own.
fn entry(index: usize, backend: &BackendName) -> Entry {
    let path = if index == 0 { PathMatch::prefix("/") } else { PathMatch::prefix(&format!("/r/{index}")) };
    let matches = RouteMatch { path, ..RouteMatch::default() };
    let route = Arc::new(ObjectName::new("bench", format!("route-{index}")));
    let origin = RouteOrigin { created: 0, name: route.clone() };
    let target = BackendTarget::Known(backend.clone());
    let split = Split::new(vec![WeightedBackend { weight: 1, target, filters: Vec::new() }]).unwrap();
    let rule = Rule {
        id: Arc::new(RuleId { kind: "HTTPRoute", route, index: 0, name: None, parent: None }),
        filters: Vec::new(),
        action: Action::Forward(split),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        policy: None,
    };
    Entry {
        precedence: Precedence::of(&matches, &origin, 0, 0),
        matches: Arc::new(matches),
        rule: Arc::new(rule),
    }
}

// --- bare ---

type Idle = Rc<RefCell<Vec<SendRequest<Incoming>>>>;

/// Gives its connection back with its last byte.
struct Passed {
    incoming: Incoming,
    back: Option<(Idle, SendRequest<Incoming>)>,
}

/// State that all connections of the bare proxy share.
#[derive(Clone)]
struct Bare {
    table: Rc<HashMap<String, SocketAddr>>,
    idle: Idle,
}

/// Runs HTTP/2 streams on this thread.
#[derive(Clone, Copy)]
struct Local;

async fn bare(address: SocketAddr, origin: SocketAddr) {
    let bare = Bare { table: Rc::new(HashMap::from([("/".to_owned(), origin)])), idle: Idle::default() };
    tokio::task::spawn_local(bare_tls(tls_address(address), bare.clone()));
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let stream = accept(&listener).await;
        let peer = stream.peer_addr().unwrap();
        tokio::task::spawn_local(bare.clone().serve(stream, peer, Version::HTTP_11));
    }
}

async fn bare_tls(address: SocketAddr, bare: Bare) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let key = rustls::sign::SingleCertAndKey::from(certified_key());
    let mut config = versions.unwrap().with_no_client_auth().with_cert_resolver(Arc::new(key));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    config.send_tls13_tickets = 1;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let stream = accept(&listener).await;
        let peer = stream.peer_addr().unwrap();
        let (bare, acceptor) = (bare.clone(), acceptor.clone());
        tokio::task::spawn_local(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let version = if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
            bare.serve(stream, peer, version).await;
        });
    }
}

impl Bare {
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(
        self,
        stream: S,
        peer: SocketAddr,
        version: Version,
    ) {
        let peer = HeaderValue::from_str(&peer.ip().to_string()).unwrap();
        let service = hyper::service::service_fn(move |request| {
            let (bare, peer) = (self.clone(), peer.clone());
            async move { Ok::<_, Infallible>(pass(&bare.table, bare.idle, peer, request).await) }
        });
        let io = TokioIo::new(stream);
        // Connections that break off are not counted.
        let _ = if version == Version::HTTP_2 {
            http2::Builder::new(Local).serve_connection(io, service).await
        } else {
            http1::Builder::new().serve_connection(io, service).await
        };
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

async fn pass(
    table: &HashMap<String, SocketAddr>,
    idle: Idle,
    peer: HeaderValue,
    mut request: Request<Incoming>,
) -> Response<Passed> {
    let origin = table[request.uri().path()];
    let authority = request.uri().authority().map(|it| HeaderValue::from_str(it.as_str()).unwrap());
    let host = authority.unwrap_or_else(|| request.headers()[header::HOST].clone());
    *request.uri_mut() = request.uri().path_and_query().cloned().unwrap().into();
    *request.version_mut() = Version::HTTP_11;
    let fields = request.headers_mut();
    fields.insert(header::HOST, host.clone());
    for name in [header::CONNECTION, header::TE, header::TRANSFER_ENCODING, header::UPGRADE] {
        fields.remove(name);
    }
    fields.insert(HeaderName::from_static("x-forwarded-for"), peer);
    fields.insert(HeaderName::from_static("x-forwarded-proto"), HeaderValue::from_static("http"));
    fields.insert(HeaderName::from_static("x-forwarded-host"), host);
    let kept = idle.borrow_mut().pop().filter(|sender| sender.is_ready());
    let mut sender = match kept {
        Some(sender) => sender,
        None => connect(origin).await,
    };
    let (mut parts, incoming) = sender.send_request(request).await.unwrap().into_parts();
    parts.headers.remove(header::CONNECTION);
    Response::from_parts(parts, Passed { incoming, back: Some((idle, sender)) })
}

async fn connect(origin: SocketAddr) -> SendRequest<Incoming> {
    let stream = TcpStream::connect(origin).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::task::spawn_local(connection);
    sender
}

impl Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if self.incoming.is_end_stream()
            && let Some((idle, sender)) = self.back.take()
        {
            idle.borrow_mut().push(sender);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
