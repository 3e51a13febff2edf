//! Connections to one endpoint, kept per core. HTTP/1 connections are reused last in, first out, so that few stay warm and
//! the rest age out; HTTP/2 shares one connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::BackendProtocol;
use tokio::net::TcpStream;

use crate::attempt::Outgoing;
use crate::clock;
use crate::connection::LocalExecutor;
use crate::core::Core;
use crate::settings::Upstream;
use crate::upload::Upload;

/// An endpoint that refused a connection is asked last for so long.
const SHUNNED: Duration = Duration::from_secs(5);
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

pub(crate) struct Endpoint {
    pub address: SocketAddr,
    pub protocol: BackendProtocol,
    budget: Upstream,
    idle: RefCell<Vec<Idle>>,
    shared: RefCell<Option<http2::SendRequest<Upload>>>,
    /// Held while the shared connection is made, so that a burst of requests makes one.
    connecting: tokio::sync::Mutex<()>,
    in_flight: Cell<usize>,
    /// By the core's clock.
    failed: Cell<Option<u32>>,
}

struct Idle {
    sender: http1::SendRequest<Upload>,
    /// By the core's clock.
    since: u32,
}

/// A connection checked out for one request.
pub(crate) struct Connection {
    kind: Kind,
    in_flight: InFlight,
    pub reused: bool,
}

enum Kind {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

/// What remains checked out while the response body streams.
pub(crate) struct Lease {
    sender: Option<http1::SendRequest<Upload>>,
    in_flight: InFlight,
}

struct InFlight(Rc<Endpoint>);

/// Why a request got no response head.
pub(crate) struct SendFailure {
    pub error: hyper::Error,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Box<Outgoing>>,
}

/// Whether a kept connection will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Any,
    New,
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn new(address: SocketAddr, protocol: BackendProtocol, budget: &Upstream) -> Rc<Self> {
        Rc::new(Self {
            address,
            protocol,
            budget: budget.clone(),
            idle: RefCell::default(),
            shared: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            in_flight: Cell::new(0),
            failed: Cell::default(),
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(crate) fn failed_lately(&self) -> bool {
        self.failed.get().is_some_and(|since| clock::now() - since < clock::ticks(SHUNNED))
    }

    /// A connection that is ready for a request: a kept one, or a new one.
    pub(crate) async fn connection(
        self: &Rc<Self>,
        core: &Core,
        freshness: Freshness,
    ) -> io::Result<Connection> {
        let in_flight = InFlight::new(self);
        let kept = match self.protocol {
            BackendProtocol::Http1 if freshness == Freshness::New => None,
            BackendProtocol::Http1 => self.take_idle().map(Kind::Http1),
            BackendProtocol::H2c => self.shared().map(Kind::Http2),
        };
        if let Some(kind) = kept {
            return Ok(Connection { kind, in_flight, reused: true });
        }
        // Boxed, since it is rare, and large as futures go: every request's would have room for it.
        let kind = Box::pin(self.connect(core)).await.inspect_err(|_| {
            core.counters.connect_failures.increment();
            self.failed.set(Some(clock::now()));
        })?;
        Ok(Connection { kind, in_flight, reused: false })
    }

    /// Drops what nobody used for too long, or the peer has closed.
    pub(crate) fn sweep(&self) {
        let limit = clock::ticks(self.budget.idle);
        let live = |it: &Idle| !it.sender.is_closed() && clock::now() - it.since <= limit;
        self.idle.borrow_mut().retain(live);
    }

    /// The youngest connection that is ready. One that is about to be (its response has been read, its task has not run
    /// since) is kept for later.
    fn take_idle(&self) -> Option<http1::SendRequest<Upload>> {
        let mut idle = self.idle.borrow_mut();
        let ready = idle.iter().rposition(|it| it.sender.is_ready())?;
        Some(idle.remove(ready).sender)
    }

    fn shared(&self) -> Option<http2::SendRequest<Upload>> {
        self.shared.borrow().as_ref().filter(|sender| sender.is_ready()).cloned()
    }

    async fn connect(&self, core: &Core) -> io::Result<Kind> {
        match self.protocol {
            BackendProtocol::Http1 => handshake_http1(self.dial(core).await?).await.map(Kind::Http1),
            BackendProtocol::H2c => {
                let _only = self.connecting.lock().await;
                if let Some(sender) = self.shared() {
                    return Ok(Kind::Http2(sender));
                }
                let sender = handshake_http2(self.dial(core).await?).await?;
                self.shared.replace(Some(sender.clone()));
                Ok(Kind::Http2(sender))
            }
        }
    }

    async fn dial(&self, core: &Core) -> io::Result<TcpStream> {
        core.counters.connects.increment();
        let connecting = tokio::time::timeout(self.budget.connect, TcpStream::connect(self.address));
        let stream = connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        self.failed.set(None);
        Ok(stream)
    }

    fn put_back(&self, sender: http1::SendRequest<Upload>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.budget.idle_connections && !sender.is_closed() {
            idle.push(Idle { sender, since: clock::now() });
        }
    }
}

/// The connection runs as a task of its own, so that reads from the backend are batched.
async fn handshake_http1(stream: TcpStream) -> io::Result<http1::SendRequest<Upload>> {
    let (sender, connection) =
        http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "backend connection ended");
        }
    });
    Ok(sender)
}

async fn handshake_http2(stream: TcpStream) -> io::Result<http2::SendRequest<Upload>> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new());
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "backend connection ended");
        }
    });
    Ok(sender)
}

// === impl Connection ===

impl Connection {
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.kind, Kind::Http2(_))
    }

    pub(crate) async fn send(
        mut self,
        outgoing: Box<Outgoing>,
    ) -> Result<(Response<Incoming>, Lease), SendFailure> {
        let sent = match &mut self.kind {
            Kind::Http1(sender) => sender.try_send_request(outgoing.into_request()).await,
            Kind::Http2(sender) => sender.try_send_request(outgoing.into_request()).await,
        };
        match sent {
            Ok(response) => Ok((response, self.into_lease())),
            Err(mut failure) => {
                let unsent = failure.take_message().map(Box::from);
                Err(SendFailure { unsent, error: failure.into_error() })
            }
        }
    }

    fn into_lease(self) -> Lease {
        let sender = match self.kind {
            Kind::Http1(sender) => Some(sender),
            Kind::Http2(_) => None,
        };
        Lease { sender, in_flight: self.in_flight }
    }
}

// === impl Lease ===

impl Lease {
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.in_flight.0.address
    }

    /// The response is complete: the connection may serve the next request.
    pub(crate) fn release(self) {
        if let Self { sender: Some(sender), in_flight } = self {
            in_flight.0.put_back(sender);
        }
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(endpoint: &Rc<Endpoint>) -> Self {
        endpoint.in_flight.set(endpoint.in_flight.get() + 1);
        Self(endpoint.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
    }
}
