//! Takes VIP traffic out of connection tracking, by an nftables table of our own. kube-proxy's
//! nftables mode drops new connections from the node to Service addresses that it does not serve
//! itself; what is not tracked is not new. And a flood to a VIP fills no table.
//!
//! ```text
//! table ip portcullis {                                   # and the same as table ip6
//!     set vips { type ipv4_addr; elements = { … } }
//!     chain prerouting {
//!         type filter hook prerouting priority raw; ip daddr @vips notrack; ip saddr @vips notrack
//!     }
//!     chain output { … the same … }
//! }
//! ```
//!
//! Both tables are replaced as a whole, in one transaction: tracking has no state of ours that
//! could be lost.

mod message;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use message::{Attributes, Batch, Kind};

const TABLE: &str = "portcullis";
const SET: &str = "vips";

/// Elements of one message: a list's length has 16 bits.
const CHUNK: usize = 1000;

/// linux/netfilter.h: where chains hook in, and before connection tracking (`NF_IP_PRI_RAW`).
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];
const RAW: i32 = -300;

/// The differences between the tables: the place of addresses in a packet, and nft's numbers for
/// types of keys.
#[derive(Clone, Copy)]
struct Family {
    number: u8,
    key_type: u32,
    length: u32,
    /// Of source and destination in the network header.
    offsets: [u32; 2],
}

const IPV4: Family = Family { number: 2, key_type: 7, length: 4, offsets: [12, 16] };
const IPV6: Family = Family { number: 10, key_type: 8, length: 16, offsets: [8, 24] };

/// Makes exactly this traffic untracked; without VIPs nothing is left.
///
/// # Errors
/// When the kernel has no nftables, or the agent lacks NET_ADMIN. The tables are as before then.
pub fn set(vips: &BTreeSet<IpAddr>) -> io::Result<()> {
    let (v4, v6): (Vec<_>, Vec<_>) = vips.iter().partition(|vip| vip.is_ipv4());
    let mut batch = Batch::new();
    for (family, vips) in [(IPV4, v4), (IPV6, v6)] {
        // Deleting what is not there is an error, so it is made first.
        batch.add(Kind::NewTable, family.number, table());
        batch.add(Kind::DeleteTable, family.number, table());
        if !vips.is_empty() {
            family.fill(&mut batch, &vips);
        }
    }
    match batch.send() {
        // A kernel that knows no rules has none of ours.
        Err(error) if vips.is_empty() && error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(()),
        result => result,
    }
}

/// Returns `true` if the rules for such VIPs are there. A firewall that is loaded anew flushes
/// those of all programs. The VIPs themselves are not compared.
///
/// # Errors
/// As [`set`].
pub fn is_in_force(vips: &BTreeSet<IpAddr>) -> io::Result<bool> {
    let is_complete =
        |family: Family| Ok::<_, io::Error>(family.rules()? == HOOKS.len() * family.offsets.len());
    let v4 = !vips.iter().any(IpAddr::is_ipv4) || is_complete(IPV4)?;
    Ok(v4 && (!vips.iter().any(IpAddr::is_ipv6) || is_complete(IPV6)?))
}

impl Family {
    /// Number of rules in our table. `NFTA_RULE_TABLE` is 1, like every table attribute.
    fn rules(self) -> io::Result<usize> {
        message::count(Kind::GetRule, self.number, table())
    }

    fn fill(self, batch: &mut Batch, vips: &[&IpAddr]) {
        batch.add(Kind::NewTable, self.number, table());
        batch.add(Kind::NewSet, self.number, self.set());
        for chunk in vips.chunks(CHUNK) {
            batch.add(Kind::NewElements, self.number, elements(chunk));
        }
        for (chain, hook) in HOOKS {
            batch.add(Kind::NewChain, self.number, base_chain(chain, hook));
            for offset in self.offsets {
                batch.add(Kind::NewRule, self.number, self.rule(chain, offset));
            }
        }
    }

    /// `NFTA_SET_*`: table 1, name 2, key type 4, key length 5, id 10.
    fn set(self) -> Attributes {
        let set = Attributes::new().text(1, TABLE).text(2, SET);
        set.number(4, self.key_type).number(5, self.length).number(10, 1)
    }

    /// `NFTA_RULE_*`: table 1, chain 2, expressions 4.
    fn rule(self, chain: &str, offset: u32) -> Attributes {
        // Payload: into register 1, of the network header (1), from here, that long. Lookup: of
        // register 1 in the set.
        let load = Attributes::new().number(1, 1).number(2, 1).number(3, offset).number(4, self.length);
        let lookup = Attributes::new().text(1, SET).number(2, 1);
        let expressions = Attributes::new()
            .nested(1, expression("payload", Some(load)))
            .nested(1, expression("lookup", Some(lookup)))
            .nested(1, expression("notrack", None));
        Attributes::new().text(1, TABLE).text(2, chain).nested(4, expressions)
    }
}

/// `NFTA_TABLE_NAME`.
fn table() -> Attributes {
    Attributes::new().text(1, TABLE)
}

/// `NFTA_SET_ELEM_LIST_*`: table 1, set 2, elements 3; each an element (1) with a key (1) with a
/// value (1).
fn elements(vips: &[&IpAddr]) -> Attributes {
    let mut list = Attributes::new();
    for vip in vips {
        let value = match vip {
            IpAddr::V4(address) => Attributes::new().bytes(1, &address.octets()),
            IpAddr::V6(address) => Attributes::new().bytes(1, &address.octets()),
        };
        list = list.nested(1, Attributes::new().nested(1, value));
    }
    Attributes::new().text(1, TABLE).text(2, SET).nested(3, list)
}

/// `NFTA_CHAIN_*`: table 1, name 3, hook 4 (number 1, priority 2), type 7.
fn base_chain(name: &str, hook: u32) -> Attributes {
    let hook = Attributes::new().number(1, hook).number(2, RAW.cast_unsigned());
    Attributes::new().text(1, TABLE).text(3, name).nested(4, hook).text(7, "filter")
}

/// `NFTA_EXPR_*`: name 1, data 2.
fn expression(name: &str, data: Option<Attributes>) -> Attributes {
    let expression = Attributes::new().text(1, name);
    match data {
        Some(data) => expression.nested(2, data),
        None => expression,
    }
}
