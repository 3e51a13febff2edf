//! Requests of a connection. Three readers see them: our own, the HTTP library, and the framing
//! that both are held to. Where they differ is request smuggling.

use portcullis_proxy::fuzzing::{Framed, OwnRequest, framed, own_requests};

use crate::PIECES;
use crate::library::{self, Seen};

pub(crate) fn run(bytes: &[u8]) {
    let own = own_requests(bytes, usize::MAX >> 1);
    let framed = framed(bytes, usize::MAX >> 1);
    cuts_do_not_matter(bytes, &own, &framed);
    let seen = library::requests(&framed.passed);
    own_are_the_librarys(&own, &seen);
    own_are_framed(&own, &framed);
    bounds_are_the_librarys(&framed, &seen);
}

fn cuts_do_not_matter(bytes: &[u8], own: &[OwnRequest], whole: &Framed) {
    for piece in PIECES {
        let pieces = framed(bytes, piece);
        assert_eq!((&pieces.ends, pieces.is_refused), (&whole.ends, whole.is_refused), "framing by {piece}");
        let cut = own_requests(bytes, piece);
        assert_eq!(cut.len(), own.len(), "requests by {piece}");
        for (cut, own) in cut.iter().zip(own) {
            assert_eq!((cut.is_whole, &cut.target), (own.is_whole, &own.target), "by {piece}");
            assert!(!own.is_whole || cut == own, "{cut:?} by {piece} is {own:?}");
        }
    }
}

/// Requests that are certain are the same ones to the library.
fn own_are_the_librarys(own: &[OwnRequest], seen: &[Seen]) {
    for (at, own) in own.iter().enumerate() {
        let Some(seen) = seen.get(at) else { unread(own) };
        let OwnRequest { method, version, target, fields, body, is_whole, .. } = own;
        let heads = (&seen.method, &seen.version, &seen.target, &seen.fields);
        assert_eq!((method, version, target, fields), heads, "the heads of request {at}");
        assert_eq!(*is_whole, seen.is_whole, "the end of request {at}");
        assert!(!is_whole || *body == seen.body, "the body of request {at}");
    }
}

fn unread(own: &OwnRequest) -> ! {
    unreachable!("the library does not read {own:?}")
}

/// As many of our requests are whole as the framing bounds, as far as we read.
fn own_are_framed(own: &[OwnRequest], framed: &Framed) {
    let whole = own.iter().filter(|own| own.is_whole).count();
    assert!(framed.ends.len() >= whole, "{whole} requests are whole, framed are {:?}", framed.ends);
}

/// The library sees no request that is not framed, and each as if it had come alone.
fn bounds_are_the_librarys(framed: &Framed, seen: &[Seen]) {
    let whole = seen.iter().filter(|seen| seen.is_whole).count();
    assert!(whole <= framed.ends.len(), "{whole} requests are whole, framed are {:?}", framed.ends);
    let begins = std::iter::once(&0).chain(&framed.ends);
    for (seen, (begin, end)) in seen.iter().zip(begins.zip(&framed.ends)) {
        let alone = library::requests(&framed.passed[*begin..*end]);
        assert_eq!(alone, std::slice::from_ref(seen), "alone, it is another request");
    }
}
