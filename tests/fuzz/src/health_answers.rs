//! Answers of endpoints to health checks: a head is the same whatever follows it, is not taken
//! before its end, and no body says that it serves but one that does.

use portcullis_proxy::fuzzing::{check_answer, is_serving};

/// `status: SERVING`, as protobuf writes it.
const SERVING: &[u8] = &[0x08, 0x01];
/// Bytes of a message's prefix.
const PREFIX: usize = 5;

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(Some((size, status))) = check_answer(bytes) {
        assert!(size <= bytes.len() && (100..1000).contains(&status.as_u16()), "{size} bytes: {status}");
        assert_eq!(check_answer(&bytes[..size]), Ok(Some((size, status))), "without what follows");
        for cut in [1, size / 2, size - 1] {
            assert_eq!(check_answer(&bytes[..cut.min(size - 1)]), Ok(None), "{cut} bytes of it");
        }
    }
    let says_so = bytes.get(PREFIX..).is_some_and(|message| message.windows(2).any(|pair| pair == SERVING));
    if is_serving(bytes) {
        assert!(says_so || is_long_form(&bytes[PREFIX..]), "{bytes:?}");
    }
}

/// True if there may be a number with more bytes than it takes.
fn is_long_form(message: &[u8]) -> bool {
    message.iter().any(|byte| byte & 0x80 != 0)
}
