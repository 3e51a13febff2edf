//! WebSocket over HTTP/2 (RFC 8441), towards backends that know it over HTTP/1.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response, StatusCode, Version};
use portcullis_model::{BackendProtocol, FrontendKey, Limits, Snapshot};
use portcullis_proxy::{L4, Settings};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::support::client::tls;
use crate::support::origin::{Origin, serve_raw};
use crate::support::rules::{RuleSpec, rule};
use crate::support::settings::settings;
use crate::support::tls_origin::{Authority, Setup};
use crate::support::world::World;

const TIMEOUT: Duration = Duration::from_secs(50);

async fn world(rules: Vec<RuleSpec>, endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[endpoint]);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    world
}

/// A client that has seen that the server knows extended CONNECT.
async fn plain(world: &World) -> SendRequest<Bytes> {
    client(TcpStream::connect(world.plain).await.unwrap()).await
}

async fn client(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> SendRequest<Bytes> {
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://any.test/").body(()).unwrap();
    sender = sender.ready().await.unwrap();
    let answered = sender.send_request(request, true).unwrap().0;
    let _ = tokio::time::timeout(TIMEOUT, answered).await.expect("no response").unwrap();
    assert!(sender.is_extended_connect_protocol_enabled(), "SETTINGS_ENABLE_CONNECT_PROTOCOL");
    sender
}

async fn connect(
    sender: &mut SendRequest<Bytes>,
    protocol: Option<&'static str>,
    path: &str,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    let mut request = Request::builder().method(Method::CONNECT).version(Version::HTTP_2);
    if let Some(protocol) = protocol {
        request = request.uri(format!("http://any.test{path}")).extension(Protocol::from_static(protocol));
    } else {
        request = request.uri("any.test:80");
    }
    let request = request.header("sec-websocket-version", "13").header("sec-websocket-protocol", "chat");
    let (response, upload) = sender.send_request(request.body(()).unwrap(), false).unwrap();
    (tokio::time::timeout(TIMEOUT, response).await.expect("no response").unwrap(), upload)
}

async fn take(body: &mut RecvStream, count: usize) -> Vec<u8> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let data = tokio::time::timeout(TIMEOUT, body.data()).await.expect("nothing comes");
        let data = data.unwrap().unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        taken.extend_from_slice(&data);
    }
    taken
}

/// Well, not by a reset.
async fn ends(body: &mut RecvStream) {
    while let Some(data) = tokio::time::timeout(TIMEOUT, body.data()).await.expect("it stays open") {
        assert!(data.expect("it was reset").is_empty());
    }
}

/// A backend that answers the first request with this head, then with what it saw of it.
async fn telling(head: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while !seen.ends_with(b"\r\n\r\n") {
                    seen.push(stream.read_u8().await.unwrap());
                }
                if !seen.windows(9).any(|window| window.eq_ignore_ascii_case(b"\r\nupgrade")) {
                    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    return;
                }
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&seen).await.unwrap();
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                let _ = stream.write_all(&rest).await;
            });
        }
    });
    address
}

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

