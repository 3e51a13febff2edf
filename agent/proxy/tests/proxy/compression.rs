//! Compression of responses: what is sent can be read by clients that take the coding, as soon as
//! the backend has sent it, and all others get what the backend sends.

use std::sync::Arc;

use async_compression::tokio::write::{BrotliDecoder, GzipDecoder, ZstdDecoder};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use portcullis_model::{BackendProtocol, Coding, Compression, Level, ObjectName, Protection, TrafficPolicy};
use portcullis_proxy::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::backend::Backend;
use crate::support::origin::serve_raw;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::{World, host_of};

const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

fn policy(codings: &[Coding]) -> Option<Arc<TrafficPolicy>> {
    let compression = Compression { codings: codings.into(), least_bytes: 1024 };
    let by = Protection::by(ObjectName::new("test", "p"));
    let protection = Protection { compression: Some(Arc::new(compression)), ..by };
    TrafficPolicy::of(vec![Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) }])
}

fn text() -> Bytes {
    (0..20_000).map(|line| format!("line {line} of the page\n")).collect::<String>().into()
}

async fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let response = Response::builder().header("content-type", "text/html").header("etag", "\"a\"");
    let response = response.header("accept-ranges", "bytes");
    if request.headers().contains_key("if-none-match") {
        return response.status(304).body(Full::default()).unwrap();
    }
    let (response, body) = match request.uri().path() {
        "/small" => (response, Bytes::from_static(b"a short page")),
        "/encoded" => (response.header("content-encoding", "br"), text()),
        "/part" => {
            (response.status(206).header("content-range", "bytes 0-9999/20000"), text().slice(..10_000))
        }
        "/fixed" => (response.header("cache-control", "no-transform"), text()),
        "/picture" => (Response::builder().header("content-type", "image/png"), text()),
        "/events" => (Response::builder().header("content-type", "text/event-stream"), text()),
        "/messages" => (Response::builder().header("content-type", "application/grpc+json"), text()),
        _ => (response, text()),
    };
    response.body(Full::new(body)).unwrap()
}

async fn world(
    of_listener: Option<Arc<TrafficPolicy>>,
    of_rule: Option<Arc<TrafficPolicy>>,
) -> (World, Backend) {
    let (mut world, backend) = (World::new(), Backend::start(answer).await);
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.http("*", vec![rule().policy(of_rule.clone())]);
    world.https("*", vec![rule().policy(of_rule)]);
    world.policy = of_listener;
    world.apply().await;
    (world, backend)
}

async fn get(world: &World, via: Via, request: &str) -> (HeaderMap, Bytes) {
    let mut client = Client::connect(via, world.address(via), host_of(request)).await;
    let (head, body) = client.start(request).await.unwrap().into_parts();
    (head.headers, body.collect().await.unwrap().to_bytes())
}

fn known(value: &'static str) -> HeaderValue {
    HeaderValue::from_static(value)
}

fn is_plain(fields: &HeaderMap) -> bool {
    !fields.contains_key("content-encoding") && fields.contains_key("content-length")
}

async fn decoded(coding: &str, bytes: &[u8]) -> Vec<u8> {
    macro_rules! decode {
        ($decoder:ident) => {{
            let mut decoder = $decoder::new(Vec::new());
            decoder.write_all(bytes).await.unwrap();
            decoder.shutdown().await.unwrap();
            decoder.into_inner()
        }};
    }
    match coding {
        "br" => decode!(BrotliDecoder),
        "gzip" => decode!(GzipDecoder),
        "zstd" => decode!(ZstdDecoder),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn clients_get_the_coding_that_they_take() {
    let (world, _backend) = world(policy(&CODINGS), None).await;
    for via in Via::ALL {
        for coding in CODINGS.map(Coding::name) {
            let (fields, body) = get(&world, via, &format!("GET /\naccept-encoding: {coding}")).await;
            assert_eq!(fields["content-encoding"], coding, "{via:?}");
            assert_eq!((&fields["etag"], &fields["vary"]), (&known("W/\"a\""), &known("accept-encoding")));
            assert!(
                !fields.contains_key("content-length") && !fields.contains_key("accept-ranges"),
                "{fields:?}"
            );
            assert!(body.len() < text().len() / 4, "{coding}: {}", body.len());
            assert!(decoded(coding, &body).await == text(), "{via:?} {coding}");
            let (of_head, nothing) = get(&world, via, &format!("HEAD /\naccept-encoding: {coding}")).await;
            assert!(nothing.is_empty());
            for name in ["content-encoding", "vary", "etag"] {
                assert_eq!(of_head.get(name), fields.get(name), "{via:?} {name}");
            }
            assert!(!of_head.contains_key("content-length"), "{via:?}");
        }
        let again = "GET /\naccept-encoding: gzip\nif-none-match: W/\"a\"";
        let (fields, nothing) = get(&world, via, again).await;
        assert!(nothing.is_empty() && !fields.contains_key("content-encoding"), "{via:?} {fields:?}");
        assert_eq!((&fields["etag"], &fields["vary"]), (&known("W/\"a\""), &known("accept-encoding")));
    }
}

#[tokio::test]
async fn all_else_goes_as_it_comes() {
    let (world, _backend) = world(policy(&CODINGS), None).await;
    for path in ["/small", "/part", "/fixed", "/picture", "/events", "/messages"] {
        let (fields, _) = get(&world, Via::Http1, &format!("GET {path}\naccept-encoding: gzip")).await;
        assert!(is_plain(&fields) && !fields.contains_key("vary"), "{path}: {fields:?}");
    }
    let (fields, body) = get(&world, Via::Http1, "GET /encoded\naccept-encoding: gzip").await;
    assert_eq!((&fields["content-encoding"], body), (&known("br"), text()));
    let (fields, body) = get(&world, Via::Http1, "GET /").await;
    assert!(is_plain(&fields) && fields["etag"] == "\"a\"" && body == text(), "{fields:?}");
    assert_eq!(fields["vary"], "accept-encoding", "a cache has to know");
}

#[tokio::test]
async fn the_most_specific_policy_counts() {
    let request = "GET /\naccept-encoding: gzip, br";
    for (of_listener, of_rule, expected) in [
        (None, None, None),
        (Some(&[Coding::Gzip][..]), None, Some("gzip")),
        (Some(&[Coding::Gzip]), Some(&[Coding::Brotli][..]), Some("br")),
        (Some(&[Coding::Gzip]), Some(&[]), None),
    ] {
        let (world, _backend) = world(of_listener.and_then(policy), of_rule.and_then(policy)).await;
        let (fields, _) = get(&world, Via::Http1, request).await;
        let coding = fields.get("content-encoding").map(|coding| coding.to_str().unwrap());
        assert_eq!(coding, expected);
    }
}

/// A backend that sends its second piece when it is told to.
async fn in_two_pieces() -> (std::net::SocketAddr, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}5\r\nfirst\r\n").as_bytes()).await.unwrap();
        told.await.unwrap();
        stream
            .write_all(b"6\r\nsecond\r\n0\r\nx-after: all\r\ncontent-digest: sha-256=:eA==:\r\n\r\n")
            .await
            .unwrap();
    });
    (address, tell)
}

