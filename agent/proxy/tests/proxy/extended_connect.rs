//! WebSocket to backends of HTTP/2 (RFC 8441), from clients of either version.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, Version};
use portcullis_model::BackendProtocol;
use portcullis_proxy::Reason as Answered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::tls_origin::{Authority, Setup, TlsOrigin};
use crate::support::world::World;

const TIMEOUT: Duration = Duration::from_secs(50);
/// With the key of RFC 6455 section 1.3.
const HANDSHAKE: &str = "GET /chat?a=b HTTP/1.1\r\nhost: any.test\r\nconnection: Upgrade\r\nupgrade: WebSocket\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
    sec-websocket-protocol: chat\r\n\r\n";
const ACCEPT: &str = "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=";

async fn world(endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &[endpoint]);
    world.http("*", vec![rule()]);
    world.apply().await;
    world
}

/// The head of the answer, in lower case, and the connection behind it.
async fn ask(world: &World, handshake: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(handshake.as_bytes()).await.unwrap();
    (head(&mut stream).await, stream)
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(TIMEOUT, stream.read_u8()).await.expect("no answer").unwrap());
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

/// Passes bytes both ways, more than all windows together, and ends one way after the other.
async fn echoes(stream: TcpStream) {
    let bytes: Vec<_> = (0..3 << 20).map(|at: u32| u8::try_from(at % 251).unwrap()).collect();
    let (mut read, mut write) = stream.into_split();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut echoed = Vec::new();
    tokio::time::timeout(TIMEOUT, read.read_to_end(&mut echoed)).await.expect("it does not end").unwrap();
    writing.await.unwrap();
    assert!(echoed == bytes, "{} of {} bytes", echoed.len(), bytes.len());
}

#[tokio::test]
async fn tunnels_of_http_1_clients_are_streams_of_one_connection() {
    let origin = Origin::h2c().await;
    let world = world(origin.address).await;
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let (answer, stream) = ask(&world, HANDSHAKE).await;
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        for field in [ACCEPT, "connection: upgrade", "upgrade: websocket"] {
            assert!(answer.contains(field), "{field}: {answer}");
        }
        tunnels.push(tokio::spawn(echoes(stream)));
    }
    for tunnel in tunnels {
        tunnel.await.unwrap();
    }
    assert_eq!(origin.connections(), 1);
}

/// "A request … is also malformed if the value of a content-length header field does not equal the
/// sum of the DATA frame payload lengths" (RFC 9113 section 8.1.1): one such stream may cost all
/// that share the connection.
#[tokio::test]
async fn a_handshake_that_announces_no_body_is_not_held_to_it_in_the_tunnel() {
    let origin = Origin::h2c().await;
    let world = world(origin.address).await;
    let handshake = HANDSHAKE.replace("sec-websocket-version", "content-length: 0\r\nsec-websocket-version");
    let (answer, stream) = ask(&world, &handshake).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    echoes(stream).await;
}

#[tokio::test]
async fn backends_in_tls_are_asked_the_same_way() {
    let authority = Authority::new();
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &["h2"])).await;
    let mut world = World::new();
    world.encrypted("echo", BackendProtocol::H2c, authority.policy("a.example", &[]), &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let (answer, stream) = ask(&world, HANDSHAKE).await;
    assert!(answer.starts_with("http/1.1 101 ") && answer.contains(ACCEPT), "{answer}");
    echoes(stream).await;
}

