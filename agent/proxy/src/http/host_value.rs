//! Hosts that requests ask for, as values of fields. Each core keeps some that it had lately: a
//! copy of one of these takes no memory, and no look at each of its bytes.

use std::cell::RefCell;
use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;
use http::HeaderValue;

/// Places, of which each host has one that it may have to leave to another.
const PLACES: usize = 64;
/// Bytes of a name in the DNS and a port: longer ones are not kept.
const LONGEST: usize = 253 + ":65535".len();

thread_local! {
    static KEPT: RefCell<[HeaderValue; PLACES]> =
        const { RefCell::new([const { HeaderValue::from_static("") }; PLACES]) };
}

/// `None` if no field can have it.
pub(crate) fn host_value(host: &[u8]) -> Option<HeaderValue> {
    if host.len() > LONGEST {
        return HeaderValue::from_bytes(host).ok();
    }
    let place = FixedState::default().hash_one(host) as usize % PLACES;
    KEPT.with_borrow_mut(|kept| {
        let kept = &mut kept[place];
        if kept.as_bytes() != host {
            *kept = HeaderValue::from_bytes(host).ok()?;
        }
        Some(kept.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_what_was_asked_for() {
        for _ in 0..2 {
            for number in 0..1000 {
                let host = format!("{number}.example.com:8080");
                assert_eq!(host_value(host.as_bytes()).unwrap(), host);
            }
        }
        let long = "a".repeat(LONGEST + 1);
        assert_eq!(host_value(long.as_bytes()).unwrap(), long);
        assert_eq!(host_value(b"").unwrap(), "");
        assert_eq!(host_value(b"a\nb"), None);
    }
}
