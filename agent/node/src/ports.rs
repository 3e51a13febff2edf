//! Ports of the whole node. The kernel programs would take such a port from a process that listens
//! on it already (sshd, the kubelet), so a frontend that an ordinary socket could not be bound to
//! is refused here. Sockets of connections, whatever their local port, are in no frontend's way:
//! they are found before the programs run. Ordinary sockets, which UDP always has, are not bound to
//! ports that another process would share.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis_model::{FrontendKey, L4Protocol};

use crate::error::RefusedFrontends;
use crate::netlink::sockets::{self, Families, Listening};
use crate::process::{self, Process};

/// Those of the frontends that the kernel programs would take from another process, with what to
/// do. To be asked about addresses that are not the Gateways' alone. Sockets with these inodes are
/// in no frontend's way.
pub(crate) fn taken<'f>(
    frontends: impl IntoIterator<Item = &'f FrontendKey>,
    inherited: &BTreeSet<u64>,
) -> RefusedFrontends {
    let mut shared = frontends.into_iter().filter(|frontend| frontend.is_tcp()).peekable();
    if shared.peek().is_none() {
        return BTreeMap::new();
    }
    match sockets::listening(L4Protocol::Tcp) {
        Ok(listening) => {
            let is_taken = |frontend: &FrontendKey| {
                listening.iter().any(|it| conflicts(it, frontend) && !inherited.contains(&it.inode))
            };
            let taken = shared.filter(|frontend| is_taken(frontend));
            let in_use = taken.map(|frontend| {
                let why = format!(
                    "another process of the node listens on port {}: use another port, or an address of the \
                     Gateway's own",
                    frontend.port
                );
                (*frontend, why)
            });
            in_use.collect()
        }
        Err(error) => {
            let unknown = shared.map(|frontend| {
                let why = format!(
                    "cannot tell whether another process listens on port {}: the kernel does not list sockets \
                     ({error}); load its module tcp_diag, or use an address of the Gateway's own",
                    frontend.port
                );
                (*frontend, why)
            });
            unknown.collect()
        }
    }
}

/// The frontends that this agent serves from ordinary sockets: those of UDP, and without kernel
/// programs all. Its cores share each port (`SO_REUSEPORT`), so the kernel would let another
/// process of the same user share it as well, and every other connection would go there.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// The inodes of listening sockets that were found to be this process's own.
    own: BTreeSet<(L4Protocol, u64)>,
    /// The frontends on which another process listened when that was logged last.
    logged: BTreeSet<FrontendKey>,
}

impl Bound {
    /// Those of the frontends on which another process listens, with what to do; the log says whose
    /// they are. Where the kernel lists no sockets, bind(2) decides alone.
    pub(crate) fn taken_by_others(&mut self, wanted: &BTreeSet<FrontendKey>) -> RefusedFrontends {
        let holders = self.holders(wanted);
        for (frontend, socket) in holders.iter().filter(|(frontend, _)| !self.logged.contains(frontend)) {
            log_holder(frontend.protocol, socket);
        }
        self.logged = holders.keys().copied().collect();
        let refused = holders.into_iter().map(|(frontend, Listening { address, .. })| {
            let protocol = frontend.protocol.as_str();
            let why = format!(
                "Address already in use: another process listens on {protocol} {address}; use another port or address"
            );
            (frontend, why)
        });
        refused.collect()
    }

    /// The sockets of other processes that are in the way of frontends, the first for each.
    pub(crate) fn holders(&mut self, wanted: &BTreeSet<FrontendKey>) -> BTreeMap<FrontendKey, Listening> {
        let protocols: BTreeSet<_> = wanted.iter().map(|frontend| frontend.protocol).collect();
        let listening: BTreeMap<_, _> = protocols.into_iter().map(|it| (it, listening(it))).collect();
        self.own.retain(|(protocol, inode)| {
            listening.get(protocol).is_none_or(|sockets| sockets.iter().any(|socket| socket.inode == *inode))
        });
        // Reading one's own descriptors takes time with many connections.
        let now: LazyCell<BTreeSet<u64>> = LazyCell::new(|| process::own_sockets().collect());
        let mut holders = BTreeMap::new();
        for frontend in wanted {
            let sockets = listening.get(&frontend.protocol).into_iter().flatten();
            for socket in sockets.filter(|socket| conflicts(socket, frontend)) {
                let key = (frontend.protocol, socket.inode);
                if self.own.contains(&key) {
                    continue;
                }
                if now.contains(&socket.inode) {
                    self.own.insert(key);
                } else {
                    holders.entry(*frontend).or_insert(*socket);
                }
            }
        }
        holders
    }
}