#[tokio::test]
async fn tunnels_of_http_2_clients_pass_from_stream_to_stream() {
    let origin = Origin::h2c().await;
    let world = world(origin.address).await;
    let stream = TcpStream::connect(world.plain).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for path in ["/one", "/other"] {
        let request = Request::builder().method(Method::CONNECT).version(Version::HTTP_2);
        let request = request.uri(format!("http://any.test{path}"));
        let request = request.extension(Protocol::from_static("websocket")).body(()).unwrap();
        sender = sender.ready().await.unwrap();
        // The client has to know first that the gateway takes it.
        let get = Request::get("http://any.test/").body(()).unwrap();
        let _ = sender.send_request(get, true).unwrap().0.await.unwrap();
        sender = sender.ready().await.unwrap();
        let (response, mut upload) = sender.send_request(request, false).unwrap();
        let response = tokio::time::timeout(TIMEOUT, response).await.expect("no response").unwrap();
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("sec-websocket-accept"), "{:?}", response.headers());
        upload.send_data(Bytes::from_static(b"hello"), true).unwrap();
        let (mut body, mut echoed) = (response.into_body(), Vec::new());
        while let Some(data) = tokio::time::timeout(TIMEOUT, body.data()).await.expect("it does not end") {
            echoed.extend_from_slice(&data.unwrap());
        }
        assert_eq!(echoed, b"hello");
    }
}

#[tokio::test]
async fn the_backend_gets_an_extended_connect_without_the_other_handshake() {
    let seen = Arc::new(Mutex::new(None));
    let tell = seen.clone();
    let backend = serve(Knows::Tunnels, move |request, mut respond| {
        let head = request.into_parts().0;
        let protocol = head.extensions.get::<Protocol>().map(|it| it.as_str().to_owned());
        *tell.lock().unwrap() = Some((head.method, head.uri.to_string(), protocol, head.headers));
        let response = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
        respond.send_response(response, true).unwrap();
        async {}
    })
    .await;
    let world = world(backend).await;
    let (answer, mut stream) = ask(&world, HANDSHAKE).await;
    assert!(answer.contains("sec-websocket-protocol: chat"), "{answer}");
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the backend has ended it");
    let (method, target, protocol, fields): (_, _, _, HeaderMap) = seen.lock().unwrap().take().unwrap();
    assert_eq!((method, &*target), (Method::CONNECT, "http://any.test/chat?a=b"));
    assert_eq!(protocol.as_deref(), Some("websocket"));
    assert_eq!(
        (&fields["sec-websocket-version"], &fields["sec-websocket-protocol"]),
        (&"13".parse().unwrap(), &"chat".parse().unwrap())
    );
    for name in ["sec-websocket-key", "connection", "upgrade", "host"] {
        assert!(!fields.contains_key(name), "{name}: {fields:?}");
    }
}

#[tokio::test]
async fn a_backend_that_takes_none_is_said_to_be_such() {
    let backend = serve(Knows::Requests, |request, mut respond| {
        let is_get = *request.method() == Method::GET && !request.headers().contains_key("upgrade");
        let status = if is_get { 204 } else { 500 };
        respond.send_response(Response::builder().status(status).body(()).unwrap(), true).unwrap();
        async {}
    })
    .await;
    let world = world(backend).await;
    let (answer, mut stream) = ask(&world, HANDSHAKE).await;
    assert!(answer.starts_with("http/1.1 502 "), "{answer}");
    let mut text = vec![0; "the backend takes no WebSocket\n".len()];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(text, b"the backend takes no WebSocket\n");
    let stats = world.proxy.stats().await;
    assert_eq!(stats.answers.get(&Answered::NoWebSocket), Some(&1), "{:?}", stats.answers);
    // What is no handshake is a request without.
    for other in [
        HANDSHAKE.replace("upgrade: WebSocket", "upgrade: other"),
        HANDSHAKE.replace("sec-websocket-key", "x-key"),
        HANDSHAKE.replace("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="),
    ] {
        let (answer, _) = ask(&world, &other).await;
        assert!(answer.starts_with("http/1.1 204 "), "{answer}");
    }
}

