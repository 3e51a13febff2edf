//! Tokens, API keys and passwords: which requests go on, what their backend sees, and what is
//! answered to the others. Tokens are made here, by the keys of the test.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA512,
    RsaKeyPair,
};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::StatusCode;
use portcullis_model::{
    Action, AllowedNames, AllowedOrigins, ApiKeys, BasicPasswords, ClaimHeader, ClaimPath, ClientKeys, Cors,
    CredentialForwarding, CredentialSource, Credentials, DirectResponse, Expiry, Filter, JwtProvider,
    KeyKinds, KeySet, KeySource, Level, ObjectName, PasswordFile, Period, Protection, RateKey, RateLimit,
    RateScope, RequiredClaim, Requirement, TrafficPolicy,
};
use serde_json::{Value, json};

use crate::support::rules::{RuleSpec, rule};
use crate::support::via::{Reply, Via};
use crate::support::world::World;

const SECRET: [u8; 32] = [7; 32];

/// The keys of an issuer.
struct Issuer {
    elliptic: EcdsaKeyPair,
    edwards: Ed25519KeyPair,
    rsa: RsaKeyPair,
}

// === impl Issuer ===

impl Issuer {
    fn new() -> Self {
        Self {
            elliptic: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            edwards: Ed25519KeyPair::generate().unwrap(),
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
        }
    }

    /// Two keys with an id, one without, one that is secret.
    fn keys(&self) -> Arc<KeySet> {
        let (x, y) = self.elliptic.public_key().as_ref()[1..].split_at(32);
        let (n, e) = (self.modulus(), [1, 0, 1]);
        let document = json!({ "keys": [
            { "kty": "EC", "kid": "ec", "crv": "P-256", "x": b64(x), "y": b64(y), "use": "sig" },
            { "kty": "RSA", "kid": "rsa", "n": b64(&n), "e": b64(&e) },
            { "kty": "OKP", "crv": "Ed25519", "x": b64(self.edwards.public_key().as_ref()) },
            { "kty": "oct", "kid": "secret", "k": b64(&SECRET), "alg": "HS256" },
            { "kty": "RSA", "kid": "enc", "n": b64(&n), "e": b64(&e), "use": "enc" },
        ]});
        Arc::new(KeySet::parse(document.to_string().as_bytes(), KeyKinds::PublicAndSecret).unwrap())
    }

    /// Of its DER form: two sequences' heads and a zero precede it, the exponent follows.
    fn modulus(&self) -> Vec<u8> {
        self.rsa.public_key().as_ref()[9..265].to_vec()
    }

    fn token(&self, header: Value, claims: &Value) -> String {
        let message =
            format!("{}.{}", b64(header.to_string().as_bytes()), b64(claims.to_string().as_bytes()));
        let random = SystemRandom::new();
        let bytes = message.as_bytes();
        let mut rsa = vec![0; self.rsa.public_modulus_len()];
        let signature = match header["alg"].as_str().unwrap() {
            "ES256" => self.elliptic.sign(&random, bytes).unwrap().as_ref().to_vec(),
            "EdDSA" => self.edwards.sign(bytes).as_ref().to_vec(),
            "RS256" => self.rsa.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut rsa).map(|()| rsa).unwrap(),
            "PS512" => self.rsa.sign(&RSA_PSS_SHA512, &random, bytes, &mut rsa).map(|()| rsa).unwrap(),
            "HS256" => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SECRET), bytes).as_ref().to_vec(),
            _ => Vec::new(),
        };
        format!("{message}.{}", b64(&signature))
    }

    fn good(&self) -> String {
        self.token(json!({ "alg": "ES256", "kid": "ec" }), &claims())
    }
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    json!({ "iss": "https://issuer.test", "sub": "ann", "aud": ["shop", "billing"], "exp": now() + 3600,
            "groups": ["staff", "night"], "scope": "read write" })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn provider(keys: Arc<KeySet>) -> JwtProvider {
    JwtProvider {
        name: "test".into(),
        issuer: "https://issuer.test".into(),
        audiences: vec!["shop".into(), "till".into()],
        keys: KeySource::Given(keys),
        source: CredentialSource::Bearer,
        forwarding: CredentialForwarding::Keep,
        required: vec![RequiredClaim { claim: ClaimPath("groups".into()), values: vec!["staff".into()] }],
        headers: vec![ClaimHeader { claim: ClaimPath("sub".into()), header: "x-user".parse().unwrap() }],
        clock_skew: Duration::from_secs(30),
        expiry: Expiry::Required,
    }
}

