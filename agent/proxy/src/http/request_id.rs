//! Ids of requests, by which their lines in the logs of gateway and backends are found. That of a
//! trusted proxy is kept; others are made: clients could have two requests taken for one.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderValue;
use http::header::HeaderName;

use crate::core::head::Fields;
use crate::core::origin;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static(origin::X_REQUEST_ID);

/// Characters of an id that is made; each stands for 5 bits.
const LENGTH: usize = 16;
/// Ids that are made at a time, in one piece of memory: each would need two of its own.
const BATCH: usize = 16;
/// Longer ids are replaced: each line of a log has one.
const LONGEST: usize = 128;

thread_local! {
    /// Ids that no request has yet.
    static MADE: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// The id that trusted proxies gave the request, if it is one.
pub(crate) fn given(fields: &impl Fields) -> Option<HeaderValue> {
    let name = X_REQUEST_ID;
    let mut values = fields.get_all(&name);
    let id = values.next()?;
    let is_one = values.next().is_none() && !id.is_empty() && id.len() <= LONGEST;
    if is_one && id.iter().all(|byte| ends_nothing(*byte)) { fields.copy(&name) } else { None }
}

/// True for characters that a URI may have, but for those that end a member of a list, or a
/// parameter. Text of them ends no quoted string, and no part of a line of a log either.
pub(crate) fn ends_nothing(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+=%".contains(&byte)
}

/// 80 bits at random in lower-case base32hex (RFC 4648).
pub(crate) fn make() -> HeaderValue {
    let id = MADE.with_borrow_mut(|made| {
        if made.is_empty() {
            *made = make_batch();
        }
        made.split_to(LENGTH)
    });
    HeaderValue::from_maybe_shared(id).unwrap_or(HeaderValue::from_static("-"))
}

fn make_batch() -> Bytes {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let mut ids = vec![0; BATCH * LENGTH];
    for half in ids.chunks_exact_mut(LENGTH / 2) {
        let mut bits = fastrand::u64(..);
        for character in half {
            *character = ALPHABET[(bits & 31) as usize];
            bits >>= 5;
        }
    }
    ids.into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn ids_differ() {
        let ids: HashSet<_> = (0..10_000).map(|_| make()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == LENGTH));
    }

    #[test]
    fn one_sound_id_is_kept() {
        let long = "a".repeat(LONGEST + 1);
        for (sent, kept) in [
            (vec![("x-request-id", "7f3c1a52-9f0e")], true),
            (vec![], false),
            (vec![("x-request-id", "")], false),
            (vec![("x-request-id", "Root=1-67891233/abc+de==:1")], true),
            (vec![("x-request-id", "a b")], false),
            (vec![("x-request-id", "a\",admin=\"1")], false),
            (vec![("x-request-id", "a;x")], false),
            (vec![("x-request-id", "a,x")], false),
            (vec![("x-request-id", "a\\")], false),
            (vec![("x-request-id", long.as_str())], false),
            (vec![("x-request-id", "a"), ("x-request-id", "b")], false),
        ] {
            assert_eq!(given(&PlainFields::of(&sent)).is_some(), kept, "{sent:?}");
        }
    }
}
