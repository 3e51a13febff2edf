//! Key sets that are fetched from issuers: when, by whom, and what becomes of requests while there
//! is none; with issuers that change their keys, fail, or answer with anything.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use portcullis_model::{
    BackendProtocol, CredentialForwarding, CredentialSource, Encryption, Expiry, JwtProvider, KeySource,
    Level, ObjectName, Protection, RemoteKeySet, Requirement, TrafficPolicy,
};
use portcullis_proxy::KeySetStats;
use rustls::ServerConfig;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::support::backend::Backend;
use crate::support::l4;
use crate::support::origin::{Origin, serve_raw};
use crate::support::rules::{backend_name, rule};
use crate::support::tls_origin::Authority;
use crate::support::via::{Reply, Via};
use crate::support::world::{World, eventually};

const LONG: Duration = Duration::from_secs(3600);

/// An issuer's key, with its id.
struct Key {
    id: &'static str,
    pair: Ed25519KeyPair,
}

/// A Service that has key sets, and notes who asks for them.
#[derive(Clone, Default)]
struct Served {
    status: Arc<AtomicUsize>,
    document: Arc<Mutex<String>>,
    fetches: Arc<AtomicUsize>,
    pause: Arc<AtomicU64>,
    last: Arc<Mutex<Option<(String, HeaderMap)>>>,
}

// === impl Key ===

impl Key {
    fn new(id: &'static str) -> Self {
        Self { id, pair: Ed25519KeyPair::generate().unwrap() }
    }

    fn token(&self) -> String {
        self.token_of("https://issuer.test", Some(self.id))
    }

    fn token_of(&self, issuer: &str, id: Option<&str>) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut header = json!({ "alg": "EdDSA" });
        if let Some(id) = id {
            header["kid"] = json!(id);
        }
        let claims = json!({ "iss": issuer, "sub": "ann", "exp": now + 3600 });
        let [header, claims] = [header, claims].map(|part| b64(part.to_string().as_bytes()));
        let message = format!("{header}.{claims}");
        format!("{message}.{}", b64(self.pair.sign(message.as_bytes()).as_ref()))
    }
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn document(keys: &[&Key]) -> String {
    let key = |key: &&Key| {
        let x = b64(key.pair.public_key().as_ref());
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": key.id, "x": x })
    };
    json!({ "keys": keys.iter().map(key).collect::<Vec<_>>() }).to_string()
}

// === impl Served ===

impl Served {
    fn new(keys: &[&Key]) -> Self {
        let served = Self::default();
        served.answer(200, document(keys));
        served
    }

    fn answer(&self, status: usize, document: String) {
        self.status.store(status, Ordering::SeqCst);
        *self.document.lock().unwrap() = document;
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::SeqCst)
    }

    async fn backend(&self) -> Backend {
        let served = self.clone();
        Backend::start(move |request| {
            let served = served.clone();
            async move { served.serve(&request).await }
        })
        .await
    }

    async fn serve(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        let asked = format!("{} {}", request.method(), request.uri());
        *self.last.lock().unwrap() = Some((asked, request.headers().clone()));
        tokio::time::sleep(Duration::from_millis(self.pause.load(Ordering::SeqCst))).await;
        let document = self.document.lock().unwrap().clone();
        let status = u16::try_from(self.status.load(Ordering::SeqCst)).unwrap();
        let location = "/elsewhere";
        Response::builder().status(status).header("location", location).body(document.into()).unwrap()
    }
}

/// The set of the backend of that name.
fn set(backend: &str, lifetime: Duration) -> Arc<RemoteKeySet> {
    let (backend, path) = (backend_name(backend), "/certs?a=b".into());
    Arc::new(RemoteKeySet { backend, host: "login.auth.svc".into(), path, lifetime })
}

fn provider(issuer: &str, set: &Arc<RemoteKeySet>) -> JwtProvider {
    JwtProvider {
        name: "test".into(),
        issuer: issuer.into(),
        audiences: Vec::new(),
        keys: KeySource::Remote(set.clone()),
        source: CredentialSource::Bearer,
        forwarding: CredentialForwarding::Keep,
        required: Vec::new(),
        headers: Vec::new(),
        clock_skew: Duration::ZERO,
        expiry: Expiry::Required,
    }
}

