//! JSON Web Key Sets (RFC 7517), and signatures that are verified with them (RFC 7515). Which
//! algorithm a key is good for follows from the key, never from the token: a public key is none for
//! HMAC, and `none` is no algorithm.

use std::fmt;

use aws_lc_rs::signature::{self, ParsedPublicKey, RsaParameters, RsaPublicKeyComponents};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Keys of a set that are looked at.
const MOST_KEYS: usize = 64;
/// Bytes of a document: keys of 8,192 bits with their certificates fit in.
const LONGEST: usize = 256 << 10;
/// Keys that a token which names none is tried with.
const MOST_TRIES: usize = 8;

/// The keys of an issuer. Compared by the digest of the document, and the kinds that it may have.
pub struct KeySet {
    fingerprint: [u8; 32],
    keys: Vec<Key>,
}

/// The kinds of keys that a set may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKinds {
    Public,
    /// Keys of HMAC as well: the document is a secret.
    PublicAndSecret,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    #[error("is no JSON Web Key Set: {0}")]
    Syntax(String),
    #[error("has {0} bytes; at most {LONGEST} are allowed")]
    TooLong(usize),
    #[error("has {0} keys; at most {MOST_KEYS} are allowed")]
    TooMany(usize),
    #[error("has no keys")]
    Empty,
    #[error("has no usable key: key {index}{} {problem}", id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default())]
    NoneUsable { index: usize, id: Option<Box<str>>, problem: &'static str },
}

struct Key {
    id: Option<Box<str>>,
    /// By the name that `alg` of a token gives it.
    uses: Vec<(&'static str, Verifier)>,
}

enum Verifier {
    Public(ParsedPublicKey),
    /// Boxed: it is ten times as large.
    Secret(Box<hmac::Key>),
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

/// The members that matter.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<Box<str>>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
}

static RSA: [(&str, &RsaParameters); 6] = [
    ("RS256", &signature::RSA_PKCS1_2048_8192_SHA256),
    ("RS384", &signature::RSA_PKCS1_2048_8192_SHA384),
    ("RS512", &signature::RSA_PKCS1_2048_8192_SHA512),
    ("PS256", &signature::RSA_PSS_2048_8192_SHA256),
    ("PS384", &signature::RSA_PSS_2048_8192_SHA384),
    ("PS512", &signature::RSA_PSS_2048_8192_SHA512),
];

// === impl KeySet ===

impl KeySet {
    /// Keys for other purposes, and of kinds that are not known, are left out, as RFC 7517 section
    /// 5 wants it.
    ///
    /// # Errors
    /// When the document has no key that is of use.
    pub fn parse(document: &[u8], kinds: KeyKinds) -> Result<Self, KeySetError> {
        // As values, keys that are none take a hundred times as much as their text.
        if document.len() > LONGEST {
            return Err(KeySetError::TooLong(document.len()));
        }
        let Document { keys } = serde_json::from_slice(document).map_err(|error| {
            KeySetError::Syntax(format!("line {}, column {}", error.line(), error.column()))
        })?;
        if keys.len() > MOST_KEYS {
            return Err(KeySetError::TooMany(keys.len()));
        }
        let (mut usable, mut first) = (Vec::new(), None);
        for (index, value) in keys.into_iter().enumerate() {
            let id = value.get("kid").and_then(|id| id.as_str()).map(Box::from);
            let parsed = serde_json::from_value(value).map_err(|_| "is malformed");
            match parsed.and_then(|jwk| Key::of(jwk, kinds)) {
                Ok(key) => usable.push(key),
                Err(problem) => {
                    first.get_or_insert(KeySetError::NoneUsable { index, id, problem });
                }
            }
        }
        if usable.is_empty() {
            return Err(first.unwrap_or(KeySetError::Empty));
        }
        let mut fingerprint = [0; 32];
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&[u8::from(kinds == KeyKinds::PublicAndSecret)]);
        context.update(document);
        fingerprint.copy_from_slice(context.finish().as_ref());
        Ok(Self { fingerprint, keys: usable })
    }

    /// True if a key that is good for the algorithm has made the signature: the one of that id, or
    /// one without; where the token names none, any. `tries` is the number of signatures that may
    /// still be checked; none is left when it is 0.
    pub fn verifies(
        &self,
        (algorithm, id): (&str, Option<&str>),
        message: &[u8],
        signature: &[u8],
        tries: &mut u32,
    ) -> bool {
        let named = self.keys.iter().filter(|key| match (&key.id, id) {
            (Some(own), Some(id)) => **own == *id,
            (None, _) | (_, None) => true,
        });
        let fitting = named.flat_map(|key| &key.uses).filter(|(name, _)| *name == algorithm);
        fitting.take(MOST_TRIES).any(|(_, verifier)| {
            let Some(left) = tries.checked_sub(1) else { return false };
            *tries = left;
            verifier.verifies(message, signature)
        })
    }
}

