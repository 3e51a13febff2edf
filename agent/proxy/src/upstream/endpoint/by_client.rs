//! Connections that begin with a header of PROXY protocol. The header names one client connection,
//! so that none but its requests may follow: each client connection has an endpoint of its own, as
//! it were, beside those of others. It goes with the client connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::{Rc, Weak};

use foldhash::fast::RandomState;
use portcullis_model::ProxyHeader;

use crate::core::clock;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::proxy_header::{Ends, own_header};

/// Client connections for which an endpoint keeps connections; those of others last as long as
/// their request.
const MOST_CLIENTS: usize = 1024;
/// Connections of HTTP/1 that are kept for each of them.
pub(super) const KEPT: usize = 8;

/// The clients whose requests an endpoint's connections are for.
pub(super) enum Clients {
    /// Any: requests tell whose they are.
    Any,
    /// Connections tell, and are kept by client.
    Each(Box<ByClient>),
    /// The one that the header names.
    One(Box<OneClient>),
}

pub(super) struct ByClient {
    pub(super) version: ProxyHeader,
    endpoints: RefCell<HashMap<DownstreamKey, Rc<Endpoint>, RandomState>>,
}

pub(super) struct OneClient {
    pub(super) header: Vec<u8>,
    /// The endpoint as all clients have it.
    whole: Weak<Endpoint>,
    /// Time since which there has been no request.
    quiet_since: Cell<Option<u32>>,
}

/// The client's connection that requests come by. When it is dropped, so is what endpoints keep for
/// it.
pub(crate) struct Downstream {
    /// `None` for requests that are no client's.
    ends: Option<Ends>,
    endpoints: RefCell<Vec<Weak<Endpoint>>>,
}

/// The place of a downstream in memory.
type DownstreamKey = usize;

// === impl Clients ===

impl Clients {
    pub(super) fn new(header: Option<ProxyHeader>) -> Self {
        let by_client = |version| Box::new(ByClient { version, endpoints: RefCell::default() });
        header.map_or(Self::Any, |version| Self::Each(by_client(version)))
    }

    /// The endpoint that counts what this one does, too.
    pub(super) fn whole(&self) -> Option<Rc<Endpoint>> {
        match self {
            Self::One(one) => one.whole.upgrade(),
            Self::Any | Self::Each(_) => None,
        }
    }
}

// === impl ByClient ===

impl ByClient {
    /// The endpoint for requests of one client connection.
    pub(super) fn of(&self, endpoint: &Rc<Endpoint>, downstream: &Downstream) -> io::Result<Rc<Endpoint>> {
        let mut endpoints = self.endpoints.borrow_mut();
        if let Some(known) = endpoints.get(&downstream.key()) {
            return Ok(known.clone());
        }
        let header = match &downstream.ends {
            Some(ends) => ends.header(self.version)?,
            None => own_header(self.version)?,
        };
        let one = OneClient { header, whole: Rc::downgrade(endpoint), quiet_since: Cell::default() };
        let new = endpoint.for_clients(Clients::One(Box::new(one)));
        if endpoints.len() < MOST_CLIENTS {
            endpoints.insert(downstream.key(), new.clone());
            downstream.note(endpoint);
        }
        Ok(new)
    }

    /// Drops connections, and with them clients, that have had no request for so many ticks.
    pub(super) fn sweep(&self, longest: u32) {
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            endpoint.sweep();
            match &endpoint.clients {
                Clients::One(one) if endpoint.in_flight() == 0 => {
                    let since = one.quiet_since.get().unwrap_or_else(clock::now);
                    one.quiet_since.set(Some(since));
                    clock::now() - since <= longest
                }
                Clients::One(one) => {
                    one.quiet_since.set(None);
                    true
                }
                Clients::Any | Clients::Each(_) => false,
            }
        });
    }
}

// === impl Downstream ===

impl Downstream {
    pub(crate) fn new(ends: Ends) -> Rc<Self> {
        Rc::new(Self { ends: Some(ends), endpoints: RefCell::default() })
    }

    /// For requests of our own.
    pub(crate) fn own() -> Rc<Self> {
        Rc::new(Self { ends: None, endpoints: RefCell::default() })
    }

    fn key(&self) -> DownstreamKey {
        std::ptr::from_ref(self).addr()
    }

    fn note(&self, endpoint: &Rc<Endpoint>) {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.retain(|known| known.strong_count() > 0 && known.as_ptr() != Rc::as_ptr(endpoint));
        endpoints.push(Rc::downgrade(endpoint));
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        for endpoint in self.endpoints.borrow().iter().filter_map(Weak::upgrade) {
            if let Clients::Each(clients) = &endpoint.clients {
                let own = clients.endpoints.borrow_mut().remove(&self.key());
                drop(own);
            }
        }
    }
}
