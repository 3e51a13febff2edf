//! Ports of the whole node. The kernel programs would take such a port from a process that listens
//! on it already (sshd, the kubelet), so a frontend that an ordinary socket could not be bound to
//! is refused here. Sockets of connections, whatever their local port, are in no frontend's way:
//! they are found before the programs are asked.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portcullis_model::{FrontendKey, L4Protocol};

use crate::error::Refused;
use crate::netlink::sockets::{self, Families, Listening};

/// Those of the frontends on which another process listens, with what to do. Addresses of Gateways
/// are not shared: only the unspecified ones can be in use.
pub(crate) fn taken<'f>(frontends: impl Iterator<Item = &'f FrontendKey>) -> Refused {
    let mut shared = frontends
        .filter(|frontend| frontend.protocol == L4Protocol::Tcp && frontend.address.is_unspecified())
        .peekable();
    if shared.peek().is_none() {
        return BTreeMap::new();
    }
    match sockets::listening() {
        Ok(listening) => {
            let is_taken = |frontend: &FrontendKey| listening.iter().any(|it| conflicts(it, frontend));
            shared.filter(|it| is_taken(it)).map(|it| (*it, in_use(it.port))).collect()
        }
        Err(error) => {
            let unknown = |port| {
                format!(
                    "cannot tell whether another process listens on port {port}: the kernel does not list sockets \
                     ({error}); load its module tcp_diag, or use an address of the Gateway's own"
                )
            };
            shared.map(|frontend| (*frontend, unknown(frontend.port))).collect()
        }
    }
}

/// As bind(2) decides for a socket on the frontend's unspecified address: on every address of its
/// family, no other socket may listen. IPv6 sockets count for IPv4 if they accept it: bound to an
/// IPv4-mapped address, or to `::` without `IPV6_V6ONLY`.
fn conflicts(socket: &Listening, frontend: &FrontendKey) -> bool {
    socket.address.port() == frontend.port
        && match (frontend.address, socket.address.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => true,
            (IpAddr::V4(_), IpAddr::V6(address)) => {
                address.to_ipv4_mapped().is_some()
                    || (address.is_unspecified() && socket.families == Families::Both)
            }
            (IpAddr::V6(_), IpAddr::V6(address)) => address.to_ipv4_mapped().is_none(),
            (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
}

fn in_use(port: u16) -> String {
    format!(
        "another process of the node listens on port {port}: use another port, or an address of the Gateway's own"
    )
}

#[cfg(test)]
mod tests {
    use portcullis_model::PortKey;

    use super::*;

    fn listening(address: &str, families: Families) -> Listening {
        Listening { address: address.parse().unwrap(), families }
    }

    #[test]
    fn a_socket_is_in_the_way_of_the_families_it_accepts() {
        use Families::{Both, Ipv6Only};
        for (address, families, v4, v6) in [
            ("0.0.0.0:80", Both, true, false),
            ("10.0.0.1:80", Both, true, false),
            ("[::]:80", Both, true, true),
            ("[::]:80", Ipv6Only, false, true),
            ("[fd00::1]:80", Both, false, true),
            ("[::ffff:10.0.0.1]:80", Both, true, false),
            ("0.0.0.0:81", Both, false, false),
            ("[::]:81", Both, false, false),
        ] {
            let socket = listening(address, families);
            for (unspecified, expected) in [(IpAddr::from([0; 4]), v4), (IpAddr::from([0_u16; 8]), v6)] {
                let frontend = FrontendKey::new(unspecified, PortKey::tcp(80));
                assert_eq!(conflicts(&socket, &frontend), expected, "{frontend} and {socket:?}");
            }
        }
    }

    #[test]
    fn only_tcp_on_unspecified_addresses_is_looked_up() {
        let udp = FrontendKey { protocol: L4Protocol::Udp, address: [0; 4].into(), port: 80 };
        let own = FrontendKey::new([10, 0, 0, 1].into(), PortKey::tcp(80));
        assert!(taken([udp, own].iter()).is_empty());
    }
}
