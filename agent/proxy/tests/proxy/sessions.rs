//! Sessions: the tables of GEP-1619, row by row, over real connections; what becomes of sessions
//! when endpoints and weights change; and tokens that are none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{
    BackendProtocol, CookieLifetime, KeptSessions, KeyRing, RingKey, SessionCarrier, SessionCookie,
    SessionPersistence, SessionTerms,
};

use crate::support::backend::refusing;
use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, backend_name, rule};
use crate::support::via::{Reply, Via};
use crate::support::world::World;

/// Requests that have to come to one endpoint.
const MANY: usize = 50;

fn by_cookie(
    scope: &str,
    lifetime: CookieLifetime,
    absolute_timeout: Option<Duration>,
) -> SessionPersistence {
    let cookie = SessionCookie { name: "session".into(), path: "/".into(), lifetime };
    let carrier = SessionCarrier::Cookie(cookie);
    kept(scope, KeptSessions::All(SessionTerms { carrier, absolute_timeout }))
}

fn kept(scope: &str, kept: KeptSessions) -> SessionPersistence {
    SessionPersistence { scope: scope.into(), kept, drained: Vec::new() }
}

fn cookie(scope: &str) -> SessionPersistence {
    by_cookie(scope, CookieLifetime::Session, None)
}

fn header(scope: &str) -> SessionPersistence {
    let carrier = SessionCarrier::Header("x-session".parse().unwrap());
    kept(scope, KeptSessions::All(SessionTerms { carrier, absolute_timeout: None }))
}

fn ring(secret: u8) -> Arc<KeyRing> {
    Arc::new(KeyRing::new(vec![RingKey { created: 1, secret: [secret; 32] }]))
}