/// A policy with one level for each set of requirements.
fn policy(levels: Vec<Vec<Requirement>>) -> Option<Arc<TrafficPolicy>> {
    let levels = levels.into_iter().map(|requirements| {
        let credentials = requirements.into_iter().map(Arc::new).collect();
        let protection = Protection { credentials, ..Protection::by(ObjectName::new("test", "policy")) };
        Level { target: "test".into(), protection: Arc::new(protection) }
    });
    TrafficPolicy::of(levels.collect())
}

fn guarded(requirements: Vec<Requirement>) -> RuleSpec {
    rule().policy(policy(vec![requirements]))
}

fn get(fields: &str) -> String {
    format!("GET / \nhost: a.com\n{fields}\n").replace("/ \n", "/\n")
}

fn bearer(token: &str) -> String {
    get(&format!("authorization: Bearer {token}\n"))
}

fn challenge(reply: &Reply) -> &str {
    reply.headers.get("www-authenticate").map_or("", |value| value.to_str().unwrap())
}

/// The fields of that name that the backend got.
fn seen<'r>(reply: &'r Reply, name: &str) -> Vec<&'r str> {
    let prefix = format!("{name}: ");
    reply.body.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
}

#[tokio::test]
async fn only_tokens_of_the_issuer_pass() {
    let issuer = Issuer::new();
    let (world, _backend) =
        World::echo(vec![guarded(vec![Requirement::Jwt(vec![provider(issuer.keys())])])]).await;
    for header in [
        json!({ "alg": "ES256", "kid": "ec", "typ": "JWT" }),
        json!({ "alg": "ES256" }),
        json!({ "alg": "RS256", "kid": "rsa" }),
        json!({ "alg": "PS512", "kid": "rsa" }),
        json!({ "alg": "EdDSA" }),
        // A key without an id may be any.
        json!({ "alg": "EdDSA", "kid": "new" }),
        json!({ "alg": "HS256", "kid": "secret" }),
    ] {
        let token = issuer.token(header.clone(), &claims());
        for via in Via::ALL {
            // The second time the token is known.
            for _ in 0..2 {
                let reply = world.send(via, &bearer(&token)).await;
                assert_eq!((reply.status, seen(&reply, "x-user")), (StatusCode::OK, vec!["ann"]), "{header}");
                assert_eq!(seen(&reply, "authorization"), [format!("Bearer {token}")]);
            }
        }
    }
}

#[tokio::test]
async fn forged_tokens_do_not_pass() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let (world, _backend) =
        World::echo(vec![guarded(vec![Requirement::Jwt(vec![provider(issuer.keys())])])]).await;
    let good = issuer.good();
    let parts: Vec<_> = good.split('.').collect();
    let eve = b64(with("sub", json!("eve")).to_string().as_bytes());
    let unsigned = issuer.token(json!({ "alg": "none" }), &claims());
    // A verifier that takes a public key for a secret one is deceived by this.
    let confused = |kid: &str, secret: &[u8]| {
        let header = b64(json!({ "alg": "HS256", "kid": kid }).to_string().as_bytes());
        let message = format!("{header}.{}", parts[1]);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", b64(tag.as_ref()))
    };
    let forged = [
        format!("{}.{eve}.{}", parts[0], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{good}.{}", parts[2]),
        format!("{good}="),
        unsigned.clone(),
        unsigned.trim_end_matches('.').to_owned(),
        issuer.token(json!({ "alg": "None", "kid": "ec" }), &claims()),
        other.good(),
        confused("rsa", &issuer.modulus()),
        confused("ec", issuer.elliptic.public_key().as_ref()),
        confused("secret", b""),
        // The key of another algorithm, and one that is not for signatures.
        issuer.token(json!({ "alg": "RS256", "kid": "ec" }), &claims()),
        issuer.token(json!({ "alg": "RS256", "kid": "enc" }), &claims()),
        issuer.token(json!({ "alg": "ES256", "kid": "ec", "crit": ["exp"] }), &claims()),
        issuer.token(json!({ "alg": "ES256", "kid": "ec", "crit": [] }), &claims()),
        issuer.token(json!({ "alg": "ES256", "kid": "ec" }), &json!("no claims")),
        "..".to_owned(),
        "x".repeat(20_000),
    ];
    for token in &forged {
        let reply = world.send(Via::Http1, &bearer(token)).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{token}");
        assert_eq!(challenge(&reply), "Bearer realm=\"restricted\", error=\"invalid_token\"", "{token}");
    }
    // One that is good, and another that a backend might read.
    let two = get(&format!("authorization: Bearer {good}\nauthorization: Bearer {}\n", forged[0]));
    assert_eq!(world.send(Via::Http1, &two).await.status, StatusCode::UNAUTHORIZED);
    for without in ["", "authorization: Bearer\n", "authorization: Basic YTpi\n", "x-token: a\n"] {
        let reply = world.send(Via::Http2Tls, &get(without)).await;
        assert_eq!(
            (reply.status, challenge(&reply)),
            (StatusCode::UNAUTHORIZED, "Bearer realm=\"restricted\"")
        );
    }
}

