//! The open client connections of a core, and the orders they get: to finish because their listener
//! is gone or the core drains, or to end because the client takes too long. One sweep by the core's
//! clock takes the place of a timer per connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use http::HeaderValue;
use portcullis_model::{Believer, Limits, ListenerLimits, ObjectName, PortListeners};

use crate::client::client_identity::ClientIdentity;
use crate::client::connection::{Charge, ClientTls, Version};
use crate::client::connection_limit::ConnectionPermit;
use crate::client::listener::ListenerState;
use crate::client::pace::{Pace, Pacing};
use crate::client::progress::{Owed, Progress};
use crate::client::stream::CheckedStream;
use crate::client::times::Times;
use crate::client::write_buffer::WriteBuffer;
use crate::core::clock;
use crate::core::log_limit::LogLimit;
use crate::core::room::{self, Held, Holder};
use crate::core::settings::MinimumRate;
use crate::core::snapshot::Current;
use crate::core::stats::{ExceededLimit, NotAdmitted};
use crate::core::upload_progress::UploadProgress;
use crate::core::window::Windows;
use crate::upstream::endpoint::Downstream;
use crate::upstream::proxy_header::Ends;

/// Ticks after which an idle connection gives back what it only needs in bursts.
const SHRINK_AFTER: u32 = clock::PER_SECOND;
/// Ticks without request after which a drain ends a connection that has had no last response.
const QUIET: u32 = 3 * clock::PER_SECOND;
/// Bytes that are kept free for a request under way.
const RESERVED: usize = 32 << 10;
/// Streams that an HTTP/2 connection may have at a time, however many others there are.
const FEWEST_STREAMS: usize = 8;
/// The time until requests of aborted connections must be over, and the pause between looks.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
const ABORT_POLL: Duration = Duration::from_millis(1);

/// A client connection as its requests see it.
pub(crate) struct Client {
    pub peer: SocketAddr,
    /// The peer's address as header fields show it.
    pub address: HeaderValue,
    /// The address and port the client connected to: VIP and listener port.
    pub local: SocketAddr,
    /// The listener whose server name was asked for; `None` without TLS.
    pub tls: Option<Rc<ListenerState>>,
    /// In requests that are sent on; `None` unless backends are to learn it.
    pub identity: Option<Box<ClientIdentity>>,
    /// Of the ClientHello.
    pub server_name: Option<Box<str>>,
    pub progress: Arc<Progress>,
    /// As backends may have to learn of the connection.
    pub downstream: Rc<Downstream>,
    /// Of its responses, as far as they come from backends of HTTP/2.
    pub windows: Rc<Windows>,
    permit: ConnectionPermit,
    version: Version,
    charge: RefCell<Charge>,
    times: Cell<Times>,
    times_by: Cell<TimesBy>,
    /// Requests at listeners that limit them.
    requests: Cell<u32>,
    pub(super) under_way: Rc<Cell<usize>>,
    /// Time since which the connection waits for the client alone, plus one; 0 if it does not.
    stalled_since: Cell<u32>,
    /// Of a client that keeps something from going on.
    pace: Cell<Option<Pace>>,
    /// Bodies of HTTP/2 requests that have to come at the minimum rate; some may be over.
    uploads: RefCell<Vec<WatchedUpload>>,
    /// Time since which there have been bytes that it does not read, plus one.
    holding_since: Cell<u32>,
    phase: Cell<Phase>,
    waker: RefCell<Option<Waker>>,
    /// Time at which it wants to be woken; 0 if it does not.
    wake_at: Cell<u32>,
    /// Response bodies that wait until the socket has taken what there is to write.
    pub(super) blocked: RefCell<Vec<Waker>>,
}

struct WatchedUpload {
    progress: Weak<UploadProgress>,
    pace: Option<Pace>,
}

/// The listeners that set a connection's times, beside its Gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimesBy {
    /// The only one that it can be for, or none.
    One,
    /// All of its port: none of them has been asked for anything.
    Port,
    /// Those that have been.
    Asked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serve,
    /// HTTP/1 when the core drains: the next response is the last. A client that sends its next
    /// request at this very moment would lose it if the connection just ended.
    Drain,
    /// End after what has begun.
    Finish,
    Abort,
}

