//! Connections to backends, kept per core. HTTP/1 connections are reused last in, first out, so that few stay warm and the
//! rest age out; HTTP/2 shares one connection per endpoint.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::{Backend, BackendName, BackendProtocol};
use tokio::net::TcpStream;

use crate::connection::LocalExecutor;
use crate::core::Core;
use crate::settings::Limits;

const SWEEP: Duration = Duration::from_secs(10);
/// A connection whose response has ended but whose request has not is given this long before it is closed.
const LINGER: Duration = Duration::from_secs(1);

pub(crate) struct Pools {
    limits: Limits,
    backends: RefCell<HashMap<BackendName, Rc<Pool>, RandomState>>,
}

/// The endpoints of one backend.
struct Pool {
    backend: Arc<Backend>,
    generation: Cell<u64>,
    endpoints: Vec<Rc<Endpoint>>,
}

pub(crate) struct Endpoint {
    pub address: SocketAddr,
    protocol: BackendProtocol,
    limits: Limits,
    idle: RefCell<Vec<Idle>>,
    shared: RefCell<Option<http2::SendRequest<Incoming>>>,
    in_flight: Cell<usize>,
}

struct Idle {
    sender: http1::SendRequest<Incoming>,
    since: Instant,
}

/// A connection checked out for one request.
pub(crate) struct Connection {
    kind: Kind,
    in_flight: InFlight,
}

enum Kind {
    Http1(http1::SendRequest<Incoming>),
    Http2(http2::SendRequest<Incoming>),
}

/// What remains checked out while the response body streams.
pub(crate) struct Lease {
    sender: Option<http1::SendRequest<Incoming>>,
    in_flight: InFlight,
}

struct InFlight(Rc<Endpoint>);

/// Why a request got no response head.
pub(crate) struct SendFailure {
    pub error: hyper::Error,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Request<Incoming>>,
}

/// Drops connections that have been idle for too long, on every pool of the core, for ever.
pub(crate) fn sweep_forever(core: &Rc<Core>) {
    let core = Rc::downgrade(core);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(SWEEP).await;
            let Some(core) = core.upgrade() else { return };
            core.pools.sweep(&core);
        }
    });
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, backends: RefCell::default() }
    }

    /// The endpoint for the next request: of two at random, the one with fewer requests in flight. `None` if the backend
    /// has no endpoint (other than the one to avoid).
    pub(crate) fn pick(
        &self,
        core: &Core,
        name: &BackendName,
        avoid: Option<SocketAddr>,
    ) -> Option<Rc<Endpoint>> {
        let pool = self.current(core, name)?;
        let endpoints = &pool.endpoints;
        let random = || endpoints.get(fastrand::usize(..endpoints.len().max(1)));
        let first = match endpoints.as_slice() {
            [only] => only,
            _ => less_loaded(random()?, random()?),
        };
        let chosen = if Some(first.address) == avoid {
            endpoints.iter().find(|endpoint| Some(endpoint.address) != avoid).unwrap_or(first)
        } else {
            first
        };
        Some(chosen.clone())
    }

    /// The pool of a backend as the current snapshot has it; endpoints that stay keep their connections.
    fn current(&self, core: &Core, name: &BackendName) -> Option<Rc<Pool>> {
        let known = self.backends.borrow().get(name).cloned();
        if let Some(pool) = &known
            && pool.generation.get() == core.generation()
        {
            return known;
        }
        let snapshot = core.snapshot();
        let Some(backend) = snapshot.backends.get(name.as_str()) else {
            self.backends.borrow_mut().remove(name);
            return None;
        };
        match known {
            Some(pool) if Arc::ptr_eq(&pool.backend, backend) => {
                pool.generation.set(core.generation());
                Some(pool)
            }
            known => Some(self.replace(core, known, backend)),
        }
    }

    fn replace(&self, core: &Core, known: Option<Rc<Pool>>, backend: &Arc<Backend>) -> Rc<Pool> {
        let old = known.as_ref().map(|pool| pool.endpoints.as_slice()).unwrap_or_default();
        let endpoints = backend.endpoints.iter().map(|address| {
            let same = |it: &&Rc<Endpoint>| it.address == *address && it.protocol == backend.protocol;
            old.iter()
                .find(same)
                .cloned()
                .unwrap_or_else(|| Endpoint::new(*address, backend.protocol, &self.limits))
        });
        let endpoints = endpoints.collect();
        let pool =
            Rc::new(Pool { backend: backend.clone(), generation: core.generation().into(), endpoints });
        self.backends.borrow_mut().insert(backend.name.clone(), pool.clone());
        pool
    }

    fn sweep(&self, core: &Core) {
        let snapshot = core.snapshot();
        let mut backends = self.backends.borrow_mut();
        backends.retain(|name, _| snapshot.backends.get(name.as_str()).is_some());
        backends.values().flat_map(|pool| &pool.endpoints).for_each(|endpoint| endpoint.sweep());
    }
}

