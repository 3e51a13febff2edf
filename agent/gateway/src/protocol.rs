//! The protocols of listeners. This module does not know what they carry: a kind of route says
//! which of them it is for.

use portcullis_model::L4Protocol;

/// `protocol` of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Http,
    Https,
    Tls,
    Tcp,
    Udp,
    Unknown,
}

// === impl Protocol ===

impl Protocol {
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" => Self::Tls,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn has_hostnames(self) -> bool {
        matches!(self, Self::Http | Self::Https | Self::Tls)
    }

    /// True if listeners of both protocols can be told apart on one port, by hostname. What a port
    /// of the model can hold together is more: TLS that is terminated or passed through shares the
    /// server names of HTTPS, once it is served.
    pub(crate) fn shares_port_with(self, other: Self) -> bool {
        self == other
    }

    /// The transport that carries it: listeners over TCP and over UDP do not meet on the same port
    /// number.
    pub(crate) fn transport(self) -> L4Protocol {
        match self {
            Self::Udp => L4Protocol::Udp,
            Self::Http | Self::Https | Self::Tls | Self::Tcp | Self::Unknown => L4Protocol::Tcp,
        }
    }
}