pub(crate) struct Clients {
    /// Bytes that bodies may hold which clients of this core do not read, or backends do not take.
    buffers: usize,
    pacing: Option<Pacing>,
    /// The number of requests that are being served.
    under_way: Rc<Cell<usize>>,
    closed_for_buffers: LogLimit,
    /// By bodies, after the last sweep.
    held: Cell<Held>,
    open: RefCell<HashMap<u64, Open, RandomState>>,
    registered: Cell<u64>,
    draining: Cell<bool>,
}

struct Open {
    client: Rc<Client>,
    /// Of HTTP/2.
    write_buffer: Option<WriteBuffer<CheckedStream>>,
}

/// Keeps a connection among the core's; from its first request on until it is dropped.
pub(crate) struct Registered {
    clients: Rc<Clients>,
    number: u64,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(
        (peer, local): (SocketAddr, SocketAddr),
        tls: ClientTls,
        permit: ConnectionPermit,
        version: Version,
        charge: Charge,
        clients: &Clients,
    ) -> Self {
        let ClientTls { listener, identity, server_name } = tls;
        let times = Cell::new(Times::of(version, permit.limits(), None));
        let address = HeaderValue::from_str(&peer.ip().to_canonical().to_string());
        Self {
            peer,
            address: address.unwrap_or(HeaderValue::from_static("unknown")),
            local,
            tls: listener,
            identity,
            server_name,
            progress: Arc::new(Progress::new()),
            downstream: Downstream::new(Ends { client: peer, local }),
            windows: match version {
                Version::Http1 => Windows::http1(),
                Version::Http2 => Windows::http2(),
            },
            permit,
            version,
            charge: RefCell::new(charge),
            times,
            times_by: Cell::new(TimesBy::One),
            requests: Cell::default(),
            under_way: clients.under_way.clone(),
            stalled_since: Cell::new(0),
            pace: Cell::default(),
            uploads: RefCell::default(),
            holding_since: Cell::new(0),
            phase: Cell::new(Phase::Serve),
            waker: RefCell::default(),
            wake_at: Cell::default(),
            blocked: RefCell::default(),
        }
    }

    /// Of the Gateway, when the connection began.
    pub(crate) fn limits(&self) -> &Limits {
        self.permit.limits()
    }

    pub(crate) fn gateway(&self) -> &ObjectName {
        self.permit.gateway()
    }

    /// Of its Gateway, in requests that are sent on.
    pub(crate) fn pseudonym(&self) -> &HeaderValue {
        self.permit.pseudonym()
    }

    /// Lets a request in at a listener, or counts why not. Rules for addresses may have changed
    /// since the connection began. `listed` is the client as proxies list it that an owner
    /// believes; `None` if that cannot be told.
    pub(crate) fn admit(
        &self,
        listener: &ListenerState,
        listed: impl Fn(Believer) -> Option<IpAddr>,
    ) -> Result<(), NotAdmitted> {
        let limits = listener.listener.admission.limits.as_deref();
        if self.times_by.get() != TimesBy::One {
            self.count_in(limits);
        }
        if let Some(limits) = limits {
            self.count(limits.requests);
        }
        listener.permit(self.peer.ip())?;
        listener.permit_listed(self.peer.ip(), listed)?;
        if listener.limits_open() {
            listener.occupy(&self.permit.places, self.peer.ip())?;
        }
        if !listener.has_budgets() {
            return Ok(());
        }
        match &mut *self.charge.borrow_mut() {
            Charge::Before => Ok(()),
            Charge::ByListener(charged) => listener.charge(charged, self.peer.ip()),
        }
    }

    /// Holds the connection to limits beside its Gateway's, of the only listener that it can be
    /// for.
    pub(crate) fn tighten(&self, limits: &ListenerLimits) {
        self.times.set(Times::of(self.version, self.limits(), Some(limits)));
    }