fn less_loaded<'e>(a: &'e Rc<Endpoint>, b: &'e Rc<Endpoint>) -> &'e Rc<Endpoint> {
    if a.in_flight.get() <= b.in_flight.get() { a } else { b }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(address: SocketAddr, protocol: BackendProtocol, limits: &Limits) -> Rc<Self> {
        Rc::new(Self {
            address,
            protocol,
            limits: limits.clone(),
            idle: RefCell::default(),
            shared: RefCell::default(),
            in_flight: Cell::new(0),
        })
    }

    /// A connection that is ready for a request: an idle one, or a new one.
    pub(crate) async fn connection(self: &Rc<Self>, core: &Core) -> io::Result<Connection> {
        let in_flight = InFlight::new(self);
        let reused = match self.protocol {
            BackendProtocol::Http1 => self.take_idle().map(Kind::Http1),
            BackendProtocol::H2c => self.shared().map(Kind::Http2),
        };
        if let Some(kind) = reused {
            return Ok(Connection { kind, in_flight });
        }
        core.counters.connects.increment();
        let kind = self.connect().await.inspect_err(|_| core.counters.connect_failures.increment())?;
        Ok(Connection { kind, in_flight })
    }

    fn take_idle(&self) -> Option<http1::SendRequest<Incoming>> {
        let mut idle = self.idle.borrow_mut();
        while let Some(newest) = idle.pop() {
            if newest.since.elapsed() > self.limits.idle {
                idle.clear();
            } else if newest.sender.is_ready() {
                return Some(newest.sender);
            }
        }
        None
    }

    fn shared(&self) -> Option<http2::SendRequest<Incoming>> {
        self.shared.borrow().as_ref().filter(|sender| sender.is_ready()).cloned()
    }

    async fn connect(&self) -> io::Result<Kind> {
        let connecting = tokio::time::timeout(self.limits.connect, TcpStream::connect(self.address));
        let stream = connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        match self.protocol {
            BackendProtocol::Http1 => handshake_http1(stream).await.map(Kind::Http1),
            BackendProtocol::H2c => {
                let sender = handshake_http2(stream).await?;
                self.shared.replace(Some(sender.clone()));
                Ok(Kind::Http2(sender))
            }
        }
    }

    fn put_back(&self, sender: http1::SendRequest<Incoming>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.limits.idle_connections {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    fn sweep(&self) {
        self.idle
            .borrow_mut()
            .retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() <= self.limits.idle);
    }
}

/// The connection runs as a task of its own, so that reads from the backend are batched.
async fn handshake_http1(stream: TcpStream) -> io::Result<http1::SendRequest<Incoming>> {
    let (sender, connection) =
        http1::Builder::new().handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "backend connection ended");
        }
    });
    Ok(sender)
}

async fn handshake_http2(stream: TcpStream) -> io::Result<http2::SendRequest<Incoming>> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new()).adaptive_window(true);
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
        request: Request<Incoming>,
    ) -> Result<(Response<Incoming>, Lease), SendFailure> {
        let sent = match &mut self.kind {
            Kind::Http1(sender) => sender.try_send_request(request).await,
            Kind::Http2(sender) => sender.try_send_request(request).await,
        };
        match sent {
            Ok(response) => Ok((response, self.into_lease())),
            Err(mut failure) => {
                Err(SendFailure { unsent: failure.take_message(), error: failure.into_error() })
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
    /// The response is complete: the connection may serve the next request once it has written the whole of this one.
    pub(crate) fn release(self) {
        let Self { sender: Some(mut sender), in_flight } = self else { return };
        let endpoint = in_flight.0.clone();
        if sender.is_ready() {
            return endpoint.put_back(sender);
        }
        tokio::task::spawn_local(async move {
            if let Ok(Ok(())) = tokio::time::timeout(LINGER, sender.ready()).await {
                endpoint.put_back(sender);
            }
        });
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
