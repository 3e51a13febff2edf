//! Takes VIP traffic out of connection tracking, by nftables tables of our own. kube-proxy's
//! nftables mode drops new connections from the node to Service addresses that it does not serve
//! itself; what is not tracked is not new. And a flood to a VIP fills no table.
//!
//! ```text
//! table ip portcullis {                                   # and the same as table ip6
//!     set vips { type ipv4_addr; elements = { … } }
//!     set frontends { type ipv4_addr . inet_proto . inet_service; elements = { … } }
//!     chain prerouting {
//!         type filter hook prerouting priority raw
//!         ip daddr @vips notrack
//!         ip saddr @vips notrack
//!         ip daddr . meta l4proto . th dport @frontends notrack
//!         ip saddr . meta l4proto . th sport @frontends notrack
//!     }
//!     chain output { … the same … }
//! }
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use portcullis_common::abi;
use portcullis_model::{FrontendKey, L4Protocol};

use crate::nftables::{self, Family, Rule, Ruleset};

const VIPS: &str = "vips";
const FRONTENDS: &str = "frontends";

/// linux/netfilter.h: where chains hook in, and before connection tracking (`NF_IP_PRI_RAW`).
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];
const RAW: i32 = -300;

/// Source and destination port in the transport header.
const PORTS: [u32; 2] = [0, 2];

/// nft's numbers of types: `inet_proto`, `inet_service`, and the place of each in a concatenation.
const PROTOCOL_AND_PORT: u32 = 12 << 6 | 13;

/// Traffic that is not to be tracked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untracked {
    /// Addresses of Gateways alone.
    pub addresses: BTreeSet<IpAddr>,
    /// Frontends on addresses that other Services have as well, whose connections are tracked.
    pub frontends: BTreeSet<FrontendKey>,
}

/// Makes exactly this traffic untracked; without any, nothing is left.
///
/// # Errors
/// When the kernel has no nftables, or the agent lacks NET_ADMIN. The tables are as before then.
pub fn set(untracked: &Untracked) -> io::Result<()> {
    let mut ruleset = Ruleset::new();
    for family in [IPV4, IPV6] {
        family.fill(&mut ruleset, untracked);
    }
    match ruleset.commit() {
        Err(error) if *untracked == Untracked::default() && nftables::is_unknown(&error) => Ok(()),
        result => result,
    }
}

/// Returns `true` if the rules for such traffic are there. Addresses and ports are not compared.
///
/// # Errors
/// As [`set`].
pub fn is_in_force(untracked: &Untracked) -> io::Result<bool> {
    let is_complete = |family: Addressing| match family.rules(untracked) {
        0 => Ok(true),
        rules => nftables::has_rules(family.family, rules),
    };
    Ok(is_complete(IPV4)? && is_complete(IPV6)?)
}

/// The differences between the tables: the place of addresses in a packet, and nft's number for
/// their type.
#[derive(Clone, Copy)]
struct Addressing {
    family: Family,
    shown_as: u32,
    length: u32,
    /// Of source and destination in the network header.
    offsets: [u32; 2],
}

const IPV4: Addressing = Addressing { family: Family::Ipv4, shown_as: 7, length: 4, offsets: [12, 16] };
const IPV6: Addressing = Addressing { family: Family::Ipv6, shown_as: 8, length: 16, offsets: [8, 24] };

// === impl Addressing ===

impl Addressing {
    fn fill(self, ruleset: &mut Ruleset, untracked: &Untracked) {
        if self.rules(untracked) == 0 {
            return ruleset.without(self.family);
        }
        let (vips, frontends) = self.keys(untracked);
        let mut table = ruleset.table(self.family);
        if !vips.is_empty() {
            table.set(VIPS, self.shown_as, &vips);
        }
        if !frontends.is_empty() {
            table.set(FRONTENDS, self.shown_as << 12 | PROTOCOL_AND_PORT, &frontends);
        }
        for (chain, hook) in HOOKS {
            table.chain(chain, hook, RAW);
            for (offset, port) in self.offsets.into_iter().zip(PORTS) {
                if !vips.is_empty() {
                    table.rule(chain, Rule::new().address_in(VIPS, offset, self.length).untracked());
                }
                if !frontends.is_empty() {
                    let endpoint = Rule::new().endpoint_in(FRONTENDS, (offset, self.length), port);
                    table.rule(chain, endpoint.untracked());
                }
            }
        }
    }

    /// Number of rules for such traffic.
    fn rules(self, untracked: &Untracked) -> usize {
        let (vips, frontends) = self.keys(untracked);
        let sets = [vips, frontends].iter().filter(|keys| !keys.is_empty()).count();
        sets * HOOKS.len() * self.offsets.len()
    }

    /// The keys of both sets.
    fn keys(self, untracked: &Untracked) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let is_ours = |address: &IpAddr| address.is_ipv4() == (self.family == Family::Ipv4);
        let vips = untracked.addresses.iter().filter(|vip| is_ours(vip)).map(octets);
        let frontends = untracked.frontends.iter().filter(|frontend| is_ours(&frontend.address));
        (vips.collect(), frontends.map(endpoint).collect())
    }
}

fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Address, protocol and port, each padded to four bytes.
fn endpoint(frontend: &FrontendKey) -> Vec<u8> {
    let protocol = match frontend.protocol {
        L4Protocol::Tcp => abi::TCP,
        L4Protocol::Udp => abi::UDP,
    };
    let [high, low] = frontend.port.to_be_bytes();
    [octets(&frontend.address), vec![protocol, 0, 0, 0], vec![high, low, 0, 0]].concat()
}