    /// Holds the connection to limits that all listeners of its port have, if they do, until it has
    /// asked one of them for something; then to those of the ones that it has.
    pub(crate) fn tighten_by_request(&self, common: Option<&ListenerLimits>) {
        self.times.set(Times::of(self.version, self.limits(), common));
        self.times_by.set(TimesBy::Port);
    }

    /// A connection may have requests for several listeners at a time: no listener is to end what
    /// is another's.
    fn count_in(&self, listener: Option<&ListenerLimits>) {
        let times = Times::of(self.version, self.limits(), listener);
        self.times.set(match self.times_by.replace(TimesBy::Asked) {
            TimesBy::One | TimesBy::Port => times,
            TimesBy::Asked => self.times.get().longest(times),
        });
    }

    /// Counts a request at a listener that limits them: after the last one the connection ends.
    fn count(&self, most: Option<NonZeroU32>) {
        let Some(most) = most else { return };
        self.requests.set(self.requests.get().saturating_add(1));
        if self.requests.get() >= most.get() && self.phase.get() == Phase::Serve {
            self.drain();
        }
    }

    /// Holds the body of an HTTP/2 request to the minimum rate.
    pub(crate) fn watch_upload(&self, progress: &Rc<UploadProgress>) {
        self.uploads.borrow_mut().push(WatchedUpload { progress: Rc::downgrade(progress), pace: None });
    }

