//! The `Date` of responses that have none (RFC 9110 section 6.6.1), made once for each tick of the
//! core's clock.

use std::cell::RefCell;

use crate::core::clock;

thread_local! {
    static DATE: RefCell<(Option<u32>, String)> = const { RefCell::new((None, String::new())) };
}

/// Appends the field.
pub(super) fn write(out: &mut Vec<u8>) {
    DATE.with_borrow_mut(|(made, date)| {
        if *made != Some(clock::now()) {
            *made = Some(clock::now());
            *date = jiff::Timestamp::now().strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n").to_string();
        }
        out.extend_from_slice(date.as_bytes());
    });
}