/// Backends of a protocol, each with several endpoints that count their requests.
struct Backends(BTreeMap<&'static str, Vec<Origin>>);

impl Backends {
    async fn start(protocol: BackendProtocol, names: &[(&'static str, usize)]) -> Self {
        let mut backends = BTreeMap::new();
        for (name, count) in names {
            for _ in 0..*count {
                let origin = match protocol {
                    BackendProtocol::Http1 => Origin::http1().await,
                    BackendProtocol::H2c | BackendProtocol::Negotiated => Origin::h2c().await,
                };
                backends.entry(*name).or_insert_with(Vec::new).push(origin);
            }
        }
        Self(backends)
    }

    fn addresses(&self, name: &str) -> Vec<SocketAddr> {
        self.0[name].iter().map(|origin| origin.address).collect()
    }

    /// The endpoints by number of requests so far.
    fn counts(&self) -> BTreeMap<(&'static str, SocketAddr), usize> {
        let all = self.0.iter().flat_map(|(name, origins)| origins.iter().map(move |it| (*name, it)));
        all.map(|(name, origin)| ((name, origin.address), origin.requests())).collect()
    }

    /// The endpoint that requests come to while this lasts.
    async fn only_one(&self, requests: impl Future<Output = ()>) -> (&'static str, SocketAddr) {
        let before = self.counts();
        requests.await;
        let came: Vec<_> = self.counts().into_iter().filter(|(at, number)| before[at] != *number).collect();
        let [(only, _)] = came[..] else { panic!("several: {came:?}") };
        only
    }
}

async fn world(backends: &Backends, protocol: BackendProtocol, rules: Vec<RuleSpec>) -> World {
    let mut world = World::new();
    world.proxy.use_keys(ring(1)).await;
    for name in backends.0.keys() {
        world.backend(name, protocol, &backends.addresses(name));
    }
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    world
}

/// The token that a response gives, and the rest of the field.
fn given(reply: &Reply) -> Option<(String, String)> {
    if let Some(token) = reply.header("x-session") {
        return Some((token.to_owned(), String::new()));
    }
    let all: Vec<_> = reply.headers.get_all("set-cookie").iter().collect();
    assert!(all.len() < 2, "{all:?}");
    let (pair, attributes) = all.first()?.to_str().unwrap().split_once("; ").unwrap();
    Some((pair.strip_prefix("session=").unwrap().to_owned(), attributes.to_owned()))
}

fn get(path: &str, token: Option<&str>) -> String {
    let token = token.map(|token| format!("cookie: a=b; session={token}\n")).unwrap_or_default();
    format!("GET {path}\nhost: a.com\n{token}\n")
}

async fn begin(world: &World, via: Via, path: &str) -> String {
    given(&world.send(via, &get(path, None)).await).expect("a session begins").0
}

/// Requests of a session, none of which needs another token.
async fn go_on(world: &World, path: &str, token: &str) {
    for at in 0..MANY {
        // Both cores.
        let via = Via::ALL[at % 4];
        let reply = world.send(via, &get(path, Some(token))).await;
        assert_eq!((reply.status.as_u16(), given(&reply)), (200, None), "{via:?}");
        assert!(reply.body.contains(&format!("session={token}")), "backends get it, too: {}", reply.body);
    }
}

#[tokio::test]
async fn simple_cookie_session() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let backends = Backends::start(protocol, &[("echo", 4)]).await;
        let world = world(&backends, protocol, vec![rule().session(cookie("r"))]).await;
        for via in Via::ALL {
            let first = world.send(via, &get("/", None)).await;
            let (token, attributes) = given(&first).unwrap();
            let secure = if via == Via::Http1 || via == Via::H2c { "" } else { "Secure; " };
            // "Cookie MUST NOT contain `Expires` or `Max-Age`."
            assert_eq!(attributes, format!("Path=/; {secure}HttpOnly; SameSite=Strict"));
            backends.only_one(go_on(&world, "/", &token)).await;
        }
    }
}

#[tokio::test]
async fn grpc_calls_have_sessions_by_cookie_and_by_header() {
    let backends = Backends::start(BackendProtocol::H2c, &[("echo", 4)]).await;
    for session in [cookie("r"), header("r")] {
        let world = world(&backends, BackendProtocol::H2c, vec![rule().session(session)]).await;
        let call = |field: &str| {
            format!("POST /a.B/c\nhost: a.com\ncontent-type: application/grpc\nte: trailers\n{field}\n")
        };
        let first = world.send(Via::H2c, &call("")).await;
        let (token, _) = given(&first).expect("a session begins");
        let field = match first.header("x-session") {
            Some(_) => format!("x-session: {token}\n"),
            None => format!("cookie: session={token}\n"),
        };
        backends
            .only_one(async {
                for _ in 0..MANY {
                    assert_eq!(given(&world.send(Via::H2c, &call(&field)).await), None);
                }
            })
            .await;
    }
}

/// "Initial requests MUST respect weight distribution. Once session is established, subsequent
/// requests with cookie MUST route to the same backend regardless of weight configuration."
#[tokio::test]
async fn weights_decide_where_sessions_begin_and_not_where_they_go_on() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 2), ("v2", 2)]).await;
    let split = |weights: [u32; 2]| {
        vec![rule().session(cookie("r")).split(&[("v1", weights[0]), ("v2", weights[1])])]
    };
    let mut world = world(&backends, BackendProtocol::Http1, split([70, 30])).await;
    let mut tokens = BTreeMap::<_, Vec<String>>::new();
    for _ in 0..400 {
        let mut token = String::new();
        let at = backends.only_one(async { token = begin(&world, Via::Http1, "/").await }).await;
        tokens.entry(at).or_default().push(token);
    }
    let of_v1: usize =
        tokens.iter().filter(|((name, _), _)| *name == "v1").map(|(_, tokens)| tokens.len()).sum();
    assert!((230..330).contains(&of_v1), "70 % of 400: {of_v1}");
    // "The persistence to a single backend MUST be maintained across services, even if the weight
    // is set to 0."
    for weights in [[1, 1000], [0, 1]] {
        world.listeners.clear();
        world.http("*", split(weights));
        world.https("*", split(weights));
        world.apply().await;
        for (at, tokens) in &tokens {
            assert_eq!(backends.only_one(go_on(&world, "/", &tokens[0])).await, *at);
        }
    }
    let at = backends.only_one(async { drop(begin(&world, Via::Http1, "/").await) }).await;
    assert_eq!(at.0, "v2", "no new session for weight 0");
}

/// "Route rules referencing the same service MUST NOT share persistent sessions."
#[tokio::test]
async fn each_rule_has_its_own_sessions() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 3), ("v2", 1)]).await;
    let rules = vec![
        rule().prefix("/a").to("v1").session(cookie("r rule #0")),
        rule().prefix("/b").session(cookie("r rule #1")).split(&[("v1", 0), ("v2", 100)]),
        rule().prefix("/c").to("v1").session(cookie("r rule #2")),
        rule().prefix("/none").to("v1"),
    ];
    let world = world(&backends, BackendProtocol::Http1, rules).await;
    let a = begin(&world, Via::Http1, "/a").await;
    let at = backends
        .only_one(async {
            let reply = world.send(Via::Http1, &get("/b", Some(&a))).await;
            assert!(given(&reply).is_some(), "the other rule's token is replaced");
        })
        .await;
    assert_eq!(at.0, "v2");
    let c = begin(&world, Via::Http1, "/c").await;
    let (of_a, of_c) =
        (backends.only_one(go_on(&world, "/a", &a)).await, backends.only_one(go_on(&world, "/c", &c)).await);
    // A cookie of each, as browsers send them where names are the same and paths overlap.
    let both = format!("{c}; session={a}");
    assert_eq!(backends.only_one(go_on(&world, "/a", &both)).await, of_a);
    assert_eq!(backends.only_one(go_on(&world, "/c", &both)).await, of_c);
    assert_eq!(given(&world.send(Via::Http1, &get("/none", Some(&a))).await), None);
}

