//! Clients that are slow on purpose, and those that only look like it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis_model::{BackendProtocol, ObjectName, SlowClients};
use portcullis_proxy::{ExceededLimit, MinimumRate, Settings};
use support::origin::Origin;
use support::rules::rule;
use support::via::{Client, Via};
use support::world::{World, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Bytes a second that are wanted here: a test need not last for seconds of grace.
const RATE: u32 = 2400;
const GRACE: Duration = Duration::from_secs(1);
/// For longer than grace and a look, whatever the machine does meanwhile.
const LONG: Duration = Duration::from_secs(4);

/// A backend that answers with so much more than any socket holds.
async fn large() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
                let _ = stream.write_all(head).await;
                while stream.write(&[b'x'; 16384]).await.is_ok() {}
            });
        }
    });
    address
}

async fn world(backend: SocketAddr, bytes_per_second: u32) -> World {
    let minimum_rate = MinimumRate { bytes_per_second, grace: GRACE };
    let mut world = World::with(Settings { minimum_rate, ..Settings::default() });
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    world
}

/// A client whose socket takes little, so that what it reads shows soon.
async fn connect(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(to).await.unwrap()
}

async fn closed_for(world: &World, limit: ExceededLimit) -> u64 {
    let stats = world.proxy.stats().await;
    let gateway = stats.gateways.get(&ObjectName::new("test", "gateway"));
    gateway.and_then(|gateway| gateway.refused.get(&limit).copied()).unwrap_or_default()
}

