//! Headers of PROXY protocol for backends (HAProxy's `proxy-protocol.txt`): the first bytes of a
//! connection, which name the client that it is for.

use std::io;
use std::net::{IpAddr, SocketAddr};

use portcullis_model::ProxyHeader;
use ppp::v1;
use ppp::v2::{Addresses, Builder, Command, Protocol, Version};

/// The two ends of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub client: SocketAddr,
    /// The address and port that the client connected to.
    pub local: SocketAddr,
}

// === impl Ends ===

impl Ends {
    /// The header of a connection that is for the client.
    pub(crate) fn header(&self, version: ProxyHeader) -> io::Result<Vec<u8>> {
        let ends = self.of_one_family();
        match version {
            ProxyHeader::V1 => Ok(v1::Addresses::from(ends).to_string().into_bytes()),
            ProxyHeader::V2 => v2(Command::Proxy, Protocol::Stream, ends),
        }
    }

    /// A header has one family for both addresses. They differ where a proxy in front, which we
    /// have IPv4 with, named a client that it has IPv6 with, or the other way round.
    fn of_one_family(&self) -> (SocketAddr, SocketAddr) {
        let [client, local] = [self.client, self.local].map(|it| (it.ip().to_canonical(), it.port()));
        match (client.0, local.0) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => (client.into(), local.into()),
            _ => {
                let [client, local] = [client, local].map(|(ip, port)| (in_ipv6(ip), port).into());
                (client, local)
            }
        }
    }
}

/// The header of a connection that is for no client.
pub(crate) fn own_header(version: ProxyHeader) -> io::Result<Vec<u8>> {
    match version {
        ProxyHeader::V1 => Ok(v1::Addresses::Unknown.to_string().into_bytes()),
        ProxyHeader::V2 => v2(Command::Local, Protocol::Unspecified, Addresses::Unspecified),
    }
}

fn v2(command: Command, protocol: Protocol, addresses: impl Into<Addresses>) -> io::Result<Vec<u8>> {
    Builder::with_addresses(Version::Two | command, protocol, addresses).build()
}

fn in_ipv6(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
        IpAddr::V6(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_both_ends() {
        for (client, local, v1, v2) in [
            (
                "192.0.2.7:4711",
                "10.0.0.1:443",
                "PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n",
                &b"\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x12\x67\x01\xbb"[..],
            ),
            // A socket for both families.
            (
                "[::ffff:192.0.2.7]:4711",
                "[::ffff:10.0.0.1]:443",
                "PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n",
                b"\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x12\x67\x01\xbb",
            ),
            (
                "[2001:db8::7]:1",
                "10.0.0.1:2",
                "PROXY TCP6 2001:db8::7 ::ffff:10.0.0.1 1 2\r\n",
                b"\x21\x21\0\x24\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\
                  \0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01\0\x01\0\x02",
            ),
        ] {
            let ends = Ends { client: client.parse().unwrap(), local: local.parse().unwrap() };
            assert_eq!(ends.header(ProxyHeader::V1).unwrap(), v1.as_bytes());
            let expected = [b"\r\n\r\n\0\r\nQUIT\n", v2].concat();
            assert_eq!(ends.header(ProxyHeader::V2).unwrap(), expected);
        }
    }

    #[test]
    fn headers_of_our_own_name_no_client() {
        assert_eq!(own_header(ProxyHeader::V1).unwrap(), b"PROXY UNKNOWN\r\n");
        assert_eq!(own_header(ProxyHeader::V2).unwrap(), b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
    }
}
