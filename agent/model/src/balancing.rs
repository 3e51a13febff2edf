//! The choice among a backend's endpoints, as its Service asks for it.

use http::HeaderName;
use serde::{Serialize, Serializer};

/// The strategy by which one of several endpoints is chosen. Sessions come before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Balancing {
    /// Of two endpoints at random the one with fewer requests, connections or sessions open.
    #[default]
    LeastRequest,
    /// One after the other, on each core by itself.
    RoundRobin,
    /// The same endpoint for the same key, as long as it is there; the least request of two where
    /// there is no key.
    Hash(HashKey),
}

/// The part of a request that is hashed. Connections and datagrams have an address only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum HashKey {
    ClientAddress,
    /// All values of the header.
    Header(#[serde(serialize_with = "name")] HeaderName),
    /// The first cookie of the name.
    Cookie(Box<str>),
}

/// The distance of an endpoint from the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Distance {
    Node,
    Zone,
    Elsewhere,
}

/// The distances of a backend's endpoints, and which are preferred for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Locality {
    /// The distance of each endpoint, in their order.
    pub places: Box<[Distance]>,
    /// Numbers of endpoints at the beginning of their order, ascending and fewer than all. The
    /// first so many that have an available one are chosen from, or else all.
    pub preferred: Box<[usize]>,
}

// === impl Balancing ===

impl Balancing {
    pub fn is_default(&self) -> bool {
        *self == Self::LeastRequest
    }

    /// True if all that comes from an address goes to one endpoint.
    pub fn is_by_address(&self) -> bool {
        *self == Self::Hash(HashKey::ClientAddress)
    }
}

// === impl Distance ===

impl Distance {
    pub const ALL: [Self; 3] = [Self::Node, Self::Zone, Self::Elsewhere];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Zone => "zone",
            Self::Elsewhere => "other",
        }
    }
}

fn name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
