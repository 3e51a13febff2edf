//! A UDP frontend on one core: whose datagrams it takes, which endpoint has a new client's session,
//! when sessions end, and which make room for others.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use portcullis_model::{
    Access, BackendName, FrontendKey, L4Action, L4Protocol, L4Rule, L4Target, Listener, Port, PortKey,
    PortListeners, Serves,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use crate::client::listener::Listeners;
use crate::core::clock;
use crate::core::ending::Ending;
use crate::core::log_limit::LogLimit;
use crate::core::settings::L4;
use crate::core::snapshot::{Current, SnapshotCell};
use crate::core::task::or_abort;
use crate::l4::target::{log_refusal, refusal, target};
use crate::l4::udp::session::{Beginning, Session, SessionCount};
use crate::l4::udp::session_socket::{connected, forget_errors, is_local, is_unreachable};
use crate::l4::udp::socket::{ClientKey, FrontendSocket};
use crate::l4::udp::table::{Expired, Expiry, SessionTable};
use crate::log::access_log::AccessLog;
use crate::upstream::balance::Asked;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::hops::{Hops, Passed};
use crate::upstream::pool::Pools;

/// No datagram is larger.
const LARGEST: usize = 64 << 10;
/// Datagrams in a row, after which others of the core have their turn.
const TURN: usize = 32;
/// Endpoints that are tried for a new session.
const ATTEMPTS: usize = 3;
/// The time that the last answers have when a frontend is given up.
const LAST_ANSWERS: u32 = clock::PER_SECOND;

/// The parts of a core that sessions need.
pub(crate) struct Context {
    pub settings: L4,
    /// Descriptors of the process from which on there are no new sessions.
    pub descriptors: u64,
    pub pools: Rc<Pools>,
    pub snapshot: Rc<SnapshotCell>,
    pub listeners: Rc<Listeners>,
    pub access_log: Rc<AccessLog>,
    pub tasks: TaskTracker,
    pub buffer: Buffer,
    pub hops: Hops,
    pub count: SessionCount,
    /// Those of the core, some of which may be gone.
    pub frontends: RefCell<Vec<Weak<Frontend>>>,
}

/// The memory that a core reads datagrams into.
pub(crate) struct Buffer(RefCell<Box<[u8]>>);

/// A frontend and its sessions.
pub(crate) struct Frontend {
    key: FrontendKey,
    context: Rc<Context>,
    socket: FrontendSocket,
    sessions: RefCell<SessionTable<ClientKey, Session>>,
    receiving: RefCell<Option<AbortHandle>>,
    /// The generation of snapshots that all sessions were last compared with.
    looked_at: Cell<u64>,
    /// The time at which all sessions are over, and why.
    leaving: Cell<Option<(u32, Ending)>>,
    full: LogLimit,
}

// === impl Buffer ===

impl Default for Buffer {
    fn default() -> Self {
        Self(RefCell::new(vec![0; LARGEST].into()))
    }
}

// === impl Frontend ===

impl Frontend {
    pub(super) fn open(
        key: FrontendKey,
        socket: StdUdpSocket,
        context: &Rc<Context>,
    ) -> io::Result<Rc<Self>> {
        let socket = FrontendSocket::new(socket, key.address)?;
        let frontend = Rc::new(Self {
            key,
            context: context.clone(),
            socket,
            sessions: RefCell::default(),
            receiving: RefCell::default(),
            looked_at: Cell::new(0),
            leaving: Cell::default(),
            full: LogLimit::default(),
        });
        let mut frontends = context.frontends.borrow_mut();
        frontends.retain(|known| known.strong_count() > 0);
        frontends.push(Rc::downgrade(&frontend));
        drop(frontends);
        let receiving = tokio::task::spawn_local(or_abort(frontend.clone().receive_forever()));
        *frontend.receiving.borrow_mut() = Some(receiving.abort_handle());
        Ok(frontend)
    }

    /// The socket, once more.
    pub(super) fn share(&self) -> io::Result<StdUdpSocket> {
        self.socket.share()
    }

    pub(super) fn has_sessions(&self) -> bool {
        self.sessions.borrow().len() > 0
    }

