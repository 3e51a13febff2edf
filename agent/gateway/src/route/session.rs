//! `sessionPersistence` of a rule, or of the policy of a Service (GEP-1619).

use std::fmt::Write;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderName;
use portcullis_api::types::shared::{SessionCookie as WrittenCookie, SessionPersistence as Written};
use portcullis_model::{
    CookieLifetime, KeptSessions, RuleId, SessionCarrier, SessionCookie, SessionPersistence, SessionTerms,
};

use super::matches::{check_length, unknown_type};
use crate::Fault;
use crate::duration::parse_duration;
use crate::field_names::{header_name, is_reserved};

const LONGEST_NAME: usize = 256;
const LONGEST_PATH: usize = 1024;

/// The sessions of a rule, if it has any. A rule whose sessions cannot be as they are written
/// serves nothing: its application relies on them.
pub(super) fn of(
    written: Option<&Written>,
    id: &RuleId,
    faults: &mut Vec<Fault>,
) -> Option<Box<SessionPersistence>> {
    let scope = scope(id);
    match parse(written?, &scope) {
        Ok(terms) => {
            let kept = KeptSessions::All(terms);
            Some(Box::new(SessionPersistence { scope: scope.into(), kept, drained: Vec::new() }))
        }
        Err(fault) => {
            faults.push(fault.within("sessionPersistence"));
            None
        }
    }
}

/// `scope` is the rule's, by [`scope()`].
pub(super) fn parse(written: &Written, scope: &str) -> Result<SessionTerms, Fault> {
    let absolute_timeout = written.absolute_timeout.as_deref().map(timeout).transpose()?;
    let carrier = match (written.r#type.as_deref().unwrap_or("Cookie"), &written.cookie, &written.header) {
        ("Cookie", cookie, None) => {
            let cookie = cookie.clone().unwrap_or_default();
            SessionCarrier::Cookie(
                parse_cookie(&cookie, scope, absolute_timeout).map_err(|it| it.within("cookie"))?,
            )
        }
        ("Header", None, Some(header)) => {
            SessionCarrier::Header(parse_header(&header.name).map_err(|fault| fault.within("header.name"))?)
        }
        ("Header", _, None) => {
            return Err(Fault::unsupported("header: the type Header needs it, with a name"));
        }
        ("Cookie", _, Some(_)) => return Err(Fault::unsupported("header: it is for the type Header")),
        ("Header", Some(_), _) => return Err(Fault::unsupported("cookie: it is for the type Cookie")),
        (other, ..) => return Err(unknown_type(other, "Cookie or Header")),
    };
    Ok(SessionTerms { carrier, absolute_timeout })
}

/// Fields of responses, and of requests, that caches, browsers and applications go by.
const OTHERS: [&str; 18] = [
    "accept-ranges",
    "age",
    "allow",
    "alt-svc",
    "cache-control",
    "clear-site-data",
    "date",
    "etag",
    "expires",
    "last-modified",
    "location",
    "range",
    "retry-after",
    "set-cookie",
    "strict-transport-security",
    "user-agent",
    "vary",
    "www-authenticate",
];
const OTHERS_BEGIN: [&str; 5] = ["access-control-", "content-", "grpc-", "if-", "sec-"];

/// A token takes the place of all that the response has in the field, and requests are to bring it
/// as far as here.
fn parse_header(name: &str) -> Result<HeaderName, Fault> {
    check_length(name, LONGEST_NAME)?;
    let name = header_name(name)?;
    let is_of_others =
        OTHERS.contains(&name.as_str()) || OTHERS_BEGIN.iter().any(|it| name.as_str().starts_with(it));
    if is_of_others || is_reserved(&name) {
        return Err(Fault::unsupported(format!("{name} has another meaning; choose another field")));
    }
    Ok(name)
}

