//! Bodies of responses that are too large to be read at once. Between two connections in plaintext
//! their bytes may go through a pipe, which must not show.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

use portcullis_model::BackendProtocol;
use portcullis_proxy::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::rules::{RuleSpec, rule};
use crate::support::settings::settings;
use crate::support::world::{World, eventually};

/// A byte depends on its place, and pages that changed theirs would show.
const PERIOD: usize = 251;
/// Bytes of a read.
const READ: usize = 256 << 10;

/// All that a read may see, from its place within a period on.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..PERIOD + READ).map(|at| (at % PERIOD) as u8).collect());

fn bytes(length: usize) -> Vec<u8> {
    PATTERN[..READ / PERIOD * PERIOD].iter().copied().cycle().take(length).collect()
}

fn are_in_place(read: &[u8], place: usize) -> bool {
    read == &PATTERN[place % PERIOD..][..read.len()]
}

/// The answer of a backend to each request.
#[derive(Clone, Copy)]
struct Sends {
    announced: usize,
    sent: usize,
    /// Bytes of a write.
    piece: usize,
    then: Then,
}

#[derive(Clone, Copy)]
enum Then {
    /// Reads the next request.
    Keep,
    Close,
    /// Sends nothing more, and closes nothing.
    Stop,
}

struct Backend {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    written: Arc<AtomicUsize>,
    /// Connections that broke under what was written.
    broken: Arc<AtomicUsize>,
}

impl Sends {
    fn all(length: usize, piece: usize) -> Self {
        Self { announced: length, sent: length, piece, then: Then::Keep }
    }
}