#[tokio::test]
async fn streams_become_tunnels_beside_requests() {
    let origin = Origin::http1().await;
    let world = world(vec![rule()], origin.address).await;
    let encrypted = tls(TcpStream::connect(world.tls).await.unwrap(), Some("any.test"), b"h2").await.unwrap();
    for mut sender in [plain(&world).await, client(encrypted).await] {
        let mut tunnels = Vec::new();
        for number in 0..3_u8 {
            let (response, upload) = connect(&mut sender, Some("websocket"), "/chat").await;
            assert_eq!(response.status(), 200);
            tunnels.push((number, response.into_body(), upload));
        }
        for round in 0..8 {
            for (number, body, upload) in &mut tunnels {
                upload.send_data(Bytes::from(vec![*number; 256]), false).unwrap();
                assert_eq!(take(body, 256).await, vec![*number; 256], "round {round}");
            }
        }
        let request = Request::get("http://any.test/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200, "requests go on beside them");
        let (_, mut body, mut upload) = tunnels.pop().unwrap();
        upload.send_data(Bytes::new(), true).unwrap();
        ends(&mut body).await;
    }
}

#[tokio::test]
async fn the_backend_gets_an_upgrade_and_the_client_no_word_of_it() {
    let world = world(vec![rule().method("GET")], telling(SWITCHED).await).await;
    let mut sender = plain(&world).await;
    let (response, mut upload) = connect(&mut sender, Some("websocket"), "/chat?x=1").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    for name in ["connection", "upgrade", "sec-websocket-accept"] {
        assert!(!response.headers().contains_key(name), "{name}: {:?}", response.headers());
    }
    let mut body = response.into_body();
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.extend(take(&mut body, 1).await);
    }
    let seen = String::from_utf8(seen).unwrap().to_lowercase();
    assert!(seen.starts_with("get /chat?x=1 http/1.1\r\n"), "{seen}");
    for field in ["host: any.test", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
    {
        assert!(seen.contains(&format!("\r\n{field}\r\n")), "{field}: {seen}");
    }
    assert!(seen.contains("\r\nsec-websocket-key: ") && !seen.contains(":protocol"), "{seen}");
    upload.send_data(Bytes::from_static(b"bye"), true).unwrap();
    assert_eq!(take(&mut body, 3).await, b"bye");
    ends(&mut body).await;
}

/// Any success would open the client's tunnel.
#[tokio::test]
async fn only_the_backends_switch_opens_a_tunnel() {
    const REFUSED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    const OTHER: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n";
    const NONE: &str = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
    const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    for (answer, status) in [(REFUSED, 403), (OTHER, 502), (NONE, 502), (FINE, 502)] {
        let world = world(vec![rule()], telling(answer).await).await;
        let (response, _upload) = connect(&mut plain(&world).await, Some("websocket"), "/").await;
        assert_eq!(response.status().as_u16(), status, "{answer:?}");
    }
    let broken = serve_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let world = world(vec![rule()], broken).await;
    let (response, _upload) = connect(&mut plain(&world).await, Some("websocket"), "/").await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn what_is_no_websocket_is_refused() {
    let origin = Origin::http1().await;
    let world = world(vec![rule()], origin.address).await;
    let mut sender = plain(&world).await;
    for protocol in [None, Some("connect-udp"), Some("WebSocket")] {
        let (response, _upload) = connect(&mut sender, protocol, "/").await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{protocol:?}");
    }
}

#[tokio::test]
async fn routes_and_the_edge_treat_it_as_a_get() {
    let origin = Origin::http1().await;
    let rules = vec![
        rule().prefix("/get").method("GET"),
        rule().prefix("/post").method("POST"),
        rule().prefix("/moved").redirect(|_| {}),
        rule().prefix("/failed").fail(500),
    ];
    let world = world(rules, origin.address).await;
    let mut sender = plain(&world).await;
    for (path, status) in [
        ("/get", 200),
        ("/post", 404),
        ("/moved", 302),
        ("/failed", 500),
        ("/get/%00", 400),
        ("/get/..%2f", 400),
    ] {
        let (response, _upload) = connect(&mut sender, Some("websocket"), path).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}

/// "RST exceptions are represented with the RST_STREAM frame with the CANCEL error code" (RFC 8441
/// section 5): the backend must not take what came for all there was.
#[tokio::test]
async fn a_stream_that_the_client_resets_is_a_reset_for_the_backend() {
    let (backend, mut ends) = ending().await;
    let world = world(vec![rule()], backend).await;
    let mut sender = plain(&world).await;
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        let (_response, mut upload) = connect(&mut sender, Some("websocket"), "/").await;
        upload.send_reset(reason);
        let ended = tokio::time::timeout(TIMEOUT, ends.recv()).await.expect("the tunnel stays open");
        assert_eq!(ended.unwrap(), Err(ErrorKind::ConnectionReset), "{reason}");
    }
    let (_response, mut upload) = connect(&mut sender, Some("websocket"), "/").await;
    upload.send_data(Bytes::new(), true).unwrap();
    let ended = tokio::time::timeout(TIMEOUT, ends.recv()).await.expect("the tunnel stays open");
    assert_eq!(ended.unwrap(), Ok(0), "an end is an end");
}

/// Bytes of the tunnel would be the body of the request that a backend of HTTP/1 gets.
#[tokio::test]
async fn a_connect_that_announces_a_body_is_refused_and_nothing_else() {
    let (backend, _ends) = ending().await;
    let world = world(vec![rule()], backend).await;
    let mut sender = plain(&world).await;
    let (open, _upload) = connect(&mut sender, Some("websocket"), "/").await;
    assert_eq!(open.status(), StatusCode::OK);
    for (length, expected) in [("5", 405), ("0, 5", 405), ("+0", 405), ("0", 200)] {
        let request = Request::builder().method(Method::CONNECT).version(Version::HTTP_2);
        let request = request.uri("http://any.test/").extension(Protocol::from_static("websocket"));
        let request = request.header("content-length", length).body(()).unwrap();
        sender = sender.ready().await.expect("the connection lasts");
        let (response, _upload) = sender.send_request(request, false).unwrap();
        let answered = tokio::time::timeout(TIMEOUT, response).await.expect("no response");
        match answered {
            Ok(response) => assert_eq!(response.status(), expected, "{length}"),
            // It may be malformed before anything looks at it.
            Err(error) => assert_eq!((error.reason(), expected), (Some(Reason::PROTOCOL_ERROR), 405)),
        }
    }
    assert!(!open.body().is_end_stream());
}

/// A backend that switches, and tells how its tunnels end.
async fn ending() -> (SocketAddr, UnboundedReceiver<Result<usize, ErrorKind>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, ends) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let events = events.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while !seen.ends_with(b"\r\n\r\n") {
                    seen.push(stream.read_u8().await.unwrap());
                }
                if !seen.windows(9).any(|window| window.eq_ignore_ascii_case(b"\r\nupgrade")) {
                    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                    return;
                }
                stream.write_all(SWITCHED.as_bytes()).await.unwrap();
                let ended = stream.read(&mut [0]).await.map_err(|error| error.kind());
                let _ = events.send(ended);
            });
        }
    });
    (address, ends)
}