    /// True if its listener, or what its port has for one, is gone; or the port is for other
    /// protocols now: what is asked for without TLS must not be answered by a listener of HTTPS.
    pub(crate) fn is_withdrawn(&self, current: &Current) -> bool {
        let Some(port) = current.port(self.local) else { return true };
        match &self.tls {
            Some(state) => !state.is_served() || !port.listeners.suits(&state.listener.serves),
            None => !matches!(port.listeners, PortListeners::Http(_)),
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Polls the connection to its end, obeying orders; `finish` makes it end gracefully.
    pub(crate) async fn drive<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        finish: fn(Pin<&mut C>),
    ) -> Option<C::Output> {
        let mut finishing = false;
        std::future::poll_fn(|cx| {
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            if self.phase.get() == Phase::Abort {
                return Poll::Ready(None);
            }
            // First, because a request that has come is not to be lost.
            let polled = connection.as_mut().poll(cx).map(Some);
            self.resume_bodies();
            self.windows.renew();
            if polled.is_pending() && self.phase.get() == Phase::Finish && !finishing {
                finishing = true;
                finish(connection.as_mut());
                return connection.as_mut().poll(cx).map(Some);
            }
            polled
        })
        .await
    }

    /// Lets response bodies go on if the socket took everything.
    fn resume_bodies(&self) {
        if !self.progress.is_write_blocked() {
            let mut blocked = self.blocked.borrow_mut();
            if !blocked.is_empty() {
                blocked.drain(..).for_each(Waker::wake);
            }
        }
    }

    /// True of HTTP/1 if no request is to follow the one that is answered.
    pub(crate) fn is_last_response(&self) -> bool {
        self.version == Version::Http1 && matches!(self.phase.get(), Phase::Drain | Phase::Finish)
    }

    /// True if no request is to follow that has not begun.
    pub(crate) fn is_finishing(&self) -> bool {
        self.phase.get() == Phase::Finish
    }

    /// HTTP/2 says which streams it still takes; none is lost.
    fn drain(&self) {
        self.set_phase(match self.version {
            Version::Http1 => Phase::Drain,
            Version::Http2 => Phase::Finish,
        });
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
        self.wake();
    }

    /// Has the connection polled at a time of the core's clock, instead of another one that was
    /// asked for.
    pub(crate) fn wake_at(&self, time: u32) {
        self.wake_at.set(time);
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn sweep(&self, pacing: Option<Pacing>) {
        let Times { head, idle } = self.times.get();
        if self.progress.head_age().is_some_and(|age| age > head) {
            self.abort(ExceededLimit::HeaderTimeout);
        } else if self.stalled() > idle.ticks {
            self.abort(idle.limit);
        } else if pacing.is_some_and(|pacing| self.is_too_slow(pacing)) {
            self.abort(ExceededLimit::MinimumRate);
        } else if self.progress.idle_age().is_some_and(|age| age > self.longest_idle()) {
            self.set_phase(Phase::Finish);
        }
        if (1..=clock::now()).contains(&self.wake_at.get()) {
            self.wake_at.set(0);
            self.wake();
        }
        self.sweep_uploads(pacing);
        self.windows.sweep();
    }

    /// Breaks off the bodies that come too slowly. The connection stays, which may have other
    /// requests, and be another proxy's.
    fn sweep_uploads(&self, pacing: Option<Pacing>) {
        let mut uploads = self.uploads.borrow_mut();
        uploads.retain_mut(|upload| {
            let Some(progress) = upload.progress.upgrade() else { return false };
            let (Some(pacing), Some(received)) = (pacing, progress.owed()) else {
                upload.pace = None;
                return true;
            };
            upload.pace = Pace::look(upload.pace, (Owed::Request, received), pacing);
            if upload.pace.is_none() {
                self.permit.refused(ExceededLimit::MinimumRate);
                progress.end();
            }
            upload.pace.is_some()
        });
        if uploads.is_empty() && uploads.capacity() > 0 {
            uploads.shrink_to_fit();
        }
    }

    fn longest_idle(&self) -> u32 {
        let Times { idle, .. } = self.times.get();
        match self.phase.get() {
            Phase::Drain => idle.ticks.min(QUIET),
            Phase::Serve | Phase::Finish | Phase::Abort => idle.ticks,
        }
    }

    fn abort(&self, limit: ExceededLimit) {
        tracing::debug!(client = %self.peer, limit = limit.name(), "closed: the client did not go on in time");
        self.permit.refused(limit);
        self.set_phase(Phase::Abort);
    }

    fn is_too_slow(&self, pacing: Pacing) -> bool {
        let owed = self.progress.owed();
        let pace = owed.and_then(|owed| Pace::look(self.pace.get(), owed, pacing));
        // Most clients owe nothing, and are not written to.
        if pace != self.pace.get() {
            self.pace.set(pace);
        }
        owed.is_some() && pace.is_none()
    }

    /// Bytes in memory that the client does not read or backends do not take of it, and the ticks
    /// for which there have been any.
    fn held(&self) -> (usize, u32) {
        let held = self.progress.held(self.windows.ahead());
        let since = match self.holding_since.get() {
            _ if held == 0 => 0,
            0 => clock::now() + 1,
            since => since,
        };
        if since != self.holding_since.get() {
            self.holding_since.set(since);
        }
        (held, since.checked_sub(1).map_or(0, |since| clock::now() - since))
    }

    /// Ticks for which nothing has happened because of the client.
    fn stalled(&self) -> u32 {
        let since = match self.stalled_since.get() {
            _ if !self.waits_for_client() || self.progress.take_moved() => 0,
            0 => clock::now() + 1,
            since => since,
        };
        // Most connections never stall, and are not written to.
        if since != self.stalled_since.get() {
            self.stalled_since.set(since);
        }
        since.checked_sub(1).map_or(0, |since| clock::now() - since)
    }

    /// A connection that is to finish, and has nothing to finish, ends unless its client keeps it
    /// from that.
    fn waits_for_client(&self) -> bool {
        match self.progress.exchanges() {
            0 => self.phase.get() == Phase::Finish,
            _ => self.progress.waits_for_client(),
        }
    }
}

// === impl Clients ===

impl Clients {
    pub(crate) fn new(buffers: usize, minimum_rate: MinimumRate) -> Self {
        Self {
            buffers,
            pacing: Pacing::of(minimum_rate),
            under_way: Rc::default(),
            closed_for_buffers: LogLimit::default(),
            held: Cell::default(),
            open: RefCell::default(),
            registered: Cell::default(),
            draining: Cell::default(),
        }
    }

    /// Streams that one more HTTP/2 connection may have at a time: those of its Gateway, but no
    /// more than there is memory for beside the requests under way.
    pub(crate) fn streams(&self, limit: u32) -> u32 {
        let room = (self.buffers / RESERVED).saturating_sub(self.under_way.get()).max(FEWEST_STREAMS);
        u32::try_from(room).map_or(limit, |room| room.min(limit))
    }

    /// A connection may have been withdrawn before it gets here: in the middle of its handshake.
    pub(crate) fn register(self: &Rc<Self>, client: &Rc<Client>, current: &Current) -> Registered {
        if client.is_withdrawn(current) {
            client.set_phase(Phase::Finish);
        } else if self.draining.get() {
            client.drain();
        }
        let number = self.registered.get();
        self.registered.set(number + 1);
        self.open.borrow_mut().insert(number, Open { client: client.clone(), write_buffer: None });
        Registered { clients: self.clone(), number }
    }

    /// Lets the chosen connections finish what they have begun, then end.
    pub(crate) fn finish(&self, chosen: impl Fn(&Client) -> bool) {
        let open = self.open.borrow();
        open.values().filter(|it| chosen(&it.client)).for_each(|it| it.client.set_phase(Phase::Finish));
    }

    /// Lets all connections finish, those to come after their first request.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.open.borrow().values().for_each(|open| open.client.drain());
    }

    /// Ends all connections, and waits until their requests have been logged.
    pub(crate) async fn abort_all(&self) {
        let clients: Vec<_> = self.open.borrow().values().map(|open| open.client.clone()).collect();
        clients.iter().for_each(|client| client.set_phase(Phase::Abort));
        let ended = async {
            while clients.iter().any(|client| client.progress.exchanges() > 0) {
                tokio::time::sleep(ABORT_POLL).await;
            }
        };
        let _ = tokio::time::timeout(ABORT_TIMEOUT, ended).await;
    }

    /// The bytes that bodies hold.
    pub(crate) fn held(&self) -> Held {
        self.held.get()
    }

    /// Ends what has to end. Together with the bytes that others hold, no more are held than may
    /// be; `taken` is held by what does not end.
    pub(crate) fn sweep(&self, by_others: Held, taken: usize) {
        let mut held = Held::default();
        for open in self.open.borrow().values() {
            open.client.sweep(self.pacing);
            held.hold(open.client.held().0);
            if let Some(buffer) = &open.write_buffer
                && open.client.progress.idle_age() == Some(SHRINK_AFTER)
            {
                buffer.shrink();
            }
        }
        let room = self.buffers.saturating_sub(taken);
        if (held + by_others).bytes > room {
            held = self.make_room(held, by_others, room);
        }
        self.held.set(held);
    }

    /// Ends connections until the others hold no more than they may.
    fn make_room(&self, mut held: Held, by_others: Held, room: usize) -> Held {
        let open = self.open.borrow();
        let holders = open.values().map(|Open { client, .. }| {
            let (bytes, ticks) = client.held();
            Holder { bytes, ticks, it: client }
        });
        let all = held + by_others;
        for Holder { bytes, ticks, it: client } in room::to_end(holders.collect(), all, room) {
            if self.closed_for_buffers.is_due() {
                let listener = client.tls.as_ref().map(|listener_state| &listener_state.listener.id);
                tracing::warn!(
                    client = %client.peer,
                    gateway = %client.gateway(),
                    listener = listener.map(tracing::field::display),
                    local = %client.local,
                    "bodies that clients do not read or backends do not take hold {} bytes, more than this core's \
                     share of --buffers: those clients are closed that hold the most, of those with more than an \
                     equal part of it; this one held {bytes} bytes for {} s",
                    all.bytes,
                    ticks / clock::PER_SECOND
                );
            }
            client.abort(ExceededLimit::Buffers);
            held.release(bytes);
        }
        held
    }
}

// === impl Registered ===

impl Registered {
    pub(crate) fn set_write_buffer(&self, write_buffer: WriteBuffer<CheckedStream>) {
        if let Some(open) = self.clients.open.borrow_mut().get_mut(&self.number) {
            open.write_buffer = Some(write_buffer);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.clients.open.borrow_mut().remove(&self.number);
    }
}