fn at(scope: &str, terms: impl IntoIterator<Item = (&'static str, SessionTerms)>) -> SessionPersistence {
    let terms = terms.into_iter().map(|(name, terms)| (backend_name(name), terms));
    kept(scope, KeptSessions::At(terms.collect()))
}

fn terms(session: SessionPersistence) -> SessionTerms {
    match session.kept {
        KeptSessions::All(terms) => terms,
        KeptSessions::At(backends) => panic!("{backends:?}"),
    }
}

/// "Route rules referencing the same service MUST NOT share persistent sessions, even if the
/// session persistence is attached to the service": one name, and a session of each rule all the
/// same, for a client that keeps one cookie of it.
#[tokio::test]
async fn rules_have_sessions_of_their_own_by_one_name() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 8)]).await;
    for session in [cookie(""), header("")] {
        let of =
            |prefix| rule().prefix(prefix).to("v1").session(at(prefix, [("v1", terms(session.clone()))]));
        let paths = ["/a", "/b", "/c", "/d", "/e"];
        let world = world(&backends, BackendProtocol::Http1, paths.map(of).into()).await;
        let ask = async |path: &str, kept: &mut String| {
            let request = format!("GET {path}\nhost: a.com\ncookie: session={kept}\nx-session: {kept}\n\n");
            let reply = world.send(Via::Http1, &request).await;
            given(&reply).map(|(token, _)| *kept = token).is_some()
        };
        let (mut kept, mut homes) = (String::new(), Vec::new());
        for path in &paths[..4] {
            let begun = async { assert!(ask(path, &mut kept).await, "{path}") };
            homes.push(backends.only_one(begun).await);
        }
        assert_eq!(kept.len(), 4 * 90 + 3);
        for _ in 0..MANY {
            for (path, home) in paths.iter().zip(&homes) {
                let going_on = async { assert!(!ask(path, &mut kept).await, "{path}") };
                assert_eq!(backends.only_one(going_on).await, *home, "{path}");
            }
        }
        // A client has room for four; the one that began first goes.
        assert!(ask("/e", &mut kept).await && kept.len() == 4 * 90 + 3);
        assert!(!ask("/b", &mut kept).await && ask("/a", &mut kept).await);
    }
}

#[tokio::test]
async fn a_token_of_another_rule_is_kept_once() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 2), ("v2", 2)]).await;
    let one_place = ["v1", "v2"].map(|name| (name, terms(cookie(""))));
    let rules = vec![
        rule().prefix("/a").to("v1").session(cookie("a")),
        rule().prefix("/b").session(at("b", one_place)).split(&[("v1", 1), ("v2", 1)]),
    ];
    let world = world(&backends, BackendProtocol::Http1, rules).await;
    let a = begin(&world, Via::Http1, "/a").await;
    let twice = format!("{a}; session={a}");
    let (b, _) = given(&world.send(Via::Http1, &get("/b", Some(&twice))).await).unwrap();
    assert!(b.ends_with(&format!(".{a}")) && b.len() == 2 * 90 + 1, "{b}");
}