#[tokio::test]
async fn claims_decide() {
    let issuer = Issuer::new();
    let (world, _backend) =
        World::echo(vec![guarded(vec![Requirement::Jwt(vec![provider(issuer.keys())])])]).await;
    let mut no_expiry = claims();
    no_expiry.as_object_mut().unwrap().remove("exp");
    let expired =
        "Bearer realm=\"restricted\", error=\"invalid_token\", error_description=\"the token has expired\"";
    let invalid = "Bearer realm=\"restricted\", error=\"invalid_token\"";
    let scope = "Bearer realm=\"restricted\", error=\"insufficient_scope\"";
    for (claims, status, expected) in [
        (with("exp", json!(now() - 20)), 200, ""),
        (with("exp", json!(now() - 60)), 401, expired),
        (with("exp", json!("never")), 401, invalid),
        (no_expiry, 401, invalid),
        (with("nbf", json!(now() + 10)), 200, ""),
        (with("nbf", json!(now() + 600)), 401, invalid),
        (with("iat", json!(now() + 600)), 401, invalid),
        (with("iss", json!("https://issuer.test/")), 401, invalid),
        (with("iss", json!(["https://issuer.test"])), 401, invalid),
        (with("aud", json!("till")), 200, ""),
        (with("aud", json!("shopping")), 401, invalid),
        (with("aud", Value::Null), 401, invalid),
        (with("groups", json!(["night"])), 403, scope),
        (with("groups", json!("staff")), 200, ""),
        (with("groups", json!({ "staff": true })), 403, scope),
    ] {
        let token = issuer.token(json!({ "alg": "EdDSA" }), &claims);
        let reply = world.send(Via::Http1, &bearer(&token)).await;
        assert_eq!((reply.status.as_u16(), challenge(&reply)), (status, expected), "{claims}");
    }
}

#[tokio::test]
async fn no_client_sets_what_the_gateway_says() {
    let issuer = Issuer::new();
    let (world, _backend) =
        World::echo(vec![guarded(vec![Requirement::Jwt(vec![provider(issuer.keys())])])]).await;
    let good = issuer.good();
    let forged = format!(
        "authorization: Bearer {good}\nx-user: eve\nX_User: eve\nx-user: mallory\nconnection: x-user\n"
    );
    let reply = world.send(Via::Http1, &get(&forged)).await;
    assert_eq!((seen(&reply, "x-user"), seen(&reply, "x_user")), (vec!["ann"], vec![]), "{}", reply.body);
    // A claim that is not there leaves no field of the client's.
    let nameless = issuer.token(json!({ "alg": "EdDSA" }), &with("sub", json!("admin ")));
    let reply =
        world.send(Via::Http1, &get(&format!("authorization: Bearer {nameless}\nx-user: eve\n"))).await;
    assert_eq!((reply.status, seen(&reply, "x-user")), (StatusCode::OK, vec![]));
}

