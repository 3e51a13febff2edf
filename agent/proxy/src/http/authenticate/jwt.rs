//! JSON Web Tokens: signed ones in the compact form (RFC 7515), whose payload is claims (RFC 7519).

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use portcullis_model::{ClaimPath, Expiry, JwtProvider, KeySet, RequiredClaim};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::core::reason::Reason;
use crate::http::decide::OwnAnswer;

/// Longer tokens are refused unread.
pub(crate) const LONGEST: usize = 16 << 10;

/// The payload of a token whose signature is good.
pub(crate) struct Claims(Map<String, Value>);

/// The reason why a credential is no good. In the order of how far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rejection {
    Missing,
    Invalid,
    /// It names one that is not among the issuer's.
    UnknownKey,
    Signature,
    Issuer,
    Audience,
    NotYet,
    Expired,
    Claim,
    /// Those of its issuer, or the one that it names, could not be fetched: it may be good.
    NoKeys,
}

#[derive(Deserialize)]
struct JoseHeader {
    alg: String,
    kid: Option<String>,
    /// "If any of the listed extension Header Parameters are not understood … the JWS is invalid":
    /// none is, and `null` is no list of them.
    #[serde(default, deserialize_with = "there")]
    crit: Option<Value>,
}

// === verification ===

/// A member that is there, `null` or not.
fn there<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

/// True if the token says that it is of the issuer. Whether it says the truth its signature tells,
/// which is not worth a check where it does not.
pub(crate) fn names(issuer: &str, token: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'n> {
        #[serde(borrow)]
        iss: Cow<'n, str>,
    }
    let payload = token.split(|byte| *byte == b'.').nth(1).and_then(|it| URL_SAFE_NO_PAD.decode(it).ok());
    payload.is_some_and(|it| serde_json::from_slice::<Named<'_>>(&it).is_ok_and(|named| named.iss == issuer))
}

/// The claims of a token that one of the keys has signed. `tries` is the number of signatures that
/// may still be checked.
///
/// # Errors
/// [`Rejection::Invalid`], [`Rejection::UnknownKey`] or [`Rejection::Signature`].
pub(crate) fn verify(keys: &KeySet, token: &[u8], tries: &mut u32) -> Result<Claims, Rejection> {
    let dots: Vec<_> = token.iter().enumerate().filter(|(_, byte)| **byte == b'.').take(3).collect();
    let [(first, _), (second, _)] = dots[..] else { return Err(Rejection::Invalid) };
    let decode = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).map_err(|_| Rejection::Invalid);
    let header = decode(&token[..first])?;
    let header: JoseHeader = serde_json::from_slice(&header).map_err(|_| Rejection::Invalid)?;
    if header.crit.is_some() {
        return Err(Rejection::Invalid);
    }
    let signature = decode(&token[second + 1..])?;
    if !keys.verifies((&header.alg, header.kid.as_deref()), &token[..second], &signature, tries) {
        let is_unknown = header.kid.is_some_and(|id| !keys.has(&id));
        return Err(if is_unknown { Rejection::UnknownKey } else { Rejection::Signature });
    }
    let payload = decode(&token[first + 1..second])?;
    serde_json::from_slice(&payload).map(Claims).map_err(|_| Rejection::Invalid)
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Checks that claims are what the provider wants, now.
///
/// # Errors
/// Their first fault.
pub(crate) fn check(provider: &JwtProvider, claims: &Claims, now: f64) -> Result<(), Rejection> {
    let skew = provider.clock_skew.as_secs_f64();
    if claims.0.get("iss").and_then(Value::as_str) != Some(&provider.issuer) {
        return Err(Rejection::Issuer);
    }
    let for_us = |audience: &Value| {
        audience.as_str().is_some_and(|it| provider.audiences.iter().any(|own| **own == *it))
    };
    let is_for_us = match claims.0.get("aud") {
        _ if provider.audiences.is_empty() => true,
        Some(Value::Array(all)) => all.iter().any(for_us),
        Some(one) => for_us(one),
        None => false,
    };
    if !is_for_us {
        return Err(Rejection::Audience);
    }
    match claims.time("exp")? {
        None if provider.expiry == Expiry::Required => return Err(Rejection::Invalid),
        Some(end) if now - skew >= end => return Err(Rejection::Expired),
        None | Some(_) => {}
    }
    for name in ["nbf", "iat"] {
        if claims.time(name)?.is_some_and(|begin| begin > now + skew) {
            return Err(Rejection::NotYet);
        }
    }
    if provider.required.iter().all(|required| claims.meet(required)) {
        Ok(())
    } else {
        Err(Rejection::Claim)
    }
}

// === impl Claims ===

