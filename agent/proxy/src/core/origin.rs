//! Names of fields that a client cannot be believed about: where a request comes from, by which
//! way, and under which id.

pub(crate) const X_REAL_IP: &str = "x-real-ip";
pub(crate) const X_REQUEST_ID: &str = "x-request-id";
const X_FORWARDED: &[u8] = b"x-forwarded-";

/// Fields by which trusted proxies describe a request, others by their spelling only:
/// `X_Forwarded_For` reads as `X-Forwarded-For` where header fields become variables (CGI, WSGI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Plain,
    /// The id, which every request has.
    RequestId,
    /// With underscores.
    Disguised,
}

/// The kind of claim that a field is; `None` for nearly all fields.
pub(crate) fn claim(name: &str) -> Option<Claim> {
    let name = name.as_bytes();
    if name.first() != Some(&b'x') {
        return None;
    }
    let begins = |claim: &[u8]| {
        name.len() >= claim.len() && name.iter().zip(claim).all(|(a, b)| a == b || (*a == b'_' && *b == b'-'))
    };
    let is = |claim: &str| name.len() == claim.len() && begins(claim.as_bytes());
    let claim = if is(X_REQUEST_ID) {
        Claim::RequestId
    } else if is(X_REAL_IP) || (name.len() > X_FORWARDED.len() && begins(X_FORWARDED)) {
        Claim::Plain
    } else {
        return None;
    };
    Some(if name.contains(&b'_') { Claim::Disguised } else { claim })
}

/// True for names that are the same, or read the same where header fields become variables.
pub(crate) fn is_alike(one: &str, other: &str) -> bool {
    let plain = |byte| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.bytes().map(plain).eq(other.bytes().map(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_recognised_in_both_spellings() {
        for (name, expected) in [
            ("x-real-ip", Some(Claim::Plain)),
            ("x_real_ip", Some(Claim::Disguised)),
            ("x-real_ip", Some(Claim::Disguised)),
            ("x-request-id", Some(Claim::RequestId)),
            ("x_request_id", Some(Claim::Disguised)),
            ("x-forwarded-for", Some(Claim::Plain)),
            ("x_forwarded_anything", Some(Claim::Disguised)),
            ("x-forwarded-", None),
            ("x-real-ips", None),
            ("x-request", None),
            ("accept", None),
        ] {
            assert_eq!(claim(name), expected, "{name}");
        }
    }
}
