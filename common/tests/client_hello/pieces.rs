//! Reads a stream in pieces as the kernel does: of what has come it keeps no more than the next
//! reading needs.

use portcullis_common::client_hello::{Cursor, MOST_KEPT, Reading};
use portcullis_common::server_name::ReversedName;

use crate::Verdict;

pub(crate) fn read<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Verdict {
    let mut kept = Vec::new();
    let mut cursor = Cursor::BEGIN;
    for piece in pieces {
        let window = [&kept[..], piece].concat();
        cursor = match cursor.read(&window[..]) {
            Reading::Name { offset, length } => return name(&window, offset, length),
            Reading::NoName => return Verdict::NoName,
            Reading::Unreadable => return Verdict::Unreadable,
            Reading::Incomplete(cursor) => cursor,
        };
        let keep = cursor.keep(window.len());
        kept = window[keep.from..].to_vec();
        cursor = keep.cursor;
        assert!(kept.len() <= MOST_KEPT, "{} bytes are kept", kept.len());
    }
    Verdict::Incomplete
}

/// In segments of one size.
pub(crate) fn read_by(size: usize, bytes: &[u8]) -> Verdict {
    read(bytes.chunks(size))
}

fn name(window: &[u8], offset: usize, length: usize) -> Verdict {
    let mut reversed = ReversedName::EMPTY;
    match reversed.read(window, offset, length) {
        None => Verdict::NotAName,
        Some(length) => {
            assert_eq!(reversed.0[length], 0, "a name ends with NUL");
            Verdict::Name(reversed.0[..length].iter().rev().map(|byte| char::from(*byte)).collect())
        }
    }
}
