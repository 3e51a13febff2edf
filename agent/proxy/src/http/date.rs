//! The `Date` of responses that have none (RFC 9110 section 6.6.1), made once for each tick of the
//! core's clock.

use std::cell::RefCell;

use http::HeaderValue;

use crate::core::clock;

thread_local! {
    static DATE: RefCell<(Option<u32>, HeaderValue)> =
        const { RefCell::new((None, HeaderValue::from_static(""))) };
}

/// Appends the field in the form of HTTP/1.
pub(super) fn write(out: &mut Vec<u8>) {
    with(|date| {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(date.as_bytes());
        out.extend_from_slice(b"\r\n");
    });
}

pub(super) fn value() -> HeaderValue {
    with(HeaderValue::clone)
}

fn with<T>(used: impl FnOnce(&HeaderValue) -> T) -> T {
    DATE.with_borrow_mut(|(made, date)| {
        if *made != Some(clock::now()) {
            let now = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            if let Ok(now) = HeaderValue::try_from(now) {
                (*made, *date) = (Some(clock::now()), now);
            }
        }
        used(date)
    })
}