/// None where the kernel does not tell.
fn listening(protocol: L4Protocol) -> Vec<Listening> {
    sockets::listening(protocol).unwrap_or_else(|error| {
        tracing::debug!("the kernel does not list sockets of {}: {error}", protocol.as_str());
        Vec::new()
    })
}

/// The process is the operator's matter, not that of a Gateway's owner.
fn log_holder(protocol: L4Protocol, socket: &Listening) {
    let holder = Process::with_socket(socket.inode);
    let holder = holder.map_or_else(|| "another process".to_owned(), |process| process.to_string());
    tracing::warn!(
        "{holder} listens on {} {}: it is served when that process has ended, or on another port or address",
        protocol.as_str(),
        socket.address
    );
}

/// As bind(2) decides for a socket on the frontend's address: on this one, or on any of its family
/// if one of the two is unspecified, no other socket may listen. IPv6 sockets count for IPv4 if
/// they accept it: bound to an IPv4-mapped address, or to `::` without `IPV6_V6ONLY`.
fn conflicts(socket: &Listening, frontend: &FrontendKey) -> bool {
    let (wanted, bound) = (frontend.address, socket.address.ip());
    let overlap = match (wanted, bound) {
        (IpAddr::V4(_), IpAddr::V6(address)) if address.is_unspecified() => {
            return socket.address.port() == frontend.port && socket.families == Families::Both;
        }
        (IpAddr::V6(_), IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => false,
        (IpAddr::V6(_), IpAddr::V4(_)) => false,
        _ => {
            let bound = bound.to_canonical();
            wanted.is_ipv4() == bound.is_ipv4()
                && (wanted == bound || wanted.is_unspecified() || bound.is_unspecified())
        }
    };
    socket.address.port() == frontend.port && overlap
}

#[cfg(test)]
mod tests {
    use portcullis_model::PortKey;

    use super::*;

    fn listening(address: &str, families: Families) -> Listening {
        Listening { address: address.parse().unwrap(), families, inode: 0 }
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
    fn an_address_is_taken_by_itself_and_by_the_unspecified_one() {
        use Families::{Both, Ipv6Only};
        for (address, families, v4, v6) in [
            ("10.0.0.1:80", Both, true, false),
            ("10.0.0.2:80", Both, false, false),
            ("0.0.0.0:80", Both, true, false),
            ("[::]:80", Both, true, true),
            ("[::]:80", Ipv6Only, false, true),
            ("[fd00::1]:80", Both, false, true),
            ("[fd00::2]:80", Both, false, false),
            ("[::ffff:10.0.0.1]:80", Both, true, false),
        ] {
            let socket = listening(address, families);
            for (own, expected) in [("10.0.0.1", v4), ("fd00::1", v6)] {
                let frontend = FrontendKey::new(own.parse().unwrap(), PortKey::tcp(80));
                assert_eq!(conflicts(&socket, &frontend), expected, "{frontend} and {socket:?}");
            }
        }
    }

    #[test]
    fn a_socket_of_this_process_is_in_no_ports_way() {
        let listener = std::net::TcpListener::bind("127.93.8.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let wanted = [FrontendKey::new(address.ip(), PortKey::tcp(address.port()))].into();
        let mut bound = Bound::default();
        assert!(bound.taken_by_others(&wanted).is_empty());
        assert_eq!(bound.own.len(), 1, "it need not be looked up again");
    }

    #[test]
    fn tcp_and_udp_have_their_ports_apart() {
        let listener = std::net::TcpListener::bind("127.93.8.2:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tcp = FrontendKey::tcp(address);
        let udp = FrontendKey { protocol: L4Protocol::Udp, ..tcp };
        let steered = |inherited| taken(&[udp, tcp], &inherited).into_keys().collect::<Vec<_>>();
        assert_eq!(steered(BTreeSet::new()), [tcp]);
        let inode = rustix::fs::fstat(&listener).unwrap().st_ino;
        assert_eq!(steered([inode].into()), [], "it is an agent's before this one");
        let mut bound = Bound::default();
        let own = std::net::UdpSocket::bind(address).unwrap();
        assert!(bound.taken_by_others(&[udp, tcp].into()).is_empty(), "both are this process's own");
        assert_eq!(bound.own.len(), 2);
        drop((own, listener));
        assert!(bound.holders(&[udp].into()).is_empty());
        assert_eq!(bound.own.len(), 1, "of what was looked up, what is gone is forgotten");
    }
}
