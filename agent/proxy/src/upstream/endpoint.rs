//! Connections to one endpoint, kept per core. HTTP/1 connections are reused last in, first out, so
//! that few stay warm and the rest age out; HTTP/2 connections are shared, and one is enough unless
//! the peer takes fewer requests at once than come.

mod by_client;
mod connecting;
mod connection;
mod in_flight;
mod plain;
mod response_body;

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::FixedState;
use http::header;
use http::request::Parts;
use http::uri::Scheme;
use portcullis_model::{BackendProtocol, L4Protocol, ProxyHeader};
use tokio::time::timeout;

use crate::core::clock;
use crate::core::settings::Upstream;
use crate::core::stats::CoreCounters;
use crate::upstream::endpoint::by_client::{Clients, KEPT};
use crate::upstream::endpoint::connecting::{Choice, Sharing, announce};
use crate::upstream::endpoint::connection::Kind;
use crate::upstream::health::budget::Budget;
use crate::upstream::health::endpoint::{Doubt, EndpointHealth, Failure};
use crate::upstream::health::places::ConnectionPlace;
use crate::upstream::hops::{Hop, Hops, Passed};
use crate::upstream::http1::{HeadLimits, Http1, Http1Error};
use crate::upstream::http2::{HeadSize, Http2Error, Multiplexed, Stream};
use crate::upstream::proxy_header::Ends;
use crate::upstream::request::Outgoing;
use crate::upstream::stream::BackendStream;
use crate::upstream::tls::{Offer, Security};

pub(crate) use crate::upstream::endpoint::by_client::Downstream;
pub(crate) use crate::upstream::endpoint::connection::Connection;
pub(crate) use crate::upstream::endpoint::in_flight::InFlight;
pub(crate) use crate::upstream::endpoint::plain::PlainFailure;
pub(crate) use crate::upstream::endpoint::response_body::{BackendTunnel, GRPC_STATUS, ResponseBody};

/// For this long, an endpoint that refused a connection is tried last.
const AVOID_AFTER_FAILURE: Duration = Duration::from_secs(5);

pub(crate) struct Endpoint {
    pub address: SocketAddr,
    fingerprint: u64,
    protocol: BackendProtocol,
    security: Security,
    settings: Upstream,
    clients: Clients,
    idle: RefCell<Vec<Idle>>,
    /// All but the first are there because those before had no room.
    shared: RefCell<Vec<Rc<Multiplexed>>>,
    /// Held while a shared connection is made, so that a burst of requests makes one.
    connecting: tokio::sync::Mutex<()>,
    /// Of those that it may choose from, the protocol that it chose last.
    choice: Cell<Choice>,
    in_flight: Cell<usize>,
    /// The number of connections that could not be made, and why the last one could not.
    failures: Cell<(u32, io::ErrorKind)>,
    /// By the core's clock.
    failed: Cell<Option<u32>>,
    /// Its state that all cores share, if its backend's terms ask for one.
    pub health: Option<Arc<EndpointHealth>>,
    /// The budget of retries of its Service, if there is one.
    pub budget: Option<Arc<Budget>>,
}

struct Idle {
    connection: Http1,
    /// By the core's clock.
    since: u32,
}

/// A connection for bytes of any protocol, not to be kept.
pub(crate) struct Dedicated {
    pub stream: BackendStream,
    pub endpoint: SocketAddr,
    _in_flight: InFlight,
    _hop: Option<Hop>,
    _place: Option<ConnectionPlace>,
}

/// The reason why a request got no response head.
pub(crate) struct SendFailure {
    pub error: UpstreamError,
    pub processed: Processed,
    /// The request, if it may be sent again (RFC 9110 section 9.2.2) because a kept connection
    /// turned out to be closed: nothing of it was sent, or it may be sent twice.
    pub again: Option<Box<Outgoing>>,
}

/// The part that a backend may have in a request that got no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processed {
    /// Nothing: it was not sent, or the backend says so.
    No,
    Perhaps,
}

/// The reason why there is no response, or not the rest of one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error(transparent)]
    Http1(#[from] Http1Error),
    #[error(transparent)]
    Http2(#[from] Http2Error),
}

/// The connections that will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Any,
    New,
}