/// Applications read `X_User` as `X-User`, and a route's owner is not to speak for the Gateway's.
#[tokio::test]
async fn no_spelling_of_a_narrower_level_shadows_what_a_wider_one_says() {
    let issuer = Issuer::new();
    let writing = |claims: &[(&str, &str)]| {
        let header = |(claim, header): &(&str, &str)| ClaimHeader {
            claim: ClaimPath((*claim).into()),
            header: header.parse().unwrap(),
        };
        let headers = claims.iter().map(header).collect();
        vec![Requirement::Jwt(vec![JwtProvider { headers, ..provider(issuer.keys()) }])]
    };
    for (wide, narrow) in [("x-user", "x_user"), ("x_user", "x-user")] {
        let levels = vec![writing(&[("sub", wide)]), writing(&[("scope", narrow), ("scope", "x-scope")])];
        let (world, _backend) = World::echo(vec![rule().policy(policy(levels))]).await;
        for via in Via::ALL {
            let reply = world.send(via, &bearer(&issuer.good())).await;
            let values = [wide, narrow, "x-scope"].map(|name| seen(&reply, name));
            assert_eq!(values, [vec!["ann"], vec![], vec!["read write"]], "{via:?}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn tokens_are_read_where_the_provider_says() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let cookie = JwtProvider {
        source: CredentialSource::Cookie("session".into()),
        forwarding: CredentialForwarding::Remove,
        ..provider(issuer.keys())
    };
    let header = JwtProvider {
        source: CredentialSource::Header("x-token".parse().unwrap()),
        ..provider(other.keys())
    };
    let (world, _backend) = World::echo(vec![guarded(vec![Requirement::Jwt(vec![cookie, header])])]).await;
    let (good, others) = (issuer.good(), other.good());
    let reply = world.send(Via::Http2Tls, &get(&format!("cookie: a=b; session={good}; c=d\n"))).await;
    assert_eq!((reply.status, seen(&reply, "cookie")), (StatusCode::OK, vec!["a=b; c=d"]));
    let reply = world.send(Via::Http1, &get(&format!("cookie: a=b,c; session={good}\n"))).await;
    assert_eq!((reply.status, seen(&reply, "cookie")), (StatusCode::OK, vec!["a=b,c"]));
    let reply = world.send(Via::Http1, &get(&format!("x-token: {others}\nx_token: forged\n"))).await;
    assert_eq!((reply.status, seen(&reply, "x-token")), (StatusCode::OK, vec![&*others]));
    assert!(seen(&reply, "x_token").is_empty());
    for fields in [
        format!("cookie: session={others}\n"),
        format!("x-token: {good}\n"),
        format!("cookie: session={good}; session={others}\n"),
        // Some backends take a comma for the end of a cookie.
        format!("cookie: a=b,session=forged; session={good}\n"),
        format!("authorization: Bearer {good}\n"),
        // A second one in a similar place.
        format!("x-token: {others}\ncookie: SESSION=forged\n"),
        format!("x-token: {others}\ncookie: \"session\"=forged\n"),
    ] {
        assert_eq!(world.send(Via::Http1, &get(&fields)).await.status, StatusCode::UNAUTHORIZED, "{fields}");
    }
    for via in Via::ALL {
        let fields = format!("cookie: session={good}\nx_token: forged\nauthorization: JWT other\n");
        let reply = world.send(via, &get(&fields)).await;
        assert_eq!((reply.status, seen(&reply, "x_token")), (StatusCode::OK, vec![]));
        assert_eq!(seen(&reply, "authorization"), ["JWT other"]);
    }
}

#[tokio::test]
async fn api_keys_say_which_client_it_is() {
    let mut clients = ClientKeys::default();
    clients.add("shop", b"s3cret").unwrap();
    clients.add("till", b"0ther").unwrap();
    let keys = ApiKeys {
        keys: [Arc::new(clients)].into(),
        source: CredentialSource::Header("x-api-key".parse().unwrap()),
        forwarding: CredentialForwarding::Remove,
        client_header: Some("x-client".parse().unwrap()),
    };
    let (world, _backend) = World::echo(vec![guarded(vec![Requirement::ApiKey(keys)])]).await;
    for via in Via::ALL {
        let reply = world.send(via, &get("x-api-key: 0ther\nx-client: shop\nx_client: shop\n")).await;
        assert_eq!((reply.status, seen(&reply, "x-client")), (StatusCode::OK, vec!["till"]));
        assert!(seen(&reply, "x-api-key").is_empty() && seen(&reply, "x_client").is_empty());
    }
    for fields in [
        "",
        "x-api-key: s3cre\n",
        "x-api-key: S3CRET\n",
        "x-api-key: s3cret\nx-api-key: 0ther\n",
        "x_api_key: s3cret\n",
    ] {
        let reply = world.send(Via::Http1, &get(fields)).await;
        assert_eq!(
            (reply.status, challenge(&reply)),
            (StatusCode::UNAUTHORIZED, "ApiKey realm=\"restricted\"")
        );
    }
}

#[tokio::test]
async fn passwords_are_those_of_the_file() {
    let slow = bcrypt::hash_with_salt("s3cret:x", 5, [7; 16]).unwrap();
    let quick = STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"quick"));
    let file = format!("ann:{slow}\nbob:{{SHA}}{quick}\n");
    let basic = BasicPasswords {
        namespace: "edge".into(),
        users: Arc::new(PasswordFile::parse(file.as_bytes()).unwrap()),
        forwarding: CredentialForwarding::Remove,
        user_header: Some("x-user".parse().unwrap()),
    };
    let (world, _backend) = World::echo(vec![guarded(vec![Requirement::Basic(basic)])]).await;
    let login = |text: &str| get(&format!("authorization: basic {}\nx-user: eve\n", STANDARD.encode(text)));
    for _ in 0..2 {
        for (text, user) in [("ann:s3cret:x", "ann"), ("bob:quick", "bob")] {
            let reply = world.send(Via::Http2Tls, &login(text)).await;
            assert_eq!((reply.status, seen(&reply, "x-user")), (StatusCode::OK, vec![user]));
            assert!(seen(&reply, "authorization").is_empty());
        }
    }
    for text in
        ["ann:quick", "bob:s3cret:x", "eve:quick", "eve:s3cret:x", "ann:", "ann", ":", "", "ann:s3cret:x\0"]
    {
        let reply = world.send(Via::Http1, &login(text)).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{text}");
        assert_eq!(challenge(&reply), "Basic realm=\"restricted\", charset=\"UTF-8\"");
    }
    // Many at once, right and wrong: each gets its own answer, or that there are too many.
    let (right, wrong) = (login("ann:s3cret:x"), login("ann:guess"));
    let all = (0..40).map(|at| world.send(Via::Http1, if at % 2 == 0 { &right } else { &wrong }));
    for (at, reply) in futures_in_order(all).await.into_iter().enumerate() {
        let expected = if at % 2 == 0 { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        assert!(
            reply.status == expected || reply.status == StatusCode::SERVICE_UNAVAILABLE,
            "{}",
            reply.status
        );
    }
}

async fn futures_in_order(all: impl Iterator<Item = impl Future<Output = Reply>>) -> Vec<Reply> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut replies: Vec<Option<Reply>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, reply) in all.iter_mut().zip(&mut replies) {
            if reply.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *reply = Some(ready);
            }
        }
        if replies.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    replies.into_iter().flatten().collect()
}