/// As it does over HTTP/1: many that speak TLS end so.
#[tokio::test]
async fn a_backend_that_ends_without_close_notify_has_come_to_its_end() {
    let authority = Authority::new();
    let acceptor = Setup::new(authority.issue(&["a.example"]), &[]).acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut world = World::new();
    let (encryption, endpoint) = (authority.policy("a.example", &[]), listener.local_addr().unwrap());
    world.encrypted("echo", BackendProtocol::Http1, encryption, &[endpoint]);
    world.http("*", vec![rule().prefix("/chat"), rule().fail(500)]);
    world.apply().await;
    tokio::spawn(async move {
        let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(format!("{SWITCHED}bye").as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
    });
    let mut sender = plain(&world).await;
    let (response, _upload) = connect(&mut sender, Some("websocket"), "/chat").await;
    let mut body = response.into_body();
    assert_eq!(take(&mut body, 3).await, b"bye");
    ends(&mut body).await;
}

/// As connections are that are forwarded as they are.
#[tokio::test]
async fn tunnels_in_which_nothing_moves_are_reset() {
    let idle = Duration::from_secs(1);
    let mut world = World::with(Settings { l4: L4 { idle, ..L4::default() }, ..settings() });
    let (backend, mut ends) = ending().await;
    let origin = Origin::http1().await;
    world.backend("silent", BackendProtocol::Http1, &[backend]);
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule().prefix("/silent").to("silent"), rule()]);
    world.apply().await;
    let mut sender = plain(&world).await;
    let mut busy = upgrade(&world, "/busy").await;
    let (response, _upload) = connect(&mut sender, Some("websocket"), "/silent").await;
    let mut silent = upgrade(&world, "/silent").await;
    let began = Instant::now();
    let all = async {
        let error = silent.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        for _ in 0..2 {
            assert_eq!(ends.recv().await.unwrap(), Err(ErrorKind::ConnectionReset));
        }
        let ended = response.into_body().data().await.expect("the tunnel came to an end");
        assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
    };
    let talking = async {
        let mut pause = tokio::time::interval(idle / 4);
        loop {
            pause.tick().await;
            busy.write_all(b"y").await.unwrap();
            assert_eq!(busy.read_u8().await.unwrap(), b'y');
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(TIMEOUT, all) => ended.expect("a silent tunnel stays open"),
        () = talking => unreachable!(),
    }
    assert!(began.elapsed() >= idle, "{:?}", began.elapsed());
    busy.write_all(b"z").await.unwrap();
    // What was under way comes first. One that is not silent stays.
    while busy.read_u8().await.unwrap() != b'z' {}
}

