//! The choice of the endpoint that takes the next request, connection or session of UDP: by the
//! strategy of its backend, among the nearest that are available.
//!
//! Whether an endpoint is available is its own to say ([`Endpoint::is_available`]); that it is not
//! never leaves a request without an endpoint, as long as there is one.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use foldhash::quality::FixedState;
use http::HeaderMap;
use http::header::COOKIE;
use portcullis_model::{Backend, Balancing, HashKey};

use crate::upstream::endpoint::Endpoint;

/// Draws for an endpoint that does not hold back, as those do that begin slowly.
const DRAWS: usize = 3;

/// The endpoint that a request had best go to, as far as it says so itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preference {
    pub client: Option<IpAddr>,
    /// The endpoint that has the session of the request.
    pub session: Option<SocketAddr>,
}

/// The circumstances of a choice.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asked<'r> {
    pub preference: Preference,
    /// Those of the request; connections and datagrams have none.
    pub headers: Option<&'r HeaderMap>,
    /// The endpoint that failed this very request.
    pub avoid: Option<SocketAddr>,
}

/// The place in a backend's turns, for one core.
pub(super) struct Turns(Cell<usize>);

/// The strategy, with what it needs to know of the request.
#[derive(Clone, Copy)]
enum Choice<'t> {
    LeastRequest,
    RoundRobin(&'t Turns),
    Hash(u64),
}

// === impl Preference ===

impl From<Option<IpAddr>> for Preference {
    fn from(client: Option<IpAddr>) -> Self {
        Self { client, session: None }
    }
}

// === impl Turns ===

impl Turns {
    /// Cores and agents do not all begin with the same endpoint.
    pub(super) fn new() -> Self {
        Self(Cell::new(fastrand::usize(..)))
    }

    fn next(&self) -> usize {
        let turn = self.0.get();
        self.0.set(turn.wrapping_add(1));
        turn
    }
}

/// The index of the endpoint that is to be asked: that of the request's session, if it has one;
/// else of the first group of preferred endpoints of which one is available. Where none is, it is
/// chosen among all, and is the one to avoid only if there is no other.
pub(super) fn choose(
    backend: &Backend,
    endpoints: &[Rc<Endpoint>],
    turns: &Turns,
    asked: &Asked<'_>,
) -> Option<usize> {
    let Preference { client, session } = asked.preference;
    if let Some(address) = session.filter(|address| Some(*address) != asked.avoid)
        && let Some(index) = endpoints.iter().position(|it| it.address == address)
    {
        return Some(index);
    }
    let key = match &backend.balancing {
        Balancing::LeastRequest | Balancing::RoundRobin => None,
        Balancing::Hash(key) => hash(key, client, asked.headers),
    };
    let choice = match (&backend.balancing, key) {
        (Balancing::RoundRobin, _) => Choice::RoundRobin(turns),
        (Balancing::Hash(_), Some(key)) => Choice::Hash(key),
        (Balancing::Hash(_) | Balancing::LeastRequest, _) => Choice::LeastRequest,
    };
    for preferred in backend.locality.iter().flat_map(|locality| &*locality.preferred) {
        let chosen = endpoints.get(..*preferred).and_then(|group| choice.among(group, asked.avoid));
        if let Some(index) = chosen.filter(|index| is_usable(&endpoints[*index], asked.avoid)) {
            return Some(index);
        }
    }
    choice.among(endpoints, asked.avoid)
}

fn is_usable(endpoint: &Endpoint, avoid: Option<SocketAddr>) -> bool {
    Some(endpoint.address) != avoid && endpoint.is_available()
}

/// `None`: the request does not have what is hashed.
fn hash(key: &HashKey, client: Option<IpAddr>, headers: Option<&HeaderMap>) -> Option<u64> {
    // The same on all cores, agents and nodes.
    let state = FixedState::default();
    match key {
        HashKey::ClientAddress => Some(state.hash_one(client?.to_canonical())),
        HashKey::Header(name) => {
            let mut values = headers?.get_all(name).iter().peekable();
            values.peek()?;
            Some(values.fold(0, |before, value| state.hash_one((before, value.as_bytes()))))
        }
        HashKey::Cookie(name) => {
            let fields = headers?.get_all(COOKIE).iter();
            let mut pairs = fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
            let value = pairs.find_map(|pair| {
                pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::trim_ascii)
            });
            value.filter(|value| !value.is_empty()).map(|value| state.hash_one(value))
        }
    }
}

// === impl Choice ===

impl Choice<'_> {
    /// One that is available and not to be avoided, if any is.
    fn among(self, endpoints: &[Rc<Endpoint>], avoid: Option<SocketAddr>) -> Option<usize> {
        match self {
            Self::LeastRequest => least_of_two(endpoints, avoid),
            Self::RoundRobin(turns) => {
                let all = 0..endpoints.len();
                let turn = turns.next().checked_rem(all.end)?;
                // An endpoint that begins slowly leaves turns to others.
                let takes =
                    |index: &usize| is_usable(&endpoints[*index], avoid) && !endpoints[*index].holds_back();
                if takes(&turn) {
                    return Some(turn);
                }
                // Any of the others: the next one would have the turns of two.
                let usable = all.clone().filter(takes);
                fastrand::choice(usable.collect::<Vec<_>>()).or_else(|| least(endpoints, all, avoid))
            }
            // The order of endpoints is each key's own (rendezvous hashing): one that comes or goes
            // moves no other key. One that begins slowly has its keys one after the other, in an
            // order that has nothing to do with why they are its own.
            Self::Hash(key) => (0..endpoints.len()).min_by_key(|index| {
                let endpoint = &*endpoints[*index];
                let order = mixed(key ^ endpoint.fingerprint());
                (endpoint.rank(avoid), endpoint.holds_back_key(mixed(!order)), order)
            }),
        }
    }
}

/// Of two at random; of all, if the last attempt failed or those two are not available.
fn least_of_two(endpoints: &[Rc<Endpoint>], avoid: Option<SocketAddr>) -> Option<usize> {
    let chosen = match endpoints {
        [] => return None,
        [_] => 0,
        [..] => {
            let draw = || {
                let one = fastrand::usize(..endpoints.len());
                let other = (one + fastrand::usize(1..endpoints.len())) % endpoints.len();
                least(endpoints, [one, other], avoid)
            };
            let whole = |index: &usize| !endpoints[*index].holds_back();
            (0..DRAWS).find_map(|_| draw().filter(whole)).or_else(draw)?
        }
    };
    if avoid.is_none() && endpoints[chosen].is_available() {
        return Some(chosen);
    }
    least(endpoints, 0..endpoints.len(), avoid)
}

/// The endpoint most likely to answer soon.
fn least(
    endpoints: &[Rc<Endpoint>],
    candidates: impl IntoIterator<Item = usize>,
    avoid: Option<SocketAddr>,
) -> Option<usize> {
    candidates.into_iter().min_by_key(|index| {
        let endpoint = &*endpoints[*index];
        (endpoint.rank(avoid), endpoint.in_flight())
    })
}

/// The finaliser of SplitMix64: every bit of the input decides on every bit of the output.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