/// "Apply session persistence only for the backends with it configured."
#[tokio::test]
async fn sessions_of_one_backend_are_no_other_ones() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 3), ("v2", 3), ("v3", 2)]).await;
    let [one, two] = [terms(cookie("")), terms(header(""))];
    let session = at("r", [("v1", one), ("v2", two)]);
    let rules = vec![rule().session(session).split(&[("v1", 1), ("v2", 1), ("v3", 1)])];
    let world = world(&backends, BackendProtocol::Http1, rules).await;
    let mut begun = BTreeMap::new();
    while begun.len() < 3 {
        let mut reply = None;
        let home =
            backends.only_one(async { reply = Some(world.send(Via::Http1, &get("/", None)).await) }).await;
        let reply = reply.unwrap();
        let carried = (reply.header("set-cookie").is_some(), reply.header("x-session").is_some());
        assert_eq!(carried, (home.0 == "v1", home.0 == "v2"));
        begun.insert(home.0, (home, given(&reply)));
    }
    assert_eq!(begun["v3"].1, None);
    let (home, given_by_cookie) = begun["v1"].clone();
    let token = given_by_cookie.unwrap().0;
    assert_eq!(backends.only_one(go_on(&world, "/", &token)).await, home);
    // The other's place is not looked at for it.
    let (home, given_by_header) = begun["v2"].clone();
    let other = given_by_header.unwrap().0;
    let request = format!("GET /\nhost: a.com\nx-session: {other}\n\n");
    let going_on = async {
        for _ in 0..MANY {
            assert_eq!(given(&world.send(Via::Http2Tls, &request).await), None);
        }
    };
    assert_eq!(backends.only_one(going_on).await, home);
    let mut came = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let request = format!("GET /\nhost: a.com\nx-session: {token}\ncookie: session={other}\n\n");
        came.insert(backends.only_one(async { drop(world.send(Via::Http1, &request).await) }).await);
    }
    assert_eq!(came.len(), 8, "no session is resumed: {came:?}");
}

#[tokio::test]
async fn permanent_cookies_last_as_long_as_their_sessions() {
    let backends = Backends::start(BackendProtocol::Http1, &[("echo", 3)]).await;
    let session = by_cookie("r", CookieLifetime::Permanent, Some(Duration::from_secs(300)));
    let world = world(&backends, BackendProtocol::Http1, vec![rule().session(session)]).await;
    let (token, attributes) = given(&world.send(Via::Http2Tls, &get("/", None)).await).unwrap();
    assert_eq!(attributes, "Path=/; Max-Age=300; Secure; HttpOnly; SameSite=Strict");
    backends.only_one(go_on(&world, "/", &token)).await;
}