/// Returns once the connection has been closed for it.
async fn goes(world: &World, mut stream: TcpStream) {
    eventually("the client is too slow", async || closed_for(world, ExceededLimit::MinimumRate).await == 1)
        .await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_goes() {
    let world = world(large().await, RATE).await;
    let mut stream = connect(world.plain).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    goes(&world, stream).await;
}

#[tokio::test]
async fn a_client_that_does_not_send_what_it_announced_goes() {
    let origin = Origin::http1().await;
    for announced in ["content-length: 1000\r\n\r\n", "transfer-encoding: chunked\r\n\r\n3e8\r\n"] {
        let world = world(origin.address, RATE).await;
        let mut stream = connect(world.plain).await;
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{announced}");
        stream.write_all(head.as_bytes()).await.unwrap();
        goes(&world, stream).await;
    }
}

/// One byte at a time does not help.
#[tokio::test]
async fn a_client_that_sends_too_slowly_goes() {
    let origin = Origin::http1().await;
    let world = world(origin.address, RATE).await;
    let (mut from, mut to) = connect(world.plain).await.into_split();
    to.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n").await.unwrap();
    let trickle = tokio::spawn(async move {
        while to.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    eventually("the client is too slow", async || closed_for(&world, ExceededLimit::MinimumRate).await == 1)
        .await;
    let _ = from.read_to_end(&mut Vec::new()).await;
    trickle.await.unwrap();
}

/// All at once, for they wait for the same to not happen: longer than any of them could stay if it
/// had to go.
#[tokio::test]
async fn what_is_not_up_to_the_client_stays() {
    let (origin, endless) = (Origin::http1().await, large().await);
    let (small, large) = (world(origin.address, RATE).await, world(endless, RATE).await);
    let mut idle = connect(small.plain).await;
    idle.write_all(b"GET /?stall HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut slow_backend = connect(small.plain).await;
    slow_backend.write_all(b"GET /?delay=60000 HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    // A chunk is whole, and none is announced.
    let mut silent_upload = connect(small.plain).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n";
    silent_upload.write_all(head).await.unwrap();
    let mut tunnel = connect(small.plain).await;
    let head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    tunnel.write_all(head).await.unwrap();
    let mut switched = vec![0; 4096];
    let read = tunnel.read(&mut switched).await.unwrap();
    assert!(switched[..read].starts_with(b"HTTP/1.1 101 "));
    let mut grpc = connect(large.plain).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\ncontent-length: 9\r\n\r\n";
    grpc.write_all(head).await.unwrap();
    let mut kept = Client::connect(Via::Http1, small.plain, "any.test").await;
    assert_eq!(kept.send("GET /").await.status, 200);
    // Reads faster than it has to.
    let mut reader = connect(large.plain).await;
    reader.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut piece = vec![0; 4096];
    let begun = std::time::Instant::now();
    while begun.elapsed() < LONG {
        reader.read_exact(&mut piece).await.expect("who reads stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for world in [&small, &large] {
        assert_eq!(closed_for(world, ExceededLimit::MinimumRate).await, 0);
    }
    assert_eq!(kept.send("GET /").await.status, 200);
    tunnel.write_all(b"still there").await.unwrap();
    let read = tunnel.read(&mut switched).await.unwrap();
    assert!(read > 0 && b"still there".starts_with(&switched[..read]));
    silent_upload.write_all(b"1\r\nc\r\n0\r\n\r\n").await.unwrap();
    let read = silent_upload.read(&mut switched).await.unwrap();
    assert!(switched[..read].starts_with(b"HTTP/1.1 200 "));
    assert!(grpc.read(&mut switched).await.unwrap() > 0);
}

#[tokio::test]
async fn without_a_minimum_rate_slow_clients_stay() {
    stalled_clients_stay(&world(large().await, 0).await).await;
}

#[tokio::test]
async fn slow_clients_stay_with_a_rule_that_says_so() {
    let mut world = world(large().await, RATE).await;
    world.listeners[0].rules = vec![rule().slow_clients(SlowClients::Keep)];
    world.apply().await;
    stalled_clients_stay(&world).await;
}

async fn stalled_clients_stay(world: &World) {
    let mut stream = connect(world.plain).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let begun = std::time::Instant::now();
    eventually("time passes", async || begun.elapsed() > LONG).await;
    assert_eq!(closed_for(world, ExceededLimit::MinimumRate).await, 0);
    assert!(stream.read(&mut [0; 10]).await.unwrap() > 0);
}

/// They share a connection to a backend of HTTP/2 with others.
#[tokio::test]
async fn clients_that_do_not_read_leave_room_for_others() {
    let minimum_rate = MinimumRate { bytes_per_second: 0, ..MinimumRate::default() };
    let mut world = World::with(Settings { minimum_rate, ..Settings::default() });
    let origin = Origin::h2c().await;
    world.backend("echo", BackendProtocol::H2c, &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let mut stalled = Vec::new();
    for _ in 0..12 {
        let mut stream = connect(world.plain).await;
        stream.write_all(b"GET /?size=50000000 HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        stalled.push(stream);
    }
    let mut last = 0;
    eventually("all are stalled", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let produced = origin.produced.load(Ordering::SeqCst);
        std::mem::replace(&mut last, produced) == produced && produced > 0
    })
    .await;
    let whole = timeout(Duration::from_secs(20), world.send(Via::Http1, "GET /?size=3000000")).await;
    assert_eq!(whole.expect("others have no room").body.len(), 3_000_000);
    assert_eq!(origin.connections(), 1);
}

/// Clients go that do not read once their responses take more than the agent may have for them;
/// others are served whole.
#[tokio::test]
async fn the_most_unread_goes_first_when_buffers_are_used_up() {
    const STALLED: usize = 60;
    let minimum_rate = MinimumRate { bytes_per_second: 0, ..MinimumRate::default() };
    // Half of it for each core: room for a third of them.
    let settings = Settings { buffers: 2 << 20, minimum_rate, ..Settings::default() };
    let mut world = World::with(settings);
    let (endless, origin) = (large().await, Origin::http1().await);
    world.backend("endless", BackendProtocol::Http1, &[endless]);
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule().prefix("/endless").to("endless"), rule()]);
    world.apply().await;
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        let mut stream = connect(world.plain).await;
        stream.write_all(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        stalled.push(stream);
    }
    let closed = async || closed_for(&world, ExceededLimit::Buffers).await as usize;
    eventually("there is too much", async || closed().await > 0).await;
    let whole = world.send(Via::Http1, "GET /?size=20000000").await;
    assert_eq!(whole.body.len(), 20_000_000);
    let last = closed().await;
    assert!((STALLED / 4..STALLED).contains(&last), "{last} of {STALLED} are closed");
    assert_eq!(world.send(Via::H2c, "GET /").await.status, 200);
}
