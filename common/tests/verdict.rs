//! The packet table on the host.

mod packets;

use std::collections::{BTreeMap, BTreeSet};

use portcullis_common::abi::{Address, FrontendKey};
use portcullis_common::reason::Reason;
use portcullis_common::verdict::{Tables, verdict};

struct World {
    vips: BTreeMap<Address, u32>,
    frontends: BTreeSet<FrontendKey>,
}

impl World {
    fn new() -> Self {
        let vips = packets::VIPS.iter().map(|(ip, flags)| (packets::address(ip), *flags)).collect();
        let frontends = packets::FRONTENDS.iter();
        let keys =
            frontends.map(|(protocol, ip, port)| FrontendKey::new(*protocol, packets::address(ip), *port));
        Self { vips, frontends: keys.collect() }
    }
}

impl Tables for World {
    fn vip(&self, address: &Address) -> Option<u32> {
        self.vips.get(address).copied()
    }

    fn frontend(&self, key: &FrontendKey) -> Option<u32> {
        self.frontends.contains(key).then_some(0)
    }

    fn denies(&self, _: u32, _: &Address) -> bool {
        true
    }
}

#[test]
fn every_case_has_its_verdict() {
    let world = World::new();
    for case in packets::cases() {
        assert_eq!(verdict(&case.frame[..], &world), case.reason, "{}", case.name);
    }
}

/// Whatever is cut off, the answer is a reason; and what is not whole is never dropped for want of
/// a listener.
#[test]
fn truncated_frames_are_never_dropped_before_the_port_is_known() {
    let world = World::new();
    for case in packets::cases() {
        for length in 0..case.frame.len().min(14 + 20 + 4) {
            let reason = verdict(&case.frame[..length], &world);
            assert_ne!(reason, Reason::DroppedNoListener, "{} cut to {length}", case.name);
        }
    }
}
