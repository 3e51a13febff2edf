//! The choice among a port's listeners, for a connection and for a request. It is made here once,
//! for the data plane and for `explain`.

use crate::HostMap;

/// The outcome for a request on a connection that was accepted for some listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected<'m, V> {
    Listener(&'m V),
    /// The host belongs to this listener, but the connection was opened for another: 421 (RFC 9110
    /// section 15.5.20).
    Misdirected(&'m V),
    /// No listener of the port serves the host: 404.
    NoListener,
}

impl<V> HostMap<V> {
    /// The listener that a TLS connection is for. Without a name in the ClientHello only a listener
    /// without hostname can be meant; an empty name finds exactly that one.
    pub fn for_sni(&self, name: Option<&str>) -> Option<&V> {
        self.most_specific(name.unwrap_or_default())
    }

    /// The listener that a request is for, by its (lower-case) host. `is_connections` tells a
    /// listener that is the one that the connection was opened for; on ports without TLS that is
    /// every listener.
    ///
    /// GEP-3567's rule has three parts: another listener is more specific for the host, or the
    /// connection's listener does not match it and another does: misdirected; none matches: no
    /// listener. As the listeners of a port are distinct and the most specific one wins, all three
    /// follow from whether that one is the connection's.
    pub fn for_request(&self, host: &str, is_connections: impl FnOnce(&V) -> bool) -> Selected<'_, V> {
        match self.most_specific(host) {
            Some(listener) if is_connections(listener) => Selected::Listener(listener),
            Some(other) => Selected::Misdirected(other),
            None => Selected::NoListener,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostPattern;

    fn port(patterns: &[&'static str]) -> HostMap<&'static str> {
        let mut map = HostMap::default();
        for text in patterns {
            map.insert(&HostPattern::parse(text).unwrap_or(HostPattern::Any), *text);
        }
        map
    }

    #[test]
    fn a_connection_without_name_is_for_the_listener_without_hostname() {
        assert_eq!(port(&["a.com", "*.a.com", "*"]).for_sni(None), Some(&"*"));
        assert_eq!(port(&["a.com", "*.a.com"]).for_sni(None), None);
        assert_eq!(port(&["a.com", "*.a.com"]).for_sni(Some("x.a.com")), Some(&"*.a.com"));
    }

    #[test]
    fn misdirected_requests() {
        let port = port(&["*.a.com", "x.a.com", "b.com"]);
        for (connection, host, selected) in [
            ("*.a.com", "y.a.com", Selected::Listener(&"*.a.com")),
            ("*.a.com", "x.a.com", Selected::Misdirected(&"x.a.com")),
            ("*.a.com", "b.com", Selected::Misdirected(&"b.com")),
            ("*.a.com", "c.com", Selected::NoListener),
        ] {
            assert_eq!(port.for_request(host, |listener| *listener == connection), selected, "{host}");
        }
    }
}
