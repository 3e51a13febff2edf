//! Keeps VIPs on loopback from their neighbours: Linux answers ARP for every local address on every
//! interface, so all nodes would answer for a VIP, past the load balancer that announces it from
//! one; and it asks for others in a VIP's name, which tells them the same. IPv6 answers for
//! addresses of the interface only, and needs nothing.
//!
//! ```text
//! table arp portcullis {
//!     set vips { type ipv4_addr; elements = { … } }
//!     chain input { type filter hook input priority filter; arp daddr ip @vips drop }
//!     chain output {                                                      # for each interface
//!         type filter hook output priority filter
//!         oif 2 arp saddr ip @vips arp saddr ip set 192.0.2.1             # its own address
//!     }
//! }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;

use crate::nftables::{self, Family, Header, LASTING, Rule, Ruleset};

const VIPS: &str = "vips";
/// nft's number for the type of IPv4 addresses.
const IPV4_ADDRESS: u32 = 7;

/// linux/netfilter_arp.h.
const INPUT: (&str, u32) = ("input", 0);
const OUTPUT: (&str, u32) = ("output", 1);

/// The beginning of an ARP packet for IPv4 over Ethernet (RFC 826): types and lengths of addresses.
const ETHERNET_AND_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// The places of the IPv4 addresses in it, and their length.
const SENDER: u32 = 14;
const TARGET: u32 = 24;
const LENGTH: u32 = 4;

/// VIPs that are kept from neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    pub vips: BTreeSet<Ipv4Addr>,
    /// By index, an address of each interface that has one: the node asks in this one's name.
    pub interfaces: BTreeMap<u32, Ipv4Addr>,
}

/// Leaves requests for exactly these unanswered; without any, nothing is left.
///
/// # Errors
/// When the kernel has no nftables for ARP, or the agent lacks NET_ADMIN. The table is as before
/// then.
pub fn set(silence: &Silence) -> io::Result<()> {
    let mut ruleset = Ruleset::new();
    if silence.vips.is_empty() {
        ruleset.without(Family::Arp, LASTING);
        return match ruleset.commit() {
            Err(error) if nftables::is_unknown(&error) => Ok(()),
            result => result,
        };
    }
    let vips: Vec<_> = silence.vips.iter().map(|vip| vip.octets().to_vec()).collect();
    let mut table = ruleset.table(Family::Arp, LASTING);
    table.set(VIPS, IPV4_ADDRESS, &vips);
    let arp = || Rule::new().has(Header::Network, 0, &ETHERNET_AND_IPV4);
    table.chain(INPUT.0, INPUT.1, 0);
    table.rule(INPUT.0, arp().address_in(VIPS, TARGET, LENGTH).dropped());
    table.chain(OUTPUT.0, OUTPUT.1, 0);
    for (interface, own) in &silence.interfaces {
        let asked = arp().leaves_by(*interface).address_in(VIPS, SENDER, LENGTH);
        table.rule(OUTPUT.0, asked.written(SENDER, &own.octets()));
    }
    ruleset.commit()
}

/// Returns `true` if the rules are there, with as many VIPs. These are not compared.
///
/// # Errors
/// As [`set`].
pub fn is_in_force(silence: &Silence) -> io::Result<bool> {
    let (rules, vips) = (1 + silence.interfaces.len(), silence.vips.len());
    Ok(vips == 0
        || nftables::has_rules(Family::Arp, LASTING, rules)?
            && nftables::has_elements(Family::Arp, LASTING, VIPS, vips)?)
}
