//! gRPC-Web where a policy asks for its translation: backends get gRPC, and clients what browsers
//! can read, over every protocol.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use portcullis_model::{
    AllowedNames, AllowedOrigins, BackendProtocol, Coding, Compression, Cors, Credentials, Filter, GrpcWeb,
    Level, Mirror, ObjectName, OriginPattern, Protection, Share, TrafficPolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, backend_name, rule};
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

const TIMEOUT: Duration = Duration::from_secs(50);
/// The trailers of a call that went well.
const FINE: &[u8] = b"\x80\0\0\0\x0fgrpc-status:0\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Binary,
    Text,
}

/// A backend of gRPC, with the heads and bodies that it got.
#[derive(Clone, Default)]
struct Calls {
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    /// Lets a stream go on.
    go_on: Arc<Notify>,
    /// Of a call that was given up.
    given_up: Arc<Notify>,
}

fn policy(grpc_web: GrpcWeb) -> Option<Arc<TrafficPolicy>> {
    let compression = Compression { codings: [Coding::Gzip].into(), least_bytes: 0 };
    let protection = Protection {
        grpc_web: Some(grpc_web),
        compression: Some(Arc::new(compression)),
        ..Protection::by(ObjectName::new("test", "p"))
    };
    TrafficPolicy::of(vec![Level { target: "GRPCRoute test/r".into(), protection: Arc::new(protection) }])
}

fn translated() -> RuleSpec {
    rule().policy(policy(GrpcWeb::Translate))
}

async fn world(rule: RuleSpec, endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &[endpoint]);
    world.http("*", vec![rule.clone()]);
    world.https("*", vec![rule]);
    world.apply().await;
    world
}

async fn backed(rule: RuleSpec) -> (World, Calls) {
    let calls = Calls::default();
    let address = calls.clone().serve().await;
    (world(rule, address).await, calls)
}

