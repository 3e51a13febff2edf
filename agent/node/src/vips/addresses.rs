//! Makes VIPs local, so that the kernel accepts what is sent to them: `ip address add VIP/32 dev
//! lo`. An address that the node has anyway is left alone, and what was added here is recognised
//! later, by a later agent too: by its protocol number (`IFA_PROTO`, Linux 5.18) and, for IPv4, its
//! label.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::netlink::addresses::{Addresses, LOOPBACK, LocalAddress};

/// The changes of a call, and those that failed; one that fails keeps no other from being made.
#[derive(Debug, Default)]
pub struct Changes {
    pub added: Vec<IpAddr>,
    pub removed: Vec<IpAddr>,
    /// VIPs that are local because of us alone, whenever they were added.
    pub ours: BTreeSet<IpAddr>,
    /// By index, the first IPv4 address of each other interface that has one.
    pub interfaces: BTreeMap<u32, Ipv4Addr>,
    /// VIPs among the added that lie in a network of the node, which this address has.
    pub near: BTreeMap<IpAddr, IpAddr>,
    pub problems: Vec<AddressError>,
}

/// Without knowing what is there, nothing is changed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the node's addresses: {0}")]
pub struct Unlisted(#[from] io::Error);

#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error(
        "cannot make VIP {address} local: {source}; the agent needs NET_ADMIN, and for IPv6 it must not be disabled on lo"
    )]
    Add { address: IpAddr, source: io::Error },
    #[error(
        "cannot remove VIP {address} from lo: {source}; remove it with `ip address del {address} dev lo`"
    )]
    Remove { address: IpAddr, source: io::Error },
}

/// Makes these VIPs local. Others that were added here earlier stay: what is to replace them need
/// not be served yet.
///
/// # Errors
/// When the kernel does not list the node's addresses.
pub fn make_local(vips: &BTreeSet<IpAddr>) -> Result<Changes, Unlisted> {
    change(vips, missing)
}

/// Takes away those VIPs that were added here and are not among these.
///
/// # Errors
/// As [`make_local`].
pub fn retain(vips: &BTreeSet<IpAddr>) -> Result<Changes, Unlisted> {
    change(vips, stale)
}

/// Takes away every VIP that was added here.
///
/// # Errors
/// As [`make_local`].
pub fn remove_all() -> Result<Changes, Unlisted> {
    retain(&BTreeSet::new())
}

/// The addresses that the node has for others to reach it. An address of its own may be on loopback
/// where routes are announced for it. Not loopback and link-local addresses, where the node's own
/// processes listen for each other, none of Services on dummies, and no VIPs.
///
/// # Errors
/// As [`make_local`].
pub(crate) fn outward() -> Result<BTreeSet<IpAddr>, Unlisted> {
    let mut addresses = Addresses::open()?;
    let dummies = addresses.dummies()?;
    let present = addresses.list()?.into_iter();
    let outward = present.filter(|local| !local.ours && !dummies.contains(&local.interface));
    let outward = outward.map(|local| local.address);
    Ok(outward.filter(|address| !address.is_loopback() && !is_link_local(address)).collect())
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

type Plan = fn(&[LocalAddress], &BTreeSet<IpAddr>) -> Vec<Op>;

fn change(vips: &BTreeSet<IpAddr>, plan: Plan) -> Result<Changes, Unlisted> {
    let mut addresses = Addresses::open()?;
    let present = addresses.list()?;
    // A program that announces an address may put it on an interface after us (kube-vip).
    let foreign: BTreeSet<_> = present.iter().filter(|local| !local.ours).map(|it| it.address).collect();
    let ours = present.iter().filter(|local| local.ours && vips.contains(&local.address));
    let ours = ours.map(|local| local.address).filter(|address| !foreign.contains(address));
    let mut changes =
        Changes { ours: ours.collect(), interfaces: interfaces(&present), ..Changes::default() };
    changes.execute(addresses, &plan(&present, vips));
    changes.ours.extend(&changes.added);
    let near = changes.added.iter().filter_map(|vip| {
        let neighbour = present.iter().find(|local| !local.ours && local.is_near(vip))?;
        Some((*vip, neighbour.address))
    });
    changes.near = near.collect();
    Ok(changes)
}

fn interfaces(present: &[LocalAddress]) -> BTreeMap<u32, Ipv4Addr> {
    let mut first = BTreeMap::new();
    for local in present.iter().filter(|local| !local.ours && local.interface != LOOPBACK) {
        if let IpAddr::V4(address) = local.address {
            first.entry(local.interface).or_insert(address);
        }
    }
    first
}

#[derive(Debug, PartialEq, Eq)]
enum Op {
    Add(IpAddr),
    Remove(IpAddr),
}

fn missing(present: &[LocalAddress], vips: &BTreeSet<IpAddr>) -> Vec<Op> {
    let missing = vips.iter().filter(|vip| {
        // All of 127.0.0.0/8 is local from the start.
        let is_given = vip.is_unspecified() || vip.is_loopback();
        !is_given && !present.iter().any(|local| local.address == **vip)
    });
    missing.map(|vip| Op::Add(*vip)).collect()
}

fn stale(present: &[LocalAddress], vips: &BTreeSet<IpAddr>) -> Vec<Op> {
    let stale = present.iter().filter(|local| local.ours && !vips.contains(&local.address));
    stale.map(|local| Op::Remove(local.address)).collect()
}

impl Changes {
    fn execute(&mut self, mut addresses: Addresses, ops: &[Op]) {
        for op in ops {
            match *op {
                Op::Add(address) => match addresses.add(address) {
                    Ok(()) => self.added.push(address),
                    Err(source) => self.problems.push(AddressError::Add { address, source }),
                },
                Op::Remove(address) => match addresses.remove(address) {
                    Ok(()) => self.removed.push(address),
                    Err(source) => self.problems.push(AddressError::Remove { address, source }),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn local(text: &str, ours: bool) -> LocalAddress {
        LocalAddress { address: ip(text), ours, interface: 1, prefix: 32 }
    }

    #[test]
    fn only_missing_addresses_are_added_and_only_ours_removed() {
        let present = [local("10.0.0.1", false), local("10.0.0.2", true), local("10.0.0.3", true)];
        let vips = BTreeSet::from(["10.0.0.1", "10.0.0.2", "10.0.0.4", "127.0.0.9", "0.0.0.0"].map(ip));
        assert_eq!(missing(&present, &vips), [Op::Add(ip("10.0.0.4"))]);
        assert_eq!(stale(&present, &vips), [Op::Remove(ip("10.0.0.3"))]);
    }

    #[test]
    fn a_satisfied_wish_is_no_plan() {
        let present = [local("10.0.0.1", true), local("fd00::1", true)];
        let vips = BTreeSet::from(["10.0.0.1", "fd00::1"].map(ip));
        assert_eq!((missing(&present, &vips), stale(&present, &vips)), (vec![], vec![]));
    }
}
