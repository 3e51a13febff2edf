//! UDP: each client of a frontend has a session, which is a socket of its own that is connected to
//! the chosen endpoint. So an answer is known by the socket that it comes to, and nothing but that
//! endpoint can answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::UdpSocket as StdUdpSocket;
use std::rc::Rc;

use portcullis_model::{FrontendKey, L4Protocol, PortKey, Snapshot};

use crate::core::ending::Ending;
use crate::core::socket::{advice, bind_udp};
use crate::l4::udp::frontend::{Frontend, rule};

mod frontend;
mod session;
mod session_socket;
mod socket;
mod table;

pub(crate) use crate::l4::udp::frontend::{Buffer, Context};
pub(crate) use crate::l4::udp::session::SessionCount;

/// The UDP frontends of a core.
pub(crate) struct UdpFrontends {
    context: Rc<Context>,
    /// One each, or those of several cores of an agent before this one.
    open: RefCell<BTreeMap<FrontendKey, Vec<Rc<Frontend>>>>,
    /// Sockets of an agent before this one, until the first snapshot.
    inherited: RefCell<BTreeMap<FrontendKey, Vec<StdUdpSocket>>>,
    /// Frontends that take nothing any more, but may still give answers.
    leaving: RefCell<Vec<Rc<Frontend>>>,
    is_stopped: Cell<bool>,
}

// === impl UdpFrontends ===

impl UdpFrontends {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context: Rc::new(context),
            open: RefCell::default(),
            inherited: RefCell::default(),
            leaving: RefCell::default(),
            is_stopped: Cell::default(),
        }
    }

    /// Takes sockets of an agent before this one.
    pub(crate) fn inherit(&self, sockets: Vec<StdUdpSocket>) {
        let mut inherited = self.inherited.borrow_mut();
        for socket in sockets {
            if let Ok(local) = socket.local_addr() {
                let port = PortKey { number: local.port(), protocol: L4Protocol::Udp };
                inherited.entry(FrontendKey::new(local.ip(), port)).or_default().push(socket);
            }
        }
    }

    /// The sockets, once more.
    pub(crate) fn share(&self) -> io::Result<Vec<StdUdpSocket>> {
        self.open.borrow().values().flatten().map(|frontend| frontend.share()).collect()
    }

    /// Binds what the snapshot adds, gives up what it no longer has. Returns the frontends that
    /// cannot be bound, and why.
    pub(crate) fn follow(&self, snapshot: &Snapshot) -> Vec<(FrontendKey, String)> {
        let is_wanted = |frontend: &FrontendKey| {
            snapshot.frontends.get(frontend).is_some_and(|port| rule(port).is_some())
        };
        if self.is_stopped.get() {
            return Vec::new();
        }
        let mut open = self.open.borrow_mut();
        let gone: Vec<_> =
            open.extract_if(.., |frontend, _| !is_wanted(frontend)).map(|(_, gone)| gone).collect();
        gone.into_iter().flatten().for_each(|frontend| self.give_up(frontend, Ending::Withdrawn));
        let mut inherited = std::mem::take(&mut *self.inherited.borrow_mut());
        let mut unbound = Vec::new();
        for key in snapshot.frontends.keys().filter(|key| is_wanted(key)) {
            if let Entry::Vacant(place) = open.entry(*key) {
                let sockets = match inherited.remove(key) {
                    Some(sockets) => Ok(sockets),
                    None => bind_udp(key.socket_address()).map(|socket| vec![socket]),
                };
                let opened = sockets.and_then(|sockets| {
                    sockets.into_iter().map(|socket| Frontend::open(*key, socket, &self.context)).collect()
                });
                match opened {
                    Ok(frontends) => drop(place.insert(frontends)),
                    Err(error) => {
                        let (address, advice) = (key.socket_address(), advice(&error));
                        unbound.push((*key, format!("cannot bind {address}: {error}{advice}")));
                    }
                }
            }
        }
        unbound
    }

    /// Ends what is over.
    pub(crate) fn sweep(&self) {
        self.open.borrow().values().flatten().for_each(|frontend| frontend.sweep());
        self.leaving.borrow_mut().retain(|frontend| {
            frontend.sweep();
            frontend.has_sessions()
        });
    }

    /// Takes nothing more; the answers that clients wait for have a moment.
    pub(crate) fn stop(&self) {
        let open = std::mem::take(&mut *self.open.borrow_mut());
        open.into_values().flatten().for_each(|frontend| self.give_up(frontend, Ending::Stopped));
        self.is_stopped.set(true);
    }

    fn give_up(&self, frontend: Rc<Frontend>, ending: Ending) {
        frontend.give_up(ending);
        self.leaving.borrow_mut().push(frontend);
    }
}
