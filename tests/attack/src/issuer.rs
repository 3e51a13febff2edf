//! Credentials that are good: the issuer of tokens, an API key and two users, and the policies by
//! which rules ask for them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// Paths of the rules that ask for a token, for one of staff, for an API key, for a password.
pub(crate) const TOKEN: &str = "/token";
pub(crate) const STAFF: &str = "/staff";
pub(crate) const KEY: &str = "/key";
pub(crate) const PASSWORD: &str = "/password";

pub(crate) const ISSUER: &str = "https://login.test";
pub(crate) const API_KEY: &str = "7c1f24f0a3be4f6d";
pub(crate) const WEAK_PASSWORD: &str = "correct horse";
/// Of the password `U*U`: a test vector of crypt_blowfish.
pub(crate) const BCRYPT: &str = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

/// The one whose tokens are good.
pub(crate) struct Issuer {
    pub(crate) key: EcdsaKeyPair,
    /// Its private half, to sign in another form.
    pub(crate) document: Vec<u8>,
}

/// The ConfigMap and Secrets that rules' policies refer to, and the policies.
pub(crate) fn manifests(issuer: &Issuer) -> String {
    let mut manifests = format!(
        "---
apiVersion: v1
kind: ConfigMap
metadata: {{name: login, namespace: default}}
data: {{jwks.json: '{}'}}
---
apiVersion: v1
kind: Secret
metadata: {{name: clients, namespace: default}}
stringData: {{shop: {API_KEY}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: users, namespace: default}}
stringData: {{auth: \"weak:{}\\nslow:{BCRYPT}\\n\"}}
",
        json!({"keys": [issuer.jwk()]}),
        weak_hash(),
    );
    let jwt = |more: &str| {
        format!(
            "jwt: {{providers: [{{name: login, issuer: '{ISSUER}', audiences: [shop], \
             jwks: {{kind: ConfigMap, name: login}}, claimsToHeaders: [{{claim: sub, header: x-user}}]{more}}}]}}"
        )
    };
    let policies = [
        ("token", jwt("")),
        ("staff", jwt(", requiredClaims: [{claim: groups, values: [staff]}]")),
        ("key", "apiKeys: {secretRefs: [{name: clients}], clientHeader: x-client}".to_owned()),
        ("password", "basic: {secretRef: {name: users}, userHeader: x-name}".to_owned()),
    ];
    for (rule, terms) in policies {
        let _ = write!(
            manifests,
            "---
apiVersion: portcullis.dev/v1alpha1
kind: TrafficPolicy
metadata: {{name: {rule}, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: a, sectionName: {rule}}}]
  {terms}
"
        );
    }
    manifests
}

pub(crate) fn claims_of_alice() -> Value {
    json!({"iss": ISSUER, "sub": "alice", "aud": "shop", "exp": now() + 3600})
}

/// The claims of a good token, one of them otherwise; null: without it.
pub(crate) fn with(name: &str, value: Value) -> Value {
    let mut claims = claims_of_alice();
    if value.is_null() {
        claims.as_object_mut().map(|claims| claims.remove(name));
    } else {
        claims[name] = value;
    }
    claims
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// As `htpasswd -s` writes it.
pub(crate) fn weak_hash() -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, WEAK_PASSWORD.as_bytes());
    format!("{{SHA}}{}", STANDARD.encode(hash))
}

pub(crate) fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

// === impl Issuer ===

impl Issuer {
    pub(crate) fn new() -> Result<Self> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())?;
        let document = document.as_ref().to_vec();
        Ok(Self { key: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &document)?, document })
    }

    pub(crate) fn jwk(&self) -> Value {
        let (x, y) = self.key.public_key().as_ref()[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "kid": "one", "x": encode(x), "y": encode(y)})
    }

    pub(crate) fn good(&self) -> Result<String> {
        self.signed(&claims_of_alice())
    }

    pub(crate) fn signed(&self, claims: &Value) -> Result<String> {
        self.token(&json!({"alg": "ES256", "kid": "one"}), claims)
    }

    pub(crate) fn token(&self, header: &Value, claims: &Value) -> Result<String> {
        self.sign(&format!("{}.{}", encode(header.to_string()), encode(claims.to_string())))
    }

    pub(crate) fn sign(&self, message: &str) -> Result<String> {
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes())?;
        Ok(format!("{message}.{}", encode(signature.as_ref())))
    }
}
