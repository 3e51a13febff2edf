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

/// Client connections for which an endpoint keeps connections. One more takes the place of the one
/// that has had no request for the longest time; if all have requests, its connections last as long
/// as their request.
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
    /// Counts requests, to tell which came before which.
    requests: Cell<u64>,
}

pub(super) struct OneClient {
    pub(super) header: Vec<u8>,
    /// The endpoint as all clients have it.
    whole: Weak<Endpoint>,
    /// Its last request, by [`ByClient::requests`].
    last: Cell<u64>,
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
        let by_client =
            |version| Box::new(ByClient { version, endpoints: RefCell::default(), requests: Cell::new(0) });
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
        let request = self.requests.get() + 1;
        self.requests.set(request);
        if let Some(known) = endpoints.get(&downstream.key()) {
            if let Clients::One(one) = &known.clients {
                one.last.set(request);
            }
            return Ok(known.clone());
        }
        let header = match &downstream.ends {
            Some(ends) => ends.header(self.version)?,
            None => own_header(self.version)?,
        };
        let (whole, last) = (Rc::downgrade(endpoint), Cell::new(request));
        let one = OneClient { header, whole, last, quiet_since: Cell::default() };
        let new = endpoint.for_clients(Clients::One(Box::new(one)));
        if endpoints.len() >= MOST_CLIENTS
            && let Some(quietest) = quietest(&endpoints)
        {
            endpoints.remove(&quietest);
        }
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

/// The client connection without requests whose last one is the longest ago.
fn quietest(endpoints: &HashMap<DownstreamKey, Rc<Endpoint>, RandomState>) -> Option<DownstreamKey> {
    let quiet = endpoints.iter().filter(|(_, endpoint)| endpoint.in_flight() == 0);
    let quiet = quiet.filter_map(|(client, endpoint)| match &endpoint.clients {
        Clients::One(one) => Some((one.last.get(), *client)),
        Clients::Any | Clients::Each(_) => None,
    });
    quiet.min().map(|(_, client)| client)
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

#[cfg(test)]
mod tests {
    use portcullis_model::BackendProtocol;

    use super::*;
    use crate::core::settings::Upstream;
    use crate::upstream::tls::Security;

    #[test]
    fn the_client_that_is_quiet_for_longest_makes_room() {
        let (address, header) = ("10.0.0.1:80".parse().unwrap(), Some(ProxyHeader::V1));
        let settings = Upstream::default();
        let whole =
            Endpoint::new(address, BackendProtocol::Http1, Security::Plain, header, &settings, None, None);
        let Clients::Each(clients) = &whole.clients else { panic!("its connections name clients") };
        let connected = |port| {
            let ends = Ends { client: ([192, 0, 2, 1], port).into(), local: ([192, 0, 2, 2], 80).into() };
            Downstream::new(ends)
        };
        let downstreams: Vec<_> =
            (0..MOST_CLIENTS).map(|port| connected(u16::try_from(port).unwrap())).collect();
        let kept: Vec<_> = downstreams.iter().map(|it| clients.of(&whole, it).unwrap()).collect();
        let has = |it: &Rc<Downstream>| clients.endpoints.borrow().contains_key(&it.key());
        // The first has a request on its way, the second had one just now.
        let busy = kept[0].occupy();
        clients.of(&whole, &downstreams[1]).unwrap();
        let newer = [connected(5000), connected(5001)];
        newer.iter().for_each(|it| drop(clients.of(&whole, it).unwrap()));
        let stay: Vec<_> = downstreams.iter().take(5).map(has).collect();
        assert_eq!(stay, [true, true, false, false, true]);
        assert!(newer.iter().all(has) && clients.endpoints.borrow().len() == MOST_CLIENTS);
        drop(busy);

        // Where all have requests, none is put out.
        let _busy: Vec<_> = clients.endpoints.borrow().values().map(Endpoint::occupy).collect();
        let last = connected(5002);
        clients.of(&whole, &last).unwrap();
        assert!(!has(&last) && newer.iter().all(has));
        drop(newer);
        assert_eq!(clients.endpoints.borrow().len(), MOST_CLIENTS - 2, "places go with client connections");
    }
}
