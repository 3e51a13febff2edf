//! Pipes that bytes go through, and what becomes of those for which there is no descriptor: they
//! are copied. Alone in its process, whose limit it lowers and whose pipes it counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::BackendProtocol;
use portcullis_proxy::{Http1, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::fixture::{Gateway, snapshot};
use support::l4::tcp;
use support::rules::rule;
use support::settings::settings;
use support::world::{World, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

const LENGTH: usize = 4 << 20;

/// Held by a test for as long as it lasts: what they look at is the process's.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Has no descriptor to be had until it is dropped.
struct NoDescriptors(Rlimit);

impl NoDescriptors {
    fn new() -> Self {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
        std::io::pipe().unwrap_err();
        Self(limit)
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

/// Sends all and reads all at the same time; every byte depends on its place.
async fn both_ways(stream: TcpStream, key: u8) {
    let byte = move |place: usize| (place % 251) as u8 ^ key;
    let (mut reader, mut writer) = stream.into_split();
    let writing = tokio::spawn(async move {
        let bytes: Vec<u8> = (0..LENGTH).map(byte).collect();
        writer.write_all(&bytes).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.unwrap();
    assert!(bytes.iter().copied().eq((0..LENGTH).map(byte)), "{} bytes", bytes.len());
    writing.await.unwrap();
}

#[tokio::test]
async fn without_descriptors_for_pipes_bytes_are_copied() {
    let _alone = ALONE.lock().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = Gateway::start();
    let backends: [(&str, &[_]); 1] = [("app/one:1", &[listener.local_addr().unwrap()])];
    let served = snapshot(gateway.address, [tcp("app/one:1")], &backends);
    assert!(gateway.proxy.apply(Arc::new(served)).await.is_empty());
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let client = TcpStream::connect(gateway.address).await.unwrap();
        pairs.push((client, listener.accept().await.unwrap().0));
    }
    let _none = NoDescriptors::new();
    let exchanges: Vec<_> = pairs
        .into_iter()
        .flat_map(|(client, server)| [client, server])
        .map(|stream| tokio::spawn(both_ways(stream, 7)))
        .collect();
    for exchange in exchanges {
        exchange.await.unwrap();
    }
}

fn pipes() -> usize {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("pipe:")).count()
}

/// A backend that answers the requests of a connection with so many bytes each.
async fn answering(lengths: [usize; 3]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for length in lengths {
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&vec![b'x'; length]).await.unwrap();
        }
    });
    address
}

async fn get(stream: &mut TcpStream, length: usize) {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    assert!(body.iter().all(|byte| *byte == b'x'));
}

/// A core keeps the pipe, which is how a test sees it.
#[tokio::test]
async fn large_bodies_of_http_go_through_pipes_if_there_are_any() {
    let _alone = ALONE.lock().await;
    let mut world = World::with(Settings { http1: Http1::Own, ..settings() });
    world.backend("echo", BackendProtocol::Http1, &[answering([1, LENGTH, LENGTH]).await]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    get(&mut stream, 1).await;
    let before = pipes();
    let none = NoDescriptors::new();
    get(&mut stream, LENGTH).await;
    drop(none);
    assert_eq!(pipes(), before, "it was copied");
    get(&mut stream, LENGTH).await;
    eventually("a pipe is kept", async || pipes() == before + 2).await;
}
