//! The snapshot that a core serves. Requests hold it by this core's own count, so that they share
//! no cache line with other cores.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{FrontendKey, Listener, Port, PortListeners, Serves, Snapshot, Unserved};

/// The place where the current snapshot is found.
#[derive(Default)]
pub(crate) struct SnapshotCell(RefCell<Rc<Current>>);

#[derive(Default)]
pub(crate) struct Current {
    pub snapshot: Arc<Snapshot>,
    /// Counts what this core was given; the same snapshot twice is two generations.
    pub generation: u64,
}

// === impl SnapshotCell ===

impl SnapshotCell {
    pub(crate) fn load(&self) -> Rc<Current> {
        self.0.borrow().clone()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.0.borrow().generation
    }

    pub(crate) fn store(&self, snapshot: Arc<Snapshot>) {
        let generation = self.generation() + 1;
        self.0.replace(Rc::new(Current { snapshot, generation }));
    }
}

// === impl Current ===

impl Current {
    /// The port that connections to an address come to: of that very address, else of the
    /// unspecified one.
    pub(crate) fn port(&self, local: SocketAddr) -> Option<&Arc<Port>> {
        let address = local.ip().to_canonical();
        let any = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let key = |address| FrontendKey::tcp(SocketAddr::new(address, local.port()));
        let frontends = &self.snapshot.frontends;
        frontends.get(&key(address)).or_else(|| frontends.get(&key(any)))
    }
}

/// True if connections to the port are accepted, be it for some of its listeners only.
pub(crate) fn is_accepting(port: &Port) -> bool {
    match &port.listeners {
        PortListeners::Http(_) | PortListeners::Tls(_) => true,
        PortListeners::Tcp(_) | PortListeners::Udp(_) => false,
    }
}

/// The parts of a snapshot that this data plane cannot serve, wherever it runs. A listener that is
/// refused leaves those that share its port alone.
pub(crate) fn unserved(snapshot: &Snapshot) -> Unserved {
    let mut unserved = Unserved::default();
    for (frontend, port) in &snapshot.frontends {
        for listener in port.listeners.iter() {
            let Some(why) = refusal(listener) else { continue };
            if is_accepting(port) {
                unserved.listeners.insert((*frontend, listener.id.clone()), why);
            } else {
                unserved.frontends.insert(*frontend, why);
            }
        }
    }
    unserved
}

/// The reason why the traffic of a listener is refused although it could be served elsewhere.
pub(crate) fn refusal(listener: &Listener) -> Option<String> {
    match &listener.serves {
        // That it has no certificate is no news to those who made the snapshot.
        Serves::Http(_) | Serves::Https { .. } | Serves::NoCertificate => None,
        Serves::TlsTerminated { .. } | Serves::TlsPassthrough(_) | Serves::Tcp(_) | Serves::Udp(_) => {
            let (id, protocol) = (&listener.id, listener.serves.protocol());
            Some(format!("{id} has protocol {protocol}, which is not served: use HTTP or HTTPS"))
        }
    }
}
