//! An issuer of tokens with a key of each kind that is common, and the set of both.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

pub(super) const ISSUER: &str = "https://login.test";
pub(super) const AUDIENCE: &str = "bench";
/// Of tokens: longer than any run.
const LIFETIME: u64 = 24 * 60 * 60;
/// The modulus of a key of 2,048 bits in its DER form (RFC 8017, appendix A.1.1), behind the tags
/// and lengths of both and the zero of a number that is not negative.
const MODULUS: std::ops::Range<usize> = 9..9 + 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
}

pub(super) struct Issuer {
    rsa: RsaKeyPair,
    ec: EcdsaKeyPair,
}

impl Algorithm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }
}

impl Issuer {
    pub(super) fn new() -> Result<Self> {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new())?;
        let ec = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref())?;
        Ok(Self { rsa: RsaKeyPair::generate(KeySize::Rsa2048)?, ec })
    }

    pub(super) fn key_set(&self) -> Result<Value> {
        let modulus = self.rsa.public_key().as_ref().get(MODULUS).context("an RSA key of another form")?;
        let (x, y) = self.ec.public_key().as_ref()[1..].split_at(32);
        Ok(json!({ "keys": [
            { "kty": "RSA", "kid": "RS256", "n": encode(modulus), "e": encode([1, 0, 1]) },
            { "kty": "EC", "crv": "P-256", "kid": "ES256", "x": encode(x), "y": encode(y) },
        ] }))
    }

    /// A token of the size that identity providers issue, good for a day. `number` tells it from
    /// others.
    pub(super) fn token(&self, algorithm: Algorithm, number: usize) -> Result<String> {
        let header = json!({ "alg": algorithm.name(), "typ": "JWT", "kid": algorithm.name() });
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let claims = json!({
            "iss": ISSUER, "aud": [AUDIENCE], "sub": format!("user-{number:06}"), "iat": now,
            "exp": now + LIFETIME, "jti": format!("{number:032x}"), "scope": "openid profile email",
            "name": "Ada Lovelace", "email": "ada@example.com", "groups": ["staff", "analysts"],
        });
        let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match algorithm {
            Algorithm::Rs256 => {
                let mut signature = vec![0; self.rsa.public_modulus_len()];
                self.rsa.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature)?;
                signature
            }
            Algorithm::Es256 => self.ec.sign(&random, message.as_bytes())?.as_ref().to_vec(),
        };
        Ok(format!("{message}.{}", encode(signature)))
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
