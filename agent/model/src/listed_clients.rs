//! The clients of requests where proxies in front list them, in `X-Forwarded-For`. The owner of a
//! Gateway and the owner of a listener that is attached to it may believe different proxies: what
//! either of them protects goes by the client that the proxies list which they believe themselves.

use std::net::IpAddr;

use crate::{AddressRange, ClientRules};

/// The proxies in front whose list is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustedProxies {
    /// So many, whichever they are: the peer of the connection is the first of them. 0: none is.
    Hops(usize),
    /// Those with addresses in these ranges.
    Ranges(Box<[AddressRange]>),
}

/// The owner whose word decides which proxies are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believer {
    /// Of the Gateway that a listener is merged into.
    Gateway,
    /// Of the object that defines the listener.
    Listener,
}

/// The requests of a listener whose clients are not, or not for all, the peers of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedClients {
    pub of_listener: View,
    pub of_gateway: GatewayView,
}

/// The view that one owner has of a request's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub proxies: TrustedProxies,
    /// The clients that may send requests; `None` if all may, as far as connections do not tell.
    pub clients: Option<ClientRules>,
}

/// The view of the Gateway's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayView {
    /// The same as the listener's: both have one owner, or its owner does not say.
    Shared,
    /// The Gateway's policies do not say: the proxies are those that the agent is started with.
    AsStarted,
    Own(View),
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// True if no proxy is believed: the peer is the client.
    pub const fn are_none(&self) -> bool {
        matches!(self, Self::Hops(0))
    }

    /// True if the list of a proxy with this address, `distance` hops in front of us, is believed.
    /// The address is one of IPv4 or IPv6, not one mapped into the other; `None` if it cannot be
    /// read.
    pub fn believe(&self, distance: usize, address: Option<IpAddr>) -> bool {
        match self {
            Self::Hops(hops) => distance < *hops,
            Self::Ranges(ranges) => {
                address.is_some_and(|address| ranges.iter().any(|range| range.contains(&address)))
            }
        }
    }
}

// === impl ListedClients ===

impl ListedClients {
    /// `None`: as the agent is started.
    pub fn proxies(&self, believer: Believer) -> Option<&TrustedProxies> {
        match (believer, &self.of_gateway) {
            (Believer::Gateway, GatewayView::AsStarted) => None,
            (Believer::Gateway, GatewayView::Own(view)) => Some(&view.proxies),
            (Believer::Gateway, GatewayView::Shared) | (Believer::Listener, _) => {
                Some(&self.of_listener.proxies)
            }
        }
    }

    /// The clients that may send requests, and by whose view.
    pub fn rules(&self) -> impl Iterator<Item = (Believer, &ClientRules)> {
        let of_gateway = match &self.of_gateway {
            GatewayView::Own(view) => view.clients.as_ref(),
            GatewayView::Shared | GatewayView::AsStarted => None,
        };
        let of_gateway = of_gateway.map(|rules| (Believer::Gateway, rules));
        of_gateway.into_iter().chain(self.of_listener.clients.as_ref().map(|it| (Believer::Listener, it)))
    }
}
