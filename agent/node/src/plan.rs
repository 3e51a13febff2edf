//! The pure diff of what the maps hold and what they should hold.

pub(crate) mod desired;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use portcullis_common::abi::{Address, FrontendKey, TCP, UDP, VIP_EXCLUSIVE};

/// What the maps hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Frontend → listener group.
    pub frontends: BTreeMap<FrontendKey, u32>,
    /// VIP → flags.
    pub vips: BTreeMap<Address, u32>,
}

/// One map write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    PutFrontend(FrontendKey, u32),
    RemoveFrontend(FrontendKey),
    PutVip(Address, u32),
    RemoveVip(Address),
}

/// What to write to get from one to the other, in an order without gaps: frontends come before the VIP that would drop their
/// packets, and go after it.
pub fn plan(observed: &Contents, desired: &Contents) -> Vec<Op> {
    let new_frontends =
        changed(&observed.frontends, &desired.frontends).map(|(key, group)| Op::PutFrontend(key, group));
    let new_vips = changed(&observed.vips, &desired.vips).map(|(address, flags)| Op::PutVip(address, flags));
    let old_vips = gone(&observed.vips, &desired.vips).map(Op::RemoveVip);
    let old_frontends = gone(&observed.frontends, &desired.frontends).map(Op::RemoveFrontend);
    new_frontends.chain(new_vips).chain(old_vips).chain(old_frontends).collect()
}

impl Contents {
    /// What a write does, on this copy.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::PutFrontend(key, group) => _ = self.frontends.insert(key, group),
            Op::RemoveFrontend(key) => _ = self.frontends.remove(&key),
            Op::PutVip(address, flags) => _ = self.vips.insert(address, flags),
            Op::RemoveVip(address) => _ = self.vips.remove(&address),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::PutFrontend(key, _) | Op::RemoveFrontend(key) => {
                write!(f, "{} {}", protocol(key.protocol), SocketAddr::new(ip(&key.address), key.port()))
            }
            Op::PutVip(address, VIP_EXCLUSIVE) => write!(f, "VIP {} (exclusive)", ip(address)),
            Op::PutVip(address, _) | Op::RemoveVip(address) => write!(f, "VIP {}", ip(address)),
        }
    }
}

fn changed<K: Ord + Copy>(old: &BTreeMap<K, u32>, new: &BTreeMap<K, u32>) -> impl Iterator<Item = (K, u32)> {
    new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(key, value)| (*key, *value))
}

fn gone<K: Ord + Copy>(old: &BTreeMap<K, u32>, new: &BTreeMap<K, u32>) -> impl Iterator<Item = K> {
    old.keys().filter(|key| !new.contains_key(key)).copied()
}

fn ip(address: &Address) -> IpAddr {
    Ipv6Addr::from(address.0).to_canonical()
}

fn protocol(number: u8) -> String {
    match number {
        TCP => "TCP".into(),
        UDP => "UDP".into(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_common::abi::VIP_SHARED;
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    /// Few addresses and ports, so that the two sides overlap.
    fn contents() -> impl Strategy<Value = Contents> {
        let address = || (0..6u8).prop_map(|host| Address::v4([10, 0, 0, host]));
        let protocol = prop_oneof![Just(TCP), Just(UDP)];
        let frontend = (protocol, address(), 0..8u16).prop_map(|(p, a, port)| FrontendKey::new(p, a, port));
        let vips = btree_map(address(), prop_oneof![Just(VIP_SHARED), Just(VIP_EXCLUSIVE)], 0..6);
        (btree_map(frontend, 0..3u32, 0..24), vips).prop_map(|(frontends, vips)| Contents { frontends, vips })
    }

    proptest! {
        #[test]
        fn the_plan_leads_there(observed in contents(), desired in contents()) {
            let mut reached = observed.clone();
            plan(&observed, &desired).into_iter().for_each(|op| reached.apply(op));
            prop_assert_eq!(reached, desired);
        }

        #[test]
        fn nothing_to_do_is_no_plan(contents in contents()) {
            prop_assert_eq!(plan(&contents, &contents), vec![]);
        }

        /// A frontend that is in both states is in every state between, and so is its VIP's protection from being dropped:
        /// no exclusive VIP appears before the frontends it will have.
        #[test]
        fn no_step_leaves_a_gap(observed in contents(), desired in contents()) {
            let mut now = observed.clone();
            for op in plan(&observed, &desired) {
                now.apply(op);
                for key in observed.frontends.keys().filter(|key| desired.frontends.contains_key(key)) {
                    prop_assert!(now.frontends.contains_key(key));
                }
                if let Op::PutVip(address, _) = op {
                    let mut wanted = desired.frontends.keys().filter(|key| key.address == address);
                    prop_assert!(wanted.all(|key| now.frontends.contains_key(key)));
                }
            }
        }
    }

    #[test]
    fn operators_read_addresses() {
        let key = FrontendKey::new(TCP, Address::v4([10, 0, 0, 1]), 443);
        assert_eq!(Op::PutFrontend(key, 0).to_string(), "TCP 10.0.0.1:443");
        let v6 = Address::v6(Ipv6Addr::LOCALHOST.octets());
        assert_eq!(Op::RemoveFrontend(FrontendKey::new(UDP, v6, 53)).to_string(), "UDP [::1]:53");
        assert_eq!(Op::PutVip(v6, VIP_EXCLUSIVE).to_string(), "VIP ::1 (exclusive)");
    }
}