impl PartialEq for KeySet {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for KeySet {}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeySet").field(&self.ids().collect::<Vec<_>>()).finish()
    }
}

impl KeySet {
    /// True if one of the keys has this id.
    pub fn has(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_deref().unwrap_or("without kid"))
    }
}

// === impl Key ===

impl Key {
    fn of(jwk: Jwk, kinds: KeyKinds) -> Result<Self, &'static str> {
        if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Err("is not for signatures (`use`)");
        }
        if jwk.key_ops.as_ref().is_some_and(|ops| !ops.iter().any(|op| op == "verify")) {
            return Err("is not for verifying (`key_ops`)");
        }
        let mut uses = match (&*jwk.kty, kinds) {
            ("RSA", _) => rsa(&jwk)?,
            ("EC", _) => elliptic(&jwk)?,
            ("OKP", _) => edwards(&jwk)?,
            ("oct", KeyKinds::PublicAndSecret) => symmetric(&jwk)?,
            ("oct", KeyKinds::Public) => return Err("is symmetric: such a key belongs in a Secret"),
            _ => return Err("is of an unknown kind (`kty`)"),
        };
        if let Some(only) = &jwk.alg {
            uses.retain(|(name, _)| name == only);
        }
        if uses.is_empty() {
            return Err("has an algorithm (`alg`) that does not fit it, or that is not supported");
        }
        Ok(Self { id: jwk.kid, uses })
    }
}

fn bytes(member: Option<&String>) -> Result<Vec<u8>, &'static str> {
    let text = member.ok_or("lacks a member")?;
    URL_SAFE_NO_PAD.decode(text).map_err(|_| "has a member that is not base64url")
}

