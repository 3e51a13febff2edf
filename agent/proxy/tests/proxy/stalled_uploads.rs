//! Backends that take nothing of a request's body: neither the client nor what it has of the agent
//! waits for them for ever. And those that only look like it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use http::{Request, Response};
use portcullis_model::BackendProtocol;
use portcullis_proxy::{Reason, Settings, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::resilience::{outliers, stats};
use crate::support::rules::{RuleSpec, rule};
use crate::support::settings::settings;
use crate::support::via::{Client, Reply, Via};
use crate::support::world::{World, eventually};

/// The time for which backends may take nothing here: a test need not last for a minute.
const STALLED: Duration = Duration::from_secs(1);
/// For longer than that and a look, whatever the machine does meanwhile.
const LONG: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(50);
/// More bytes than all sockets and windows hold.
const LARGE: usize = 16 << 20;
/// The window of a stream and of a connection, unless a backend says otherwise.
const WINDOW: usize = 65_535;
const TEXT: &str = "text/plain";
const PROTOCOLS: [BackendProtocol; 2] = [BackendProtocol::Http1, BackendProtocol::H2c];

/// The way in which a backend answers a request of which it reads the head alone.
#[derive(Clone)]
enum Answer {
    Never,
    /// A head, and then nothing.
    Head,
    /// A byte now and then, for so long.
    Slowly(Duration),
    /// With the whole body, once that may be read.
    Echo(Arc<Semaphore>),
}

async fn backend(protocol: BackendProtocol, answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            if protocol == BackendProtocol::H2c {
                open.spawn(serve_http2(stream, answer));
            } else {
                open.spawn(serve_http1(stream, answer));
            }
        }
    });
    address
}

async fn serve_http1(mut stream: TcpStream, answer: Answer) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    match answer {
        Answer::Never => {}
        Answer::Head => stream.write_all(begun).await.unwrap(),
        Answer::Slowly(time) => {
            stream.write_all(begun).await.unwrap();
            let end = Instant::now() + time;
            while Instant::now() < end {
                stream.write_all(b"1\r\nx\r\n").await.unwrap();
                sleep(STALLED / 5).await;
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        Answer::Echo(may_read) => {
            may_read.acquire().await.unwrap().forget();
            let mut body = Vec::new();
            while !body.ends_with(b"0\r\n\r\n") {
                stream.read_buf(&mut body).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        }
    }
    std::future::pending().await
}

async fn serve_http2(stream: TcpStream, answer: Answer) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut tasks = JoinSet::new();
    while let Some(Ok((request, respond))) = connection.accept().await {
        tasks.spawn(answer_http2(request, respond, answer.clone()));
    }
}

async fn answer_http2(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>, answer: Answer) {
    let mut body = request.into_body();
    match answer {
        Answer::Never => {}
        Answer::Head => drop(respond.send_response(Response::new(()), false).unwrap()),
        Answer::Slowly(time) => {
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            let end = Instant::now() + time;
            while Instant::now() < end {
                stream.send_data(Bytes::from_static(b"x"), false).unwrap();
                sleep(STALLED / 5).await;
            }
            stream.send_data(Bytes::new(), true).unwrap();
        }
        Answer::Echo(may_read) => {
            may_read.acquire().await.unwrap().forget();
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
            }
            respond.send_response(Response::new(()), true).unwrap();
        }
    }
    // The rest is held, and nothing of it is taken.
    std::future::pending().await
}

async fn world(protocol: BackendProtocol, rule: RuleSpec, endpoints: &[SocketAddr]) -> World {
    let upstream = Upstream { stalled: STALLED, ..Upstream::default() };
    let mut world = World::with(Settings { upstream, ..settings() });
    world.backend("echo", protocol, endpoints);
    world.http("*", vec![rule.clone()]);
    world.https("*", vec![rule]);
    world
}

/// The response to an upload; its body is yet to be read.
async fn upload(via: Via, to: SocketAddr, kind: &str) -> hyper::Result<Response<hyper::body::Incoming>> {
    let mut client = Client::connect(via, to, "any.test").await;
    let head = format!("POST /\nhost: any.test\ncontent-type: {kind}");
    client.start(&format!("{head}\n\n{}", "x".repeat(LARGE))).await
}

