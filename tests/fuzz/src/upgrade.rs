//! Requests that want to switch protocols, as fields, one a line: those that go on have agreed to
//! it by `Connection`, and none opens a tunnel for requests that no route would see.

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use portcullis_proxy::fuzzing::upgrade;

use crate::fields::fields;

pub(crate) fn run(bytes: &[u8]) {
    let fields = fields(bytes);
    let passed = upgrade(&fields);
    let first = fields.get(UPGRADE);
    assert!(passed.is_none() || passed.as_ref() == first, "{passed:?} of {fields:?}");
    let agreed = fields.get_all(CONNECTION).iter().flat_map(elements).any(|option| option == "upgrade");
    let brings_requests = first.is_some_and(|protocols| {
        elements(protocols).any(|protocol| {
            let name = protocol.split('/').next().unwrap_or_default().trim();
            matches!(name, "http" | "h2" | "h2c" | "tls")
        })
    });
    assert!(passed.is_none() || agreed, "{fields:?}");
    assert!(passed.is_none() || !brings_requests, "{fields:?}");
    // What every browser sends goes on.
    let is_plain = first.is_some_and(|protocol| protocol == "websocket") && fields.len() == 2;
    if is_plain && fields.get(CONNECTION).is_some_and(|options| options == "Upgrade") {
        assert_eq!(passed.as_ref(), first);
    }
}

/// In lower case.
fn elements(value: &HeaderValue) -> impl Iterator<Item = String> {
    let elements = value.as_bytes().split(|byte| *byte == b',');
    elements.map(|element| String::from_utf8_lossy(element.trim_ascii()).to_ascii_lowercase())
}
