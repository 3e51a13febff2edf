//! Match conditions: what a request must look like. A condition that cannot be understood makes its
//! alternative invalid; it never becomes a wider one.

use std::sync::Arc;

use http::{HeaderName, Method};
use portcullis_api::types::httproutes::{HttpPathMatch, HttpRouteMatch};
use portcullis_api::types::shared::NamedMatch;
use portcullis_model::{PathMatch, RouteMatch, ValueMatch};

use super::pattern;
use crate::Fault;

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
const LONGEST_PATH: usize = 1024;
const LONGEST_VALUE: usize = 4096;

/// The alternatives of a rule that are valid; one that matches everything if none is written.
pub(super) fn alternatives<M>(
    written: Option<&[M]>,
    parse: fn(&M) -> Result<RouteMatch, Fault>,
    faults: &mut Vec<Fault>,
) -> Vec<Arc<RouteMatch>> {
    let written = written.unwrap_or_default();
    if written.is_empty() {
        return vec![Arc::new(RouteMatch::default())];
    }
    let mut valid = Vec::new();
    for (at, matched) in written.iter().enumerate() {
        match parse(matched) {
            Ok(matched) => valid.push(Arc::new(matched)),
            Err(fault) => faults.push(fault.within(&format!("matches[{at}]"))),
        }
    }
    valid
}

pub(super) fn http(matched: &HttpRouteMatch) -> Result<RouteMatch, Fault> {
    Ok(RouteMatch {
        path: path(matched.path.as_ref()).map_err(|fault| fault.within("path"))?,
        method: matched.method.as_deref().map(method).transpose()?,
        headers: headers(matched.headers.as_deref())?,
        query: query(matched.query_params.as_deref())?,
    })
}

fn method(method: &str) -> Result<Method, Fault> {
    let known = METHODS.contains(&method).then(|| Method::from_bytes(method.as_bytes()).ok());
    known.flatten().ok_or_else(|| {
        Fault::unsupported(format!("method {method:?} is unknown: use one of {}", METHODS.join(", ")))
    })
}

fn path(path: Option<&HttpPathMatch>) -> Result<PathMatch, Fault> {
    let value = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
    match path.and_then(|path| path.r#type.as_deref()).unwrap_or("PathPrefix") {
        "Exact" => check_path(value).map(|()| PathMatch::Exact(value.into())),
        "PathPrefix" => check_path(value).map(|()| PathMatch::prefix(value)),
        "RegularExpression" => {
            check_length(value, LONGEST_PATH).and_then(|()| pattern::text(value)).map(PathMatch::Regex)
        }
        other => Err(unknown_type(other, "Exact, PathPrefix or RegularExpression")),
    }
}

/// The rules that the CRD states for Exact and PathPrefix values: nothing that normalising a
/// request's path removes.
pub(super) fn check_path(value: &str) -> Result<(), Fault> {
    const NEVER_INSIDE: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
    check_length(value, LONGEST_PATH)?;
    if !value.starts_with('/') {
        return Err(Fault::unsupported(format!("value {value:?} must start with /")));
    }
    if let Some(part) = NEVER_INSIDE.iter().find(|part| value.contains(**part)) {
        return Err(Fault::unsupported(format!("value {value:?} must not contain {part}")));
    }
    if value.ends_with("/.") || value.ends_with("/..") {
        return Err(Fault::unsupported(format!("value {value:?} must not end with /. or /..")));
    }
    if !is_path_text(value) {
        return Err(Fault::unsupported(format!("value {value:?} has a character that no path can have")));
    }
    Ok(())
}

fn is_path_text(value: &str) -> bool {
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        let fine = match byte {
            b'%' => {
                [bytes.next(), bytes.next()].iter().flatten().filter(|b| b.is_ascii_hexdigit()).count() == 2
            }
            _ => byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte),
        };
        if !fine {
            return false;
        }
    }
    true
}

/// Of entries with equivalent names only the first counts, says the API.
pub(super) fn headers(matches: Option<&[NamedMatch]>) -> Result<Vec<(HeaderName, ValueMatch)>, Fault> {
    named(matches, "header", |name| {
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            Fault::unsupported(format!("{name:?} is no header name: use letters, digits and !#$%&'*+-.^_`|~"))
        })
    })
}

fn query(matches: Option<&[NamedMatch]>) -> Result<Vec<(Box<str>, ValueMatch)>, Fault> {
    named(matches, "query parameter", |name| Ok(name.into()))
}

fn named<N: PartialEq>(
    matches: Option<&[NamedMatch]>,
    what: &str,
    name_of: impl Fn(&str) -> Result<N, Fault>,
) -> Result<Vec<(N, ValueMatch)>, Fault> {
    let mut compiled = Vec::<(N, ValueMatch)>::new();
    for matched in matches.unwrap_or_default() {
        let name = name_of(&matched.name).map_err(|fault| fault.within(what))?;
        if compiled.iter().all(|(known, _)| *known != name) {
            compiled.push((
                name,
                value(matched).map_err(|fault| fault.within(&format!("{what} {}", matched.name)))?,
            ));
        }
    }
    Ok(compiled)
}

fn value(matched: &NamedMatch) -> Result<ValueMatch, Fault> {
    check_length(&matched.value, LONGEST_VALUE)?;
    match matched.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(ValueMatch::Exact(matched.value.as_str().into())),
        "RegularExpression" => pattern::octets(&matched.value).map(ValueMatch::Regex),
        other => Err(unknown_type(other, "Exact or RegularExpression")),
    }
}

pub(super) fn check_length(value: &str, longest: usize) -> Result<(), Fault> {
    if value.len() > longest {
        return Err(Fault::unsupported(format!(
            "value is {} bytes long; at most {longest} are allowed",
            value.len()
        )));
    }
    Ok(())
}

pub(super) fn unknown_type(found: &str, known: &str) -> Fault {
    Fault::unsupported(format!("type {found:?} is unknown: use {known}"))
}

#[cfg(test)]
#[path = "matches_tests.rs"]
mod tests;
