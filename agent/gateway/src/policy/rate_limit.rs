//! Rate limits of TrafficPolicies. Nothing here knows whom they are for.

use std::num::NonZeroU32;

use portcullis_api::types::trafficpolicies::{TrafficPolicyRateLimits, TrafficPolicyRateLimitsKey};
use portcullis_model::{ClaimPath, Period, RateKey, RateLimit, RateScope};

use crate::field_names::is_of_agent;

/// The most that a policy has. The schema says so, too.
const MOST_LIMITS: usize = 8;
/// Requests a period, and at once.
const MOST_REQUESTS: i32 = 100_000;
/// The time in which an empty bucket may fill, in seconds.
const LONGEST: u64 = 24 * 60 * 60;

/// The same limit twice is one.
pub(super) fn limits(written: &[TrafficPolicyRateLimits]) -> Result<Box<[RateLimit]>, String> {
    if written.len() > MOST_LIMITS {
        return Err(format!("rateLimits has {} entries, {MOST_LIMITS} is the most", written.len()));
    }
    let mut limits = Vec::new();
    for (at, written) in written.iter().enumerate() {
        let limit = limit(written).map_err(|why| format!("rateLimits[{at}]: {why}"))?;
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    Ok(limits.into())
}

fn limit(written: &TrafficPolicyRateLimits) -> Result<RateLimit, String> {
    let number = |field, value: i32| {
        let number = u32::try_from(value).ok().and_then(NonZeroU32::new);
        let number = number.filter(|_| value <= MOST_REQUESTS);
        number.ok_or_else(|| format!("{field} is {value}: write 1 to {MOST_REQUESTS}"))
    };
    let requests = number("requests", written.requests)?;
    let burst = written.burst.map(|burst| number("burst", burst)).transpose()?.unwrap_or(requests);
    let period = match written.per.as_str() {
        "Second" => Period::Second,
        "Minute" => Period::Minute,
        "Hour" => Period::Hour,
        other => return Err(format!("per is {other:?}: write Second, Minute or Hour")),
    };
    if u64::from(burst.get()) * u64::from(period.seconds()) / u64::from(requests.get()) > LONGEST {
        return Err(format!("burst is {burst}, which takes more than a day to come back: write less"));
    }
    let key = written.key.as_ref().map_or(Ok(RateKey::All), key)?;
    let scope = match written.scope.as_deref() {
        None | Some("Node") => RateScope::Node,
        Some("Cluster") => RateScope::Cluster,
        Some(other) => return Err(format!("scope is {other:?}: write Node or Cluster")),
    };
    Ok(RateLimit { requests, period, burst, key, scope })
}

fn key(written: &TrafficPolicyRateLimitsKey) -> Result<RateKey, String> {
    match (written.r#type.as_str(), written.header.as_deref(), written.claim.as_deref()) {
        ("ClientAddress", None, None) => Ok(RateKey::ClientAddress),
        ("Header", Some(name), None) => match name.parse() {
            Ok(name) if is_of_agent(&name) => Err(format!(
                "key.header: {name} is any text that a client likes: the agent removes it, or writes its own; key by \
                 ClientAddress, or by another field"
            )),
            Ok(name) => Ok(RateKey::Header(name)),
            Err(_) => Err(format!("key.header: {name:?} is no name of a header field")),
        },
        ("Claim", None, Some(claim)) if !claim.is_empty() => Ok(RateKey::Claim(ClaimPath(claim.into()))),
        ("Header", None, _) => Err("key.type is Header: write its name as key.header".to_owned()),
        ("Claim", _, None | Some("")) => Err("key.type is Claim: write its name as key.claim".to_owned()),
        ("ClientAddress" | "Claim", Some(_), _) => {
            Err("key.header is for type Header: leave it out".to_owned())
        }
        ("ClientAddress" | "Header", _, Some(_)) => {
            Err("key.claim is for type Claim: leave it out".to_owned())
        }
        (other, ..) => Err(format!("key.type is {other:?}: write ClientAddress, Header or Claim")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(limit: Value) -> Result<String, String> {
        let limits = limits(&[serde_json::from_value(limit).unwrap()])?;
        Ok(limits[0].to_string())
    }

    #[test]
    fn limits_are_read_with_their_defaults() {
        for (limit, expected) in [
            (json!({"requests": 5, "per": "Minute"}), "5 requests a minute, 5 at once"),
            (
                json!({"requests": 5, "per": "Hour", "burst": 9, "key": {"type": "ClientAddress"}}),
                "5 requests an hour, 9 at once, by client address",
            ),
            (
                json!({"requests": 1, "per": "Second", "key": {"type": "Header", "header": "X-Key"}}),
                "1 requests a second, 1 at once, by x-key",
            ),
            (
                json!({"requests": 1, "per": "Second", "key": {"type": "Claim", "claim": "sub"}}),
                "1 requests a second, 1 at once, by claim sub",
            ),
            (
                json!({"requests": 9, "per": "Hour", "scope": "Cluster", "key": {"type": "ClientAddress"}}),
                "9 requests an hour, 9 at once, by client address, of all agents together",
            ),
            (json!({"requests": 9, "per": "Hour", "scope": "Node"}), "9 requests an hour, 9 at once"),
        ] {
            assert_eq!(read(limit).as_deref(), Ok(expected));
        }
    }

    fn by_header(name: &str) -> Value {
        json!({"requests": 1, "per": "Hour", "key": {"type": "Header", "header": name}})
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (limit, told) in [
            (json!({"requests": 0, "per": "Second"}), "rateLimits[0]: requests is 0: write 1 to 100000"),
            (json!({"requests": 1, "per": "Second", "burst": -1}), "burst is -1"),
            (json!({"requests": 1, "per": "Day"}), "per is \"Day\""),
            (json!({"requests": 1, "per": "Hour", "burst": 25}), "more than a day"),
            (
                json!({"requests": 1, "per": "Hour", "scope": "Global"}),
                "scope is \"Global\": write Node or Cluster",
            ),
            (json!({"requests": 1, "per": "Hour", "key": {"type": "Claim"}}), "write its name as key.claim"),
            (json!({"requests": 1, "per": "Hour", "key": {"type": "Cookie"}}), "key.type is \"Cookie\""),
            (
                json!({"requests": 1, "per": "Hour", "key": {"type": "ClientAddress", "claim": "sub"}}),
                "key.claim is for type Claim",
            ),
            (json!({"requests": 1, "per": "Hour", "key": {"type": "Header"}}), "write its name"),
            (
                json!({"requests": 1, "per": "Hour", "key": {"type": "Header", "header": "a b"}}),
                "no name of a header field",
            ),
            (by_header("X-Forwarded-For"), "key.header: x-forwarded-for is any text that a client likes"),
            (by_header("x_real_ip"), "key by ClientAddress"),
            (by_header("X-Request-Id"), "key.header: x-request-id is any text"),
            (by_header("SSL-Client-S-DN"), "key.header: ssl-client-s-dn is any text"),
            (by_header("Forwarded"), "key.header: forwarded is any text"),
            (by_header("Content-Length"), "key.header: content-length is any text"),
        ] {
            let why = read(limit).unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }
}
