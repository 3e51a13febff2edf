//! Requests of many clients on one connection to a backend of HTTP/2, which no client can spoil for
//! the others: by uploads that are not read, requests that are given up, and large fields.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, SendResponse};
use http::{Request, Response};
use portcullis_model::BackendProtocol;
use portcullis_proxy::Reason as Answered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

const LIMIT: Duration = Duration::from_secs(50);
/// For so long a connection may stand still before it gets no more requests.
const MOMENT: Duration = Duration::from_millis(100);
/// Resets that a connection has at most, and those that were under way meanwhile.
const RESETS: usize = 100;

/// A backend that answers by the path of a request.
struct Backend {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    /// Answers for requests of `/held`.
    released: Arc<Semaphore>,
}

impl Backend {
    async fn new(builder: Builder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let [connections, requests] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let released = Arc::new(Semaphore::new(0));
        let backend = Self { address, connections, requests, released };
        let (connections, requests) = (backend.connections.clone(), backend.requests.clone());
        let released = backend.released.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, SeqCst);
                let (builder, requests, released) = (builder.clone(), requests.clone(), released.clone());
                tokio::spawn(async move {
                    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                    let mut tasks = JoinSet::new();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        requests.fetch_add(1, SeqCst);
                        // With all others that are on the connection.
                        if request.uri().path() == "/fatal" {
                            return;
                        }
                        tasks.spawn(answer(request, respond, released.clone()));
                    }
                });
            }
        });
        backend
    }

    async fn world(&self) -> World {
        let mut world = World::new();
        world.backend("echo", BackendProtocol::H2c, &[self.address]);
        world.http("*", vec![rule()]);
        world.apply().await;
        world
    }

    fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, released: Arc<Semaphore>) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    match &*path {
        // The body is held, and nothing of it is taken.
        "/unread" => std::future::pending::<()>().await,
        "/held" => released.acquire().await.unwrap().forget(),
        _ => {
            while let Some(Ok(data)) = body.data().await {
                let _ = body.flow_control().release_capacity(data.len());
            }
        }
    }
    let _ = respond.send_response(Response::new(()), true);
}

/// A client whose request the backend has, as a connection.
async fn begin(world: &World, backend: &Backend, request: &str) -> TcpStream {
    let before = backend.requests();
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    eventually("the backend has the request", async || backend.requests() > before).await;
    stream
}

/// The first bytes of the answer.
async fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    timeout(LIMIT, stream.read_exact(&mut line)).await.expect("no answer").unwrap();
    String::from_utf8(line.into()).unwrap()
}

#[tokio::test]
async fn an_upload_that_is_not_read_holds_up_those_of_others_for_a_moment_only() {
    let backend = Backend::new(Builder::new()).await;
    let world = backend.world().await;
    let head = "POST /unread HTTP/1.1\r\nhost: any.test\r\ncontent-length: 1000000\r\n\r\n";
    let mut hostile = begin(&world, &backend, head).await;
    // More than all windows take; the rest stays with the client.
    let _ = timeout(Duration::from_millis(500), hostile.write_all(&vec![b'a'; 1_000_000])).await;
    let upload = format!("POST /up\nhost: any.test\n\n{}", "b".repeat(20_000));
    let pass = async || {
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        let begun = Instant::now();
        assert_eq!(timeout(LIMIT, client.send(&upload)).await.expect("it stays").status, 200);
        begun.elapsed()
    };
    // Those that begin before that is known wait with it, and are given up.
    eventually("an upload passes", async || timeout(20 * MOMENT, pass()).await.is_ok()).await;
    assert_eq!(backend.connections(), 2);
    // And those after it, which do not wait that moment out, whatever the machine does meanwhile.
    let mut fastest = LIMIT;
    for _ in 0..20 {
        fastest = fastest.min(pass().await);
    }
    assert!(fastest < MOMENT, "{fastest:?}");
    assert_eq!(backend.connections(), 2);
}

#[tokio::test]
async fn a_connection_of_which_many_requests_were_given_up_takes_no_more() {
    let backend = Backend::new(Builder::new()).await;
    let world = backend.world().await;
    let held = "GET /held HTTP/1.1\r\nhost: any.test\r\n\r\n";
    let mut waiting = begin(&world, &backend, held).await;
    for _ in 0..RESETS {
        assert_eq!(backend.connections(), 1);
        drop(begin(&world, &backend, held).await);
    }
    // The last one may be yet to be given up.
    let another = async || {
        drop(begin(&world, &backend, held).await);
        backend.connections() == 2
    };
    eventually("another connection", another).await;
    backend.released.add_permits(1000);
    assert_eq!(status(&mut waiting).await, "HTTP/1.1 200");
}

#[tokio::test]
async fn a_backend_gets_no_larger_fields_than_it_takes() {
    let mut builder = Builder::new();
    builder.max_header_list_size(4096);
    let backend = Backend::new(builder).await;
    let world = backend.world().await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    // It has said so by the time that it has answered.
    assert_eq!(client.send("GET /\nhost: any.test\n\n").await.status, 200);
    for size in [5000, 10_000] {
        let request = format!("GET /\nhost: any.test\nx-large: {}\n\n", "a".repeat(size));
        assert_eq!(client.send(&request).await.status, 431, "{size}");
    }
    let stats = world.proxy.stats().await;
    assert_eq!(stats.answers.get(&Answered::FieldsTooLarge), Some(&2), "{:?}", stats.answers);
    assert_eq!(backend.requests(), 1);
}

#[tokio::test]
async fn large_fields_cost_no_other_client_its_connection() {
    let backend = Backend::new(Builder::new()).await;
    let world = backend.world().await;
    let mut waiting = begin(&world, &backend, "GET /held HTTP/1.1\r\nhost: any.test\r\n\r\n").await;
    let large = format!("GET /fatal\nhost: any.test\nx-large: {}\n\n", "a".repeat(9000));
    for _ in 0..3 {
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        assert_eq!(client.send(&large).await.status, 502);
    }
    assert_eq!(backend.connections(), 4);
    backend.released.add_permits(1);
    assert_eq!(status(&mut waiting).await, "HTTP/1.1 200");
}