fn parse_cookie(
    written: &WrittenCookie,
    scope: &str,
    absolute_timeout: Option<Duration>,
) -> Result<SessionCookie, Fault> {
    let name = written.name.clone().unwrap_or_else(|| made_name(scope));
    check_length(&name, LONGEST_NAME).map_err(|fault| fault.within("name"))?;
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(Fault::unsupported(format!("name: {name:?} cannot be the name of a cookie")));
    }
    let path = written.path.as_deref().unwrap_or("/");
    check_length(path, LONGEST_PATH).map_err(|fault| fault.within("path"))?;
    if !path.starts_with('/') || !path.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b';') {
        let message =
            format!("path: {path:?} has to begin with /, and has neither semicolons nor control characters");
        return Err(Fault::unsupported(message));
    }
    let lifetime = match (written.lifetime_type.as_deref().unwrap_or("Session"), absolute_timeout) {
        ("Session", _) => CookieLifetime::Session,
        ("Permanent", Some(_)) => CookieLifetime::Permanent,
        ("Permanent", None) => {
            return Err(Fault::unsupported("lifetimeType: Permanent needs an absoluteTimeout"));
        }
        (other, _) => {
            return Err(Fault::unsupported(format!(
                "lifetimeType: {other:?} is unknown: use Session or Permanent"
            )));
        }
    };
    Ok(SessionCookie { name: name.into(), path: path.into(), lifetime })
}

fn timeout(text: &str) -> Result<Duration, Fault> {
    let parsed =
        parse_duration(text).map_err(|error| Fault::unsupported(format!("absoluteTimeout: {error}")))?;
    let message = "absoluteTimeout: no session is over at once; leave it out for sessions without end";
    if parsed.is_zero() { Err(Fault::unsupported(message)) } else { Ok(parsed) }
}

/// The fault of sessions that are written for all rules which lead to a Service.
pub(crate) fn check(written: &Written) -> Result<(), Fault> {
    parse(written, "").map(|_| ())
}

/// The rule, and the rules of parent routes that lead to it. The name of a rule stays when others
/// are written before it.
pub(super) fn scope(id: &RuleId) -> String {
    let mut scope = id.parent.as_ref().map(|parent| scope(parent) + " > ").unwrap_or_default();
    // Text grows as it is written to.
    let _ = match &id.name {
        Some(name) => write!(scope, "{} {} rule {name}", id.kind, id.route),
        None => write!(scope, "{} {} rule #{}", id.kind, id.route, id.index),
    };
    scope
}

