//! The names under which the admin endpoints answer. A page in an operator's browser can have a
//! name of its own point to a loopback address, where a port is forwarded to an agent, and would
//! read what is configured (DNS rebinding). Its requests have that name as their `Host`.

use std::net::IpAddr;

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderValue, Version, header};

/// The names that requests may have as their host.
pub(crate) enum Hosts {
    /// On the unix socket, which its file protects and no browser reaches.
    Any,
    /// IP addresses, `localhost` and these.
    Listed(Vec<String>),
}

/// As RFC 9112, section 3.2, wants it: more than one is wrong in any version, none in HTTP/1.1.
pub(crate) fn has_one_host(request: &Parts) -> bool {
    match request.headers.get_all(header::HOST).iter().count() {
        0 => request.version != Version::HTTP_11,
        count => count == 1,
    }
}

impl Hosts {
    /// Returns a message if the request is for another name.
    pub(crate) fn refusal(&self, request: &Parts) -> Option<String> {
        let Self::Listed(names) = self else { return None };
        let fields = request.headers.get_all(header::HOST).iter().map(HeaderValue::to_str);
        let target = request.uri.authority().map(|authority| Ok(authority.as_str()));
        let other = fields.chain(target).find_map(|host| match host {
            Ok(host) if is_listed(host, names) => None,
            Ok(host) => Some(host),
            Err(_) => Some("one that is not text"),
        })?;
        Some(format!(
            "the host {other} is none of this agent's: use an IP address or localhost, or allow the name with \
             --admin-host\n"
        ))
    }
}

fn is_listed(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    // "Host = uri-host [ ":" port ]" (RFC 9110, section 7.2): there is no user.
    if !host.strip_prefix(authority.host()).is_some_and(is_port) {
        return false;
    }
    let host = authority.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = host.strip_suffix('.').unwrap_or(host);
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|listed| listed.eq_ignore_ascii_case(name))
}

/// `:80`, `:` or nothing. The library takes a port that is none for one that is not there.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return text.is_empty() };
    port.is_empty() || port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_hosts() {
        let names = ["agent.example".to_owned()];
        for (host, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.1:9270", true),
            ("[::1]:9270", true),
            ("10.0.0.7", true),
            ("localhost", true),
            ("LocalHost.:9270", true),
            ("Agent.Example:80", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:9270", false),
            ("localhost.evil.example", false),
            ("agent.example.evil.example", false),
            ("localhost:", true),
            ("localhost:x", false),
            ("localhost:+80", false),
            ("localhost:99999", false),
            ("[::1]:99999", false),
            ("[::1]x", false),
            ("evil@localhost", false),
            ("evil:80@127.0.0.1:9270", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(is_listed(host, &names), expected, "{host}");
        }
    }

    #[test]
    fn more_than_one_host_is_wrong_in_any_version() {
        for (version, count, expected) in [
            (Version::HTTP_11, 0, false),
            (Version::HTTP_11, 1, true),
            (Version::HTTP_11, 2, false),
            (Version::HTTP_10, 0, true),
            (Version::HTTP_10, 1, true),
            (Version::HTTP_10, 2, false),
        ] {
            let mut request = http::Request::builder().version(version);
            for _ in 0..count {
                request = request.header(header::HOST, "localhost");
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(has_one_host(&head), expected, "{version:?} {count}");
        }
    }
}
