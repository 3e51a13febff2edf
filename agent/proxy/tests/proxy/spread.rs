//! Connections are spread over cores, also if the kernel brings all of them to one.

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::Unserved;
use portcullis_proxy::{Placement, Proxy, Settings, SocketMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::backend::Backend;
use crate::support::fixture::{ListenerSpec, RouteSpec, snapshot};
use crate::support::settings::settings;
use crate::support::world::eventually;

/// Two cores, and the address of the first one's socket.
struct Cores {
    proxy: Proxy,
    first: SocketAddr,
    _backend: Backend,
}

impl Cores {
    async fn start() -> Self {
        let backend = Backend::echo().await;
        let placement = Placement::Spread;
        let settings = Settings { cores: 2, sockets: SocketMode::Steered, placement, ..settings() };
        let proxy = Proxy::start(settings).unwrap();
        let first = proxy.sockets()[0].v4.local_addr().unwrap();
        let listener = ListenerSpec::new("main", "*", false, vec![RouteSpec::to("/", "app/echo:80")]);
        let served = snapshot(first, [listener.build()], &[("app/echo:80", &[backend.address])]);
        assert_eq!(proxy.apply(Arc::new(served)).await, Unserved::default());
        Self { proxy, first, _backend: backend }
    }

    /// Connections that have had an answer.
    async fn connect(&self, count: usize) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        for _ in 0..count {
            let mut connection = TcpStream::connect(self.first).await.unwrap();
            ask(&mut connection).await;
            connections.push(connection);
        }
        connections
    }

    /// The connections of each core, most first.
    async fn open(&self) -> Vec<usize> {
        let mut cores = self.proxy.stats().await.cores;
        cores.sort_unstable_by(|one, other| other.cmp(one));
        cores
    }
}

async fn ask(connection: &mut TcpStream) {
    connection.write_all(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n").await.unwrap();
    let mut answer = vec![0; 4096];
    let length = connection.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..length]));
}

#[tokio::test]
async fn three_connections_never_meet_at_one_core() {
    let cores = Cores::start().await;
    for _ in 0..50 {
        let connections = cores.connect(3).await;
        assert_eq!(cores.open().await, [2, 1]);
        drop(connections);
        eventually("all are gone", async || cores.open().await == [0, 0]).await;
    }
}

#[tokio::test]
async fn many_connections_are_shared_about_evenly() {
    let cores = Cores::start().await;
    let connections = cores.connect(64).await;
    let open = cores.open().await;
    assert_eq!(open.iter().sum::<usize>(), 64);
    assert!(open[0] <= 35, "{open:?}");
    drop(connections);
}

/// A burst is there before any of its connections is served.
#[tokio::test]
async fn a_burst_is_shared_too() {
    let cores = Cores::start().await;
    let connecting: JoinSet<_> = (0..64).map(|_| TcpStream::connect(cores.first)).collect();
    let connections = connecting.join_all().await;
    eventually("all are accepted", async || cores.open().await.iter().sum::<usize>() == 64).await;
    let open = cores.open().await;
    assert!(open[0] <= 35, "{open:?}");
    drop(connections);
}

/// Those that have just been handed over, too.
#[tokio::test]
async fn a_drain_serves_the_connections_that_were_accepted() {
    let cores = Cores::start().await;
    let request = b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n";
    let mut connections = Vec::new();
    for _ in 0..64 {
        let mut connection = TcpStream::connect(cores.first).await.unwrap();
        connection.write_all(request).await.unwrap();
        connections.push(connection);
    }
    let drain = tokio::spawn(async move { cores.proxy.drain().await });
    for mut connection in connections {
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drain.await.unwrap();
}
