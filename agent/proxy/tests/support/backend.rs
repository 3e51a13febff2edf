//! A backend that answers with what it saw: request line, then header fields, one a line.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket};

/// An address that refuses connections. A socket has it until the tests end, and does not listen:
/// another test that asks for any port is given another one.
pub fn refusing() -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}

/// An address for a data plane that binds sockets of its own. This socket keeps it from others that
/// ask for any port, for as long as it is held.
pub fn reserved() -> (SocketAddr, Socket) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    // Not before the port is chosen: the kernel would choose one that another test shares.
    socket.set_reuse_port(true).unwrap();
    (socket.local_addr().unwrap().as_socket().unwrap(), socket)
}

/// The same for datagrams, of which the socket would take some: it is to be dropped before any
/// come.
pub fn reserved_for_datagrams() -> (SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SockRef::from(&socket).set_reuse_port(true).unwrap();
    (socket.local_addr().unwrap(), socket)
}

pub struct Backend {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Backend {
    pub async fn echo() -> Self {
        Self::start(|request| async move {
            match request.uri().path() {
                "/slow" => tokio::time::sleep(Duration::from_secs(60)).await,
                "/large" => return Response::new(Full::new(Bytes::from(vec![b'x'; 5 << 20]))),
                _ => {}
            }
            Response::builder().header("x-backend", "echo").body(Full::new(describe(request).await)).unwrap()
        })
        .await
    }

    pub async fn start<F, R>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                let service = hyper::service::service_fn(move |request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, connections, task }
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn describe(request: Request<Incoming>) -> Bytes {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut lines = vec![format!("{} {}", parts.method, parts.uri)];
    lines.extend(parts.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())));
    lines.push(format!("body: {}", String::from_utf8_lossy(&body)));
    lines.join("\n").into()
}
