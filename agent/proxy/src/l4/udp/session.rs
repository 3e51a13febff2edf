//! A session of UDP: one client's datagrams to the endpoint that was chosen for it, and what comes
//! back. It counts and logs itself; when it begins and ends is its frontend's to say.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use jiff::Timestamp;
use portcullis_model::{AccessLog as LogSettings, BackendName, RuleId};
use rustix::net::SendFlags;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::client::listener::ListenerState;
use crate::core::ending::Ending;
use crate::l4::udp::socket::ClientKey;
use crate::log::access_log::AccessLog;
use crate::log::flow::{Flow, Totals};
use crate::log::record::Destination;
use crate::upstream::endpoint::{Endpoint, InFlight};
use crate::upstream::hops::Hop;

/// Sessions of all cores together, each of which has a port of this machine.
#[derive(Clone, Default)]
pub(crate) struct SessionCount(Arc<AtomicUsize>);

/// Counts as long as it lasts.
pub(super) struct Counted(SessionCount);

/// The parts that a session begins with.
pub(super) struct Beginning {
    pub client: ClientKey,
    pub listener: Rc<ListenerState>,
    pub rule: Option<Arc<RuleId>>,
    pub backend: BackendName,
    pub endpoint: Rc<Endpoint>,
    pub socket: UdpSocket,
    pub hop: Option<Hop>,
    pub counted: Counted,
    /// Of the snapshot that all of this is of.
    pub generation: u64,
    /// Of its Gateway.
    pub log: Option<LogSettings>,
}

pub(super) struct Session {
    pub client: ClientKey,
    pub listener: Rc<ListenerState>,
    rule: Option<Arc<RuleId>>,
    pub backend: BackendName,
    pub endpoint: Rc<Endpoint>,
    _in_flight: InFlight,
    _hop: Option<Hop>,
    _counted: Counted,
    pub socket: UdpSocket,
    /// The generation of snapshots that its endpoint was last found in.
    pub generation: Cell<u64>,
    answering: RefCell<Option<AbortHandle>>,
    at: Timestamp,
    begun: Instant,
    /// Bytes from the client, and to it.
    received: Cell<u64>,
    sent: Cell<u64>,
    awaits_answer: Cell<bool>,
    /// Of its Gateway, when it began.
    pub log: Option<LogSettings>,
}

// === impl SessionCount ===

impl SessionCount {
    pub(super) fn number(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(super) fn count(&self) -> Counted {
        self.0.fetch_add(1, Relaxed);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

// === impl Session ===

impl Session {
    pub(super) fn begin(beginning: Beginning) -> Rc<Self> {
        let Beginning { client, listener, rule, backend, endpoint, socket, hop, counted, generation, log } =
            beginning;
        let counters = &listener.counters().forwarded;
        counters.begun.increment();
        counters.open.increment();
        Rc::new(Self {
            client,
            rule,
            backend,
            _in_flight: endpoint.occupy(),
            _hop: hop,
            _counted: counted,
            endpoint,
            socket,
            generation: Cell::new(generation),
            answering: RefCell::default(),
            at: Timestamp::now(),
            begun: Instant::now(),
            received: Cell::new(0),
            sent: Cell::new(0),
            awaits_answer: Cell::new(false),
            log,
            listener,
        })
    }

    /// The task that brings answers to the client, for as long as the session lasts.
    pub(super) fn answered_by(&self, task: AbortHandle) {
        *self.answering.borrow_mut() = Some(task);
    }

    /// True if the client has sent something since it was last sent anything.
    pub(super) fn awaits_answer(&self) -> bool {
        self.awaits_answer.get()
    }

    pub(super) fn end(&self, ending: Ending) {
        if let Some(answering) = self.answering.take() {
            answering.abort();
        }
        let counters = &self.listener.counters().forwarded;
        counters.open.decrement();
        counters.ended(ending);
    }

    /// At once or never: the runtime does not know yet whether a new socket has room.
    pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.socket, datagram, SendFlags::DONTWAIT)?;
        let bytes = datagram.len() as u64;
        self.received.set(self.received.get() + bytes);
        self.listener.counters().forwarded.received.add(bytes);
        self.awaits_answer.set(true);
        Ok(())
    }

    pub(super) fn note_sent(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.sent.set(self.sent.get() + bytes);
        self.listener.counters().forwarded.sent.add(bytes);
        self.awaits_answer.set(false);
    }

    pub(super) fn log(&self, settings: LogSettings, ending: Ending, log: &AccessLog) {
        let id = &self.listener.listener.id;
        let flow = Flow {
            at: self.at,
            gateway: &id.gateway,
            listener: id,
            client: self.client.peer,
            protocol: self.listener.listener.serves.protocol(),
            server_name: None,
            destination: Destination {
                rule: self.rule.as_ref(),
                backend: Some(&self.backend),
                endpoint: Some(self.endpoint.address),
            },
        };
        let totals = Totals {
            received: self.received.get(),
            sent: self.sent.get(),
            duration: self.begun.elapsed(),
            ending,
        };
        flow.log(settings, &totals, log);
    }
}