#[tokio::test]
async fn an_upload_that_no_backend_takes_ends() {
    for protocol in PROTOCOLS {
        let endpoints = [backend(protocol, Answer::Never).await, backend(protocol, Answer::Never).await];
        let mut world = world(protocol, rule(), &endpoints).await;
        world.backends[0].resilience = Some(Arc::new(outliers(1)));
        world.apply().await;
        let mut uploads = JoinSet::new();
        for via in Via::ALL {
            let address = world.address(via);
            uploads.spawn(async move { (via, timeout(LIMIT, upload(via, address, TEXT)).await) });
        }
        for (via, response) in uploads.join_all().await {
            let status = response.expect("it stays").unwrap().status();
            assert_eq!(status, 504, "{protocol:?} {via:?}");
        }
        assert_eq!(world.proxy.stats().await.answers.get(&Reason::Timeout), Some(&4), "{protocol:?}");
        // On a connection that is shared, it may be another upload that took all the room.
        let has_ejected = stats(&world).await.ejections > 0;
        assert_eq!(has_ejected, protocol == BackendProtocol::Http1, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_response_that_comes_to_no_end_breaks_off() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, rule(), &[backend(protocol, Answer::Head).await]).await;
        world.apply().await;
        for via in Via::ALL {
            let begun = timeout(LIMIT, upload(via, world.address(via), TEXT)).await;
            let response = begun.expect("no head").unwrap();
            assert_eq!(response.status(), 200, "{protocol:?} {via:?}");
            let ended = timeout(LIMIT, Reply::read(response)).await.expect("it stays");
            assert!(ended.is_err(), "{protocol:?} {via:?}");
        }
    }
}

/// A backend may read a request when it has sent its response, or not at all.
#[tokio::test]
async fn a_response_that_comes_slowly_is_whole() {
    for protocol in PROTOCOLS {
        let mut world = world(protocol, rule(), &[backend(protocol, Answer::Slowly(LONG)).await]).await;
        world.apply().await;
        let mut uploads = JoinSet::new();
        for via in Via::ALL {
            let address = world.address(via);
            uploads.spawn(async move {
                let begun = timeout(LIMIT, upload(via, address, TEXT)).await;
                let response = begun.expect("no head").unwrap();
                (via, timeout(LIMIT, Reply::read(response)).await.expect("it stays"))
            });
        }
        for (via, reply) in uploads.join_all().await {
            let reply = reply.unwrap_or_else(|error| panic!("{protocol:?} {via:?}: {error}"));
            assert!(reply.body.len() > 5, "{protocol:?} {via:?}: {}", reply.body);
        }
    }
}

/// The backend takes all that is there, or has room for no more than that.
#[tokio::test]
async fn a_client_that_sends_nothing_is_not_the_backends_fault() {
    for (protocol, sent) in
        [(BackendProtocol::Http1, 10), (BackendProtocol::H2c, 10), (BackendProtocol::H2c, WINDOW)]
    {
        let may_read = Arc::new(Semaphore::new(0));
        let endpoint = backend(protocol, Answer::Echo(may_read.clone())).await;
        let mut world = world(protocol, rule(), &[endpoint]).await;
        world.apply().await;
        let mut client = TcpStream::connect(world.plain).await.unwrap();
        let head = "POST / HTTP/1.1\r\nhost: any.test\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = format!("{head}{sent:x}\r\n{}\r\n", "x".repeat(sent));
        client.write_all(chunk.as_bytes()).await.unwrap();
        let begun = Instant::now();
        eventually("time passes", async || begun.elapsed() > LONG).await;
        may_read.add_permits(1);
        client.write_all(b"1\r\nx\r\n0\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        timeout(LIMIT, client.read_exact(&mut status)).await.expect("no answer").unwrap();
        assert_eq!(&status, b"HTTP/1.1 200", "{protocol:?} {sent}");
    }
}

/// Of a gRPC call over HTTP/2, the agent notices when the client is gone.
#[tokio::test]
async fn what_may_take_any_time_has_no_such_limit() {
    for (protocol, rule, via, kind) in [
        (BackendProtocol::Http1, rule().any_time(), Via::Http1, TEXT),
        (BackendProtocol::H2c, rule().any_time(), Via::Http2Tls, TEXT),
        (BackendProtocol::H2c, rule(), Via::H2c, "application/grpc"),
    ] {
        let mut world = world(protocol, rule, &[backend(protocol, Answer::Never).await]).await;
        world.apply().await;
        let answered = timeout(LONG, upload(via, world.address(via), kind)).await;
        assert!(answered.is_err(), "{protocol:?} {via:?} {kind}: {answered:?}");
    }
}
