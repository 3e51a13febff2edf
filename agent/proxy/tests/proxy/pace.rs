//! Clients that are slow on purpose, and those that only look like it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis_model::{
    BackendProtocol, Defaults, Level, ObjectName, Protection, TimeLimit, Timeouts, TrafficPolicy,
};
use portcullis_proxy::{ExceededLimit, MinimumRate, Reason, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

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
    let mut world = World::with(Settings { minimum_rate, ..settings() });
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
    world.listeners[0].rules = vec![rule().any_time()];
    world.apply().await;
    stalled_clients_stay(&world).await;
}

#[tokio::test]
async fn slow_clients_stay_where_a_policy_of_the_listener_says_so() {
    let timeouts = Timeouts { request: TimeLimit::Lifted, ..Timeouts::default() };
    let defaults = Some(Arc::new(Defaults { timeouts, retry: None }));
    let protection = Protection { defaults, ..Protection::by(ObjectName::new("test", "p")) };
    let level = Level { target: "Gateway test/gateway".into(), protection: Arc::new(protection) };
    let mut world = world(large().await, RATE).await;
    world.policy = TrafficPolicy::of(vec![level]);
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
    let mut world = World::with(Settings { minimum_rate, ..settings() });
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
    let settings = Settings { buffers: 2 << 20, minimum_rate, ..settings() };
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

const POST: u8 = 0x83;
/// Fields of HPACK's static table (RFC 7541, appendix A).
const CONTENT_LENGTH: u8 = 28;
const CONTENT_TYPE: u8 = 31;

/// The beginning of an HTTP/2 connection with one request, `begun` of whose body has come.
fn http2_upload(host: &str, fields: &[(u8, &str)], begun: &[u8]) -> Vec<u8> {
    let mut head = vec![POST, 0x86, 0x84, 0x41, u8::try_from(host.len()).unwrap()];
    head.extend(host.as_bytes());
    for (index, value) in fields {
        head.extend([0x0f, index - 15, u8::try_from(value.len()).unwrap()]);
        head.extend(value.as_bytes());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for (kind, flags, stream, payload) in [(4, 0, 0, &[][..]), (1, 4, 1, &head), (0, 0, 1, begun)] {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        bytes.extend([&length[1..], &[kind, flags], &u32::to_be_bytes(stream), payload].concat());
    }
    bytes
}

/// Its connection may have other requests, and be another proxy's.
#[tokio::test]
async fn an_http2_body_that_does_not_come_as_announced_goes_alone() {
    for (protocol, origin) in
        [(BackendProtocol::Http1, Origin::http1().await), (BackendProtocol::H2c, Origin::h2c().await)]
    {
        let mut world = world(origin.address, RATE).await;
        world.backend("echo", protocol, &[origin.address]);
        world.apply().await;
        let mut stream = connect(world.plain).await;
        stream.write_all(&http2_upload("a", &[(CONTENT_LENGTH, "1000")], b"the beginning")).await.unwrap();
        eventually("the body is too slow", async || {
            closed_for(&world, ExceededLimit::MinimumRate).await == 1
        })
        .await;
        eventually("the client is told", async || {
            world.proxy.stats().await.answers.get(&Reason::BodyTooSlow) == Some(&1)
        })
        .await;
        // Another request, GET /, on the same connection.
        stream.write_all(&[0, 0, 6, 1, 5, 0, 0, 0, 3, 0x82, 0x86, 0x84, 0x41, 1, b'a']).await.unwrap();
        let mut received = Vec::new();
        while !received.windows(5).any(|head| head == [1, 4, 0, 0, 0]) || !ends_stream(&received, 3) {
            let mut piece = [0; 4096];
            let count = timeout(LONG, stream.read(&mut piece)).await.expect("no answer").unwrap();
            assert!(count > 0, "{protocol:?}: the connection was closed");
            received.extend_from_slice(&piece[..count]);
        }
    }
}

/// True if these frames have the last one of a stream.
fn ends_stream(mut frames: &[u8], stream: u32) -> bool {
    while let Some((head, rest)) = frames.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if matches!(head[3], 0 | 1) && head[4] & 1 == 1 && head[5..] == stream.to_be_bytes() {
            return true;
        }
        frames = rest.get(length..).unwrap_or_default();
    }
    false
}

/// All at once, as above.
#[tokio::test]
async fn http2_bodies_that_may_take_any_time_stay() {
    let origin = Origin::http1().await;
    let mut world = world(origin.address, RATE).await;
    let rules = [rule().host("kept.test").any_time(), rule()];
    world.listeners[0].rules = rules.to_vec();
    world.apply().await;
    let grpc = [(CONTENT_TYPE, "application/grpc"), (CONTENT_LENGTH, "1000")];
    let mut streams = Vec::new();
    for upload in [
        http2_upload("a", &[], b"no length"),
        http2_upload("kept.test", &[(CONTENT_LENGTH, "1000")], b"a rule that holds clients to no rate"),
        http2_upload("a", &grpc, b"a message"),
        // All of it has come, and the end of the stream has not.
        http2_upload("a", &[(CONTENT_LENGTH, "3")], b"abc"),
    ] {
        let mut stream = connect(world.plain).await;
        stream.write_all(&upload).await.unwrap();
        streams.push(stream);
    }
    // Sends faster than it has to.
    let mut sender = connect(world.plain).await;
    sender.write_all(&http2_upload("a", &[(CONTENT_LENGTH, "1000000")], b"x")).await.unwrap();
    let begun = std::time::Instant::now();
    while begun.elapsed() < LONG {
        sender.write_all(&[&[0, 1, 0, 0, 0, 0, 0, 0, 1][..], &[b'x'; 256]].concat()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(closed_for(&world, ExceededLimit::MinimumRate).await, 0);
    assert_eq!(world.proxy.stats().await.answers, std::collections::BTreeMap::new());
}

/// Memory that slow backends cost counts, too.
#[tokio::test]
async fn bodies_that_no_backend_takes_use_buffers_up() {
    const CLIENTS: usize = 16;
    let minimum_rate = MinimumRate { bytes_per_second: 0, ..MinimumRate::default() };
    let mut world = World::with(Settings { buffers: 1 << 20, minimum_rate, ..settings() });
    let (deaf, origin) = (deaf(), Origin::http1().await);
    world.backend("deaf", BackendProtocol::Http1, &[deaf.local_addr().unwrap()]);
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule().prefix("/deaf").to("deaf"), rule()]);
    world.apply().await;
    // Of HTTP/1 no more is read than the backend takes, and a piece.
    let body = format!("POST /deaf\n\n{}", "x".repeat(8_000_000));
    for _ in 0..CLIENTS {
        let (to, body) = (world.plain, body.clone());
        tokio::spawn(async move { Client::connect(Via::H2c, to, "any.test").await.try_send(&body).await });
    }
    let closed = async || closed_for(&world, ExceededLimit::Buffers).await as usize;
    eventually("there is too much", async || closed().await > 0).await;
    assert!(closed().await < CLIENTS, "some have room");
    assert_eq!(world.send(Via::H2c, "GET /").await.status, 200);
}

/// However often those who fill the memory come with new connections.
#[tokio::test]
async fn who_holds_little_for_long_stays_and_who_fills_the_buffers_goes() {
    const VICTIMS: usize = 8;
    const FILLERS: usize = 16;
    /// Until what victims hold, times the time, is more than what a filler does.
    const SINCE: Duration = Duration::from_secs(10);
    let minimum_rate = MinimumRate { bytes_per_second: 0, ..MinimumRate::default() };
    // Half for each core; the victims have a quarter of that at most.
    let mut world = World::with(Settings { buffers: 2 * (2 << 20), minimum_rate, ..settings() });
    let (deaf, endless) = (deaf(), large().await);
    world.backend("deaf", BackendProtocol::Http1, &[deaf.local_addr().unwrap()]);
    world.backend("endless", BackendProtocol::Http1, &[endless]);
    world.http("*", vec![rule().prefix("/deaf").to("deaf"), rule().to("endless")]);
    world.apply().await;
    let mut victims = Vec::new();
    for _ in 0..VICTIMS {
        let mut stream = connect(world.plain).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'H');
        victims.push(stream);
    }
    let begun = std::time::Instant::now();
    let body = format!("POST /deaf\n\n{}", "x".repeat(8_000_000));
    while begun.elapsed() < SINCE {
        let before = closed_for(&world, ExceededLimit::Buffers).await;
        let mut fillers = tokio::task::JoinSet::new();
        for _ in 0..FILLERS {
            let (to, body) = (world.plain, body.clone());
            fillers.spawn(async move {
                let mut client = Client::connect(Via::H2c, to, "any.test").await;
                let _ = client.try_send(&body).await;
            });
        }
        eventually("there is too much", async || closed_for(&world, ExceededLimit::Buffers).await > before)
            .await;
        let gone = fillers.join_next().await;
        assert!(gone.is_some_and(|gone| gone.is_ok()), "it is one of those who are closed");
    }
    // More than there was in sockets.
    for victim in &mut victims {
        let mut received = vec![0; 16 << 20];
        victim.read_exact(&mut received).await.expect("it is served");
    }
}

/// A backend that takes connections and reads nothing, whose sockets hold little.
fn deaf() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1024).unwrap()
}