/// As connections are that are forwarded as they are. One of HTTP/1 is none of the core's clients
/// any more, and without TLS the port may stay.
#[tokio::test]
async fn tunnels_of_a_listener_that_is_gone_have_the_drain_time() {
    let drain = Duration::from_secs(2);
    let mut world = World::with(Settings { drain, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    for host in ["any.test", "stays.test"] {
        world.http(host, vec![rule().prefix("/chat"), rule()]);
    }
    world.https("any.test", vec![rule().prefix("/chat"), rule()]);
    world.apply().await;
    let mut stays = upgraded(TcpStream::connect(world.plain).await.unwrap(), "stays.test", "/chat").await;
    let mut plain_tunnel = upgrade(&world, "/chat").await;
    let encrypted =
        async |alpn| tls(TcpStream::connect(world.tls).await.unwrap(), Some("any.test"), alpn).await.unwrap();
    let mut tls_tunnel = upgraded(encrypted(b"http/1.1").await, "any.test", "/chat").await;
    let mut senders = [plain(&world).await, client(encrypted(b"h2").await).await];
    let mut streams = Vec::new();
    for sender in &mut senders {
        let (response, upload) = connect(sender, Some("websocket"), "/chat").await;
        streams.push((response.into_body(), upload));
    }
    // The route is gone alone.
    world.listeners.iter_mut().for_each(|listener| drop(listener.rules.remove(0)));
    world.apply().await;
    let begun = Instant::now();
    assert!(world.proxy.apply(Arc::new(withdrawn(&world))).await.is_empty());
    // Listeners may come back.
    world.apply().await;
    echoes(&mut plain_tunnel).await;
    echoes(&mut tls_tunnel).await;
    for (body, upload) in &mut streams {
        upload.send_data(Bytes::from_static(b"still"), false).unwrap();
        assert_eq!(take(body, 5).await, b"still");
    }
    let ended = tokio::time::timeout(TIMEOUT, plain_tunnel.read_u8()).await.expect("the tunnel stays");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(begun.elapsed() >= drain, "{:?}", begun.elapsed());
    let ended = tokio::time::timeout(TIMEOUT, tls_tunnel.read_u8()).await.expect("the tunnel stays");
    assert!(ended.is_err());
    // The port is there all the time, and so is the connection without TLS.
    for (mut body, _upload) in streams {
        let ended = tokio::time::timeout(TIMEOUT, body.data()).await.expect("the tunnel stays").unwrap();
        assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
    }
    echoes(&mut stays).await;
}

/// Without the plain listener for `any.test`, and with one for TLS that asks for certificates.
fn withdrawn(world: &World) -> Snapshot {
    let mut snapshot = world.asking_for_certificates();
    let port = Arc::make_mut(snapshot.frontends.get_mut(&FrontendKey::tcp(world.plain)).unwrap());
    let gone = port.listeners.sorted().into_iter().find(|it| it.hostname.to_string() == "any.test");
    port.listeners = port.listeners.clone().without(gone.unwrap()).unwrap();
    snapshot
}

async fn echoes(tunnel: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    tunnel.write_all(b"x").await.unwrap();
    tunnel.flush().await.unwrap();
    assert_eq!(tokio::time::timeout(TIMEOUT, tunnel.read_u8()).await.unwrap().unwrap(), b'x');
}

/// A tunnel of a client that speaks HTTP/1.
async fn upgrade(world: &World, path: &str) -> TcpStream {
    upgraded(TcpStream::connect(world.plain).await.unwrap(), "any.test", path).await
}

async fn upgraded<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, host: &str, path: &str) -> S {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(TIMEOUT, stream.read_u8()).await.expect("no answer").unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// A tunnel may be silent for longer than a connection may be idle.
#[tokio::test]
async fn a_connection_with_a_tunnel_is_not_idle() {
    let origin = Origin::http1().await;
    let mut world = world(vec![rule()], origin.address).await;
    let idle = Duration::from_millis(300);
    world.limit(Limits { idle_timeout: idle, http2_idle_timeout: idle, ..Limits::default() });
    world.apply().await;
    let mut sender = plain(&world).await;
    let (response, mut upload) = connect(&mut sender, Some("websocket"), "/").await;
    let mut other = plain(&world).await;
    // Until a connection without tunnel has been closed, and for as long again.
    for _ in 0..2 {
        let ended = async {
            while other.clone().ready().await.is_ok() {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(TIMEOUT, ended).await.expect("an idle connection stays open");
        other = plain(&world).await;
    }
    let (again, _upload) = connect(&mut sender, Some("websocket"), "/").await;
    assert_eq!(again.status(), 200, "it takes more of them");
    upload.send_data(Bytes::from_static(b"still there"), false).unwrap();
    assert_eq!(take(&mut response.into_body(), 11).await, b"still there");
}
