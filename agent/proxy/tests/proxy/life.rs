//! Changes, upgrades and the end: nothing in flight is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use portcullis_model::Unserved;
use portcullis_proxy::{Proxy, Settings, SocketMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::backend::{Backend, reserved};
use crate::support::client::{self, Transport};
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};
use crate::support::settings::settings;

fn main_listener(path: &str) -> ListenerSpec {
    ListenerSpec::new("main", "*", false, vec![RouteSpec::to(path, "app/echo:80")])
}

fn get(path: &str) -> Request<Bytes> {
    Request::get(path).header("host", "a.example.com").body(Bytes::new()).unwrap()
}

#[tokio::test]
async fn snapshots_change_under_load_without_a_failed_request() {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let backends: [(&str, &[_]); 1] = [("app/echo:80", &[backend.address])];
    gateway.serve(vec![main_listener("/")], &backends).await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, address) = (stop.clone(), gateway.address);
            tokio::spawn(async move {
                let mut answered = 0;
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(
                        client::send(Transport::Http1, address, get("/x")).await.status(),
                        StatusCode::OK
                    );
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for _ in 0..200 {
        gateway
            .serve(vec![main_listener("/"), ListenerSpec::new("b", "b.com", false, Vec::new())], &backends)
            .await;
        gateway.serve(vec![main_listener("/")], &backends).await;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
}

/// As those that the kernel programs of an agent before us steer here.
#[tokio::test]
async fn connections_that_come_before_the_first_snapshot_wait_for_it() {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let mut early = TcpStream::connect(gateway.address).await.unwrap();
    early.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    assert_eq!(gateway.proxy.stats().await.accepted, 0);
    gateway.serve(vec![main_listener("/")], &[("app/echo:80", &[backend.address])]).await;
    let mut answer = String::new();
    early.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn bound_frontends_come_and_go() {
    let backend = Backend::echo().await;
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let (free, _held) = reserved();
    let settings = Settings { cores: 2, sockets: SocketMode::Bound, ..settings() };
    let proxy = Proxy::start(settings).unwrap();
    let backends: [(&str, &[_]); 1] = [("app/echo:80", &[backend.address])];

    let mut both = snapshot(free, [main_listener("/").build()], &backends);
    both.frontends.extend(snapshot(taken, [main_listener("/").build()], &backends).frontends);
    let unserved = proxy.apply(Arc::new(both)).await;
    assert_eq!(unserved.reasons().map(|(frontend, _)| frontend.port).collect::<Vec<_>>(), [taken.port()]);
    assert_eq!(client::send(Transport::Http1, free, get("/")).await.status(), StatusCode::OK);

    assert!(proxy.apply(Arc::default()).await.is_empty());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(50);
    while TcpStream::connect(free).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "the port is still open");
        tokio::task::yield_now().await;
    }
}

/// A client that is refused tries elsewhere; one whose connection is never accepted waits.
#[tokio::test]
async fn a_drain_refuses_connections_while_a_request_is_held() {
    for mode in [SocketMode::Steered, SocketMode::Bound] {
        let (free, _held) = reserved();
        let proxy = Proxy::start(Settings { cores: 2, sockets: mode, ..settings() }).unwrap();
        let address = proxy.sockets().first().map_or(free, |core| core.v4.local_addr().unwrap());
        let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoints = [backend.local_addr().unwrap()];
        let served = snapshot(address, [main_listener("/").build()], &[("app/echo:80", &endpoints)]);
        assert_eq!(proxy.apply(Arc::new(served)).await, Unserved::default());

        let request = tokio::spawn(client::send(Transport::Http1, address, get("/")));
        let (mut held, _) = backend.accept().await.unwrap();
        let drain = tokio::spawn(async move { proxy.drain().await });
        let deadline = tokio::time::Instant::now() + Duration::from_secs(25);
        while TcpStream::connect(address).await.is_ok() {
            assert!(tokio::time::Instant::now() < deadline, "{mode:?}: the port is still open");
            tokio::task::yield_now().await;
        }
        assert!(!request.is_finished());
        held.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate").await.unwrap();
        assert_eq!(request.await.unwrap().body(), "late");
        drain.await.unwrap();
    }
}

#[tokio::test]
async fn a_drain_lets_requests_finish() {
    let release = Arc::new(tokio::sync::Notify::new());
    let waiting = release.clone();
    let backend = Backend::start(move |_| {
        let waiting = waiting.clone();
        async move {
            waiting.notified().await;
            http::Response::new(http_body_util::Full::new(Bytes::from_static(b"late")))
        }
    })
    .await;
    let gateway = Gateway::start();
    gateway.serve(vec![main_listener("/")], &[("app/echo:80", &[backend.address])]).await;
    let address = gateway.address;
    let request = tokio::spawn(client::send(Transport::Http1, address, get("/")));
    while backend.connections() == 0 {
        tokio::task::yield_now().await;
    }
    let drain = tokio::spawn(async move { gateway.proxy.drain().await });
    release.notify_one();
    assert_eq!(request.await.unwrap().body(), "late");
    drain.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// A connection is no idle one when it is new: what it was made for is on its way.
#[tokio::test]
async fn a_drain_answers_the_first_request_of_a_connection() {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    gateway.serve(vec![main_listener("/")], &[("app/echo:80", &[backend.address])]).await;
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut idle = TcpStream::connect(gateway.address).await.unwrap();
    idle.write_all(request).await.unwrap();
    assert_ne!(idle.read(&mut [0; 4096]).await.unwrap(), 0);
    let mut new = TcpStream::connect(gateway.address).await.unwrap();
    while gateway.proxy.stats().await.accepted < 2 {
        tokio::task::yield_now().await;
    }
    let drain = tokio::spawn(async move { gateway.proxy.drain().await });
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    new.write_all(request).await.unwrap();
    let mut answer = String::new();
    new.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    drain.await.unwrap();
}

#[tokio::test]
async fn an_upgrade_tunnels_after_101_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let count = stream.read(&mut head).await.unwrap();
        assert!(String::from_utf8_lossy(&head[..count]).to_lowercase().contains("upgrade: websocket"));
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            )
            .await
            .unwrap();
        let mut ping = [0; 4];
        stream.read_exact(&mut ping).await.unwrap();
        stream.write_all(&ping).await.unwrap();
    });
    let gateway = Gateway::start();
    gateway.serve(vec![main_listener("/")], &[("app/echo:80", &[address])]).await;
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    client.write_all(b"ping").await.unwrap();
    let mut pong = [0; 4];
    client.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"ping");
}
