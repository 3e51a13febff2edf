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

use portcullis_model::FrontendKey;

use crate::nftables::addressing::{Addressing, IPV4, IPV6, endpoint, octets};
use crate::nftables::{self, LASTING, Rule, Ruleset};

const VIPS: &str = "vips";
const FRONTENDS: &str = "frontends";

/// linux/netfilter.h: where chains hook in, and before connection tracking (`NF_IP_PRI_RAW`).
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];
const RAW: i32 = -300;

/// Source and destination port in the transport header.
const PORTS: [u32; 2] = [0, 2];

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
    for table in [Table(IPV4), Table(IPV6)] {
        table.fill(&mut ruleset, untracked);
    }
    match ruleset.commit() {
        Err(error) if *untracked == Untracked::default() && nftables::is_unknown(&error) => Ok(()),
        result => result,
    }
}

/// Returns `true` if the rules for such traffic are there, with as many addresses and ports. These
/// are not compared.
///
/// # Errors
/// As [`set`].
pub fn is_in_force(untracked: &Untracked) -> io::Result<bool> {
    Ok(Table(IPV4).is_complete(untracked)? && Table(IPV6).is_complete(untracked)?)
}

/// One of the two tables.
#[derive(Clone, Copy)]
struct Table(Addressing);

// === impl Table ===

impl Table {
    fn fill(self, ruleset: &mut Ruleset, untracked: &Untracked) {
        let Addressing { family, shown_as, length, source, destination } = self.0;
        if self.rules(untracked) == 0 {
            return ruleset.without(family, LASTING);
        }
        let (vips, frontends) = self.keys(untracked);
        let mut table = ruleset.table(family, LASTING);
        if !vips.is_empty() {
            table.set(VIPS, shown_as, &vips);
        }
        if !frontends.is_empty() {
            table.set(FRONTENDS, self.0.endpoints_shown_as(), &frontends);
        }
        for (chain, hook) in HOOKS {
            table.chain(chain, hook, RAW);
            for (offset, port) in [source, destination].into_iter().zip(PORTS) {
                if !vips.is_empty() {
                    table.rule(chain, Rule::new().address_in(VIPS, offset, length).untracked());
                }
                if !frontends.is_empty() {
                    let endpoint = Rule::new().endpoint_in(FRONTENDS, (offset, length), port);
                    table.rule(chain, endpoint.untracked());
                }
            }
        }
    }

    fn is_complete(self, untracked: &Untracked) -> io::Result<bool> {
        let (family, rules) = (self.0.family, self.rules(untracked));
        if rules == 0 {
            return Ok(true);
        }
        let (vips, frontends) = self.keys(untracked);
        let has = |set: &str, keys: &[Vec<u8>]| match keys.len() {
            0 => Ok(true),
            count => nftables::has_elements(family, LASTING, set, count),
        };
        Ok(nftables::has_rules(family, LASTING, rules)? && has(VIPS, &vips)? && has(FRONTENDS, &frontends)?)
    }

    /// Number of rules for such traffic.
    fn rules(self, untracked: &Untracked) -> usize {
        let (vips, frontends) = self.keys(untracked);
        let sets = [vips, frontends].iter().filter(|keys| !keys.is_empty()).count();
        sets * HOOKS.len() * PORTS.len()
    }

    /// The keys of both sets.
    fn keys(self, untracked: &Untracked) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let vips = untracked.addresses.iter().filter(|vip| self.0.has(vip)).map(octets);
        let frontends = untracked.frontends.iter().filter(|frontend| self.0.has(&frontend.address));
        (vips.collect(), frontends.map(endpoint).collect())
    }
}