/// The way in which a connection of its own is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// As it is: what is sent came so.
    AsItCame,
    /// As the backend's policy wants it: TLS ended before.
    Secured,
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn new(
        address: SocketAddr,
        protocol: BackendProtocol,
        security: Security,
        proxy_header: Option<ProxyHeader>,
        settings: &Upstream,
        health: Option<Arc<EndpointHealth>>,
        budget: Option<Arc<Budget>>,
    ) -> Rc<Self> {
        let clients = Clients::new(proxy_header);
        Self::with_clients(address, protocol, security, clients, settings, health, budget)
    }

    /// Of the URLs that it is asked for.
    pub(crate) fn scheme(&self) -> Scheme {
        match self.security {
            Security::Plain | Security::Refused => Scheme::HTTP,
            Security::Tls(_) => Scheme::HTTPS,
        }
    }

    fn with_clients(
        address: SocketAddr,
        protocol: BackendProtocol,
        security: Security,
        clients: Clients,
        settings: &Upstream,
        health: Option<Arc<EndpointHealth>>,
        budget: Option<Arc<Budget>>,
    ) -> Rc<Self> {
        Rc::new(Self {
            address,
            fingerprint: FixedState::default().hash_one(address),
            protocol,
            security,
            settings: settings.clone(),
            clients,
            idle: RefCell::default(),
            shared: RefCell::default(),
            connecting: tokio::sync::Mutex::default(),
            choice: Cell::new(Choice::Unknown),
            in_flight: Cell::new(0),
            failures: Cell::new((0, io::ErrorKind::Other)),
            failed: Cell::default(),
            health,
            budget,
        })
    }

    /// The same endpoint for other clients, and without a connection.
    fn for_clients(&self, clients: Clients) -> Rc<Self> {
        let Self { address, protocol, ref security, ref settings, ref health, .. } = *self;
        // Requests are counted before it is chosen.
        Self::with_clients(address, protocol, security.clone(), clients, settings, health.clone(), None)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Counts as busy as long as this lasts.
    pub(crate) fn occupy(self: &Rc<Self>) -> InFlight {
        InFlight::new(self)
    }

    /// It is tried last for a while.
    pub(crate) fn note_failure(&self) {
        self.set_failed(Some(clock::now()));
    }

    fn set_failed(&self, at: Option<u32>) {
        self.failed.set(at);
        if let Some(whole) = self.clients.whole() {
            whole.failed.set(at);
        }
    }

    /// True if there is no reason to ask another one instead.
    pub(crate) fn is_available(&self) -> bool {
        self.doubt() == Doubt::None
    }

    /// A hash of the address.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The reason, if there is one, for asking another one instead. This is the one place where it
    /// is said.
    pub(crate) fn doubt(&self) -> Doubt {
        let known = self.health.as_ref().map_or(Doubt::None, |health| health.doubt());
        if known == Doubt::None && self.failed_lately() { Doubt::FailedLately } else { known }
    }

    /// The place in an order in which the endpoint to be asked is the first; `avoid` is the one
    /// that has failed this very request.
    pub(crate) fn rank(&self, avoid: Option<SocketAddr>) -> (bool, bool, Doubt) {
        let doubt = self.doubt();
        (doubt.is_out(), Some(self.address) == avoid, doubt)
    }

    /// False if not even a backend that has no other endpoint is to have it asked.
    pub(crate) fn may_be_asked(&self) -> bool {
        let health = self.health.as_ref().filter(|health| health.backend.refuses_unhealthy());
        health.is_none_or(|health| health.doubt() != Doubt::Unhealthy)
    }

    /// True, at random, for a part of the requests to an endpoint that takes part since a moment
    /// ago only.
    pub(crate) fn holds_back(&self) -> bool {
        self.slow_share().is_some_and(|share| fastrand::f64() >= share)
    }

    /// The same for a part of the keys that are its own, by a hash of endpoint and key. As the
    /// share grows, keys come, and none goes.
    pub(crate) fn holds_back_key(&self, hash: u64) -> bool {
        self.slow_share().is_some_and(|share| hash as f64 >= share * u64::MAX as f64)
    }

    fn slow_share(&self) -> Option<f64> {
        self.health.as_ref()?.slow_share()
    }

    fn failed_lately(&self) -> bool {
        self.failed.get().is_some_and(|since| clock::now() - since < clock::ticks(AVOID_AFTER_FAILURE))
    }

    /// A connection that is ready for a request with this head: a kept one, or a new one.
    pub(crate) async fn connection(
        self: &Rc<Self>,
        counters: &CoreCounters,
        freshness: Freshness,
        head: &Parts,
        downstream: &Downstream,
    ) -> io::Result<Connection> {
        let of_client = match &self.clients {
            Clients::Any | Clients::One(_) => None,
            Clients::Each(clients) => Some(clients.of(self, downstream)?),
        };
        let endpoint = of_client.as_ref().unwrap_or(self);
        let in_flight = InFlight::new(endpoint);
        if let Some(health) = &self.health {
            health.enter();
        }
        let size = (self.protocol != BackendProtocol::Http1).then(|| HeadSize::of(head));
        let is_large = size.is_some_and(HeadSize::is_large);
        let kept_http2 = || if is_large { None } else { endpoint.stream().map(Kind::Http2) };
        let kept_http1 = || if freshness == Freshness::New { None } else { endpoint.kept().map(Kind::Http1) };
        let (kept, offer) = match self.protocol {
            BackendProtocol::Http1 => (kept_http1(), Offer::Requests),
            BackendProtocol::H2c => (kept_http2(), Offer::Requests),
            // HTTP/2 has no upgrades (RFC 9113 section 8.6).
            BackendProtocol::Negotiated if head.headers.contains_key(header::UPGRADE) => {
                (kept_http1(), Offer::Http1)
            }
            BackendProtocol::Negotiated => (kept_http2().or_else(kept_http1), Offer::Requests),
        };
        if let Some(kind) = kept {
            return Ok(Connection { kind, in_flight, reused: true, head: size });
        }
        // Boxed, since it is rare, and large as futures go: every request's would have room for it.
        let sharing = if is_large { Sharing::One } else { Sharing::All };
        let connecting = endpoint.noting_failure(counters, endpoint.connect(counters, offer, sharing));
        let kind = Box::pin(connecting).await?;
        Ok(Connection { kind, in_flight, reused: false, head: size })
    }

    /// A new connection, whatever the protocol is, for a client's bytes that have passed so many
    /// listeners. It has its place until it ends.
    pub(crate) async fn dedicated(
        self: &Rc<Self>,
        counters: &CoreCounters,
        client: Ends,
        hops: &Hops,
        passed: Passed,
        channel: Channel,
        place: Option<ConnectionPlace>,
    ) -> io::Result<Dedicated> {
        let in_flight = InFlight::new(self);
        if let Some(health) = &self.health {
            health.enter();
        }
        let dialing = async {
            if channel == Channel::Secured {
                self.may_send()?;
            }
            let dial = self.begin_dial(counters)?;
            // Before the endpoint can have it.
            let hop = hops.note(L4Protocol::Tcp, dial.local()?, self.address, passed);
            let mut socket = self.finish_dial(dial).await?;
            if let Clients::Each(clients) = &self.clients {
                // Boxed: few connections need the room.
                Box::pin(announce(&mut socket, &client.header(clients.version)?)).await?;
            }
            let stream = match channel {
                Channel::AsItCame => BackendStream::Plain(socket),
                Channel::Secured => self.secure(socket, Offer::Nothing).await?,
            };
            Ok((stream, hop))
        };
        let (stream, hop) = self.noting_failure(counters, dialing).await?;
        if let Some(health) = &self.health {
            health.passed();
        }
        Ok(Dedicated { stream, endpoint: self.address, _in_flight: in_flight, _hop: hop, _place: place })
    }

    /// Holds an attempt at connecting to its time-out, and remembers its failure.
    async fn noting_failure<T>(
        &self,
        counters: &CoreCounters,
        connecting: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let connected = timeout(self.settings.connect, connecting).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).inspect_err(|error| {
            counters.connect_failures.increment();
            self.failures.set((self.failures.get().0.wrapping_add(1), error.kind()));
            self.set_failed(Some(clock::now()));
            if let Some(health) = &self.health {
                health.failed(Failure::Connect);
            }
        })
    }

    /// Drops connections that were idle for too long, or that the peer has closed.
    pub(crate) fn sweep(&self) {
        let limit = clock::ticks(self.settings.idle);
        self.idle.borrow_mut().retain_mut(|it| clock::now() - it.since <= limit && it.connection.is_usable());
        let mut first = true;
        self.shared.borrow_mut().retain(|it| {
            let is_open = !it.is_closed() && !it.is_worn();
            let is_needed = !it.is_idle() && !it.is_closed() || is_open && first;
            first &= !(is_open && is_needed);
            is_needed
        });
        if let Clients::Each(clients) = &self.clients {
            clients.sweep(limit);
        }
    }

    /// The youngest of the kept connections that its backend has not closed.
    fn kept(&self) -> Option<Http1> {
        let mut idle = self.idle.borrow_mut();
        std::iter::from_fn(|| idle.pop())
            .map(|idle| idle.connection)
            .find_map(|mut connection| connection.is_usable().then_some(connection))
    }

    fn keep(&self, connection: Http1) {
        let most = match &self.clients {
            Clients::Any | Clients::Each(_) => self.settings.idle_connections,
            Clients::One(_) => self.settings.idle_connections.min(KEPT),
        };
        let mut idle = self.idle.borrow_mut();
        if idle.len() < most {
            idle.push(Idle { connection, since: clock::now() });
        }
    }

    fn head_limits(&self) -> HeadLimits {
        HeadLimits { bytes: self.settings.header_bytes, fields: self.settings.header_fields }
    }

    /// A place on a shared connection.
    fn stream(&self) -> Option<Stream> {
        self.shared.borrow().iter().find_map(Multiplexed::stream)
    }
}
