//! Requests that pretend to come from another client: tokens, API keys and passwords that are
//! none, at rules that ask for them, and fields that only the gateway may write. What gets through
//! is what the issuer signed, under the name that it signed.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::Size;
use crate::issuer::{
    API_KEY, BCRYPT, ISSUER, Issuer, KEY, PASSWORD, STAFF, TOKEN, WEAK_PASSWORD, claims_of_alice, encode,
    now, weak_hash, with,
};
use crate::report::{Passed, Report};
use crate::wire;
use crate::world::{HOST, World};

const REFUSALS: &[u16] = &[400, 401, 403, 431];

struct Probe {
    name: String,
    target: String,
    /// Its field lines.
    fields: String,
    expected: Expected,
}

#[derive(Default)]
struct Probes(Vec<Probe>);

enum Expected {
    Refused,
    /// The backend gets this field line, and only one of its name. Without it a refusal would prove
    /// nothing.
    Served(&'static str),
}

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    for (number, probe) in probes(&world.issuer)?.into_iter().enumerate() {
        let Probe { name, target, fields, expected } = probe;
        let mark = format!("x-probe: {number}\r\n");
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n{fields}{mark}Connection: close\r\n\r\n");
        let (answer, _) = wire::exchange(world.plain, request.as_bytes())?;
        let statuses = wire::statuses(&answer);
        let reached = world.asked.heads(|head| head.contains(&mark));
        let holds = match expected {
            Expected::Refused => {
                matches!(statuses[..], [status] if REFUSALS.contains(&status)) && reached.is_empty()
            }
            Expected::Served(line) => {
                let field = line.split(':').next().unwrap_or_default();
                let is_like = |it: &&str| {
                    it.split(':').next().unwrap_or_default().replace('_', "-").eq_ignore_ascii_case(field)
                };
                statuses == [200] && matches!(&reached[..], [head] if head.lines().filter(is_like).eq([line]))
            }
        };
        let happened = format!("{statuses:?}; the backend was asked {} times", reached.len());
        report.add(format!("credentials: {name}"), happened, holds.then_some(Passed));
    }
    guess(world, size, report)
}

/// Many wrong ones at once, each of them another.
fn guess(world: &World, size: Size, report: &mut Report) -> Result<()> {
    let header = json!({"alg": "ES256", "kid": "one"});
    let stranger = Issuer::new()?;
    let tokens = (0..size.of(2000)).map(|number| {
        let token = stranger.token(&header, &with("jti", json!(number)))?;
        Ok((TOKEN, format!("Authorization: Bearer {token}\r\n")))
    });
    let passwords = (0..size.of(500)).map(|number| Ok((PASSWORD, basic(&format!("slow:{number}")))));
    let keys = (0..size.of(2000)).map(|number| Ok((KEY, format!("X-Api-Key: {number:016x}\r\n"))));
    let guesses: [(&str, Vec<(&str, String)>); 3] = [
        ("tokens", tokens.collect::<Result<_>>()?),
        ("passwords", passwords.collect::<Result<_>>()?),
        ("API keys", keys.collect::<Result<_>>()?),
    ];
    for (what, guesses) in guesses {
        let (refused, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while let Some((path, fields)) = guesses.get(next.fetch_add(1, Relaxed)) {
                        let request = format!(
                            "GET {path} HTTP/1.1\r\nHost: {HOST}\r\n{fields}Connection: close\r\n\r\n"
                        );
                        let answer = wire::exchange(world.plain, request.as_bytes());
                        // 503: too many passwords wait.
                        let is_refusal = answer
                            .is_ok_and(|(answer, _)| matches!(wire::statuses(&answer)[..], [401 | 503]));
                        refused.fetch_add(usize::from(is_refusal), Relaxed);
                    }
                });
            }
        });
        let (refused, all) = (refused.into_inner(), guesses.len());
        report.add(
            format!("credentials: {all} {what} by guess"),
            format!("{refused} refused"),
            (refused == all).then_some(Passed),
        );
    }
    Ok(())
}

