//! The snapshot that a core serves. Requests hold it by this core's own count, so that they share
//! no cache line with other cores.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{FrontendKey, Port, PortListeners, Snapshot};

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

    /// True if some Gateway shows backends who it is.
    pub(crate) fn has_client_certificates(&self) -> bool {
        !self.0.borrow().snapshot.client_certificates.is_empty()
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

/// True if connections to the port are accepted: datagrams are taken in another way.
pub(crate) fn is_accepting(port: &Port) -> bool {
    match &port.listeners {
        PortListeners::Http(_) | PortListeners::Tls(_) | PortListeners::Tcp(_) => true,
        PortListeners::Udp(_) => false,
    }
}
