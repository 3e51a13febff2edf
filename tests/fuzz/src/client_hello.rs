//! The server name of a ClientHello, as the kernel programs find it, and as the TLS library does.

use portcullis_common::client_hello::{Cursor, MOST_KEPT, Reading};
use portcullis_common::server_name::ReversedName;
use rustls::server::Acceptor;

use crate::PIECES;

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// In lower case, without a trailing dot.
    Name(String),
    NotAName,
    NoName,
    Incomplete,
    Unreadable,
}

pub(crate) fn run(bytes: &[u8]) {
    let whole = kernel(bytes, usize::MAX >> 1);
    for piece in PIECES {
        assert_eq!(kernel(bytes, piece), whole, "by {piece}");
    }
    // Where the library takes the hello for one, it has that name; it may know better otherwise.
    match &whole {
        Found::Name(_) | Found::NoName => assert!(library(bytes).is_none_or(|library| library == whole)),
        Found::NotAName | Found::Incomplete | Found::Unreadable => {}
    }
}

/// Reads pieces of this size, of which no more is kept than the next reading needs.
fn kernel(bytes: &[u8], piece: usize) -> Found {
    let (mut kept, mut cursor) = (Vec::new(), Cursor::BEGIN);
    for piece in bytes.chunks(piece) {
        let window = [&kept[..], piece].concat();
        cursor = match cursor.read(&window[..]) {
            Reading::Name { offset, length } => return name(&window, offset, length),
            Reading::NoName => return Found::NoName,
            Reading::Unreadable => return Found::Unreadable,
            Reading::Incomplete(cursor) => cursor,
        };
        let keep = cursor.keep(window.len());
        kept = window[keep.from..].to_vec();
        cursor = keep.cursor;
        assert!(kept.len() <= MOST_KEPT, "{} bytes are kept", kept.len());
    }
    Found::Incomplete
}

fn name(window: &[u8], offset: usize, length: usize) -> Found {
    let mut reversed = ReversedName::EMPTY;
    match reversed.read(window, offset, length) {
        None => Found::NotAName,
        Some(length) => {
            assert_eq!(reversed.0[length], 0, "a name ends with NUL");
            Found::Name(reversed.0[..length].iter().rev().map(|byte| char::from(*byte)).collect())
        }
    }
}

/// The name in a hello that the library accepts.
fn library(mut bytes: &[u8]) -> Option<Found> {
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        acceptor.read_tls(&mut bytes).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            let hello = accepted.client_hello();
            let name = hello.server_name().map(|name| name.strip_suffix('.').unwrap_or(name));
            return Some(name.map_or(Found::NoName, |name| Found::Name(name.to_ascii_lowercase())));
        }
    }
    None
}