fn policy(providers: Vec<JwtProvider>) -> Option<Arc<TrafficPolicy>> {
    let credentials = [Arc::new(Requirement::Jwt(providers))].into();
    let protection = Protection { credentials, ..Protection::by(ObjectName::new("test", "policy")) };
    TrafficPolicy::of(vec![Level { target: "test".into(), protection: Arc::new(protection) }])
}

/// Requests need a token of the issuer whose keys the backend `issuer` has.
async fn world(set: &Arc<RemoteKeySet>, encryption: Encryption, issuer: &[SocketAddr]) -> (World, Origin) {
    let rules = vec![rule().policy(policy(vec![provider("https://issuer.test", set)]))];
    let mut world = World::new();
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.encrypted("issuer", BackendProtocol::Http1, encryption, issuer);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.key_sets.push(set.clone());
    world.apply().await;
    (world, origin)
}

async fn send(world: &World, via: Via, token: &str) -> Reply {
    world.send(via, &format!("GET /\nhost: a.com\nauthorization: Bearer {token}\n")).await
}

async fn status(world: &World, token: &str) -> u16 {
    send(world, Via::Http1, token).await.status.as_u16()
}

async fn stats(world: &World) -> KeySetStats {
    let sets = world.proxy.stats().await.key_sets;
    sets.into_values().next().unwrap()
}

#[tokio::test]
async fn a_set_is_fetched_once_for_all_cores() {
    let key = Key::new("one");
    let served = Served::new(&[&key]);
    served.pause.store(300, Ordering::SeqCst);
    let issuer = served.backend().await;
    let (world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
    // Those that come while it is fetched wait for it.
    let token = key.token();
    let requests = Via::ALL.map(|via| send(&world, via, &token));
    for reply in futures_of(requests).await {
        assert_eq!(reply.status, 200);
    }
    for token in [key.token_of("https://other.test", Some("one")), Key::new("one").token()] {
        assert_eq!(status(&world, &token).await, 401);
    }
    assert_eq!((served.fetches(), stats(&world).await.fetches), (1, 1));
    let (asked, fields) = served.last.lock().unwrap().clone().unwrap();
    assert_eq!((&*asked, &fields["host"]), ("GET /certs?a=b", &"login.auth.svc".parse().unwrap()));
    assert!(!fields.contains_key("authorization"));
}

/// All of them, at once.
async fn futures_of<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in pending.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        let is_done = pending.iter().all(|(_, done)| done.is_some());
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    pending.into_iter().map(|(_, done)| done.unwrap()).collect()
}