#[tokio::test]
async fn every_level_has_to_be_met() {
    let issuer = Issuer::new();
    let mut clients = ClientKeys::default();
    clients.add("shop", b"s3cret").unwrap();
    let keys = ApiKeys {
        keys: [Arc::new(clients)].into(),
        source: CredentialSource::Header("x-api-key".parse().unwrap()),
        forwarding: CredentialForwarding::Keep,
        // Says what the level above it says already.
        client_header: Some("x-user".parse().unwrap()),
    };
    let jwt = Requirement::Jwt(vec![provider(issuer.keys())]);
    let own = DirectResponse { status: StatusCode::ACCEPTED, content_type: None, body: "own".into() };
    let rules = vec![
        guarded(vec![jwt.clone(), Requirement::ApiKey(keys.clone())]).prefix("/both"),
        rule().policy(policy(vec![vec![jwt.clone()], vec![Requirement::ApiKey(keys)]])).prefix("/apart"),
        RuleSpec { action: Action::Respond(own.into()), ..guarded(vec![jwt.clone()]).prefix("/own") },
        guarded(vec![jwt]).redirect(|away| away.hostname = Some("elsewhere.test".into())).prefix("/away"),
        rule().prefix("/open"),
    ];
    let (world, _backend) = World::echo(rules).await;
    let good = issuer.good();
    let token = format!("authorization: Bearer {good}\n");
    let both = format!("{token}x-api-key: s3cret\n");
    for (path, fields, status) in [
        ("/both", &*both, 200),
        ("/both", &token, 401),
        ("/both", "x-api-key: s3cret\n", 401),
        ("/apart", &both, 200),
        ("/apart", &token, 401),
        ("/apart", "x-api-key: s3cret\n", 401),
        ("/own", "", 401),
        ("/own", &token, 202),
        ("/away", "", 401),
        ("/away", &token, 302),
        ("/open", "", 200),
        ("/open/../both", "", 401),
    ] {
        let reply = world.send(Via::Http1, &format!("GET {path}\nhost: a.com\n{fields}\n")).await;
        assert_eq!(reply.status.as_u16(), status, "{path} {fields}");
        if (path, status) == ("/both", 200) {
            assert_eq!(seen(&reply, "x-user"), ["ann"]);
        }
    }
}