fn probes(issuer: &Issuer) -> Result<Vec<Probe>> {
    let mut probes = Probes::default();
    tokens(issuer, &mut probes)?;
    claims(issuer, &mut probes)?;
    keys(&mut probes);
    passwords(&mut probes);
    Ok(probes.0)
}

fn tokens(issuer: &Issuer, probes: &mut Probes) -> Result<()> {
    let good = issuer.good()?;
    probes.served("nothing wrong with a token", TOKEN, bearer(&good), "x-user: alice");
    probes.served(
        "nothing wrong with `bearer`",
        TOKEN,
        format!("authorization: bearer {good}\r\n"),
        "x-user: alice",
    );
    for spelling in ["X-User", "x_user", "X-USER", "X_user"] {
        let fields = format!("{}{spelling}: admin\r\n", bearer(&good));
        probes.served(&format!("a good token, beside {spelling}"), TOKEN, fields, "x-user: alice");
    }
    let nominated = format!("{}Connection: x-user\r\n", bearer(&good));
    probes.served("a good token, its name's field hop by hop", TOKEN, nominated, "x-user: alice");

    probes.refused("no token", TOKEN, String::new());
    probes.refused("only the field that the gateway writes", TOKEN, "X-User: alice\r\n".to_owned());
    probes.refused("a token in the query", &format!("{TOKEN}?access_token={good}"), String::new());
    probes.refused("a token in a cookie", TOKEN, format!("Cookie: authorization={good}\r\n"));
    probes.refused("a token for a proxy", TOKEN, format!("Proxy-Authorization: Bearer {good}\r\n"));
    probes.refused("a token by Basic", TOKEN, format!("Authorization: Basic {good}\r\n"));
    for (name, token) in forged(issuer)? {
        probes.refused(name, TOKEN, bearer(&token));
        let both = format!("{}{}", bearer(&good), bearer(&token));
        probes.refused(&format!("{name}, behind a good one"), TOKEN, both);
        probes.refused(
            &format!("{name}, in a list with a good one"),
            TOKEN,
            bearer(&format!("{good}, {token}")),
        );
    }
    Ok(())
}

fn claims(issuer: &Issuer, probes: &mut Probes) -> Result<()> {
    let staff = |groups: Value| issuer.signed(&with("groups", groups)).map(|token| bearer(&token));
    probes.served("nothing wrong with a claim", STAFF, staff(json!(["night", "staff"]))?, "x-user: alice");
    probes.refused("a claim that is missing", STAFF, bearer(&issuer.good()?));
    for groups in
        [json!("staff admin"), json!("Staff"), json!(["staff "]), json!([["staff"]]), json!({"staff": 1})]
    {
        probes.refused(&format!("a claim that is {groups}"), STAFF, staff(groups)?);
    }
    Ok(())
}

fn keys(probes: &mut Probes) {
    let key = |key: &str| format!("X-Api-Key: {key}\r\n");
    probes.served("nothing wrong with a key", KEY, key(API_KEY), "x-client: shop");
    probes.served(
        "a good key, beside a client's name",
        KEY,
        format!("{}X-Client: admin\r\n", key(API_KEY)),
        "x-client: shop",
    );
    probes.served(
        "a good key, beside a client_name",
        KEY,
        format!("{}X_Client: admin\r\n", key(API_KEY)),
        "x-client: shop",
    );
    probes.refused("no key", KEY, String::new());
    probes.refused("an empty key", KEY, key(""));
    probes.refused("a key that is cut off", KEY, key(&API_KEY[..15]));
    probes.refused("a key that is longer", KEY, key(&format!("{API_KEY}0")));
    probes.refused("a key in capitals", KEY, key(&API_KEY.to_uppercase()));
    probes.refused("two keys", KEY, format!("{}{}", key(API_KEY), key("x")));
    probes.refused("a list of keys", KEY, key(&format!("x, {API_KEY}")));
    probes.refused(
        "a key by its hash",
        KEY,
        key(&hexadecimal(digest::digest(&digest::SHA256, API_KEY.as_bytes()).as_ref())),
    );
    probes.refused("a key under a name alike", KEY, format!("X_Api_Key: {API_KEY}\r\n"));
    probes.refused("a key in the query", &format!("{KEY}?x-api-key={API_KEY}"), String::new());
}

