//! The packet table on the loaded XDP program: frame in → verdict and counter. The same table runs
//! on the host in `portcullis-common`.
#![cfg(test)]

#[path = "../../../common/tests/packets/mod.rs"]
mod packets;
#[expect(dead_code, reason = "frames need no client")]
mod support;

use std::collections::BTreeMap;

use portcullis_common::abi::{TCP, VIP_EXCLUSIVE};
use portcullis_model::{FrontendKey, L4Protocol};
use portcullis_node::{Datapath, Desired, Passage, Reason, Sharing};

#[test]
fn every_case_has_its_verdict_and_its_counter() {
    support::isolated(|pin_dir| {
        let mut datapath = support::open(&support::options(pin_dir));
        datapath.apply(&world()).unwrap();
        for case in packets::cases() {
            let (passage, counted) = run(&mut datapath, &case.frame);
            assert_eq!(counted, [(case.reason, 1)], "{}", case.name);
            assert_eq!(passage == Passage::Dropped, case.reason.drops(), "{}", case.name);
        }
    });
}

/// The guard's action, and the counters that moved.
fn run(datapath: &mut Datapath, frame: &[u8]) -> (Passage, Vec<(Reason, u64)>) {
    let before: BTreeMap<_, _> = datapath.counters().unwrap().into_iter().collect();
    let passage = datapath.run_guard(frame).unwrap_or_else(|error| panic!("{error}"));
    let after = datapath.counters().unwrap().into_iter();
    let moved = after.map(|(reason, count)| (reason, count - before[&reason]));
    (passage, moved.filter(|(_, count)| *count > 0).collect())
}

fn world() -> Desired {
    let protocol = |number| if number == TCP { L4Protocol::Tcp } else { L4Protocol::Udp };
    let sharing = |flags| if flags == VIP_EXCLUSIVE { Sharing::Exclusive } else { Sharing::Shared };
    Desired::new(
        packets::FRONTENDS.iter().map(|(number, ip, port)| FrontendKey {
            protocol: protocol(*number),
            address: ip.parse().unwrap(),
            port: *port,
        }),
        packets::VIPS.iter().map(|(ip, flags)| (ip.parse().unwrap(), sharing(*flags))),
    )
}
