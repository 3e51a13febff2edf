//! Where traffic enters: (protocol, virtual address, port).

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum L4Protocol {
    Tcp,
    Udp,
}

/// One entry point of a Gateway. The unspecified address (`0.0.0.0`, `::`) stands for every address of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct FrontendKey {
    pub protocol: L4Protocol,
    pub address: IpAddr,
    pub port: u16,
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            L4Protocol::Tcp => "tcp",
            L4Protocol::Udp => "udp",
        };
        write!(f, "{protocol}/{}", std::net::SocketAddr::new(self.address, self.port))
    }
}
