//! gRPC calls that a backend answers: deadlines, streams both ways, and how they end.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use portcullis_model::BackendProtocol;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

use crate::support;
use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::Via;
use crate::support::world::World;

const CALL: &str = "POST /shop.Cart/Add\ncontent-type: application/grpc+proto\nte: trailers";
const GRPC: [Via; 2] = [Via::H2c, Via::Http2Tls];
const TIMEOUT: Duration = Duration::from_secs(50);

async fn world(rules: Vec<RuleSpec>, endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &[endpoint]);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    world
}

#[tokio::test]
async fn a_deadline_of_the_client_ends_a_call_that_no_backend_answers() {
    let origin = Origin::h2c().await;
    let world = world(vec![rule()], origin.address).await;
    for via in GRPC {
        let call = CALL.replace("Add", "Add?delay=30000") + "\ngrpc-timeout: 100m";
        let reply = world.send(via, &call).await;
        assert_eq!(
            (reply.status.as_u16(), reply.header("grpc-status")),
            (200, Some("4")),
            "{via:?}: {reply:?}"
        );
    }
}

#[tokio::test]
async fn a_deadline_ends_a_response_that_has_begun_by_its_trailers() {
    let origin = Origin::h2c().await;
    let world = world(vec![rule()], origin.address).await;
    for via in GRPC {
        let call = CALL.replace("Add", "Add?stall") + "\ngrpc-timeout: 200m";
        let reply = world.send(via, &call).await;
        assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, None), "{via:?}");
        assert_eq!(reply.trailers.get("grpc-status").unwrap(), "4", "{via:?}: {reply:?}");
    }
}

/// Trailers are among gRPC-Web's messages, and HTTP/1 clients have not asked for them.
#[tokio::test]
async fn a_response_of_another_kind_breaks_off() {
    let origin = Origin::h2c().await;
    let world = world(vec![rule().request_timeout(200)], origin.address).await;
    for (via, kind) in [(Via::H2c, "grpc-web"), (Via::Http1, "grpc-web"), (Via::H2c, "json")] {
        let call =
            CALL.replace("Add", "Add?stall").replace("grpc+proto", kind).replace("te: trailers", "a: b");
        let mut client = support::via::Client::connect(via, world.address(via), "any.test").await;
        assert!(client.try_send(&call).await.is_err(), "{via:?} {kind}");
    }
}

#[tokio::test]
async fn the_backend_is_told_the_shorter_deadline() {
    let origin = Origin::h2c().await;
    for (limit, given, told) in [
        (None, "60S", "grpc-timeout: 60S"),
        (Some(20_000), "60S", "grpc-timeout: 20000m"),
        (Some(20_000), "10S", "grpc-timeout: 10S"),
        (Some(20_000), "soon", "grpc-timeout: soon"),
    ] {
        let rules = limit.map_or_else(rule, |limit| rule().request_timeout(limit));
        let world = world(vec![rules], origin.address).await;
        let reply = world.send(Via::H2c, &format!("{CALL}\ngrpc-timeout: {given}")).await;
        assert!(reply.body.contains(told), "{told}: {reply:?}");
        let other = format!("{}\ngrpc-timeout: {given}", CALL.replace("application/grpc+proto", "a/b"));
        let reply = world.send(Via::H2c, &other).await;
        assert!(reply.body.contains(&format!("grpc-timeout: {given}")), "not gRPC: {reply:?}");
    }
}

/// Else the client could go on sending for as long as it likes.
#[tokio::test]
async fn a_call_whose_time_is_over_is_cancelled_at_the_backend() {
    let (events, mut seen) = unbounded_channel();
    let backend = serve(move |request, mut respond| {
        let events = events.clone();
        async move {
            let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let mut response = respond.send_response(head, false).unwrap();
            let reason = std::future::poll_fn(|cx| response.poll_reset(cx)).await;
            drop(request);
            events.send(reason.unwrap()).unwrap();
        }
    })
    .await;
    let world = world(vec![rule()], backend).await;
    let (response, mut upload) = call(&world, "200m").await;
    let mut body = response.into_body();
    assert!(body.data().await.is_none());
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "4");
    let _ = upload.send_data(Bytes::from_static(b"more"), false);
    let reason = tokio::time::timeout(TIMEOUT, seen.recv()).await.expect("it was never cancelled");
    assert_eq!(reason, Some(Reason::CANCEL));
}

/// Each message gets its answer before the next one is sent, so neither way waits for the end of
/// the other; then one way is full while the other is idle.
#[tokio::test]
async fn both_ways_stream_at_the_same_time_and_end_with_trailers() {
    let backend = serve(echo).await;
    let world = world(vec![rule()], backend).await;
    let (response, mut upload) = call(&world, "20S").await;
    let mut body = response.into_body();
    for number in 0..64_u8 {
        upload.send_data(Bytes::from(vec![number; 512]), false).unwrap();
        assert_eq!(take(&mut body, 512).await, vec![number; 512], "message {number}");
    }
    // More than the windows of both connections together: the client's answers wait for it.
    let much = 4 << 20;
    upload.reserve_capacity(much);
    let sending = tokio::spawn(async move {
        let mut left = much;
        while left > 0 {
            let room = std::future::poll_fn(|cx| upload.poll_capacity(cx)).await.unwrap().unwrap();
            let piece = room.min(left);
            upload.send_data(Bytes::from(vec![b'x'; piece]), piece == left).unwrap();
            left -= piece;
        }
    });
    let mut echoed = 0;
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        echoed += data.len();
    }
    sending.await.unwrap();
    assert_eq!(echoed, much);
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-sum"]),
        (&"0".parse().unwrap(), &"4227072".parse().unwrap())
    );
}

// === a client and a backend of frames ===

async fn call(world: &World, timeout: &str) -> (Response<RecvStream>, h2::SendStream<Bytes>) {
    let stream = TcpStream::connect(world.plain).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://any.test/shop.Cart/Add").header("content-type", "application/grpc");
    let request = request.header("te", "trailers").header("grpc-timeout", timeout).body(()).unwrap();
    let (response, upload) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    let response = tokio::time::timeout(TIMEOUT, response).await.expect("no response").unwrap();
    (response, upload)
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

/// Sends back what comes, and its number of bytes in the trailers.
async fn echo(mut request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut response = respond.send_response(head, false).unwrap();
    let mut sum = 0;
    while let Some(data) = request.body_mut().data().await {
        let mut data = data.unwrap();
        sum += data.len();
        request.body_mut().flow_control().release_capacity(data.len()).unwrap();
        while !data.is_empty() {
            response.reserve_capacity(data.len());
            let Some(room) = std::future::poll_fn(|cx| response.poll_capacity(cx)).await else { return };
            let room = room.unwrap().min(data.len());
            response.send_data(data.split_to(room), false).unwrap();
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.insert("x-sum", sum.to_string().parse().unwrap());
    response.send_trailers(trailers).unwrap();
}

async fn serve<F>(
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
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(handle(request, respond));
                }
            });
        }
    });
    address
}
