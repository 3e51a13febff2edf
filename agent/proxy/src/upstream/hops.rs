//! Connections and sessions of this agent that lead back to it, because an endpoint of a backend is
//! the agent itself. Bytes have no room for a sign of where they have been, as requests do; so the
//! agent remembers how often its own have come back.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use portcullis_model::L4Protocol;

/// Listeners of this agent that bytes may pass, one after the other.
const MOST: u8 = 8;

/// By the local address of what was sent to an address of this machine, the listeners that it has
/// passed. What goes elsewhere is not here, so that the lock is not taken for it.
#[derive(Clone, Default)]
pub(crate) struct Hops(Arc<Mutex<Known>>);

type Known = HashMap<(L4Protocol, SocketAddr), u8, RandomState>;

/// The listeners of this agent that bytes have passed when they come to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed(u8);

/// Keeps what was sent known.
pub(crate) struct Hop {
    hops: Hops,
    key: (L4Protocol, SocketAddr),
}

/// Bytes have passed as many listeners as they may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Looped;

impl Hops {
    /// Of what came from a peer to an address of this machine.
    pub(crate) fn passed(
        &self,
        protocol: L4Protocol,
        peer: SocketAddr,
        local: IpAddr,
    ) -> Result<Passed, Looped> {
        // From itself to itself the kernel uses the same address for both.
        if peer.ip() != local {
            return Ok(Passed::default());
        }
        let passed = self.known().get(&(protocol, peer)).copied().unwrap_or_default();
        if passed >= MOST { Err(Looped) } else { Ok(Passed(passed)) }
    }

    /// `local` sends on to `to` what has passed so many listeners.
    pub(crate) fn note(
        &self,
        protocol: L4Protocol,
        local: SocketAddr,
        to: SocketAddr,
        passed: Passed,
    ) -> Option<Hop> {
        if local.ip() != to.ip() {
            return None;
        }
        let key = (protocol, local);
        self.known().insert(key, passed.0 + 1);
        Some(Hop { hops: self.clone(), key })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        self.hops.known().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_back_is_known_as_long_as_it_lasts() {
        let hops = Hops::default();
        let [local, to, elsewhere] =
            ["10.0.0.1:4000", "10.0.0.1:53", "10.0.0.2:53"].map(|address| address.parse().unwrap());
        assert!(hops.note(L4Protocol::Udp, local, elsewhere, Passed::default()).is_none());
        let mut passed = Passed::default();
        let mut kept = Vec::new();
        for number in 1..=MOST {
            kept.push(hops.note(L4Protocol::Udp, local, to, passed).unwrap());
            let came = hops.passed(L4Protocol::Udp, local, to.ip());
            assert_eq!(came.is_err(), number == MOST);
            passed = came.unwrap_or_default();
        }
        assert_eq!(hops.passed(L4Protocol::Tcp, local, to.ip()), Ok(Passed::default()));
        drop(kept);
        assert_eq!(hops.passed(L4Protocol::Udp, local, to.ip()), Ok(Passed::default()));
    }
}
