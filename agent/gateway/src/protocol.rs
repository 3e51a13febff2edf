//! The protocols of listeners. This module does not know what they carry: a kind of route says
//! which of them it is for.

use portcullis_api::types::shared::ListenerSpec;
use portcullis_model::L4Protocol;

/// `protocol` of a listener, with its `tls.mode` where that makes another listener of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Http,
    Https,
    TlsTerminated,
    TlsPassthrough,
    Tcp,
    Udp,
    Unknown,
}

// === impl Protocol ===

impl Protocol {
    /// False for listeners that have connections or datagrams alone.
    pub(crate) fn has_requests(self) -> bool {
        match self {
            Self::Http | Self::Https | Self::Unknown => true,
            Self::TlsTerminated | Self::TlsPassthrough | Self::Tcp | Self::Udp => false,
        }
    }

    pub(crate) fn of(listener: &ListenerSpec) -> Self {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        match listener.protocol.as_str() {
            "HTTP" => Self::Http,
            "HTTPS" => Self::Https,
            "TLS" if mode == Some("Passthrough") => Self::TlsPassthrough,
            "TLS" => Self::TlsTerminated,
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            _ => Self::Unknown,
        }
    }

    pub(crate) fn has_hostnames(self) -> bool {
        self == Self::Http || self.has_server_names()
    }

    /// True if connections find the listener by the server name of the ClientHello.
    pub(crate) fn has_server_names(self) -> bool {
        self == Self::TlsPassthrough || self.ends_tls()
    }

    pub(crate) fn ends_tls(self) -> bool {
        matches!(self, Self::Https | Self::TlsTerminated)
    }

    /// True if listeners of both protocols can be told apart on one port, by hostname.
    pub(crate) fn shares_port_with(self, other: Self) -> bool {
        (self == other && self.has_hostnames()) || (self.has_server_names() && other.has_server_names())
    }

    /// The transport that carries it: listeners over TCP and over UDP do not meet on the same port
    /// number.
    pub(crate) fn transport(self) -> L4Protocol {
        match self {
            Self::Udp => L4Protocol::Udp,
            Self::Http
            | Self::Https
            | Self::TlsTerminated
            | Self::TlsPassthrough
            | Self::Tcp
            | Self::Unknown => L4Protocol::Tcp,
        }
    }
}