#[tokio::test]
async fn a_client_does_not_wait_for_what_the_backend_has_not_sent_yet() {
    let (address, tell) = in_two_pieces().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[address]);
    world.http("*", vec![rule().policy(policy(&CODINGS))]);
    world.apply().await;
    let request = "GET /\naccept-encoding: gzip\nte: trailers";
    let mut client = Client::connect(Via::H2c, world.address(Via::H2c), host_of(request)).await;
    let mut response = client.start(request).await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let (mut decoder, mut trailers, mut tell) = (GzipDecoder::new(Vec::new()), None, Some(tell));
    while let Some(frame) = response.frame().await {
        match frame.unwrap().into_data() {
            Ok(bytes) => decoder.write_all(&bytes).await.unwrap(),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        decoder.flush().await.unwrap();
        if decoder.get_ref() == b"first"
            && let Some(tell) = tell.take()
        {
            tell.send(()).unwrap();
        }
    }
    decoder.shutdown().await.unwrap();
    assert_eq!(decoder.get_ref(), b"firstsecond");
    let trailers = trailers.unwrap();
    assert!(trailers["x-after"] == "all" && !trailers.contains_key("content-digest"), "{trailers:?}");
}

#[tokio::test]
async fn a_response_goes_as_it_is_where_there_is_no_memory_to_compress_it() {
    let (address, tell) = in_two_pieces().await;
    let backend = Backend::start(answer).await;
    // Of each core's half a quarter is for encoders, and half of that for one namespace: enough for
    // one of gzip.
    let mut world = World::with(Settings { buffers: 2 * 4 * (1 << 20), ..settings() });
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.backend("slow", BackendProtocol::Http1, &[address]);
    world.http("*", vec![rule(), rule().prefix("/slow").to("slow")]);
    world.policy = policy(&[Coding::Gzip]);
    world.apply().await;
    let mut client = Client::connect(Via::H2c, world.address(Via::H2c), "any.test").await;
    let slow = client.start("GET /slow\naccept-encoding: gzip").await.unwrap();
    assert_eq!(slow.headers()["content-encoding"], "gzip");
    let request = "GET /\naccept-encoding: gzip";
    let (fields, body) = get(&world, Via::Http1, request).await;
    assert!(is_plain(&fields) && fields["etag"] == "\"a\"" && body == text(), "{fields:?}");
    assert_eq!(fields["vary"], "accept-encoding");
    tell.send(()).unwrap();
    let slow = slow.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(decoded("gzip", &slow).await, b"firstsecond");
    let (fields, body) = get(&world, Via::Http1, request).await;
    assert_eq!(fields["content-encoding"], "gzip", "the memory is free again");
    assert!(decoded("gzip", &body).await == text());
}

#[tokio::test]
async fn a_tunnel_is_not_compressed() {
    let backend = serve_raw(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
          content-type: text/plain\r\n\r\nthe first frame",
    )
    .await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    world.http("*", vec![rule()]);
    world.policy = policy(&CODINGS);
    world.apply().await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    let head = "GET / HTTP/1.1\r\nhost: any.test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                accept-encoding: gzip\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, frames) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 101 ") && !head.contains("content-encoding"), "{head}");
    assert_eq!(frames, "the first frame");
}
