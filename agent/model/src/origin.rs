//! Names of fields that a client cannot be believed about: where a request comes from, by which
//! way, under which id, and whose certificate the client has shown. The data plane drops or
//! replaces them; what is written by users must not rely on them.

const X_REAL_IP: &str = "x-real-ip";
pub const X_REQUEST_ID: &str = "x-request-id";
const X_FORWARDED: &[u8] = b"x-forwarded-";
/// Names, and their beginnings, by which gateways tell backends whose certificate a client has
/// shown: those of RFC 9440, Envoy's, Traefik's, and those of ingress-nginx and HAProxy.
const CLIENT_CERT: &str = "client-cert";
const CLIENT_CERT_CHAIN: &str = "client-cert-chain";
const X_FORWARDED_CLIENT_CERT: &str = "x-forwarded-client-cert";
const X_FORWARDED_TLS: &[u8] = b"x-forwarded-tls-client-cert";
const SSL_CLIENT: &[u8] = b"ssl-client-";
const X_SSL_CLIENT: &[u8] = b"x-ssl-client-";

/// Fields by which trusted proxies describe a request, others by their spelling only:
/// `X_Forwarded_For` reads as `X-Forwarded-For` where header fields become variables (CGI, WSGI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Plain,
    /// The id, which every request has.
    RequestId,
    /// With underscores.
    Disguised,
    /// The client's certificate, or what it says, in any spelling. No proxy in front is believed
    /// about it.
    Identity,
}

/// The kind of claim that a field is, by its name in lower case; `None` for nearly all fields.
pub fn claim(name: impl AsRef<[u8]>) -> Option<Claim> {
    let name = name.as_ref();
    let begins = |claim: &[u8]| {
        name.len() >= claim.len() && name.iter().zip(claim).all(|(a, b)| a == b || (*a == b'_' && *b == b'-'))
    };
    let is = |claim: &str| name.len() == claim.len() && begins(claim.as_bytes());
    let claim = match name {
        [b'c', b'l', ..] if is(CLIENT_CERT) || is(CLIENT_CERT_CHAIN) => Claim::Identity,
        [b's', b's', ..] if begins(SSL_CLIENT) => Claim::Identity,
        [b'x', _, b'f', ..] if is(X_FORWARDED_CLIENT_CERT) || begins(X_FORWARDED_TLS) => Claim::Identity,
        [b'x', _, b'f', ..] if name.len() > X_FORWARDED.len() && begins(X_FORWARDED) => Claim::Plain,
        [b'x', _, b's', ..] if begins(X_SSL_CLIENT) => Claim::Identity,
        [b'x', _, b'r', ..] if is(X_REQUEST_ID) => Claim::RequestId,
        [b'x', _, b'r', ..] if is(X_REAL_IP) => Claim::Plain,
        _ => return None,
    };
    let is_disguised = claim != Claim::Identity && name.contains(&b'_');
    Some(if is_disguised { Claim::Disguised } else { claim })
}

/// True for names in lower case that are the same, or read the same where header fields become
/// variables.
pub fn is_alike(one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> bool {
    let (one, other) = (one.as_ref(), other.as_ref());
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { *byte };
    one.len() == other.len() && one.iter().map(plain).eq(other.iter().map(plain))
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
            ("client-cert", Some(Claim::Identity)),
            ("client_cert_chain", Some(Claim::Identity)),
            ("client-certificate", None),
            ("x_forwarded-client_cert", Some(Claim::Identity)),
            ("x-forwarded-client-cert-of-another", Some(Claim::Plain)),
            ("x-forwarded-tls-client-cert-info", Some(Claim::Identity)),
            ("ssl-client-verify", Some(Claim::Identity)),
            ("x_ssl_client_s_dn", Some(Claim::Identity)),
            ("accept", None),
        ] {
            assert_eq!(claim(name), expected, "{name}");
        }
    }
}
