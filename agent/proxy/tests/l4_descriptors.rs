//! A process without descriptors left: there is none for a pipe, so bytes are copied. Alone in its
//! process, whose limit it lowers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::fixture::{Gateway, snapshot};
use support::l4::tcp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LENGTH: usize = 4 << 20;

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
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    std::io::pipe().unwrap_err();
    let exchanges: Vec<_> = pairs
        .into_iter()
        .flat_map(|(client, server)| [client, server])
        .map(|stream| tokio::spawn(both_ways(stream, 7)))
        .collect();
    for exchange in exchanges {
        exchange.await.unwrap();
    }
    setrlimit(Resource::Nofile, limit).unwrap();
}
