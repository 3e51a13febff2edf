//! Connections to one endpoint, kept per core. HTTP/1 connections are reused last in, first out, so
//! that few stay warm and the rest age out; HTTP/2 connections are shared, and one is enough unless
//! the peer takes fewer requests at once than come.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use portcullis_model::BackendProtocol;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::core::clock;
use crate::core::settings::Upstream;
use crate::core::stats::CoreCounters;
use crate::upstream::multiplex::{Multiplexed, Stream};
use crate::upstream::request::{Outgoing, Upload};
use crate::upstream::small_reads::{ReadBytes, SmallReads};

/// For this long, an endpoint that refused a connection is tried last.
const AVOID_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The HTTP library takes no smaller limit for a head.
const SMALLEST_BUFFER: usize = 8 << 10;
/// The number of fields that the HTTP library has room for without asking for memory.
const USUAL_FIELDS: usize = 100;
/// Probes that a peer may leave unanswered until it counts as vanished.
const PROBES: u32 = 3;

pub(crate) struct Endpoint {
    pub address: SocketAddr,
    pub protocol: BackendProtocol,
    settings: Upstream,
    idle: RefCell<Vec<Idle>>,
    /// All but the first are there because those before had no room.
    shared: RefCell<Vec<Rc<Multiplexed>>>,
    /// Held while a shared connection is made, so that a burst of requests makes one.
    connecting: tokio::sync::Mutex<()>,
    in_flight: Cell<usize>,
    /// The number of connections that could not be made, and why the last one could not.
    failures: Cell<(u32, io::ErrorKind)>,
    /// By the core's clock.
    failed: Cell<Option<u32>>,
}

struct Idle {
    connection: Http1,
    /// By the core's clock.
    since: u32,
}

/// A connection checked out for one request.
pub(crate) struct Connection {
    lease: Lease,
    pub reused: bool,
}

/// The part of it that remains checked out while the response body streams.
pub(crate) struct Lease {
    kind: Kind,
    in_flight: InFlight,
}

enum Kind {
    Http1(Http1),
    Http2(Stream),
}

struct Http1 {
    sender: http1::SendRequest<Upload>,
    read_bytes: ReadBytes,
}

struct InFlight(Rc<Endpoint>);

/// The reason why a request got no response head.
pub(crate) struct SendFailure {
    pub error: hyper::Error,
    /// The limit that the response's head exceeds, if that is the error.
    pub exceeded: Option<HeadLimit>,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Box<Outgoing>>,
}

/// A limit of response heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadLimit {
    Bytes(usize),
    Fields(usize),
}

