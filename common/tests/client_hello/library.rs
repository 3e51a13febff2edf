//! The TLS library of user space, and what the proxy makes of its name.

use rustls::server::Acceptor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// With its name in lower case and without a trailing dot.
    Hello(Option<String>),
    Incomplete,
    Refused,
}

impl Library {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut acceptor = Acceptor::default();
        let mut unread = bytes;
        // An end of the stream would be an error.
        while !unread.is_empty() {
            if acceptor.read_tls(&mut unread).is_err() {
                return Self::Refused;
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => return Self::Hello(accepted.client_hello().server_name().map(normal)),
                Err(_) => return Self::Refused,
            }
        }
        Self::Incomplete
    }
}

/// As in `portcullis-proxy`, which looks up listeners by it.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}