fn message(text: &str) -> Vec<u8> {
    [&[0][..], &u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

/// A call as a browser makes it.
fn call(method: &str, format: Format, body: &[u8]) -> String {
    let (kind, body) = match format {
        Format::Binary => ("grpc-web+proto", String::from_utf8(body.to_vec()).unwrap()),
        Format::Text => ("grpc-web-text+proto", STANDARD.encode(body)),
    };
    let fields = format!("content-type: application/{kind}\naccept: application/{kind}\nx-grpc-web: 1");
    format!("POST /shop.Cart/{method}\n{fields}\naccept-encoding: gzip\n\n{body}")
}

async fn begin(world: &World, via: Via, call: &str) -> Response<Incoming> {
    Client::connect(via, world.address(via), "any.test").await.start(call).await.unwrap()
}

/// Base64 in segments, as clients have to read it.
fn decoded(text: &[u8]) -> Vec<u8> {
    assert!(text.len().is_multiple_of(4), "{text:?}");
    text.chunks(4).flat_map(|quad| STANDARD.decode(quad).unwrap()).collect()
}

/// The head, and the bytes of its messages.
async fn answer(world: &World, via: Via, format: Format, call: &str) -> (HeaderMap, Vec<u8>) {
    let (head, body) = begin(world, via, call).await.into_parts();
    assert_eq!(head.status, 200, "{via:?}: {head:?}");
    let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("it goes on").unwrap();
    assert!(body.trailers().is_none(), "browsers see none");
    let body = body.to_bytes();
    (head.headers, if format == Format::Text { decoded(&body) } else { body.to_vec() })
}

#[tokio::test]
async fn calls_are_grpc_to_the_backend_and_grpc_web_to_the_client() {
    let (world, calls) = backed(translated()).await;
    for via in Via::ALL {
        for (format, kind) in [
            (Format::Binary, "application/grpc-web+proto"),
            (Format::Text, "application/grpc-web-text+proto"),
        ] {
            let asked = call("Echo", format, &message("hello")).replace("accept-enc", "te: x\naccept-enc");
            let asked = asked.replace("x-grpc-web: 1", "grpc-timeout: 20S");
            let (head, body) = answer(&world, via, format, &asked).await;
            assert_eq!(head["content-type"], kind, "{via:?}");
            assert_eq!((head.get("content-length"), head.get("content-encoding")), (None, None));
            assert_eq!(body, [&message("hello"), FINE].concat(), "{via:?} {format:?}");
            let (seen, body) = calls.last();
            assert_eq!(seen["content-type"], "application/grpc+proto", "{via:?}");
            assert_eq!((&seen["te"], &seen["grpc-timeout"]), (&known("trailers"), &known("20S")));
            assert_eq!((seen.get("content-length"), seen.get("accept-encoding")), (None, None));
            assert_eq!(body, message("hello"), "{via:?} {format:?}");
        }
    }
}

#[tokio::test]
async fn what_is_accepted_decides_about_the_answer() {
    let (world, _calls) = backed(translated()).await;
    let asked = call("Echo", Format::Binary, &message("hello"));
    let asked = asked.replace("accept: application/grpc-web+proto", "accept: application/grpc-web-text");
    let (head, body) = answer(&world, Via::Http1, Format::Text, &asked).await;
    assert_eq!(head["content-type"], "application/grpc-web-text+proto");
    assert_eq!(body, [&message("hello"), FINE].concat());
}

/// Each message comes before the backend sends the next one.
#[tokio::test]
async fn messages_of_a_stream_come_as_they_are_sent() {
    let (world, calls) = backed(translated()).await;
    for via in Via::ALL {
        for format in [Format::Binary, Format::Text] {
            let mut body = begin(&world, via, &call("Stream", format, &message("go"))).await.into_body();
            for number in 0..3 {
                let expected = match format {
                    Format::Binary => message(&format!("message {number}")),
                    Format::Text => STANDARD.encode(message(&format!("message {number}"))).into_bytes(),
                };
                let mut came = Vec::new();
                while came.len() < expected.len() {
                    let frame = tokio::time::timeout(TIMEOUT, body.frame()).await.expect("nothing comes");
                    came.extend(frame.unwrap().unwrap().into_data().unwrap());
                }
                assert_eq!(came, expected, "{via:?} {format:?}");
                calls.go_on.notify_one();
            }
            let rest = body.collect().await.unwrap().to_bytes();
            let rest = if format == Format::Text { decoded(&rest) } else { rest.to_vec() };
            assert_eq!(rest, FINE, "{via:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_of_trailers_alone_stays_a_head() {
    let (world, _calls) = backed(translated()).await;
    for via in Via::ALL {
        let asked = call("Fail", Format::Text, &message("hello"));
        let (head, body) = answer(&world, via, Format::Text, &asked).await;
        assert_eq!(head["content-type"], "application/grpc-web-text", "{via:?}");
        assert_eq!((&head["grpc-status"], &head["grpc-message"]), (&known("5"), &known("no%20cart")));
        assert!(body.is_empty(), "{body:?}");
    }
}

#[tokio::test]
async fn trailers_after_messages_say_how_it_ended() {
    let (world, _calls) = backed(translated()).await;
    let (_, body) = answer(&world, Via::Http1, Format::Binary, &call("Half", Format::Binary, &[])).await;
    let trailers = "grpc-status:8\r\ngrpc-message:too many\r\nx-bin:AAE=\r\n";
    let length = u8::try_from(trailers.len()).unwrap();
    assert_eq!(body, [&message("one")[..], &[0x80, 0, 0, 0, length], trailers.as_bytes()].concat());
}

#[tokio::test]
async fn a_backend_that_breaks_off_breaks_the_answer_off() {
    let (world, calls) = backed(translated()).await;
    for via in Via::ALL {
        for (method, format) in
            [("Break", Format::Binary), ("Break", Format::Text), ("Early", Format::Binary)]
        {
            let mut client = Client::connect(via, world.address(via), "any.test").await;
            // It may break off before the head is written.
            let Ok(response) = client.start(&call(method, format, &message("hello"))).await else { continue };
            if method == "Break" {
                calls.go_on.notify_one();
            }
            let body = tokio::time::timeout(TIMEOUT, response.into_body().collect()).await;
            assert!(body.expect("it goes on").is_err(), "{via:?} {method} {format:?}");
        }
    }
}

#[tokio::test]
async fn what_is_no_grpc_passes() {
    let (world, _calls) = backed(translated()).await;
    for via in Via::ALL {
        let response = begin(&world, via, &call("Page", Format::Text, &message("hello"))).await;
        assert_eq!(response.status(), 404);
        assert_eq!(response.headers()["content-type"], "text/html");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(!body.is_empty() && !body.starts_with(b"PGh"), "{body:?}");
    }
}

#[tokio::test]
async fn bodies_that_are_not_base64_are_refused_and_cancelled() {
    let (world, calls) = backed(translated()).await;
    for via in Via::ALL {
        for body in ["AAAAAAVoZWxs!28=", "AAAAAAVoZWxsb", "AAAA AVoZWxsbw=="] {
            let asked = call("Wait", Format::Text, &[]) + body;
            let reply = world.send(via, &asked).await;
            assert_eq!(reply.status, 400, "{via:?} {body}: {reply:?}");
            assert!(reply.body.contains("the request body is malformed"), "{reply:?}");
            tokio::time::timeout(TIMEOUT, calls.given_up.notified()).await.expect("it was not cancelled");
        }
    }
}

#[tokio::test]
async fn base64_may_break_off_anywhere() {
    let (world, calls) = backed(translated()).await;
    let text = STANDARD.encode(message("hello")) + &STANDARD.encode(message("again"));
    for piece in 1..=5 {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        let head = "POST /shop.Cart/Echo HTTP/1.1\r\nhost: any.test\r\nconnection: close\r\n\
            content-type: application/grpc-web-text\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for digits in text.as_bytes().chunks(piece) {
            let chunk = format!("{:x}\r\n{}\r\n", digits.len(), String::from_utf8_lossy(digits));
            stream.write_all(chunk.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(calls.last().1, [message("hello"), message("again")].concat(), "by {piece}");
    }
}

#[tokio::test]
async fn a_deadline_is_told_between_messages_only() {
    let (world, _calls) = backed(translated()).await;
    for via in Via::ALL {
        for format in [Format::Binary, Format::Text] {
            // A busy machine may take longer than that to send the first message.
            let mut deadlines = [200, 1_000, 5_000].into_iter();
            let (asked, body) = loop {
                let deadline = format!("grpc-timeout: {}m", deadlines.next().expect("a message comes"));
                let asked = call("Stall", format, &message("hello")).replace("x-grpc-web: 1", &deadline);
                let (_, body) = answer(&world, via, format, &asked).await;
                if body.starts_with(&message("one")) {
                    break (asked, body);
                }
            };
            let rest = &body[message("one").len()..];
            assert_eq!(rest[0], 0x80, "{via:?}");
            assert!(String::from_utf8_lossy(rest).contains("grpc-status:4\r\n"), "{rest:?}");
            let response = begin(&world, via, &asked.replace("Stall", "Midway")).await;
            assert!(response.into_body().collect().await.is_err(), "{via:?} {format:?}");
        }
    }
}

/// Answers of the gateway's own are heads as trailers-only answers of backends are.
#[tokio::test]
async fn what_the_gateway_answers_can_be_read() {
    let (nowhere, (slow, _calls)) = (World::new(), backed(translated()).await);
    let (mut nowhere, asked) = (nowhere, call("Silent", Format::Text, &message("hello")));
    nowhere.backend("echo", BackendProtocol::H2c, &[]);
    nowhere.http("*", vec![translated()]);
    nowhere.https("*", vec![translated()]);
    nowhere.apply().await;
    for via in Via::ALL {
        for (world, asked, code) in [
            (&nowhere, asked.clone(), "14"),
            (&slow, asked.replace("x-grpc-web: 1", "grpc-timeout: 100m"), "4"),
        ] {
            let (head, body) = answer(world, via, Format::Binary, &asked).await;
            assert_eq!(head["grpc-status"], code, "{via:?}");
            assert_eq!(head["content-type"], "application/grpc-web-text+proto", "{via:?}");
            assert!(body.is_empty());
        }
    }
}

#[tokio::test]
async fn pages_of_other_origins_read_it_as_the_cors_filter_says() {
    let cors = Cors {
        origins: AllowedOrigins::Listed([OriginPattern::parse("https://a.test").unwrap()].into()),
        credentials: Credentials::Withheld,
        methods: AllowedNames::Listed(known("POST")),
        headers: AllowedNames::Listed(known("content-type, x-grpc-web")),
        expose: Some(known("grpc-status, grpc-message")),
        max_age: 5,
    };
    let (world, calls) = backed(translated().filter(Filter::Cors(Box::new(cors)))).await;
    for via in Via::ALL {
        let asked = "OPTIONS /shop.Cart/Echo\norigin: https://a.test\naccess-control-request-method: POST";
        let reply = world.send(via, asked).await;
        assert_eq!(
            (reply.status.as_u16(), reply.header("access-control-allow-methods")),
            (204, Some("POST"))
        );
        assert!(calls.seen.lock().unwrap().is_empty(), "no backend sees it");
    }
    for (method, status) in [("Echo", None), ("Fail", Some("5"))] {
        let asked = call(method, Format::Binary, &message("hello"));
        let asked = asked.replace("x-grpc-web: 1", "origin: https://a.test");
        let (head, _) = answer(&world, Via::Http1, Format::Binary, &asked).await;
        assert_eq!(head["access-control-allow-origin"], "https://a.test");
        assert_eq!(head["access-control-expose-headers"], "grpc-status, grpc-message");
        assert_eq!(head.get("grpc-status").map(|it| it.to_str().unwrap()), status);
    }
}

#[tokio::test]
async fn mirrors_get_what_the_backend_gets() {
    let mirror = Calls::default();
    let address = mirror.clone().serve().await;
    let filter = Filter::Mirror(Mirror { backend: backend_name("mirror"), share: Share::ALL });
    let (mut world, _calls) = backed(translated().filter(filter)).await;
    world.backend("mirror", BackendProtocol::H2c, &[address]);
    world.apply().await;
    let asked = call("Echo", Format::Text, &message("hello"));
    answer(&world, Via::Http1, Format::Text, &asked).await;
    eventually("the mirror has it", async || !mirror.seen.lock().unwrap().is_empty()).await;
    let (head, body) = mirror.last();
    assert_eq!(head["content-type"], "application/grpc+proto");
    assert_eq!(body, message("hello"));
}

#[tokio::test]
async fn a_retry_sends_the_same_once_more() {
    let (world, calls) = backed(translated().retry(1, &[503])).await;
    let asked = call("Again", Format::Text, &message("hello"));
    let (_, body) = answer(&world, Via::Http1, Format::Text, &asked).await;
    assert_eq!(body, [&message("hello"), FINE].concat());
    let seen = calls.seen.lock().unwrap().clone();
    assert_eq!(seen.iter().map(|(_, body)| body.clone()).collect::<Vec<_>>(), vec![message("hello"); 2]);
}

/// A rule's policy goes before its listener's.
#[tokio::test]
async fn where_it_is_not_asked_for_it_passes_as_it_is() {
    let origins = [Origin::h2c().await, Origin::http1().await];
    for (of_listener, rule, protocol) in [
        (None, rule(), BackendProtocol::H2c),
        (policy(GrpcWeb::Translate), rule().policy(policy(GrpcWeb::Pass)), BackendProtocol::H2c),
        // It could not take gRPC.
        (policy(GrpcWeb::Translate), rule(), BackendProtocol::Http1),
    ] {
        let origin = &origins[usize::from(protocol == BackendProtocol::Http1)];
        let mut world = World::new();
        world.backend("echo", protocol, &[origin.address]);
        world.http("*", vec![rule]);
        world.policy = of_listener;
        world.apply().await;
        for via in [Via::Http1, Via::H2c] {
            let reply = world.send(via, &call("Echo", Format::Text, &message("hello"))).await;
            assert!(reply.body.contains("content-type: application/grpc-web-text+proto"), "{reply:?}");
            assert!(reply.body.ends_with(&STANDARD.encode(message("hello"))), "{reply:?}");
        }
    }
    let calls = Calls::default();
    let mut world = world(rule(), calls.clone().serve().await).await;
    world.policy = policy(GrpcWeb::Translate);
    world.apply().await;
    answer(&world, Via::H2c, Format::Text, &call("Echo", Format::Text, &message("hello"))).await;
    assert_eq!(calls.last().1, message("hello"), "a listener's policy asks for it, too");
}

fn known(value: &'static str) -> http::HeaderValue {
    http::HeaderValue::from_static(value)
}

// === impl Calls ===

impl Calls {
    fn last(&self) -> (HeaderMap, Bytes) {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let calls = self.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(calls.clone().answer(request, respond));
                    }
                });
            }
        });
        address
    }

    /// The last element of the path says what becomes of the call.
    async fn answer(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let (parts, mut body) = request.into_parts();
        let mut whole = Vec::new();
        while let Some(data) = body.data().await {
            let Ok(data) = data else { return self.given_up.notify_one() };
            body.flow_control().release_capacity(data.len()).unwrap();
            whole.extend_from_slice(&data);
        }
        let whole = Bytes::from(whole);
        let kind = parts.headers["content-type"].clone();
        self.seen.lock().unwrap().push((parts.headers, whole.clone()));
        let head = Response::builder().header("content-type", kind);
        let trailers = |fields: &[(&'static str, &'static str)]| {
            fields.iter().map(|(name, value)| (name.parse().unwrap(), known(value))).collect::<HeaderMap>()
        };
        match &*method {
            "Fail" => {
                let head = Response::builder().header("content-type", "application/grpc");
                let head = head.header("grpc-status", "5").header("grpc-message", "no%20cart");
                respond.send_response(head.body(()).unwrap(), true).unwrap();
            }
            "Page" => {
                let head = Response::builder().status(404).header("content-type", "text/html");
                let mut response = respond.send_response(head.body(()).unwrap(), false).unwrap();
                response.send_data(Bytes::from_static(b"<html>nothing here</html>"), true).unwrap();
            }
            "Silent" => std::future::pending().await,
            "Again" if self.seen.lock().unwrap().len() == 1 => {
                respond.send_response(head.status(503).body(()).unwrap(), true).unwrap();
            }
            _ => {
                let mut response = respond.send_response(head.body(()).unwrap(), false).unwrap();
                let mut send =
                    |bytes: &[u8]| response.send_data(Bytes::copy_from_slice(bytes), false).unwrap();
                match &*method {
                    "Stream" => {
                        for number in 0..3 {
                            send(&message(&format!("message {number}")));
                            self.go_on.notified().await;
                        }
                    }
                    "Half" => send(&message("one")),
                    // A message that is longer than what comes of it.
                    "Break" | "Early" | "Midway" => send(&message("hello")[..7]),
                    "Stall" => send(&message("one")),
                    _ => send(&whole),
                }
                match &*method {
                    "Break" => {
                        self.go_on.notified().await;
                        response.send_reset(Reason::INTERNAL_ERROR);
                    }
                    "Stall" | "Midway" => std::future::pending().await,
                    "Half" => {
                        let fields = [("grpc-status", "8"), ("grpc-message", "too many"), ("x-bin", "AAE=")];
                        response.send_trailers(trailers(&fields)).unwrap();
                    }
                    _ => response.send_trailers(trailers(&[("grpc-status", "0")])).unwrap(),
                }
            }
        }
    }
}
