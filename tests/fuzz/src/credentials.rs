//! Fields with credentials, one a line as in a head: a backend that is not to see a credential does
//! not, in any spelling, and keeps all the others.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use portcullis_model::CredentialSource;
use portcullis_proxy::fuzzing::{credential, login, without_cookie};

use crate::fields::fields;

const NAME: &str = "tok";

pub(crate) fn run(bytes: &[u8]) {
    let fields = fields(bytes);
    let cookie = CredentialSource::Cookie(NAME.into());
    let kept = without_cookie(&fields, NAME);
    assert_eq!(credential(&cookie, &kept), None, "of {fields:?} there is left {kept:?}");
    assert_eq!(without_cookie(&kept, NAME), kept, "once more");
    let cookies = pairs(&fields);
    let left = pairs(&kept);
    assert!(left.iter().all(|pair| cookies.contains(pair)), "{left:?} of {cookies:?}");
    if let Some(value) = credential(&cookie, &fields) {
        assert!(left.len() < cookies.len(), "{cookies:?} stay");
        assert!(!value.contains(&b';'), "{}", value.escape_ascii());
    }
    if let Some((user, password)) = login(&fields) {
        assert!(!user.contains(':') && !user.chars().any(char::is_control), "{user:?}");
        assert!(!password.iter().any(u8::is_ascii_control), "{}", password.escape_ascii());
    }
    let bearer = credential(&CredentialSource::Bearer, &fields);
    assert!(bearer.is_none() || login(&fields).is_none(), "two schemes in {fields:?}");
}

fn pairs(fields: &HeaderMap) -> Vec<&[u8]> {
    let values = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let pairs = values.flat_map(|value| value.split(|byte| *byte == b';'));
    pairs.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty()).collect()
}
