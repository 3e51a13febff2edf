//! The cost of clients that ask and do not read. Alone in its process, whose memory is measured.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_model::BackendProtocol;
use support::rules::rule;
use support::world::World;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The agent's own.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Of the backend's body. A piece in the task of each of its connections would be measured, too.
static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A backend that answers with a body that does not end, and holds no memory for it. Counts the
/// bytes that it got rid of.
async fn endless() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let _ = stream.read_u8().await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n";
                let _ = stream.write_all(head).await;
                while let Ok(written) = stream.write(&PIECE).await {
                    count.fetch_add(written, Ordering::SeqCst);
                }
            });
        }
    });
    (address, sent)
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Returns once nothing moves any more. Without backpressure that never comes.
async fn settled(sent: &AtomicUsize) {
    let mut last = usize::MAX;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = sent.load(Ordering::SeqCst);
        if now == last && now > 0 {
            return;
        }
        last = now;
    }
    panic!("the backend is read on and on for clients that do not read: {last} bytes");
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// So many requests at once, and windows of 2 GiB for their responses.
fn http2_requests(streams: u32) -> Vec<u8> {
    let window = (i32::MAX as u32).to_be_bytes();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(4, 0, 0, &[&[0, 4][..], &window].concat()));
    bytes.extend(frame(8, 0, 0, &(i32::MAX as u32 - 65_535).to_be_bytes()));
    // GET, http, /, and the authority a.
    (0..streams).for_each(|n| bytes.extend(frame(1, 5, 2 * n + 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a'])));
    bytes
}

/// KiB of the process for each of the connections, which write these bytes, and stop after reading
/// so many.
async fn cost(request: &[u8], connections: usize, taken: u64) -> usize {
    let (address, sent) = endless().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let before = resident();
    let mut stalled = Vec::new();
    for _ in 0..connections {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut some = (&mut stream).take(taken);
        tokio::io::copy(&mut some, &mut tokio::io::sink()).await.unwrap();
        stalled.push(stream);
    }
    settled(&sent).await;
    resident().saturating_sub(before) / connections / 1024
}

#[tokio::test]
async fn clients_that_do_not_read_cost_little() {
    let get = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let http1 = cost(get, 100, 0).await;
    let later = cost(get, 100, 4 << 20).await;
    let http2 = cost(&http2_requests(100), 4, 0).await;
    println!("HTTP/1 {http1} KiB, after 4 MiB {later} KiB, HTTP/2 with 100 streams {http2} KiB");
    assert!(http1 <= 64, "HTTP/1: {http1} KiB");
    // Much in a row is read in pieces of up to 64 KiB.
    assert!(later <= 256, "HTTP/1, after 4 MiB: {later} KiB");
    // Of each stream a connection to a backend, up to one piece of 8 KiB that is sent and one that
    // was read meanwhile, and what this test itself needs; how many have the second is chance.
    assert!(http2 <= 4096, "HTTP/2: {http2} KiB");
}
