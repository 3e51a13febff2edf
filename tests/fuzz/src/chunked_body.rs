//! A chunked body, of a request or a response: however it is cut, it is the same; and where it is
//! whole, the HTTP library reads the same bytes for it.

use portcullis_proxy::fuzzing::{chunked_body, framed};

use crate::{PIECES, library};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";

pub(crate) fn run(bytes: &[u8]) {
    let whole = chunked_body(bytes, usize::MAX >> 1);
    assert!(whole.data.len() <= bytes.len(), "{} bytes of {}", whole.data.len(), bytes.len());
    for piece in PIECES {
        let pieces = chunked_body(bytes, piece);
        assert_eq!(pieces.size, whole.size, "by {piece}");
        if whole.size.is_some() {
            assert_eq!(pieces, whole, "by {piece}");
        }
    }
    let Some(size) = whole.size else { return };
    // A request with this body is nothing more, to the framing and to the library.
    let request = [HEAD, &bytes[..size]].concat();
    let framed = framed(&request, usize::MAX >> 1);
    if framed.is_refused {
        return;
    }
    assert_eq!(framed.ends, [request.len()], "the end of the body");
    let seen = library::requests(&request);
    let [seen] = &seen[..] else { unreachable!("{} requests", seen.len()) };
    assert!(!seen.is_whole || seen.body == whole.data, "the library reads {:?}", seen.body);
}