#[tokio::test]
async fn a_refusal_is_an_ordinary_answer() {
    let backend = serve(Knows::Tunnels, |request, mut respond| {
        let is_connect = *request.method() == Method::CONNECT;
        let response = Response::builder().status(if is_connect { 403 } else { 200 });
        let mut body = respond.send_response(response.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"no"), true).unwrap();
        async move { drop(request) }
    })
    .await;
    let world = world(backend).await;
    let (answer, mut stream) = ask(&world, HANDSHAKE).await;
    assert!(answer.starts_with("http/1.1 403 "), "{answer}");
    let mut rest = vec![0; if answer.contains("chunked") { "2\r\nno\r\n0\r\n\r\n".len() } else { 2 }];
    stream.read_exact(&mut rest).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: any.test\r\n\r\n").await.unwrap();
    let answer = head(&mut stream).await;
    assert!(answer.starts_with("http/1.1 200 "), "on the same connection: {answer}");
}

#[tokio::test]
async fn each_side_hears_of_the_others_failure() {
    let (events, mut resets) = unbounded_channel();
    let backend = serve(Knows::Tunnels, move |mut request, mut respond| {
        let events = events.clone();
        async move {
            let mut tunnel = respond.send_response(Response::new(()), false).unwrap();
            match request.body_mut().data().await {
                Some(Ok(_)) => tunnel.send_reset(Reason::INTERNAL_ERROR),
                ended => events.send(ended.map(|it| it.unwrap_err().reason())).unwrap(),
            }
        }
    })
    .await;
    let world = world(backend).await;
    let (answer, mut stream) = ask(&world, HANDSHAKE).await;
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    stream.write_all(b"x").await.unwrap();
    let ended = tokio::time::timeout(TIMEOUT, stream.read(&mut [0])).await.expect("it stays open");
    assert!(matches!(ended, Ok(0) | Err(_)));
    let (_, stream) = ask(&world, HANDSHAKE).await;
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    let reset = tokio::time::timeout(TIMEOUT, resets.recv()).await.expect("the backend does not hear of it");
    assert_eq!(reset, Some(Some(Some(Reason::CANCEL))));
}

#[tokio::test]
async fn a_stream_that_the_client_resets_is_reset_for_the_backend() {
    let (events, mut ends) = unbounded_channel();
    let backend = serve(Knows::Tunnels, move |mut request, mut respond| {
        let events = events.clone();
        async move {
            let is_tunnel = *request.method() == Method::CONNECT;
            let _tunnel = respond.send_response(Response::new(()), !is_tunnel).unwrap();
            if is_tunnel {
                let ended = request.body_mut().data().await.transpose();
                let ended = ended.map(Option::unwrap_or_default).map_err(|error| error.reason());
                events.send(ended).unwrap();
            }
        }
    })
    .await;
    let world = world(backend).await;
    let stream = TcpStream::connect(world.plain).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let get = Request::get("http://any.test/").body(()).unwrap();
    sender = sender.ready().await.unwrap();
    let _ = sender.send_request(get, true).unwrap().0.await.unwrap();
    for resets in [true, false] {
        let request = Request::builder().method(Method::CONNECT).version(Version::HTTP_2);
        let request = request.uri("http://any.test/").extension(Protocol::from_static("websocket"));
        sender = sender.ready().await.unwrap();
        let (response, mut upload) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        let response = tokio::time::timeout(TIMEOUT, response).await.expect("no response").unwrap();
        assert_eq!(response.status(), 200);
        if resets {
            upload.send_reset(Reason::CANCEL);
        } else {
            upload.send_data(Bytes::new(), true).unwrap();
        }
        let ended =
            tokio::time::timeout(TIMEOUT, ends.recv()).await.expect("the backend does not hear of it");
        let expected = if resets { Err(Some(Reason::CANCEL)) } else { Ok(Bytes::new()) };
        assert_eq!(ended.unwrap(), expected);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    Requests,
    Tunnels,
}

/// A backend that says what it knows only after the gateway has begun to speak.
async fn serve<F>(
    knows: Knows,
    handle: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handle = handle.clone();
            tokio::spawn(async move {
                stream.peek(&mut [0]).await.unwrap();
                let mut builder = h2::server::Builder::new();
                if knows == Knows::Tunnels {
                    builder.enable_connect_protocol();
                }
                let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(handle(request, respond));
                }
            });
        }
    });
    address
}
