//! Tokens of sessions: among fields, those of a cookie are found as another reader of cookies finds
//! them; whatever was not sealed is nothing, and neither is a token that was changed.

use std::net::SocketAddr;

use http::header::COOKIE;
use portcullis_proxy::fuzzing::{session_contents, session_endpoint, session_token, session_tokens};

use crate::fields::fields;

const NAME: &str = "s";
/// Characters of a token.
const TOKEN: usize = 90;

pub(crate) fn run(bytes: &[u8]) {
    check_cookies(bytes);
    if let Some(contents) = session_contents(bytes) {
        assert_eq!(contents, bytes, "is read as something else");
    }
    assert_eq!(session_endpoint(bytes), None, "a forged token");
    let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
    let Some(token) = session_token(endpoint) else { return };
    assert_eq!(session_endpoint(token.as_bytes()), Some(endpoint));
    let mut changed = token.clone().into_bytes();
    changed.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let is_the_same = changed == token.as_bytes();
    assert_eq!(session_endpoint(&changed).is_some(), is_the_same, "{changed:?} in place of {token}");
    if let Some((at, byte)) = bytes.first().zip(bytes.get(1)) {
        let at = usize::from(*at) % token.len();
        let mut changed = token.clone().into_bytes();
        changed[at] = *byte;
        let is_the_same = changed == token.as_bytes();
        assert_eq!(session_endpoint(&changed).is_some(), is_the_same, "{changed:?} in place of {token}");
    }
}

fn check_cookies(bytes: &[u8]) {
    let fields = fields(bytes);
    let mut expected = Vec::new();
    for cookies in fields.get_all(COOKIE) {
        for cookie in cookies.as_bytes().split(|byte| *byte == b';') {
            let mut halves = cookie.trim_ascii().splitn(2, |byte| *byte == b'=');
            if let (Some(name), Some(value)) = (halves.next(), halves.next())
                && name == NAME.as_bytes()
            {
                let tokens = value.split(|byte| *byte == b'.').filter(|token| token.len() == TOKEN);
                expected.extend(tokens.map(<[u8]>::to_vec));
            }
        }
    }
    assert_eq!(session_tokens(&fields, NAME), expected, "of {fields:?}");
}