#[tokio::test]
async fn a_new_key_is_found_and_random_ones_are_not_looked_for() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let served = Served::new(&[&old]);
    let issuer = served.backend().await;
    let (world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
    assert_eq!(status(&world, &old.token()).await, 200);
    served.answer(200, document(&[&new]));
    // No request is refused because the key is new.
    for via in Via::ALL {
        assert_eq!(send(&world, via, &new.token()).await.status, 200);
    }
    assert_eq!(served.fetches(), 2);
    let begin = Instant::now();
    // The set is not fetched again so soon: that these are no keys of the issuer, nothing tells.
    let mut refused = 0;
    for number in 0..200 {
        let token = new.token_of("https://issuer.test", Some(&format!("random {number}")));
        let reply = send(&world, Via::Http1, &token).await;
        match reply.status.as_u16() {
            503 => assert!(reply.headers.contains_key("retry-after")),
            401 => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert!(refused <= usize::from(begin.elapsed() > Duration::from_secs(9)));
    // One more at most, if this took as long as the pause between two.
    assert!(served.fetches() <= 2 + usize::from(begin.elapsed() > Duration::from_secs(9)));
    // A signature that is wrong, and a token without an id, are no reasons to ask.
    let forged = Key::new("new");
    for token in [forged.token(), forged.token_of("https://issuer.test", None)] {
        assert_eq!(status(&world, &token).await, 401);
    }
    assert!(served.fetches() <= 2 + usize::from(begin.elapsed() > Duration::from_secs(9)));
}

#[tokio::test]
async fn tokens_of_no_worth_have_no_good_one_refused() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let served = Served::new(&[&old]);
    let issuer = served.backend().await;
    let (world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
    assert_eq!(status(&world, &old.token()).await, 200);
    // The issuer is asked, as soon as the core has heard of its keys: it has no such key.
    let junk = Key::new("junk").token();
    eventually("it is asked", async || status(&world, &junk).await == 401 && served.fetches() == 2).await;
    served.answer(200, document(&[&old, &new]));
    let token = new.token();
    eventually("the new key is known", async || match status(&world, &token).await {
        200 => true,
        503 => false,
        other => panic!("{other}"),
    })
    .await;
    assert_eq!(served.fetches(), 3);
}

#[tokio::test]
async fn an_issuer_that_fails_refuses_no_key() {
    let key = Key::new("one");
    let served = Served::new(&[&key]);
    let issuer = served.backend().await;
    let (world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
    assert_eq!(status(&world, &key.token()).await, 200);
    served.answer(500, String::new());
    assert_eq!(status(&world, &Key::new("new").token()).await, 503);
    assert_eq!(status(&world, &key.token()).await, 200);
}

#[tokio::test]
async fn the_last_good_set_is_used_while_the_issuer_fails() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let served = Served::new(&[&old]);
    let issuer = served.backend().await;
    let lifetime = Duration::from_millis(100);
    let (world, _origin) = world(&set("issuer", lifetime), Encryption::None, &[issuer.address]).await;
    assert_eq!(status(&world, &old.token()).await, 200);
    let no_key = "{\"keys\":[]}".to_owned();
    for (status_code, document, why) in [(500, document(&[&new]), "500"), (200, no_key, "key")] {
        served.answer(status_code, document);
        let fails = async || stats(&world).await.failure.is_some_and(|it| it.contains(why));
        eventually("a fetch fails", fails).await;
        assert_eq!(status(&world, &old.token()).await, 200);
        assert!(stats(&world).await.age.is_some());
    }
    // A key that the issuer has no more is none any more.
    served.answer(200, document(&[&new]));
    eventually("the key is gone", async || status(&world, &old.token()).await == 401).await;
    assert_eq!(status(&world, &new.token()).await, 200);
    eventually("nothing is wrong any more", async || stats(&world).await.failure.is_none()).await;
}

#[tokio::test]
async fn without_keys_no_token_passes() {
    let key = Key::new("one");
    let good = document(&[&key]);
    let secret = r#"{"keys":[{"kty":"oct","kid":"one","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T"}]}"#;
    let large = format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(300 << 10));
    for (code, document) in [
        (404, good.clone()),
        (302, good.clone()),
        (206, good.clone()),
        (200, "nonsense".to_owned()),
        (200, secret.to_owned()),
        (200, large),
    ] {
        let served = Served::default();
        served.answer(code, document.clone());
        let issuer = served.backend().await;
        let (world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
        let reply = send(&world, Via::Http1, &key.token()).await;
        let fields = (reply.headers.get("retry-after"), reply.headers.get("www-authenticate"));
        assert_eq!(
            (reply.status.as_u16(), fields.0.is_some(), fields.1),
            (503, true, None),
            "{document:.40}"
        );
        assert_eq!(&*reply.body, "tokens cannot be checked now\n");
        // Others are wrong whatever its keys are.
        assert_eq!(status(&world, &key.token_of("https://other.test", Some("one"))).await, 401);
        assert_eq!(status(&world, "").await, 401);
        served.answer(200, good.clone());
        eventually("the issuer is well", async || status(&world, &key.token()).await == 200).await;
    }
}

#[tokio::test]
async fn hostile_issuers_hold_nothing_up() {
    let key = Key::new("one");
    let endless = l4::backend(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while stream.write_all(&[b' '; 4096]).await.is_ok() {}
    });
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hostile = [
        endless.await,
        serve_raw(b"SSH-2.0-OpenSSH\r\n").await,
        serve_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await,
        serve_raw(b"HTTP/1.1 101 Switching Protocols\r\n\r\n").await,
        silent.local_addr().unwrap(),
    ];
    let served = Served::new(&[&key]);
    let issuer = served.backend().await;
    let (mut world, _origin) = world(&set("issuer", LONG), Encryption::None, &[issuer.address]).await;
    for (index, address) in hostile.iter().enumerate() {
        let name = format!("hostile-{index}");
        world.backend(&name, BackendProtocol::Http1, &[*address]);
        let hostile = set(&name, LONG);
        world.key_sets.push(hostile.clone());
        let providers = vec![provider("https://hostile.test", &hostile)];
        world.listeners[0].rules.push(rule().exact(&format!("/{index}")).policy(policy(providers)));
    }
    world.key_sets.sort();
    world.apply().await;
    assert_eq!(status(&world, &key.token()).await, 200);
    let token = key.token_of("https://hostile.test", Some("one"));
    let requests: Vec<_> = (0..hostile.len())
        .map(|index| format!("GET /{index}\nhost: a.com\nauthorization: Bearer {token}\n"))
        .collect();
    let requests = requests.iter().map(|request| world.send(Via::Http1, request));
    for reply in futures_of(requests).await {
        assert_eq!(reply.status, 503);
    }
    assert_eq!(status(&world, &key.token()).await, 200);
}

/// One that has TLS, with this certificate.
async fn with_tls(served: &Served, key: Arc<CertifiedKey>) -> SocketAddr {
    let resolver = Arc::new(SingleCertAndKey::from(CertifiedKey::clone(&key)));
    let config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let served = served.clone();
    l4::backend(move |stream| {
        let (acceptor, served) = (acceptor.clone(), served.clone());
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(async |request| {
                Ok::<_, std::convert::Infallible>(served.serve(&request).await)
            });
            let builder = hyper::server::conn::http1::Builder::new();
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_set_is_fetched_in_tls_where_a_policy_asks_for_it() {
    let (key, authority, other) = (Key::new("one"), Authority::new(), Authority::new());
    let served = Served::new(&[&key]);
    let issuer = with_tls(&served, authority.issue(&["login.test"]).key).await;
    for (encryption, expected) in [
        (authority.policy("login.test", &[]), 200),
        (other.policy("login.test", &[]), 503),
        (authority.policy("elsewhere.test", &[]), 503),
        (Encryption::Unavailable, 503),
        (Encryption::None, 503),
    ] {
        let (world, _origin) = world(&set("issuer", LONG), encryption.clone(), &[issuer]).await;
        assert_eq!(status(&world, &key.token()).await, expected, "{encryption:?}");
    }
    assert_eq!(served.fetches(), 1);
}

#[tokio::test]
async fn a_set_is_fetched_when_its_backend_comes_and_forgotten_when_nothing_wants_it() {
    let key = Key::new("one");
    let served = Served::new(&[&key]);
    let issuer = served.backend().await;
    let (mut world, _origin) = world(&set("issuer", LONG), Encryption::None, &[]).await;
    assert_eq!(status(&world, &key.token()).await, 503);
    world.backend("issuer", BackendProtocol::Http1, &[issuer.address]);
    world.apply().await;
    eventually("the set is fetched", async || status(&world, &key.token()).await == 200).await;
    // Another change leaves it as it is.
    world.apply().await;
    assert_eq!((status(&world, &key.token()).await, served.fetches()), (200, 1));
    let sets = std::mem::take(&mut world.key_sets);
    world.apply().await;
    eventually("it is forgotten", async || world.proxy.stats().await.key_sets.is_empty()).await;
    eventually("no token passes", async || status(&world, &key.token()).await == 503).await;
    world.key_sets = sets;
    world.apply().await;
    eventually("it is fetched again", async || status(&world, &key.token()).await == 200).await;
}