/// "If not specified, a unique cookie name SHOULD be generated": the same by every agent.
fn made_name(scope: &str) -> String {
    let mut name = "portcullis-".to_owned();
    for byte in digest(&SHA256, scope.as_bytes()).as_ref().iter().take(8) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_model::ObjectName;
    use serde_json::{Value, json};

    use super::*;

    fn id(index: usize, name: Option<&str>) -> RuleId {
        let route = Arc::new(ObjectName::new("shop", "r"));
        RuleId { kind: "HTTPRoute", route, index, name: name.map(Arc::from), parent: None }
    }

    fn parsed(written: Value) -> Result<SessionTerms, String> {
        let written: Written = serde_json::from_value(written).unwrap();
        parse(&written, &scope(&id(0, None))).map_err(|fault| fault.message)
    }

    #[test]
    fn every_field_is_compiled() {
        let named = json!({"name": "s"});
        for (written, carrier, timeout) in [
            (
                json!({"cookie": named}),
                json!({"Cookie": {"name": "s", "path": "/", "lifetime": "Session"}}),
                None,
            ),
            (
                json!({"type": "Cookie", "cookie": {"name": "s", "path": "/a", "lifetimeType": "Session"}}),
                json!({"Cookie": {"name": "s", "path": "/a", "lifetime": "Session"}}),
                None,
            ),
            (
                json!({"absoluteTimeout": "5m", "cookie": {"name": "s", "lifetimeType": "Permanent"}}),
                json!({"Cookie": {"name": "s", "path": "/", "lifetime": "Permanent"}}),
                Some(300),
            ),
            (
                json!({"type": "Header", "header": {"name": "X-Session"}}),
                json!({"Header": "x-session"}),
                None,
            ),
            (
                json!({"type": "Header", "header": {"name": "s"}, "absoluteTimeout": "1h"}),
                json!({"Header": "s"}),
                Some(3600),
            ),
        ] {
            let session = parsed(written.clone()).unwrap();
            assert_eq!(json!(session.carrier), carrier, "{written}");
            assert_eq!(session.absolute_timeout, timeout.map(Duration::from_secs), "{written}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (written, words) in [
            (json!({"type": "Address"}), "type \"Address\""),
            (json!({"type": "Header"}), "the type Header needs it"),
            (json!({"type": "Header", "header": {"name": "a b"}}), "is no header name"),
            (json!({"type": "Header", "header": {"name": "Connection"}}), "belongs to the connection"),
            (json!({"type": "Header", "header": {"name": "Transfer-Encoding"}}), "belongs to the connection"),
            (json!({"type": "Header", "header": {"name": "Set-Cookie"}}), "set-cookie has another meaning"),
            (json!({"type": "Header", "header": {"name": "cookie"}}), "cookie has another meaning"),
            (json!({"type": "Header", "header": {"name": "host"}}), "host has another meaning"),
            (json!({"type": "Header", "header": {"name": "content-encoding"}}), "has another meaning"),
            (json!({"type": "Header", "header": {"name": "location"}}), "location has another meaning"),
            (json!({"type": "Header", "header": {"name": "Cache-Control"}}), "has another meaning"),
            (json!({"type": "Header", "header": {"name": "grpc-status"}}), "has another meaning"),
            (json!({"type": "Header", "header": {"name": "authorization"}}), "has another meaning"),
            (json!({"type": "Header", "header": {"name": "x-forwarded-for"}}), "has another meaning"),
            (json!({"type": "Header", "header": {"name": "s"}, "cookie": {}}), "for the type Cookie"),
            (json!({"header": {"name": "s"}}), "for the type Header"),
            (json!({"cookie": {"name": "a=b"}}), "cannot be the name of a cookie"),
            (json!({"cookie": {"name": ""}}), "cannot be the name of a cookie"),
            (json!({"cookie": {"path": "a"}}), "has to begin with /"),
            (json!({"cookie": {"path": "/; Domain=example"}}), "neither semicolons"),
            (json!({"cookie": {"path": "/a\r\nb: c"}}), "neither semicolons"),
            (json!({"cookie": {"lifetimeType": "Permanent"}}), "needs an absoluteTimeout"),
            (json!({"cookie": {"lifetimeType": "Forever"}}), "is unknown"),
            (json!({"absoluteTimeout": "0s"}), "over at once"),
            (json!({"absoluteTimeout": "soon"}), "absoluteTimeout"),
        ] {
            let message = parsed(written.clone()).unwrap_err();
            assert!(message.contains(words), "{written}: {message}");
        }
    }

    #[test]
    fn rules_have_names_of_their_own() {
        let name = |id: RuleId| match parse(&Written::default(), &scope(&id)).unwrap().carrier {
            SessionCarrier::Cookie(cookie) => cookie.name,
            SessionCarrier::Header(name) => panic!("{name}"),
        };
        let first = name(id(0, None));
        assert!(first.starts_with("portcullis-") && first.len() == 27, "{first}");
        assert_eq!(first, name(id(0, None)));
        assert_ne!(first, name(id(1, None)));
        assert_ne!(first, name(id(0, Some("checkout"))));
        assert_eq!(name(id(3, Some("checkout"))), name(id(0, Some("checkout"))));
        let below = RuleId { parent: Some(Arc::new(id(0, None))), ..id(0, None) };
        assert_ne!(first, name(below));
    }
}