impl Claims {
    /// The bytes that they take, about. An object takes a node of a tree, however few members it
    /// has.
    pub(crate) fn bytes(&self) -> usize {
        const NODE: usize = 640;
        fn of(value: &Value) -> usize {
            let below = match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
                Value::String(text) => text.len(),
                Value::Array(all) => all.iter().map(of).sum(),
                Value::Object(all) => NODE + of_members(all),
            };
            size_of::<Value>() + below
        }
        fn of_members(members: &Map<String, Value>) -> usize {
            members.iter().map(|(name, value)| size_of::<String>() + name.len() + of(value)).sum()
        }
        NODE + of_members(&self.0)
    }

    /// # Errors
    /// When the claim is there, and no time.
    fn time(&self, name: &str) -> Result<Option<f64>, Rejection> {
        self.0.get(name).map(|value| value.as_f64().ok_or(Rejection::Invalid)).transpose()
    }

    /// The claim of that name; or else the one within others that the parts of the name lead to.
    fn get(&self, path: &ClaimPath) -> Option<&Value> {
        if let Some(value) = self.0.get(&*path.0) {
            return Some(value);
        }
        let mut parts = path.0.split('.');
        let first = self.0.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    /// `scope` is a list with spaces between (RFC 8693 section 4.2).
    fn meet(&self, required: &RequiredClaim) -> bool {
        let is_wanted = |value: &str| required.values.iter().any(|wanted| **wanted == *value);
        match self.get(&required.claim) {
            Some(Value::String(text)) if &*required.claim.0 == "scope" => text.split(' ').any(is_wanted),
            Some(Value::Array(all)) => all.iter().any(|one| scalar(one).is_some_and(|it| is_wanted(&it))),
            Some(value) => scalar(value).is_some_and(|it| is_wanted(&it)),
            None => false,
        }
    }

    /// The text that a rate limit tells tokens apart by. Whose claim it is is part of it: subjects
    /// of two issuers are two.
    pub(crate) fn rate_key(&self, path: &ClaimPath) -> Vec<u8> {
        let issuer = self.0.get("iss").and_then(Value::as_str).unwrap_or_default();
        let value = self.get(path).map(|value| scalar(value).unwrap_or_else(|| value.to_string()));
        [issuer.as_bytes(), &[0], value.unwrap_or_default().as_bytes()].concat()
    }

    /// Text, numbers and truth values as they are, all else as JSON.
    pub(crate) fn header_value(&self, path: &ClaimPath) -> Option<HeaderValue> {
        let value = self.get(path)?;
        text_value(&scalar(value).unwrap_or_else(|| value.to_string()))
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// `None` for a text that would reach the backend as another one: a recipient drops the white space
/// around a value, and `"admin "` is not `admin`.
pub(crate) fn text_value(text: &str) -> Option<HeaderValue> {
    let is_itself = !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control);
    if is_itself { HeaderValue::from_bytes(text.as_bytes()).ok() } else { None }
}

// === impl Rejection ===

impl Rejection {
    pub(crate) fn reason(self) -> Reason {
        match self {
            Self::Missing => Reason::CredentialsMissing,
            Self::Invalid
            | Self::UnknownKey
            | Self::Signature
            | Self::Issuer
            | Self::Audience
            | Self::NotYet => Reason::CredentialsInvalid,
            Self::Expired => Reason::TokenExpired,
            Self::Claim => Reason::ClaimMismatch,
            Self::NoKeys => Reason::NoKeys,
        }
    }

    /// With the error codes of RFC 6750 section 3.1; none, where a request has no token.
    pub(crate) fn bearer_answer(self) -> OwnAnswer<'static> {
        let challenge = match self.reason() {
            Reason::CredentialsMissing => "Bearer realm=\"restricted\"",
            Reason::TokenExpired => {
                "Bearer realm=\"restricted\", error=\"invalid_token\", error_description=\"the token has expired\""
            }
            Reason::ClaimMismatch => "Bearer realm=\"restricted\", error=\"insufficient_scope\"",
            Reason::NoKeys => return Reason::NoKeys.into(),
            _ => "Bearer realm=\"restricted\", error=\"invalid_token\"",
        };
        OwnAnswer::Challenge(self.reason(), HeaderValue::from_static(challenge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(json: &str) -> Claims {
        Claims(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn claims_are_told_as_they_are_or_not_at_all() {
        let claims = claims(
            r#"{"sub":"ann","n":7,"ok":true,"a":{"b":["x","y,z"]},"https://e.org/a.b":"dots",
                "space":"admin ","nul":"a\u0000","line":"a\r\nx: y","empty":"","none":null,"uml":"Jörg"}"#,
        );
        for (path, expected) in [
            ("sub", Some("ann")),
            ("n", Some("7")),
            ("ok", Some("true")),
            ("a.b", Some(r#"["x","y,z"]"#)),
            ("https://e.org/a.b", Some("dots")),
            ("uml", Some("Jörg")),
            ("space", None),
            ("nul", None),
            ("line", None),
            ("empty", None),
            ("sub.b", None),
            ("missing", None),
        ] {
            let value = claims.header_value(&ClaimPath(path.into()));
            assert_eq!(value.as_ref().map(HeaderValue::as_bytes), expected.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn a_required_claim_is_a_value_or_in_a_list() {
        let claims = claims(r#"{"scope":"read write","role":"read write","groups":["a","b"],"level":3}"#);
        for (claim, value, met) in [
            ("scope", "write", true),
            ("scope", "rea", false),
            ("role", "write", false),
            ("role", "read write", true),
            ("groups", "b", true),
            ("groups", "ab", false),
            ("level", "3", true),
            ("missing", "", false),
        ] {
            let required = RequiredClaim { claim: ClaimPath(claim.into()), values: vec![value.into()] };
            assert_eq!(claims.meet(&required), met, "{claim} {value}");
        }
    }
}