fn rsa(jwk: &Jwk) -> Result<Vec<(&'static str, Verifier)>, &'static str> {
    let (n, e) = (bytes(jwk.n.as_ref())?, bytes(jwk.e.as_ref())?);
    // Some issuers write leading zeros.
    let strip = |bytes: Vec<u8>| bytes.into_iter().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
    let components = RsaPublicKeyComponents { n: strip(n), e: strip(e) };
    if !(256..=1024).contains(&components.n.len()) {
        return Err("is an RSA key of less than 2048 or more than 8192 bits");
    }
    let uses = RSA.iter().map(|(name, parameters)| {
        let key = components.to_parsed_public_key(parameters).map_err(|_| "is no RSA key")?;
        Ok((*name, Verifier::Public(key)))
    });
    uses.collect()
}

fn elliptic(jwk: &Jwk) -> Result<Vec<(&'static str, Verifier)>, &'static str> {
    let (name, algorithm, length) = match jwk.crv.as_deref() {
        Some("P-256") => ("ES256", &signature::ECDSA_P256_SHA256_FIXED, 32),
        Some("P-384") => ("ES384", &signature::ECDSA_P384_SHA384_FIXED, 48),
        Some("P-521") => ("ES512", &signature::ECDSA_P521_SHA512_FIXED, 66),
        _ => return Err("is on an unknown curve (`crv`)"),
    };
    let (x, y) = (bytes(jwk.x.as_ref())?, bytes(jwk.y.as_ref())?);
    if x.len() != length || y.len() != length {
        return Err("has coordinates of a wrong length");
    }
    let point = [&[4], &*x, &*y].concat();
    let key = ParsedPublicKey::new(algorithm, point).map_err(|_| "is no point on its curve")?;
    Ok(vec![(name, Verifier::Public(key))])
}

/// RFC 9864 calls the algorithm `Ed25519`, RFC 8037 `EdDSA`.
fn edwards(jwk: &Jwk) -> Result<Vec<(&'static str, Verifier)>, &'static str> {
    if jwk.crv.as_deref() != Some("Ed25519") {
        return Err("is on an unknown curve (`crv`)");
    }
    let key = ParsedPublicKey::new(&signature::ED25519, bytes(jwk.x.as_ref())?);
    let key = key.map_err(|_| "is no key of Ed25519")?;
    Ok(vec![("EdDSA", Verifier::Public(key.clone())), ("Ed25519", Verifier::Public(key))])
}

/// "A key of the same size as the hash output … or larger MUST be used" (RFC 7518 section 3.2).
fn symmetric(jwk: &Jwk) -> Result<Vec<(&'static str, Verifier)>, &'static str> {
    let secret = bytes(jwk.k.as_ref())?;
    if secret.len() < 32 {
        return Err("is shorter than 32 bytes");
    }
    let all = [
        ("HS256", hmac::HMAC_SHA256, 32),
        ("HS384", hmac::HMAC_SHA384, 48),
        ("HS512", hmac::HMAC_SHA512, 64),
    ];
    let fitting = all.into_iter().filter(|(.., length)| secret.len() >= *length);
    Ok(fitting
        .map(|(name, algorithm, _)| (name, Verifier::Secret(Box::new(hmac::Key::new(algorithm, &secret)))))
        .collect())
}

impl Verifier {
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Public(key) => key.verify_sig(message, signature).is_ok(),
            Self::Secret(key) => hmac::verify(key, message, signature).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(document: &str) -> String {
        KeySet::parse(document.as_bytes(), KeyKinds::Public).unwrap_err().to_string()
    }

    #[test]
    fn a_set_without_a_usable_key_says_why() {
        let secret = URL_SAFE_NO_PAD.encode([7; 32]);
        for (document, expected) in [
            ("nonsense", "is no JSON Web Key Set: line 1, column 2"),
            (r#"{"keys":[]}"#, "has no keys"),
            (r#"{"keys":[1]}"#, "has no usable key: key 0 is malformed"),
            (r#"{"keys":[{"kty":"PQ","kid":"a"}]}"#, "key 0 (a) is of an unknown kind (`kty`)"),
            (r#"{"keys":[{"kty":"RSA","use":"enc"}]}"#, "is not for signatures"),
            (r#"{"keys":[{"kty":"RSA","key_ops":["sign"]}]}"#, "is not for verifying"),
            (r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#, "less than 2048"),
            (r#"{"keys":[{"kty":"RSA","n":"+/","e":"AQAB"}]}"#, "not base64url"),
            (r#"{"keys":[{"kty":"EC","crv":"P-256","x":"AQAB"}]}"#, "lacks a member"),
            (r#"{"keys":[{"kty":"EC","crv":"secp256k1"}]}"#, "unknown curve"),
            (&format!(r#"{{"keys":[{{"kty":"oct","k":"{secret}"}}]}}"#), "belongs in a Secret"),
        ] {
            assert!(problem(document).contains(expected), "{document}: {}", problem(document));
        }
        let many = format!(r#"{{"keys":[{}]}}"#, vec!["{}"; 65].join(","));
        assert_eq!(problem(&many), "has 65 keys; at most 64 are allowed");
        let long = format!(r#"{{"keys":[{}]}}"#, vec![r#"{"":0}"#; 40_000].join(","));
        assert_eq!(problem(&long), "has 280010 bytes; at most 262144 are allowed");
    }

    #[test]
    fn sets_of_other_kinds_are_others() {
        let k = URL_SAFE_NO_PAD.encode([7; 32]);
        let x = URL_SAFE_NO_PAD.encode([9; 32]);
        let document =
            format!(r#"{{"keys":[{{"kty":"oct","k":"{k}"}},{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}]}}"#);
        let [public, secret] = [KeyKinds::Public, KeyKinds::PublicAndSecret]
            .map(|kinds| KeySet::parse(document.as_bytes(), kinds).unwrap());
        assert_ne!(public, secret);
    }

    #[test]
    fn no_more_signatures_are_checked_than_may_be() {
        let key = |byte: u8| {
            format!(r#"{{"kty":"oct","alg":"HS256","k":"{}"}}"#, URL_SAFE_NO_PAD.encode([byte; 32]))
        };
        let document = format!(r#"{{"keys":[{},{},{}]}}"#, key(1), key(2), key(3));
        let set = KeySet::parse(document.as_bytes(), KeyKinds::PublicAndSecret).unwrap();
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[3; 32]), b"m");
        for (mut tries, verified, left) in [(2, false, 0), (3, true, 0), (8, true, 5)] {
            assert_eq!(set.verifies(("HS256", None), b"m", signature.as_ref(), &mut tries), verified);
            assert_eq!(tries, left);
        }
    }

    #[test]
    fn secret_keys_are_as_long_as_their_hashes() {
        for (length, fits) in [(31, &[][..]), (32, &["HS256"]), (48, &["HS256", "HS384"])] {
            let k = URL_SAFE_NO_PAD.encode(vec![7; length]);
            let document = format!(r#"{{"keys":[{{"kty":"oct","k":"{k}"}}]}}"#);
            let set = KeySet::parse(document.as_bytes(), KeyKinds::PublicAndSecret);
            let uses = set.map(|set| set.keys[0].uses.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            assert_eq!(uses.unwrap_or_default(), fits);
        }
    }
}
