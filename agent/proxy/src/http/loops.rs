//! Requests that come back, because an endpoint of a backend is the gateway itself. Each Gateway of
//! an agent signs what it forwards by a pseudonym in `CDN-Loop` (RFC 8586), and refuses what it has
//! signed before. Other proxies pass the field on, and those that know it add to it.

use http::HeaderValue;
use http::header::HeaderName;

use crate::core::head::{Fields, FieldsMut};
use crate::core::pseudonym;

const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");
/// Gateways of any agents that a request may pass.
const MOST: usize = 8;

/// True if the request has passed the Gateway of this pseudonym, or as many of ours as it may.
pub(crate) fn is_loop(fields: &impl Fields, own: &HeaderValue) -> bool {
    let mut ours = 0;
    for value in fields.get_all(&CDN_LOOP) {
        for id in value.split(|byte| *byte == b',') {
            // "cdn-info = cdn-id *( OWS ";" OWS parameter )"
            let id = id.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            ours += usize::from(id.starts_with(pseudonym::PREFIX.as_bytes()));
            if id == own.as_bytes() || ours == MOST {
                return true;
            }
        }
    }
    false
}

/// The field as it is to be sent on: what came, which header filters must not take away, and the
/// Gateway's own pseudonym.
pub(crate) fn signed(fields: &impl Fields, own: &HeaderValue) -> HeaderValue {
    let mut ids: Vec<_> = fields.get_all(&CDN_LOOP).collect();
    ids.push(own.as_bytes());
    HeaderValue::from_bytes(&ids.join(&b", "[..])).unwrap_or_else(|_| own.clone())
}

pub(crate) fn sign(fields: &mut impl FieldsMut, signature: HeaderValue) {
    fields.insert(CDN_LOOP, signature);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn a_gateway_recognises_its_signature() {
        let own = HeaderValue::from_static("portcullis-1");
        let others = |count: usize| vec!["portcullis-2"; count].join(", ");
        for (values, expected) in [
            (vec![], false),
            (vec!["portcullis-1"], true),
            (vec!["example.com:80; a=\"b\" , portcullis-1;x"], true),
            (vec!["example.com", "portcullis-1"], true),
            (vec!["portcullis-12, Portcullis-1"], false),
            (vec!["x;portcullis-1"], false),
            (vec![&*others(MOST - 1)], false),
            (vec![&*others(MOST)], true),
            (vec![&*others(MOST - 1), "portcullis-3"], true),
        ] {
            let fields: Vec<_> = values.iter().map(|value| ("cdn-loop", *value)).collect();
            assert_eq!(is_loop(&PlainFields::of(&fields), &own), expected, "{values:?}");
        }
    }

    #[test]
    fn what_came_is_kept() {
        let own = HeaderValue::from_static("portcullis-1");
        let fields = PlainFields::of(&[("cdn-loop", "a.com"), ("cdn-loop", "b; c=d")]);
        assert_eq!(signed(&fields, &own), "a.com, b; c=d, portcullis-1");
    }
}