fn passwords(probes: &mut Probes) {
    let weak = basic(&format!("weak:{WEAK_PASSWORD}"));
    probes.served("nothing wrong with a password", PASSWORD, weak.clone(), "x-name: weak");
    probes.served("nothing wrong with a slow one", PASSWORD, basic("slow:U*U"), "x-name: slow");
    probes.served(
        "a good password, beside a name",
        PASSWORD,
        format!("{weak}X-Name: admin\r\n"),
        "x-name: weak",
    );
    for credentials in [
        "weak:wrong",
        "weak:",
        "weak",
        ":",
        "",
        "WEAK:correct horse",
        "weak:correct horse ",
        "weak :correct horse",
        "weak:correct horse\n",
        "weak:correct horse\0x",
        "slow:U*U\0",
        "slow:U*",
        "slow:correct horse",
        "nobody:correct horse",
        "weak\nslow:U*U",
        &format!("slow:{BCRYPT}"),
        &format!("weak:{}", weak_hash()),
        &format!("slow:U*U{}", "x".repeat(69)),
        &format!("slow:{}", "x".repeat(5000)),
    ] {
        let shown = if credentials.len() > 60 { &credentials[..20] } else { credentials };
        probes.refused(&format!("the password {shown:?}"), PASSWORD, basic(credentials));
    }
    probes.refused("a password that is no base64", PASSWORD, "Authorization: Basic %%%\r\n".to_owned());
    probes.refused("two passwords", PASSWORD, format!("{weak}{}", basic("weak:wrong")));
    probes.refused("no password", PASSWORD, "X-Name: weak\r\n".to_owned());
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Tokens that are none of the issuer's, or not good here or now.
fn forged(issuer: &Issuer) -> Result<Vec<(&'static str, String)>> {
    let header = json!({"alg": "ES256", "kid": "one"});
    let good = issuer.good()?;
    let (message, signature) = good.rsplit_once('.').context("a token has dots")?;
    let (head, claims) = message.split_once('.').context("a token has two dots")?;
    let root = encode(with("sub", json!("root")).to_string());
    let stranger = Issuer::new()?;
    let (jwk, point) = (issuer.jwk().to_string(), issuer.key.public_key().as_ref());
    let hmac = |secret: &[u8]| {
        let message = format!("{}.{root}", encode(r#"{"alg":"HS256","kid":"one"}"#));
        let signed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", encode(signed.as_ref()))
    };
    let unsigned = |header: &str| format!("{}.{root}.", encode(header));
    let fields = |name: &str, value: Value| {
        let mut header = header.clone();
        header[name] = value;
        header
    };
    let signed = |name: &str, value: Value| issuer.signed(&with(name, value));
    let raw = |claims: &str| issuer.sign(&format!("{head}.{}", encode(claims)));
    let asn1 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &issuer.document)?;
    let asn1 = asn1.sign(&SystemRandom::new(), message.as_bytes())?;
    let now = now();
    Ok(vec![
        ("alg none", unsigned(r#"{"alg":"none"}"#)),
        ("alg nOnE", unsigned(r#"{"alg":"nOnE"}"#)),
        ("no alg", unsigned(r#"{"kid":"one"}"#)),
        ("alg none, with a signature", format!("{}.{claims}.{signature}", encode(r#"{"alg":"none"}"#))),
        ("alg null", unsigned(r#"{"alg":null}"#)),
        ("two algs", format!("{}.{claims}.{signature}", encode(r#"{"alg":"none","alg":"ES256"}"#))),
        ("HMAC by the public key's JWK", hmac(jwk.as_bytes())),
        ("HMAC by the public key's point", hmac(point)),
        ("HMAC by nothing", hmac(b"")),
        ("a stranger's key", stranger.token(&header, &claims_of_alice())?),
        ("a stranger's key of its own", stranger.token(&fields("jwk", stranger.jwk()), &claims_of_alice())?),
        (
            "a stranger's key by URL",
            stranger.token(&fields("jku", json!("http://127.0.0.1:9/")), &claims_of_alice())?,
        ),
        ("a key by path", stranger.token(&fields("kid", json!("../../dev/null")), &claims_of_alice())?),
        ("a key that is a list", stranger.token(&fields("kid", json!(["one"])), &claims_of_alice())?),
        ("an unknown key", issuer.token(&fields("kid", json!("two")), &claims_of_alice())?),
        ("no signature", format!("{message}.")),
        ("nothing behind the claims", message.to_owned()),
        ("a signature of zeros", format!("{head}.{root}.{}", encode([0_u8; 64]))),
        ("a signature of ones", format!("{head}.{root}.{}", encode([0xff_u8; 64]))),
        ("a signature that is cut off", format!("{message}.{}", &signature[..80])),
        ("a signature with more behind", format!("{message}.{signature}AAAA")),
        ("a signature in ASN.1", format!("{message}.{}", encode(asn1.as_ref()))),
        ("a signature with padding", format!("{message}.{signature}==")),
        ("other claims", format!("{head}.{root}.{signature}")),
        ("another header", format!("{}.{claims}.{signature}", encode(r#"{"alg":"ES256","kid":"one" }"#))),
        ("a fourth part", format!("{good}.{signature}")),
        ("an encrypted one", format!("{}.AAAA.AAAA.AAAA.AAAA", encode(r#"{"alg":"dir","enc":"A128GCM"}"#))),
        ("crit", issuer.token(&fields("crit", json!(["b64"])), &claims_of_alice())?),
        ("crit null", issuer.token(&fields("crit", Value::Null), &claims_of_alice())?),
        ("another issuer", signed("iss", json!("https://login.test/"))?),
        ("several issuers", signed("iss", json!([ISSUER]))?),
        ("another audience", signed("aud", json!("till"))?),
        ("no audience", signed("aud", Value::Null)?),
        ("an audience with the right one in it", signed("aud", json!("shop till"))?),
        ("an expired one", signed("exp", json!(now - 3600))?),
        ("one that never expires", signed("exp", Value::Null)?),
        ("exp as text", signed("exp", json!((now + 3600).to_string()))?),
        ("a negative exp", signed("exp", json!(-1))?),
        (
            "exp past all numbers",
            raw(&format!(r#"{{"iss":"{ISSUER}","aud":"shop","sub":"alice","exp":1e400}}"#))?,
        ),
        ("one of tomorrow", signed("nbf", json!(now + 86_400))?),
        ("nbf as text", signed("nbf", json!("0"))?),
        ("one made tomorrow", signed("iat", json!(now + 86_400))?),
        ("claims that are a list", raw(&format!(r#"["{ISSUER}"]"#))?),
        ("claims that are none", raw("x")?),
        ("a header of 4,000 brackets", format!("{}.{claims}.{signature}", encode("[".repeat(4000)))),
        ("17 KB", signed("x", json!("x".repeat(17_000)))?),
        ("dots", "..".to_owned()),
        ("bytes that are no text", format!("{}.{claims}.{signature}", encode([0xff, 0xfe, 0]))),
    ])
}

fn basic(credentials: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(credentials))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

// === impl Probes ===

impl Probes {
    fn refused(&mut self, name: &str, target: &str, fields: String) {
        self.add(name, target, fields, Expected::Refused);
    }

    fn served(&mut self, name: &str, target: &str, fields: String, line: &'static str) {
        self.add(name, target, fields, Expected::Served(line));
    }

    fn add(&mut self, name: &str, target: &str, fields: String, expected: Expected) {
        self.0.push(Probe { name: name.to_owned(), target: target.to_owned(), fields, expected });
    }
}