    async fn receive_forever(self: Rc<Self>) {
        let logged = LogLimit::default();
        'waiting: loop {
            if self.socket.readable().await.is_err() {
                return;
            }
            for _ in 0..TURN {
                let mut buffer = self.context.buffer.0.borrow_mut();
                match self.socket.try_receive(&mut buffer) {
                    Ok((length, client)) => self.forward(client, &buffer[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue 'waiting,
                    Err(error) if error.kind() == ErrorKind::InvalidData => {}
                    Err(error) => {
                        if logged.is_due() {
                            tracing::warn!(frontend = %self.key, %error, "cannot receive");
                        }
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn forward(self: &Rc<Self>, client: ClientKey, datagram: &[u8]) {
        let current = self.context.snapshot.load();
        let Some(port) = current.snapshot.frontends.get(&self.key) else { return };
        let mut avoid = None;
        // An error that came for an earlier datagram shows when the next one is sent.
        for _ in 0..2 {
            let known = self.sessions.borrow_mut().asked(&client);
            let known = known.filter(|session| self.keep_current(session, &current));
            let session = match known {
                Some(session) => session,
                None if avoid.is_none() && !self.admits(&client, port) => return,
                None => match self.begin(client, port, avoid) {
                    Ok(session) => session,
                    Err(ending) => return self.note_lost(port, ending),
                },
            };
            match session.send(datagram) {
                Ok(()) => return,
                Err(error) if is_unreachable(&error) => {
                    avoid = Some(session.endpoint.address);
                    self.fail(&session);
                }
                // There is no room, or the datagram is too large for the way: it is lost, as on the
                // way it might be. Or an earlier one was.
                Err(_) => {}
            }
        }
    }

    /// False for a client that the listener's terms keep out, which is counted. A session is a
    /// connection.
    fn admits(&self, client: &ClientKey, port: &Port) -> bool {
        let listener = rule(port).map(|(listener, _)| self.context.listeners.get(listener));
        listener.is_none_or(|listener| listener.admit(client.peer.ip()).is_ok())
    }

    fn note_lost(&self, port: &Port, ending: Ending) {
        if let Some((listener, _)) = rule(port) {
            self.context.listeners.get(listener).counters().forwarded.ended(ending);
        }
    }

    fn begin(
        self: &Rc<Self>,
        client: ClientKey,
        port: &Port,
        avoid: Option<SocketAddr>,
    ) -> Result<Rc<Session>, Ending> {
        let (context, log) = (&self.context, port.gateway.access_log);
        let (listener, rule) = rule(port).ok_or(Ending::NoRoute)?;
        let passed = self.passed(&client)?;
        let backend = target(rule).map_err(|why| {
            log_refusal(rule, &why);
            refusal(rule)
        })?;
        self.make_room(listener)?;
        let (endpoint, socket) = self.connect(rule, backend, client.peer.ip(), avoid)?;
        if u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number >= context.descriptors) {
            self.evict(SessionTable::dispensable);
            return Err(Ending::Full);
        }
        let hop = socket
            .local_addr()
            .ok()
            .and_then(|local| context.hops.note(L4Protocol::Udp, local, endpoint.address, passed));
        let session = Session::begin(Beginning {
            client,
            listener: context.listeners.get(listener),
            rule: rule.id.clone(),
            backend: backend.clone(),
            endpoint,
            socket,
            hop,
            counted: context.count.count(),
            generation: context.snapshot.generation(),
            log,
        });
        self.sessions.borrow_mut().insert(client, session.clone());
        let answering = self.clone().answer_forever(session.clone());
        session.answered_by(context.tasks.spawn_local(answering).abort_handle());
        Ok(session)
    }

    /// The listeners of this agent that a client's datagrams have passed. An answer of a frontend
    /// is no question: two services that answer each other would do so for ever, and one datagram
    /// with a forged sender is enough to begin it (CVE-2024-2169).
    fn passed(&self, client: &ClientKey) -> Result<Passed, Ending> {
        let ClientKey { peer, local } = *client;
        let port = PortKey { number: peer.port(), protocol: L4Protocol::Udp };
        let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let current = self.context.snapshot.load();
        let is_served = |address| current.snapshot.frontends.contains_key(&FrontendKey::new(address, port));
        if is_served(peer.ip()) || is_served(any) && is_local(peer.ip()) {
            return Err(Ending::Looped);
        }
        self.context.hops.passed(L4Protocol::Udp, peer, local).map_err(|_| Ending::Looped)
    }

    /// Another endpoint is tried where this machine knows no way to one.
    fn connect(
        &self,
        rule: &L4Rule,
        backend: &BackendName,
        client: IpAddr,
        mut avoid: Option<SocketAddr>,
    ) -> Result<(Rc<Endpoint>, UdpSocket), Ending> {
        let mut ending = Ending::NoEndpoint;
        for attempt in 0..ATTEMPTS {
            let asked = Asked { preference: Some(client).into(), headers: None, avoid };
            let endpoint = self.context.pools.pick(backend, asked);
            let endpoint = endpoint.filter(|it| attempt == 0 || Some(it.address) != avoid);
            let Some(endpoint) = endpoint else { break };
            match connected(endpoint.address) {
                Ok(socket) => return Ok((endpoint, socket)),
                Err(error) => {
                    log_refusal(rule, &error);
                    if !is_unreachable(&error) {
                        // There is no port, or no descriptor.
                        return Err(Ending::Full);
                    }
                    endpoint.note_failure();
                    (avoid, ending) = (Some(endpoint.address), Ending::ConnectFailed);
                }
            }
        }
        Err(ending)
    }

    /// Ends a session if there are as many as there may be: here, or of another frontend that has
    /// more.
    fn make_room(&self, listener: &Listener) -> Result<(), Ending> {
        let context = &self.context;
        let L4 { udp_sessions, udp_all_sessions, .. } = context.settings;
        let has_all = context.count.number() >= udp_all_sessions;
        if !has_all && self.sessions.borrow().len() < udp_sessions {
            return Ok(());
        }
        if self.full.is_due() {
            let (number, whose) = match has_all {
                true => (udp_all_sessions, "of this agent, half of what this machine has ports for"),
                false => (udp_sessions, "on this core, as many as there may be (--udp-sessions)"),
            };
            tracing::warn!(
                listener = %listener.id,
                frontend = %self.key,
                "{number} sessions {whose}: those that were not answered go, then those that look as if they were \
                 over, then those of the client with the most"
            );
        }
        let larger = || if has_all { self.larger() } else { None };
        let has_room = self.evict(SessionTable::dispensable)
            || larger().is_some_and(|other| other.evict(SessionTable::dispensable))
            || self.evict(SessionTable::excess)
            || larger().is_some_and(|other| other.evict(SessionTable::excess));
        if has_room { Ok(()) } else { Err(Ending::Full) }
    }

    /// The frontend of this core with the most sessions, if these are more than one of more.
    fn larger(&self) -> Option<Rc<Self>> {
        let frontends = self.context.frontends.borrow();
        let largest = frontends.iter().filter_map(Weak::upgrade);
        let largest = largest.max_by_key(|frontend| frontend.sessions.borrow().len())?;
        let (most, own) = (largest.sessions.borrow().len(), self.sessions.borrow().len());
        (most > own + 1).then_some(largest)
    }

    fn evict(&self, choice: impl FnOnce(&mut SessionTable<ClientKey, Session>) -> Option<ClientKey>) -> bool {
        let chosen = choice(&mut self.sessions.borrow_mut());
        chosen.inspect(|client| self.end(client, Ending::Evicted)).is_some()
    }

    /// Brings the session's answers to its client.
    async fn answer_forever(self: Rc<Self>, session: Rc<Session>) {
        let mut late = Vec::new();
        'waiting: loop {
            let Ok(ready) = session.socket.ready(Interest::READABLE | Interest::ERROR).await else { return };
            if ready.is_error() {
                if let Ok(Some(error)) = session.socket.take_error()
                    && is_unreachable(&error)
                {
                    return self.fail(&session);
                }
                // Something else, or it was told when something was sent, and is not to be told
                // again.
                let _ = session.socket.try_io(Interest::ERROR, || forget_errors(&session.socket));
            }
            for _ in 0..TURN {
                match self.answer(&session, &mut late) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue 'waiting,
                    Err(error) if is_unreachable(&error) => return self.fail(&session),
                    // Something that was sent was too large for the way.
                    Err(_) => {}
                }
                if !late.is_empty() {
                    let _ = self.socket.send(&late, session.client).await;
                    late = Vec::new();
                }
            }
            // Others of the core have their turn, however much the backend sends.
            tokio::task::yield_now().await;
        }
    }

    /// Sends the next answer on; `late` is what has to wait until the socket has room.
    fn answer(&self, session: &Session, late: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = self.context.buffer.0.borrow_mut();
        let length = session.socket.try_recv(&mut buffer)?;
        let datagram = &buffer[..length];
        session.note_sent(length);
        self.sessions.borrow_mut().answered(&session.client);
        if let Err(error) = self.socket.try_send(datagram, session.client)
            && error.kind() == ErrorKind::WouldBlock
        {
            *late = datagram.to_vec();
        }
        Ok(())
    }

    /// The endpoint is not there: the client's next datagram goes to another.
    fn fail(&self, session: &Session) {
        session.endpoint.note_failure();
        self.end(&session.client, Ending::BackendUnreachable);
    }

    /// False if the session's endpoint is no longer what its frontend leads to: it is over then.
    fn keep_current(&self, session: &Session, current: &Current) -> bool {
        if session.generation.get() == current.generation {
            return true;
        }
        let port = current.snapshot.frontends.get(&self.key);
        let leads_there = port.and_then(|port| rule(port)).is_some_and(|(_, rule)| match &rule.action {
            L4Action::Refuse(_) => false,
            L4Action::Forward(split) => split
                .backends()
                .iter()
                .any(|backend| matches!(&backend.target, L4Target::Known(name) if *name == session.backend)),
        });
        let backend = current.snapshot.backends.get(session.backend.as_str());
        let is_there = backend.is_some_and(|backend| backend.endpoints.contains(&session.endpoint.address));
        let is_permitted = port.and_then(|port| rule(port)).is_some_and(|(listener, _)| {
            let clients = listener.admission.clients.as_ref();
            let access = clients.map(|rules| rules.access(&session.client.peer.ip().to_canonical()));
            access != Some(Access::Denied)
        });
        if !is_permitted {
            self.end(&session.client, Ending::NotAdmitted);
            return false;
        }
        if leads_there && is_there {
            session.generation.set(current.generation);
        } else {
            self.end(&session.client, Ending::EndpointGone);
        }
        leads_there && is_there
    }

    pub(super) fn give_up(&self, ending: Ending) {
        if let Some(receiving) = self.receiving.take() {
            receiving.abort();
        }
        self.leaving.set(Some((clock::now() + LAST_ANSWERS, ending)));
        self.sweep();
    }

    pub(super) fn sweep(&self) {
        let settings = self.context.settings;
        let expiry = Expiry {
            idle: clock::ticks(settings.udp_idle),
            unanswered: clock::ticks(settings.udp_unanswered),
        };
        let expired = self.sessions.borrow().expired(expiry);
        for (client, expired) in expired {
            let ending = match expired {
                Expired::Idle => Ending::Idle,
                Expired::Unanswered => Ending::Unanswered,
            };
            self.end(&client, ending);
        }
        let generation = self.context.snapshot.generation();
        if self.leaving.get().is_none() && self.looked_at.replace(generation) == generation {
            return;
        }
        let sessions: Vec<_> = self.sessions.borrow().iter().map(|(_, session)| session.clone()).collect();
        let current = self.context.snapshot.load();
        for session in sessions {
            match self.leaving.get() {
                None => {
                    self.keep_current(&session, &current);
                }
                Some((deadline, ending)) => {
                    if !session.awaits_answer() || clock::now() >= deadline {
                        self.end(&session.client, ending);
                    }
                }
            }
        }
    }

    fn end(&self, client: &ClientKey, ending: Ending) {
        let Some(session) = self.sessions.borrow_mut().remove(client) else { return };
        session.end(ending);
        let current = self.context.snapshot.load();
        let port = current.snapshot.frontends.get(&self.key);
        let log = port.map_or(session.log, |port| port.gateway.access_log);
        if let Some(log) = session.listener.listener.admission.access_log(log) {
            session.log(log, ending, &self.context.access_log);
        }
    }
}

/// The listener of a UDP port, and its rule.
pub(super) fn rule(port: &Port) -> Option<(&Arc<Listener>, &L4Rule)> {
    match &port.listeners {
        PortListeners::Udp(listener) => match &listener.serves {
            Serves::Udp(rule) => Some((listener, rule)),
            _ => None,
        },
        PortListeners::Http(_) | PortListeners::Tls(_) | PortListeners::Tcp(_) => None,
    }
}