#[tokio::test]
async fn a_listener_wants_what_its_rules_do_not_give_up() {
    let issuer = Issuer::new();
    let cors = Cors {
        origins: AllowedOrigins::Any,
        credentials: Credentials::Withheld,
        methods: AllowedNames::Any,
        headers: AllowedNames::Any,
        expose: None,
        max_age: 5,
    };
    let mut clients = ClientKeys::default();
    clients.add("shop", b"s3cret").unwrap();
    let keys = ApiKeys {
        keys: [Arc::new(clients)].into(),
        source: CredentialSource::Header("x-api-key".parse().unwrap()),
        forwarding: CredentialForwarding::Remove,
        client_header: None,
    };
    let removing = JwtProvider { forwarding: CredentialForwarding::Remove, ..provider(issuer.keys()) };
    let rules = vec![
        rule().filter(Filter::Cors(Box::new(cors))),
        guarded(vec![Requirement::ApiKey(keys), Requirement::Jwt(vec![provider(issuer.keys())])])
            .prefix("/keys"),
    ];
    let (mut world, _backend) = World::echo(rules).await;
    world.policy = policy(vec![vec![Requirement::Jwt(vec![removing])]]);
    world.apply().await;
    let token = format!("authorization: Bearer {}\n", issuer.good());
    let both = format!("{token}x-api-key: s3cret\n");
    for (path, fields, status) in
        [("/", "", 401), ("/", &*token, 200), ("/keys", &token, 401), ("/keys", &both, 200)]
    {
        let reply = world.send(Via::Http2Tls, &format!("GET {path}\nhost: a.com\n{fields}\n")).await;
        assert_eq!(reply.status.as_u16(), status, "{path} {fields}");
        // One level takes the token away, but not from the next.
        assert!(seen(&reply, "authorization").is_empty());
    }
    // Browsers send no credentials to ask whether they may; a page may read the refusal.
    let preflight = "OPTIONS /\nhost: a.com\norigin: https://b.com\naccess-control-request-method: GET\n\n";
    assert!(world.send(Via::Http1, preflight).await.status.is_success());
    let refused = world.send(Via::Http1, &get("origin: https://b.com\n")).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(refused.headers.contains_key("access-control-allow-origin"));
}

/// A level with this requirement, and so many requests for each subject.
fn limited(requirement: &Requirement, requests: u32) -> Level {
    let requests = requests.try_into().unwrap();
    let key = RateKey::Claim(ClaimPath("sub".into()));
    let limit = RateLimit { requests, period: Period::Hour, burst: requests, key, scope: RateScope::Node };
    let credentials = [Arc::new(requirement.clone())].into();
    let protection = Protection {
        credentials,
        rate_limits: [limit].into(),
        ..Protection::by(ObjectName::new("test", "policy"))
    };
    Level { target: format!("limit of {requests}").into(), protection: Arc::new(protection) }
}