#[tokio::test]
async fn a_session_is_over_after_its_absolute_timeout_though_it_is_used() {
    let backends = Backends::start(BackendProtocol::Http1, &[("echo", 3)]).await;
    for session in [by_cookie("r", CookieLifetime::Session, Some(Duration::from_millis(800))), {
        let carrier = SessionCarrier::Header("x-session".parse().unwrap());
        let absolute_timeout = Some(Duration::from_millis(800));
        kept("r", KeptSessions::All(SessionTerms { carrier, absolute_timeout }))
    }] {
        let world = world(&backends, BackendProtocol::Http1, vec![rule().session(session)]).await;
        let began = Instant::now();
        let token = begin(&world, Via::Http1, "/").await;
        let request = format!("GET /\nhost: a.com\ncookie: session={token}\nx-session: {token}\n\n");
        while given(&world.send(Via::Http1, &request).await).is_none() {
            assert!(began.elapsed() < Duration::from_secs(10), "it never ends");
        }
        assert!(began.elapsed() >= Duration::from_millis(790), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn tokens_that_are_none_are_replaced() {
    let backends = Backends::start(BackendProtocol::Http1, &[("echo", 3)]).await;
    let world = world(&backends, BackendProtocol::Http1, vec![rule().session(cookie("r"))]).await;
    let token = begin(&world, Via::Http1, "/").await;
    let mut forged = token.clone().into_bytes();
    forged[40] = if forged[40] == b'A' { b'B' } else { b'A' };
    let address = backends.addresses("echo")[0];
    for bad in [
        String::from_utf8(forged).unwrap(),
        token[1..].to_owned(),
        format!("{token}{token}"),
        "A".repeat(90),
        format!("\"{token}\""),
        String::new(),
        address.to_string(),
        "x".repeat(4000),
    ] {
        let reply = world.send(Via::Http1, &get("/", Some(&bad))).await;
        let (token, _) = given(&reply).expect("a session begins");
        // What names a known key may be another rule's, and stays behind it.
        let own = token.split('.').next().unwrap();
        assert!(own != bad && own.len() == 90, "{bad}");
        assert!(token == own || token == format!("{own}.{bad}"), "{bad}: {token}");
        assert_eq!(reply.status.as_u16(), 200);
    }
    // What has another length costs nothing, and is passed over.
    let many = format!("{}{token}", "x; session=".repeat(4));
    assert!(given(&world.send(Via::Http1, &get("/", Some(&many))).await).is_none(), "{many}");
    let many = format!("{}{token}", format!("{}; session=", "A".repeat(90)).repeat(4));
    assert!(given(&world.send(Via::Http1, &get("/", Some(&many))).await).is_some(), "too many to look at");
    world.proxy.use_keys(ring(2)).await;
    let reply = world.send(Via::Http1, &get("/", Some(&token))).await;
    assert!(given(&reply).is_some(), "sealed with a key that is not in the ring");
}

#[tokio::test]
async fn another_agent_with_the_same_keys_goes_on_and_one_with_others_does_not() {
    let backends = Backends::start(BackendProtocol::Http1, &[("echo", 4)]).await;
    let rules = || vec![rule().session(cookie("r"))];
    let one = world(&backends, BackendProtocol::Http1, rules()).await;
    let other = world(&backends, BackendProtocol::Http1, rules()).await;
    let mut token = String::new();
    let at = backends.only_one(async { token = begin(&one, Via::Http1, "/").await }).await;
    assert_eq!(backends.only_one(go_on(&other, "/", &token)).await, at);

    // A newer key, which the other agent has and signs with: the session stays, the token does not.
    let key = |created, secret| RingKey { created, secret: [secret; 32] };
    other.proxy.use_keys(Arc::new(KeyRing::new(vec![key(1, 1), key(2, 2)]))).await;
    let mut renewed = String::new();
    let again = backends
        .only_one(async {
            renewed = given(&other.send(Via::Http1, &get("/", Some(&token))).await).expect("a new token").0;
        })
        .await;
    assert_eq!(again, at);
    assert_eq!(backends.only_one(go_on(&other, "/", &renewed)).await, at);

    // One that has no common keys has one of its own.
    let alone = World::new();
    drop(alone);
    other.proxy.use_keys(ring(3)).await;
    assert!(given(&other.send(Via::Http1, &get("/", Some(&token))).await).is_some());
}

#[tokio::test]
async fn sessions_whose_endpoint_is_gone_begin_anew() {
    let backends = Backends::start(BackendProtocol::Http1, &[("echo", 3)]).await;
    let mut world = world(&backends, BackendProtocol::Http1, vec![rule().session(cookie("r"))]).await;
    let mut token = String::new();
    let (_, at) = backends.only_one(async { token = begin(&world, Via::Http1, "/").await }).await;
    let all = backends.addresses("echo");
    let others: Vec<_> = all.iter().copied().filter(|address| *address != at).collect();
    world.backend("echo", BackendProtocol::Http1, &others);
    world.apply().await;
    let reply = world.send(Via::Http1, &get("/", Some(&token))).await;
    let (moved, _) = given(&reply).expect("another token");
    let (_, now) = backends.only_one(go_on(&world, "/", &moved)).await;
    assert_ne!(now, at);
    // It is back, as are those that remember it; those that moved stay where they are.
    world.backend("echo", BackendProtocol::Http1, &all);
    world.apply().await;
    assert_eq!(backends.only_one(go_on(&world, "/", &token)).await.1, at);
    assert_eq!(backends.only_one(go_on(&world, "/", &moved)).await.1, now);
}

#[tokio::test]
async fn sessions_whose_endpoint_refuses_connections_move() {
    let mut backends = Backends::start(BackendProtocol::Http1, &[("echo", 1)]).await;
    let mut world = world(&backends, BackendProtocol::Http1, vec![rule().session(cookie("r"))]).await;
    // The session is at an endpoint that then ends.
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.apply().await;
    let token = begin(&world, Via::Http1, "/").await;
    let dead = origin.address;
    drop(origin);
    let alive = backends.addresses("echo")[0];
    world.backend("echo", BackendProtocol::Http1, &[dead, alive, refusing()]);
    world.apply().await;
    let reply = world.send(Via::Http1, &get("/", Some(&token))).await;
    assert_eq!(reply.status.as_u16(), 200);
    let (moved, _) = given(&reply).expect("another token");
    let at = backends.only_one(async { drop(world.send(Via::Http1, &get("/", Some(&moved))).await) }).await;
    assert_eq!(at.1, alive);
    backends.0.clear();
}

#[tokio::test]
async fn a_rule_without_weights_serves_the_sessions_that_it_has() {
    let backends = Backends::start(BackendProtocol::Http1, &[("v1", 2)]).await;
    let open = rule().session(cookie("r")).split(&[("v1", 1)]);
    let mut world = world(&backends, BackendProtocol::Http1, vec![open]).await;
    let token = begin(&world, Via::Http1, "/").await;
    let drained = rule().session(cookie("r")).split(&[("v1", 0), ("v1", 1)]).fail(500);
    world.listeners.clear();
    world.http("*", vec![drained.clone()]);
    world.https("*", vec![drained]);
    world.apply().await;
    backends.only_one(go_on(&world, "/", &token)).await;
    assert_eq!(world.send(Via::Http1, &get("/", None)).await.status.as_u16(), 500);
}
