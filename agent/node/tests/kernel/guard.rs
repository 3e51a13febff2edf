//! The packet table on the loaded XDP program: frame in → verdict and counter. The same table runs
//! on the host in `portcullis-common`.

use std::collections::BTreeMap;

use portcullis_common::abi::{TCP, VIP_EXCLUSIVE};
use portcullis_model::{ClientList, ClientRules, FrontendKey, L4Protocol};
use portcullis_node::{Datapath, Desired, Passage, Reason, Sharing};

use crate::packets;
use crate::support;

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

/// The first packet of a connection, and each datagram, from an address that no listener of the
/// port permits; of connections that are open, nothing.
#[test]
fn denied_clients_are_dropped_before_there_is_a_connection() {
    /// Of the frames, and their bytes of TCP's flags.
    const CLIENTS: [&str; 2] = ["192.0.2.1", "2001:db8::99"];
    const FLAGS: [usize; 2] = [14 + 20 + 13, 14 + 40 + 13];
    support::isolated(|pin_dir| {
        let mut datapath = support::open(&support::options(pin_dir));
        let frame = |name: &str| packets::cases().into_iter().find(|case| case.name == name).unwrap().frame;
        let [v4, v6, udp] = ["tcp to a listener", "v6 tcp to a listener", "udp to a listener"].map(frame);
        let packed = ["most options, listener", "don't fragment", "VLAN, v6 listener"].map(frame);
        let with_flags = |frame: &[u8], at: usize, flags: u8| {
            let mut frame = frame.to_vec();
            frame[at] = flags;
            frame
        };
        let open = [(&v4, FLAGS[0]), (&v6, FLAGS[1])].map(|(frame, at)| with_flags(frame, at, 0x18));
        let both = [(&v4, FLAGS[0]), (&v6, FLAGS[1])].map(|(frame, at)| with_flags(frame, at, 0x12));
        for (ranges, denied) in [
            (&["0.0.0.0/0", "::/0"][..], Reason::DroppedDeniedClient),
            (&CLIENTS, Reason::DroppedDeniedClient),
            (&["192.0.2.0/31", "2001:db8::/32"], Reason::DroppedDeniedClient),
            (&["192.0.2.2/31", "2001:db8::98"], Reason::PassedListener),
        ] {
            let mut desired = world();
            let rules = denying(ranges).ranges().clone();
            desired.clients = desired.frontends.iter().map(|frontend| (*frontend, rules.clone())).collect();
            datapath.apply(&desired).unwrap();
            for frame in [&v4, &v6, &udp].into_iter().chain(&packed) {
                let (passage, counted) = run(&mut datapath, frame);
                assert_eq!(counted, [(denied, 1)], "{ranges:?}");
                assert_eq!(passage == Passage::Dropped, denied.drops(), "{ranges:?}");
            }
            for frame in &open {
                assert_eq!(run(&mut datapath, frame), (Passage::Passed, vec![(Reason::PassedListener, 1)]));
            }
            // An answer to a connection of the node's own is none that a client begins.
            for frame in &both {
                assert_eq!(run(&mut datapath, frame), (Passage::Passed, vec![(Reason::PassedListener, 1)]));
            }
        }
        // Of one port alone: the same client comes to the others.
        let mut desired = world();
        let of_port = desired.frontends.iter().filter(|frontend| frontend.is_tcp() && frontend.port == 443);
        let rules = denying(&CLIENTS).ranges().clone();
        desired.clients = of_port.map(|frontend| (*frontend, rules.clone())).collect();
        datapath.apply(&desired).unwrap();
        assert_eq!(run(&mut datapath, &v4).1, [(Reason::DroppedDeniedClient, 1)]);
        assert_eq!(run(&mut datapath, &udp).1, [(Reason::PassedListener, 1)]);
        let wildcard = frame("wildcard listener on a VIP");
        assert_eq!(run(&mut datapath, &wildcard).1, [(Reason::PassedListener, 1)]);
    });
}

fn denying(ranges: &[&str]) -> ClientRules {
    let deny = ranges.iter().map(|range| range.parse().unwrap()).collect();
    ClientRules::new(vec![ClientList { allow: vec![], deny }])
}
