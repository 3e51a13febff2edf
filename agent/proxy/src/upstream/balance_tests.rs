use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use portcullis_model::{BackendName, BackendProtocol, Distance, Locality, PortKey, Resilience};

use super::*;
use crate::core::settings::Upstream;
use crate::upstream::health::SharedHealth;
use crate::upstream::tls::Security;

struct World {
    backend: Backend,
    endpoints: Vec<Rc<Endpoint>>,
    turns: Turns,
}

impl World {
    fn new(balancing: Balancing, count: u16) -> Self {
        let addresses: Vec<_> = (0..count).map(|port| SocketAddr::from(([10, 0, 0, 1], port))).collect();
        let endpoint = |at: &SocketAddr| {
            Endpoint::new(
                *at,
                BackendProtocol::Http1,
                Security::Plain,
                None,
                &Upstream::default(),
                None,
                None,
            )
        };
        let endpoints = addresses.iter().map(endpoint).collect();
        let name = BackendName::new("app", "web", PortKey::tcp(80));
        let backend = Backend { balancing, ..Backend::new(name, addresses) };
        Self { backend, endpoints, turns: Turns::new() }
    }

    fn preferring(mut self, groups: &[usize]) -> Self {
        let places = vec![Distance::Elsewhere; self.endpoints.len()].into();
        self.backend.locality = Some(Arc::new(Locality { places, preferred: groups.into() }));
        self
    }

    fn choose(&self, asked: Asked<'_>) -> Option<usize> {
        choose(&self.backend, &self.endpoints, &self.turns, &asked)
    }

    fn counts(&self, times: usize) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..times {
            *counts.entry(self.choose(Asked::default()).unwrap()).or_default() += 1;
        }
        counts
    }

    /// The choice for each of a thousand users.
    fn of_users(&self) -> Vec<u16> {
        let mut headers = HeaderMap::new();
        let users = (0..1000).map(|user| {
            headers.insert("x-user", HeaderValue::from(user));
            let asked = Asked { headers: Some(&headers), ..Asked::default() };
            self.endpoints[self.choose(asked).unwrap()].address.port()
        });
        users.collect()
    }
}

fn by_user() -> Balancing {
    Balancing::Hash(HashKey::Header(HeaderName::from_static("x-user")))
}

#[test]
fn each_has_its_turn() {
    let world = World::new(Balancing::RoundRobin, 5);
    assert!(world.counts(50).values().all(|count| *count == 10));
    world.endpoints[3].note_failure();
    let counts = world.counts(50);
    assert!(counts.len() == 4 && !counts.contains_key(&3), "{counts:?}");
}

#[test]
fn the_one_with_fewer_requests_is_chosen() {
    let world = World::new(Balancing::LeastRequest, 2);
    let _busy = world.endpoints[0].occupy();
    assert_eq!(world.counts(20), [(1, 20)].into());
    // With requests in flight it is asked still rather than one that fails.
    world.endpoints[1].note_failure();
    assert_eq!(world.counts(20), [(0, 20)].into());
}

#[test]
fn one_that_goes_moves_its_own_keys_only() {
    let mut world = World::new(by_user(), 20);
    let before = world.of_users();
    assert!((0..20).all(|port| (20..=90).contains(&before.iter().filter(|it| **it == port).count())));
    world.endpoints.remove(7);
    let after = world.of_users();
    assert!(before.iter().zip(&after).all(|(before, after)| before == after || *before == 7));
    assert!(!after.contains(&7));
    // The same as if it were there and failed.
    let failing = World::new(by_user(), 20);
    failing.endpoints[7].note_failure();
    assert_eq!(failing.of_users(), after);
}