impl Backend {
    async fn start(sends: Sends) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts: [Arc<AtomicUsize>; 3] = Default::default();
        let [connections, written, broken] = counts.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let [connections, written, broken] = counts.clone();
                connections.fetch_add(1, SeqCst);
                tokio::spawn(async move {
                    if serve(stream, sends, &written).await.is_err() {
                        broken.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        Self { address, connections, written, broken }
    }
}

async fn serve(mut stream: TcpStream, sends: Sends, written: &AtomicUsize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let body = bytes(sends.sent);
    loop {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", sends.announced);
        stream.write_all(head.as_bytes()).await?;
        for piece in body.chunks(sends.piece) {
            stream.write_all(piece).await?;
            written.fetch_add(piece.len(), SeqCst);
        }
        match sends.then {
            Then::Keep => {}
            Then::Close => return Ok(()),
            Then::Stop => std::future::pending().await,
        }
    }
}

async fn world(backend: &Backend, rule: RuleSpec) -> World {
    world_with(settings(), backend, rule).await
}

async fn world_with(settings: Settings, backend: &Backend, rule: RuleSpec) -> World {
    let mut world = World::with(settings);
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.http("*", vec![rule]);
    world.apply().await;
    world
}

async fn ask(world: &World) -> TcpStream {
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    stream
}

/// Reads a head, and returns the length that it announces.
async fn head(stream: &mut TcpStream) -> usize {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.unwrap().parse().unwrap()
}

/// Reads on until all of a body is here, of which so many bytes are.
async fn body(stream: &mut TcpStream, mut read: usize, length: usize) {
    let mut buffer = vec![0; READ];
    while read < length {
        let room = buffer.len().min(length - read);
        let count = stream.read(&mut buffer[..room]).await.unwrap();
        assert!(count > 0, "it ends at {read} of {length}");
        assert!(are_in_place(&buffer[..count], read), "at {read}");
        read += count;
    }
}

/// Lengths and pieces around those at which another way is taken, twice each on one connection.
#[tokio::test]
async fn every_byte_arrives_in_its_place() {
    for length in [40_000, 64 << 10, 65_537, 300_000, 1 << 20, (5 << 20) + 3] {
        for piece in [5_000, 100_000, usize::MAX] {
            let backend = Backend::start(Sends::all(length, piece)).await;
            let world = world(&backend, rule()).await;
            let mut stream = ask(&world).await;
            assert_eq!(head(&mut stream).await, length);
            body(&mut stream, 0, length).await;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            assert_eq!(head(&mut stream).await, length);
            body(&mut stream, 0, length).await;
            assert_eq!(backend.connections.load(SeqCst), 1, "{length} by {piece}: it is kept");
        }
    }
}

/// Two requests that came at once, of which the second is read while the first one's response goes.
#[tokio::test]
async fn requests_that_wait_behind_a_large_response_are_answered() {
    let length = 3 << 20;
    let backend = Backend::start(Sends::all(length, usize::MAX)).await;
    let world = world(&backend, rule()).await;
    let mut stream = ask(&world).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    for _ in 0..2 {
        assert_eq!(head(&mut stream).await, length);
        body(&mut stream, 0, length).await;
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_taken_for_whole() {
    let sends = Sends { announced: 4 << 20, sent: 3 << 20, piece: usize::MAX, then: Then::Close };
    let backend = Backend::start(sends).await;
    let world = world(&backend, rule()).await;
    let mut stream = ask(&world).await;
    assert_eq!(head(&mut stream).await, 4 << 20);
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read).await;
    assert!(read == bytes(read.len()) && read.len() <= 3 << 20, "{} bytes", read.len());
}

/// The rule's time ends a response on which its backend does not go on.
#[tokio::test]
async fn a_body_whose_backend_stops_ends_in_time() {
    let sends = Sends { announced: 4 << 20, sent: 2 << 20, piece: usize::MAX, then: Then::Stop };
    let backend = Backend::start(sends).await;
    let world = world(&backend, rule().request_timeout(2_000)).await;
    let mut stream = ask(&world).await;
    assert_eq!(head(&mut stream).await, 4 << 20);
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read).await;
    assert!(read == bytes(read.len()) && read.len() <= 2 << 20, "{} bytes", read.len());
}

/// A client that stops to read holds its backend up, and gets the rest when it goes on.
#[tokio::test]
async fn a_client_may_stop_and_go_on() {
    let length = 80 << 20;
    let backend = Backend::start(Sends::all(length, 64 << 10)).await;
    let world = world(&backend, rule()).await;
    let mut stream = ask(&world).await;
    // Else the kernel may hold 32 MiB for this end, too.
    socket2::SockRef::from(&stream).set_recv_buffer_size(256 << 10).unwrap();
    head(&mut stream).await;
    body(&mut stream, 0, 8 << 20).await;
    let mut before = 0;
    eventually("its backend is held up", async || {
        let now = backend.written.load(SeqCst);
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        now == std::mem::replace(&mut before, backend.written.load(SeqCst))
    })
    .await;
    assert!(backend.written.load(SeqCst) < length - (16 << 20), "kernels hold all of it");
    body(&mut stream, 8 << 20, length).await;
}

/// The connection to its backend ends with that of a client that went in the middle.
#[tokio::test]
async fn a_client_that_goes_ends_its_response() {
    let backend = Backend::start(Sends::all(64 << 20, 64 << 10)).await;
    let world = world(&backend, rule()).await;
    for gone in 1..=3 {
        let mut stream = ask(&world).await;
        head(&mut stream).await;
        body(&mut stream, 0, 1 << 20).await;
        drop(stream);
        eventually("its backend's connection breaks", async || backend.broken.load(SeqCst) == gone).await;
    }
}

/// A client may send all of its request before it reads anything, while the response has begun.
#[tokio::test]
async fn an_upload_goes_on_under_a_large_response() {
    let length = 8 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let reading = tokio::spawn(async move {
            let mut read = vec![0; 64 << 10];
            while reader.read(&mut read).await.is_ok_and(|count| count > 0) {}
        });
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        writer.write_all(head.as_bytes()).await.unwrap();
        writer.write_all(&bytes(length)).await.unwrap();
        reading.await.unwrap();
    });
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    let request = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(&bytes(length)).await.unwrap();
    assert_eq!(head(&mut stream).await, length);
    body(&mut stream, 0, length).await;
}
