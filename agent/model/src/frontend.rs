//! Entry points of traffic: a port, and the virtual address that it is served on.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum L4Protocol {
    Tcp,
    Udp,
}

/// A port number with its protocol: TCP and UDP number their ports apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortKey {
    pub number: u16,
    pub protocol: L4Protocol,
}

/// One entry point of a Gateway. The unspecified address (`0.0.0.0`, `::`) stands for every address
/// of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FrontendKey {
    pub protocol: L4Protocol,
    pub address: IpAddr,
    pub port: u16,
}

// === impl L4Protocol ===

impl L4Protocol {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// As Kubernetes writes it: `TCP`, `UDP`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    const fn lower_case(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

// === impl PortKey ===

impl PortKey {
    /// Not after any other.
    pub const FIRST: Self = Self { number: 0, protocol: L4Protocol::ALL[0] };

    pub const fn tcp(number: u16) -> Self {
        Self { number, protocol: L4Protocol::Tcp }
    }
}

/// `tcp-80`, as names of Service ports have it.
impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.protocol.lower_case(), self.number)
    }
}

// === impl FrontendKey ===

impl FrontendKey {
    pub const fn new(address: IpAddr, port: PortKey) -> Self {
        Self { protocol: port.protocol, address, port: port.number }
    }

    /// The frontend of a TCP socket with this local address.
    pub const fn tcp(local: SocketAddr) -> Self {
        Self { protocol: L4Protocol::Tcp, address: local.ip(), port: local.port() }
    }

    pub fn is_tcp(&self) -> bool {
        self.protocol == L4Protocol::Tcp
    }

    pub const fn port_key(&self) -> PortKey {
        PortKey { number: self.port, protocol: self.protocol }
    }

    pub const fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.protocol.lower_case(), self.socket_address())
    }
}
