//! Bodies of gRPC-Web in base64: however they are cut, they are the same bytes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use portcullis_proxy::fuzzing::from_base64;

use crate::PIECES;

pub(crate) fn run(bytes: &[u8]) {
    let whole = from_base64(bytes, usize::MAX >> 1);
    for piece in PIECES {
        assert_eq!(from_base64(bytes, piece), whole, "by {piece}");
    }
    if let Ok(decoded) = &whole {
        assert!(decoded.len() <= bytes.len() / 4 * 3, "{} bytes", decoded.len());
    }
    // What is one segment to the library is the same to us.
    if let Ok(decoded) = STANDARD.decode(bytes) {
        assert_eq!(whole, Ok(decoded));
    }
}