#[tokio::test]
async fn requests_are_limited_by_what_their_tokens_say() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let others = JwtProvider { issuer: "https://other.test".into(), ..provider(other.keys()) };
    let requirement = Requirement::Jwt(vec![provider(issuer.keys()), others]);
    let levels = TrafficPolicy::of(vec![limited(&requirement, 3), limited(&requirement, 2)]);
    let (world, _backend) = World::echo(vec![rule().policy(levels)]).await;
    let of = |subject: &str| issuer.token(json!({ "alg": "EdDSA" }), &with("sub", json!(subject)));
    let mut foreign = with("sub", json!("ann"));
    foreign["iss"] = json!("https://other.test");
    let mut nameless = claims();
    nameless.as_object_mut().unwrap().remove("sub");
    // Tokens that are no good take nothing, whatever they say.
    for _ in 0..5 {
        let forged = other.token(json!({ "alg": "EdDSA" }), &claims());
        assert_eq!(world.send(Via::Http1, &bearer(&forged)).await.status, StatusCode::UNAUTHORIZED);
    }
    for token in [
        of("ann"),
        of("ben"),
        other.token(json!({ "alg": "EdDSA" }), &foreign),
        issuer.token(json!({ "alg": "EdDSA" }), &nameless),
    ] {
        let mut statuses = Vec::new();
        // Both ports are another core's each, and the narrower level has the smaller limit.
        for via in [Via::Http1, Via::Http2Tls, Via::Http1] {
            let reply = world.send(via, &bearer(&token)).await;
            statuses.push(reply.status.as_u16());
            assert_eq!(reply.headers.contains_key("retry-after"), reply.status == 429);
        }
        assert_eq!(statuses, [200, 200, 429]);
    }
    // Another token of the same subject is no way around it.
    let again = issuer.token(json!({ "alg": "RS256", "kid": "rsa" }), &with("exp", json!(now() + 60)));
    assert_eq!(world.send(Via::Http1, &bearer(&again)).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn keys_that_are_taken_back_are_good_no_more() {
    let (issuer, next) = (Issuer::new(), Issuer::new());
    let rules = |issuer: &Issuer| vec![guarded(vec![Requirement::Jwt(vec![provider(issuer.keys())])])];
    let (mut world, _backend) = World::echo(rules(&issuer)).await;
    let good = bearer(&issuer.good());
    assert_eq!(world.send(Via::Http1, &good).await.status, StatusCode::OK);
    world.listeners.clear();
    world.http("*", rules(&next));
    world.apply().await;
    assert_eq!(world.send(Via::Http1, &good).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(world.send(Via::Http1, &bearer(&next.good())).await.status, StatusCode::OK);
}

/// Browsers have a cookie, programs a field: a request with both needs both to be good.
#[tokio::test]
async fn no_token_passes_beside_a_good_one() {
    let issuer = Issuer::new();
    let keys = issuer.keys();
    let browser =
        JwtProvider { source: CredentialSource::Cookie("session".into()), ..provider(keys.clone()) };
    let (world, _backend) =
        World::echo(vec![guarded(vec![Requirement::Jwt(vec![browser, provider(keys)])])]).await;
    let (good, forged) = (issuer.good(), issuer.token(json!({ "alg": "none" }), &with("sub", json!("eve"))));
    let [field, forged_field] = [&good, &forged].map(|token| format!("authorization: Bearer {token}\n"));
    for (fields, status) in [
        (field.clone(), StatusCode::OK),
        (format!("cookie: session={good}\n"), StatusCode::OK),
        (format!("cookie: session={good}\n{field}"), StatusCode::OK),
        (format!("cookie: session={good}\nauthorization: Basic YTpi\n"), StatusCode::OK),
        (format!("cookie: session={good}\n{forged_field}"), StatusCode::UNAUTHORIZED),
        (format!("cookie: session={forged}\n{field}"), StatusCode::UNAUTHORIZED),
        (format!("cookie: session ={forged}; session={good}\n"), StatusCode::UNAUTHORIZED),
        (format!("cookie: session={good}; Session={forged}\n"), StatusCode::UNAUTHORIZED),
        (format!("cookie: SESSION={good}\n"), StatusCode::UNAUTHORIZED),
    ] {
        for via in Via::ALL {
            assert_eq!(world.send(via, &get(&fields)).await.status, status, "{fields}");
        }
    }
}

#[tokio::test]
async fn a_password_is_all_of_it() {
    let long = "p".repeat(72);
    let hash = bcrypt::hash(&long, 4).unwrap();
    let users = Arc::new(PasswordFile::parse(format!("ann:{hash}").as_bytes()).unwrap());
    let forwarding = CredentialForwarding::Remove;
    let basic = BasicPasswords { namespace: "edge".into(), users, forwarding, user_header: None };
    let (world, _backend) = World::echo(vec![guarded(vec![Requirement::Basic(basic)])]).await;
    for (password, status) in [(long.clone(), StatusCode::OK), (long + "x", StatusCode::UNAUTHORIZED)] {
        let login = STANDARD.encode(format!("ann:{password}"));
        let reply = world.send(Via::Http1, &get(&format!("authorization: Basic {login}\n"))).await;
        assert_eq!(reply.status, status);
    }
}