/// Keys come to it one after the other, and none from one of the others to another.
#[test]
fn one_that_begins_slowly_takes_some_of_its_keys_at_first() {
    const NEW: u16 = 7;
    let whole = World::new(by_user(), 20).of_users();
    let mut world = World::new(by_user(), 20);
    let new = usize::from(NEW);
    let others = [&world.backend.endpoints[..new], &world.backend.endpoints[new + 1..]].concat();
    let in_window = |window| {
        let terms = Resilience { slow_start: Some(window), ..Resilience::default() };
        Backend { resilience: Some(Arc::new(terms)), ..world.backend.clone() }
    };
    let shared = SharedHealth::default();
    let health = shared.of(&in_window(Duration::from_secs(36_000)), 1).unwrap();
    let _known = health.endpoints(&others);
    let states = health.endpoints(&world.backend.endpoints);
    for (endpoint, state) in world.endpoints.iter_mut().zip(states) {
        let (address, settings) = (endpoint.address, Upstream::default());
        let (protocol, security) = (BackendProtocol::Http1, Security::Plain);
        *endpoint = Endpoint::new(address, protocol, security, None, &settings, Some(state), None);
    }
    let own = whole.iter().filter(|port| **port == NEW).count();
    let first = world.of_users();
    assert!(whole.iter().zip(&first).all(|(whole, first)| whole == first || *whole == NEW));
    let taken = first.iter().filter(|port| **port == NEW).count();
    assert!((1..=own / 3).contains(&taken), "{taken} of {own}");
    assert_eq!(world.of_users(), first, "a key has one endpoint, as long as the share is the same");
    // Alone it takes all.
    let alone = world.endpoints.swap_remove(new);
    world.endpoints = vec![alone];
    assert!(world.of_users().iter().all(|port| *port == NEW));
}

#[test]
fn keys_are_what_requests_have() {
    let cookie = HashKey::Cookie("user".into());
    let hashed = |cookies: &[&'static str]| {
        let values = cookies.iter().map(|it| (COOKIE, HeaderValue::from_static(it)));
        let mut headers = HeaderMap::new();
        values.for_each(|(name, value)| _ = headers.append(name, value));
        hash(&cookie, None, Some(&headers))
    };
    assert_eq!(hashed(&["a=b; user=x; c=d"]), hashed(&["a=c", " user=x"]));
    assert_ne!(hashed(&["user=x"]), hashed(&["user=y"]));
    for none in [&[][..], &["users=x"], &["user"], &["user="], &["a=user=x"]] {
        assert_eq!(hashed(none), None, "{none:?}");
    }
    let address = |text: &str| hash(&HashKey::ClientAddress, text.parse().ok(), None);
    assert_eq!(address("10.1.2.3"), address("::ffff:10.1.2.3"));
    assert_ne!(address("10.1.2.3"), address("10.1.2.4"));
    assert_eq!(address(""), None);
    // What has no key is not all sent to one endpoint.
    assert_eq!(World::new(by_user(), 3).counts(200).len(), 3);
}

#[test]
fn the_nearest_available_ones_are_chosen_from() {
    for balancing in [Balancing::LeastRequest, Balancing::RoundRobin, by_user()] {
        let world = World::new(balancing, 6).preferring(&[1, 3]);
        let chosen = || world.counts(300).into_keys().collect::<Vec<_>>();
        assert_eq!(chosen(), [0]);
        world.endpoints[0].note_failure();
        assert_eq!(chosen(), [1, 2]);
        world.endpoints[1].note_failure();
        assert_eq!(chosen(), [2]);
        // Not this time.
        let avoid = Some(world.endpoints[2].address);
        assert!(world.choose(Asked { avoid, ..Asked::default() }).unwrap() > 2);
        world.endpoints[2].note_failure();
        assert_eq!(chosen(), [3, 4, 5]);
        // Where none is available, any is better than none.
        world.endpoints.iter().for_each(|it| it.note_failure());
        assert!(world.choose(Asked::default()).is_some());
    }
}

#[test]
fn a_session_comes_before_all_else() {
    for balancing in [Balancing::LeastRequest, Balancing::RoundRobin, by_user()] {
        let world = World::new(balancing, 4).preferring(&[2]);
        let session = Some(world.endpoints[3].address);
        let asked = Asked { preference: Preference { client: None, session }, ..Asked::default() };
        assert_eq!(world.choose(asked), Some(3));
        let gone = Some(SocketAddr::from(([10, 0, 0, 1], 99)));
        let asked = Asked { preference: Preference { client: None, session: gone }, ..asked };
        assert!(world.choose(asked).unwrap() < 2);
        assert!(world.choose(Asked { avoid: session, ..asked }).is_some());
    }
}