/// The connections that will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Any,
    New,
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn new(address: SocketAddr, protocol: BackendProtocol, settings: &Upstream) -> Rc<Self> {
        Rc::new(Self {
            address,
            protocol,
            settings: settings.clone(),
            idle: RefCell::default(),
            shared: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            in_flight: Cell::new(0),
            failures: Cell::new((0, io::ErrorKind::Other)),
            failed: Cell::default(),
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(crate) fn failed_lately(&self) -> bool {
        self.failed.get().is_some_and(|since| clock::now() - since < clock::ticks(AVOID_AFTER_FAILURE))
    }

    /// A connection that is ready for a request: a kept one, or a new one.
    pub(crate) async fn connection(
        self: &Rc<Self>,
        counters: &CoreCounters,
        freshness: Freshness,
    ) -> io::Result<Connection> {
        let in_flight = InFlight::new(self);
        let kept = match self.protocol {
            BackendProtocol::Http1 if freshness == Freshness::New => None,
            BackendProtocol::Http1 => {
                let mut idle = self.idle.borrow_mut();
                // The youngest that is ready. One that is about to be (its response has been read,
                // its task has not run since) is kept for later.
                let ready = idle.iter().rposition(|it| it.connection.sender.is_ready());
                ready.map(|ready| Kind::Http1(idle.remove(ready).connection))
            }
            BackendProtocol::H2c => self.stream().map(Kind::Http2),
        };
        if let Some(kind) = kept {
            return Ok(Connection { lease: Lease { kind, in_flight }, reused: true });
        }
        // Boxed, since it is rare, and large as futures go: every request's would have room for it.
        let connecting = Box::pin(timeout(self.settings.connect, self.connect(counters)));
        let connected = connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let kind = connected.inspect_err(|error| {
            counters.connect_failures.increment();
            self.failures.set((self.failures.get().0.wrapping_add(1), error.kind()));
            self.failed.set(Some(clock::now()));
        })?;
        Ok(Connection { lease: Lease { kind, in_flight }, reused: false })
    }

    /// Drops connections that were idle for too long, or that the peer has closed.
    pub(crate) fn sweep(&self) {
        let limit = clock::ticks(self.settings.idle);
        self.idle
            .borrow_mut()
            .retain(|it| !it.connection.sender.is_closed() && clock::now() - it.since <= limit);
        let mut first = true;
        self.shared.borrow_mut().retain(|it| {
            let needed = !it.is_closed() && (first || !it.is_idle());
            first &= !needed;
            needed
        });
    }

    /// A place on a shared connection.
    fn stream(&self) -> Option<Stream> {
        self.shared.borrow().iter().find_map(Multiplexed::stream)
    }

    async fn connect(&self, counters: &CoreCounters) -> io::Result<Kind> {
        match self.protocol {
            BackendProtocol::Http1 => self.handshake(counters).await.map(Kind::Http1),
            BackendProtocol::H2c => self.connect_shared(counters).await.map(Kind::Http2),
        }
    }

    /// The connection runs as a task of its own, so that reads from the backend are batched.
    async fn handshake(&self, counters: &CoreCounters) -> io::Result<Http1> {
        let stream = self.dial(counters).await?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(self.settings.header_bytes.max(SMALLEST_BUFFER));
        builder.max_header_size(self.settings.header_bytes);
        if self.settings.header_fields != USUAL_FIELDS {
            builder.max_headers(self.settings.header_fields);
        }
        let stream = SmallReads::new(stream);
        let read_bytes = stream.read_bytes();
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "backend connection ended");
            }
        });
        Ok(Http1 { sender, read_bytes })
    }

    /// Requests that waited for a connection share its fate, so that none waits for a second one to
    /// fail.
    async fn connect_shared(&self, counters: &CoreCounters) -> io::Result<Stream> {
        let (before, _) = self.failures.get();
        let _only = self.connecting.lock().await;
        if let Some(stream) = self.stream() {
            return Ok(stream);
        }
        let (failures, why) = self.failures.get();
        if failures != before {
            return Err(why.into());
        }
        let stream = self.dial(counters).await?;
        // By default the kernel waits a quarter of an hour for acknowledgements before it gives a
        // peer up. PING frames are no way: gRPC servers close a connection whose client sends them
        // more often than every five minutes.
        SockRef::from(&stream).set_tcp_user_timeout(Some(self.settings.vanished))?;
        let connection = Multiplexed::open(stream, self.settings.header_bytes).await?;
        let place = connection.stream().ok_or(io::ErrorKind::ConnectionReset)?;
        self.shared.borrow_mut().push(connection);
        Ok(place)
    }

    /// Probes detect a peer that vanished while nothing is sent, as in a tunnel or a long poll.
    async fn dial(&self, counters: &CoreCounters) -> io::Result<TcpStream> {
        counters.connects.increment();
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let pause = (self.settings.vanished / (PROBES + 1)).max(Duration::from_secs(1));
        let probing = TcpKeepalive::new().with_time(pause).with_interval(pause).with_retries(PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&probing)?;
        self.failed.set(None);
        Ok(stream)
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.lease.endpoint()
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.lease.kind, Kind::Http2(_))
    }

    pub(crate) async fn send(
        mut self,
        outgoing: Box<Outgoing>,
    ) -> Result<(Response<Incoming>, Lease), SendFailure> {
        let sent = match &mut self.lease.kind {
            Kind::Http1(http1) => http1.sender.try_send_request(outgoing.into_request()).await,
            Kind::Http2(stream) => stream.send(outgoing.into_request()).await,
        };
        match sent {
            Ok(response) => Ok((response, self.lease)),
            Err(mut failure) => {
                let unsent = failure.take_message().map(Box::from);
                let error = failure.into_error();
                let exceeded = if error.is_parse_too_large() { self.lease.exceeded() } else { None };
                Err(SendFailure { unsent, exceeded, error })
            }
        }
    }
}

// === impl Lease ===

impl Lease {
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.in_flight.0.address
    }

    /// The limit that keeps the HTTP library from taking a head. It names none.
    fn exceeded(&self) -> Option<HeadLimit> {
        let Kind::Http1(http1) = &self.kind else { return None };
        let Upstream { header_bytes, header_fields, .. } = self.in_flight.0.settings;
        let is_large = http1.read_bytes.bytes() >= header_bytes;
        Some(if is_large { HeadLimit::Bytes(header_bytes) } else { HeadLimit::Fields(header_fields) })
    }

    /// The response is complete: the connection may serve the next request.
    pub(crate) fn release(self) {
        if let Self { kind: Kind::Http1(connection), in_flight } = self {
            let endpoint = &in_flight.0;
            let mut idle = endpoint.idle.borrow_mut();
            if idle.len() < endpoint.settings.idle_connections && !connection.sender.is_closed() {
                idle.push(Idle { connection, since: clock::now() });
            }
        }
    }
}

// === impl HeadLimit ===

impl fmt::Display for HeadLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(formatter, "more than {} KiB (--max-response-header)", bytes >> 10),
            Self::Fields(fields) => write!(formatter, "more than {fields} fields (--max-response-fields)"),
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
