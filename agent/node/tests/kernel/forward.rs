//! Connections and datagrams forwarded by the loaded programs, from a client's namespace over this
//! node's to a backend's; and by user space, which here is a socket that answers by itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_common::flow::Hook;
use portcullis_node::{Affinity, Forwarding, ForwardingSettings, Reason};

use crate::forward_world;
use crate::forward_world::{FAMILIES, World, spoof};
use crate::support;
use crate::support::{Offload, isolated, offload_checksums, open, options};

#[test]
fn connections_reach_the_backend_without_user_space() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        for family in FAMILIES {
            let mut connection = world.connect(family.vip);
            assert_eq!(connection.server, "backend", "{family:?}");
            assert_eq!(connection.seen.ip().to_string(), family.node);
            assert!(connection.seen.port() >= 61_000);
            connection.echo().unwrap();
            // The client ends its direction first, and then gets the rest.
            connection.stream.write_all(b"half").unwrap();
            connection.stream.shutdown(Shutdown::Write).unwrap();
            let mut rest = String::new();
            connection.stream.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, "half");

            let datagrams = world.datagrams(family.vip);
            let (server, seen) = datagrams.ask(10);
            assert_eq!((&*server, seen.ip().to_string()), ("backend", family.node.to_owned()));
            assert_eq!(datagrams.ask(100).1, seen, "the same flow");
        }
        assert_eq!((world.count(Reason::Forwarded), world.count(Reason::ForwardConfirmed)), (4, 4));
    });
}

#[test]
fn not_a_byte_is_lost_and_large_datagrams_come_whole() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        for family in FAMILIES {
            let connection = world.connect(family.vip);
            assert_eq!(connection.server, "backend");
            const SENT: usize = 200 << 20;
            let pattern: Vec<u8> =
                (0..1_048_573_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let (mut to, mut from) = (connection.stream.try_clone().unwrap(), connection.stream);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut left = SENT;
                    while left > 0 {
                        let part = &pattern[..pattern.len().min(left)];
                        to.write_all(part).unwrap();
                        left -= part.len();
                    }
                    to.shutdown(Shutdown::Write).unwrap();
                });
                let (mut got, mut buffer) = (0, vec![0; 1 << 18]);
                loop {
                    let length = from.read(&mut buffer).unwrap();
                    if length == 0 {
                        break;
                    }
                    for byte in &buffer[..length] {
                        assert_eq!(*byte, pattern[got % pattern.len()], "byte {got}");
                        got += 1;
                    }
                }
                assert_eq!(got, SENT);
            });

            // In fragments both ways, the first one included.
            let datagrams = world.datagrams(family.vip);
            let (server, seen) = datagrams.ask(20_000);
            assert_eq!(server, "backend", "{family:?}");
            assert_eq!((datagrams.ask(10).1, datagrams.ask(60_000).1), (seen, seen));
        }
        assert_eq!(world.count(Reason::ForwardFragment), 0);
    });
}

/// Without offloading each segment has its checksum when it is rewritten, and its receiver looks.
#[test]
fn checksums_hold_without_offloading() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        for interface in ["node0", "back0"] {
            offload_checksums(interface, Offload::Off);
        }
        for side in [&world.client, &world.backends] {
            side.enter(|| offload_checksums("client0", Offload::Off));
        }
        for family in FAMILIES {
            let mut connection = world.connect(family.vip);
            assert_eq!(connection.server, "backend");
            let bytes = vec![7; 1 << 20];
            let mut to = connection.stream.try_clone().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| to.write_all(&bytes).unwrap());
                let mut got = vec![0; bytes.len()];
                connection.stream.read_exact(&mut got).unwrap();
                assert!(got == bytes, "{family:?}");
            });
            let datagrams = world.datagrams(family.vip);
            for length in [1, 1000, 20_000] {
                assert_eq!(datagrams.ask(length).0, "backend", "{family:?}, {length} bytes");
            }
        }
    });
}

#[test]
fn clients_with_the_same_port_are_kept_apart() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        world.client.enter(|| support::ip("addr add 10.99.0.3/24 dev client0"));
        let [one, other] = ["10.99.0.2:40000", "10.99.0.3:40000"].map(|it| it.parse().unwrap());
        let mut one_connection = world.connect_from(&world.client, one, FAMILIES[0].vip);
        let mut other_connection = world.connect_from(&world.client, other, FAMILIES[0].vip);
        for connection in [&mut one_connection, &mut other_connection] {
            assert_eq!(connection.server, "backend");
            connection.echo().unwrap();
        }
        assert_ne!(one_connection.seen.port(), other_connection.seen.port());

        // The stack knows a connection by its client and backend, so this one is user space's.
        let mut same = world.connect_from(&world.client, one, FAMILIES[0].other_vip);
        assert_eq!(same.server, "node");
        same.echo().unwrap();
        one_connection.echo().unwrap();
        assert_eq!(world.count(Reason::ForwardSameClient), 1);
    });
}

#[test]
fn user_space_serves_when_no_port_is_free() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::with_ports(61_000..=61_003));
        let mut connections: Vec<_> = (0..6).map(|_| world.connect(FAMILIES[0].vip)).collect();
        let by_backend = connections.iter().filter(|it| it.server == "backend").count();
        assert_eq!((by_backend, world.count(Reason::ForwardNoPort)), (4, 2));
        connections.iter_mut().for_each(|connection| connection.echo().unwrap());
        // The other protocol and family have ports of their own.
        assert_eq!(world.datagrams(FAMILIES[0].vip).ask(1).0, "backend");
        assert_eq!(world.connect(FAMILIES[1].vip).server, "backend");

        // Clients that end first leave their port after two seconds.
        let begun = Instant::now();
        connections.retain_mut(|connection| {
            let is_backends = connection.server == "backend";
            connection.stream.shutdown(Shutdown::Write).unwrap();
            connection.stream.read_to_end(&mut Vec::new()).unwrap();
            !is_backends
        });
        while world.connect(FAMILIES[0].vip).server != "backend" {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(100));
        }
        assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

#[test]
fn flows_outlive_their_rules_and_the_agent() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let mut connections = FAMILIES.map(|family| world.connect(family.vip));
        let datagrams = FAMILIES.map(|family| world.datagrams(family.vip));
        let seen = datagrams.each_ref().map(|datagrams| (datagrams.ask(1), datagrams.ask(1)).1);
        let mut go_on = || {
            connections.iter_mut().for_each(|connection| connection.echo().unwrap());
            assert_eq!(datagrams.each_ref().map(|datagrams| datagrams.ask(1)), seen);
        };
        world.stop();
        go_on();
        assert_eq!(world.connect(FAMILIES[0].vip).server, "node", "no new ones");
        assert_eq!(world.datagrams(FAMILIES[1].vip).ask(1).0, "node");
        world.forward_all();
        go_on();

        // No agent, and the next one.
        let World { client, backends, datapath, forwarding } = world;
        support::close((datapath, forwarding));
        go_on();
        let datapath = open(&options(pin_dir));
        let forwarding = Forwarding::open(&datapath, forward_world::settings()).unwrap();
        let mut world = World { client, backends, datapath, forwarding };
        go_on();
        assert_eq!(world.connect(FAMILIES[0].vip).server, "backend", "rules stay, too");
        world.forward_all();
        go_on();
        assert_eq!(world.forwarding.report().interfaces, ["node0", "back0"]);
    });
}

#[test]
fn flows_end_when_they_are_idle_or_their_listener_has_gone() {
    isolated(|pin_dir| {
        let settings = ForwardingSettings {
            udp_idle: Duration::from_secs(2),
            drain: Duration::ZERO,
            ..forward_world::settings()
        };
        let mut world = World::new(pin_dir, settings);
        let datagrams = world.datagrams(FAMILIES[0].vip);
        let (_, first) = (datagrams.ask(1), datagrams.ask(1));
        let mut connection = world.connect(FAMILIES[0].vip);
        connection.echo().unwrap();
        thread::sleep(Duration::from_secs(4));
        let later = Instant::now() + Duration::from_secs(60);
        world.forwarding.tend(later);
        assert_eq!(world.forwarding.report().flows, 1, "the connection's");
        assert_ne!(datagrams.ask(1), first, "another flow");
        connection.echo().unwrap();

        world.leave();
        world.forwarding.tend(later + Duration::from_secs(60));
        assert_eq!(world.forwarding.report().flows, 0);
        assert!(connection.echo().is_err(), "the node's stack resets it");
    });
}

/// User space keeps clients out that were let in before, of datagrams.
#[test]
fn datagrams_that_are_judged_leave_the_kernel_at_once() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        for family in FAMILIES {
            let datagrams = world.datagrams(family.vip);
            assert_eq!((datagrams.ask(1).0, datagrams.ask(1).0), ("backend".into(), "backend".into()));
            let mut connection = world.connect(family.vip);
            connection.echo().unwrap();
            world.judge();
            world.forwarding.tend(Instant::now());
            assert_eq!(datagrams.ask(1).0, "node", "{family:?}");
            connection.echo().unwrap();
            world.forward_all();
        }
    });
}

/// Its client may never stop sending.
#[test]
fn datagrams_leave_an_endpoint_that_has_gone() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let [family, _] = FAMILIES;
        world.backends.enter(|| forward_world::serve("other", family.backend, 8081));
        let datagrams = world.datagrams(family.vip);
        assert_eq!((datagrams.ask(1).0, datagrams.ask(1).0), ("backend".into(), "backend".into()));
        let mut connection = world.connect(family.vip);
        connection.echo().unwrap();
        world.forward_to(8081);
        world.forwarding.tend(Instant::now() + Duration::from_secs(60));
        assert_eq!(datagrams.ask(1).0, "other");
        connection.echo().unwrap();
        assert_eq!(connection.server, "backend", "connections stay");
    });
}

#[test]
fn listeners_that_go_while_no_agent_runs_are_missed() {
    isolated(|pin_dir| {
        let settings = ForwardingSettings { drain: Duration::ZERO, ..forward_world::settings() };
        let world = World::new(pin_dir, settings.clone());
        let mut connection = world.connect(FAMILIES[0].vip);
        connection.echo().unwrap();
        let World { client, backends, datapath, forwarding } = world;
        support::close((datapath, forwarding));
        let datapath = open(&options(pin_dir));
        let forwarding = Forwarding::open(&datapath, settings).unwrap();
        let mut world = World { client, backends, datapath, forwarding };
        let later = Instant::now() + Duration::from_secs(60);
        world.forwarding.tend(later);
        connection.echo().expect("what is served is not known yet");
        world.leave();
        world.forwarding.tend(later + Duration::from_secs(60));
        assert!(connection.echo().is_err(), "the node's stack resets it");
    });
}

/// An agent that is killed while it ends flows leaves halves of them.
#[test]
fn no_entry_stays_for_ever() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let mut connection = world.connect(FAMILIES[0].vip);
        connection.echo().unwrap();
        // Nothing is under way any more.
        world.backends.enter(|| {
            support::nft("add table ip silent");
            support::nft("add chain ip silent output { type filter hook output priority 0; policy drop; }");
        });
        let mut flows = forward_world::flows(pin_dir);
        let keys: Vec<_> = flows.keys().map(Result::unwrap).collect();
        assert_eq!(keys.len(), 4);
        // The client's, on its way in: to the frontend.
        let first = keys.iter().find(|key| key[28..32] == [10, 50, 0, 1] && key[37] == 0).unwrap();
        flows.remove(first).unwrap();
        world.forwarding.tend(Instant::now() + Duration::from_secs(60));
        assert_eq!(flows.keys().count(), 3, "they may be about to be written");
        thread::sleep(Duration::from_secs(11));
        world.forwarding.tend(Instant::now() + Duration::from_secs(120));
        assert_eq!(flows.keys().count(), 0);
    });
}

/// The kernel gives a port away while the agent is about to end the flow that had it.
#[test]
fn a_flow_does_not_end_with_the_one_that_had_its_port() {
    const CONNECTIONS: usize = 900;
    const CLIENTS: usize = 9;
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::with_ports(61_000..=61_999));
        let [family, _] = FAMILIES;
        drop((0..CONNECTIONS).map(|_| world.connect(family.vip)).collect::<Vec<_>>());
        thread::sleep(Duration::from_secs(11));

        let World { client, forwarding, .. } = &mut world;
        let ask = || forward_world::Connection::by(client, family.vip).echo();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut later = Instant::now();
                while !is_done.load(Ordering::Relaxed) {
                    later += Duration::from_secs(60);
                    forwarding.tend(later);
                }
            });
            let asking = (0..CLIENTS)
                .map(|_| scope.spawn(|| (0..CONNECTIONS / CLIENTS).filter(|_| ask().is_err()).count()));
            let asking: Vec<_> = asking.collect();
            let asked: Vec<_> = asking.into_iter().map(|asking| asking.join()).collect();
            is_done.store(true, Ordering::Relaxed);
            let lost: usize = asked.into_iter().map(Result::unwrap).sum();
            assert_eq!(lost, 0, "of {CONNECTIONS} connections");
        });
    });
}

/// No other program would rewrite the client's address.
#[test]
fn what_would_leave_past_the_programs_is_lost() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let mut connection = world.connect(FAMILIES[0].vip);
        connection.echo().unwrap();
        world.backends.enter(|| {
            support::nft("add table ip seen");
            support::nft("add chain ip seen input { type filter hook input priority 0; }");
            support::nft("add rule ip seen input ip saddr 10.99.0.2 counter drop");
        });
        let namespace = world.backends.path();
        support::ip(&format!("link add other0 type veth peer name other1 netns {namespace}"));
        support::ip("link set other0 up");
        world.backends.enter(|| {
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/other1/rp_filter", "0").unwrap();
            support::ip("link set other1 up");
        });
        // A look at the way is for a second.
        thread::sleep(Duration::from_secs(2));
        support::ip("route replace 10.98.0.2/32 dev other0 src 10.98.0.1");
        connection.stream.write_all(b"echo").unwrap();
        let begun = Instant::now();
        while world.count(Reason::DroppedForwardInterface) < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(10));
        }
        let seen = world.backends.enter(|| support::nft("list table ip seen"));
        assert!(seen.contains("packets 0"), "{seen}");
        assert_eq!(world.connect(FAMILIES[0].vip).server, "node", "new ones are user space's");

        world.forwarding.tend(Instant::now() + Duration::from_secs(60));
        connection.stream.read_exact(&mut [0; 4]).unwrap();
        connection.echo().unwrap();
        assert_eq!(world.connect(FAMILIES[0].vip).server, "backend");
    });
}

/// `sessionAffinity: ClientIP`.
#[test]
fn a_client_keeps_its_backend() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let [family, _] = FAMILIES;
        let ports = [8080, 8081, 8082];
        world.backends.enter(|| {
            forward_world::serve("one", family.backend, 8081);
            forward_world::serve("two", family.backend, 8082);
        });
        let ask = |world: &World, client: u8| {
            let from = std::net::SocketAddr::from(([10, 99, 0, client], 0));
            world.connect_from(&world.client, from, family.vip).server
        };
        world.client.enter(|| {
            for client in 10..40 {
                support::ip(&format!("addr add 10.99.0.{client}/24 dev client0"));
            }
        });
        world.forward_to_all(&ports, Affinity::Address);
        let first: Vec<_> = (10..40).map(|client| ask(&world, client)).collect();
        for name in ["backend", "one", "two"] {
            assert!(first.iter().any(|it| it == name), "{first:?}");
        }
        for (client, server) in (10..40).zip(&first) {
            assert_eq!(ask(&world, client), *server);
        }
        world.forward_to_all(&ports, Affinity::Connection);
        let servers: std::collections::BTreeSet<_> = (0..30).map(|_| ask(&world, 10)).collect();
        assert_eq!(servers.len(), 3);
    });
}

/// It sees what is forwarded, from client to backend and back.
#[test]
fn a_firewall_between_client_and_backend_holds() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        support::nft("add table inet filter");
        support::nft("add chain inet filter forward { type filter hook forward priority 0; }");
        let mut connection = world.connect(FAMILIES[0].vip);
        support::nft(
            "add rule inet filter forward ip saddr 10.99.0.2 ip daddr 10.98.0.2 tcp dport 8080 drop",
        );
        let begun = Instant::now();
        let refused =
            world.client.connect_within(forward_world::at(FAMILIES[0].vip, 80), Duration::from_secs(2));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_secs(2));
        connection.stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        assert!(connection.echo().is_err());
        assert_eq!(world.connect(FAMILIES[1].vip).server, "backend");
    });
}

/// A route with a small MTU behind the node: it tells the sender, by the addresses that the sender
/// knows.
#[test]
fn path_mtu_discovery_works_in_both_directions() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        for (family, networks) in
            FAMILIES.iter().zip([["10.99.0.0/24", "10.98.0.0/24"], ["fd99::/64", "fd98::/64"]])
        {
            for (network, link) in networks.iter().zip(["node0", "back0"]) {
                let metric = if network.contains(':') { " metric 10" } else { "" };
                support::ip(&format!("route replace {network} dev {link}{metric} mtu 1300"));
            }
            let mut connection = world.connect(family.vip);
            assert_eq!(connection.server, "backend");
            let bytes = vec![7; 1 << 20];
            let mut to = connection.stream.try_clone().unwrap();
            thread::scope(|scope| {
                scope.spawn(|| to.write_all(&bytes).unwrap());
                let mut got = vec![0; bytes.len()];
                connection.stream.read_exact(&mut got).unwrap();
                assert!(got == bytes, "{family:?}");
            });
            let route =
                |client: &support::Client, to: &str| client.enter(|| support::ip(&format!("route get {to}")));
            assert!(route(&world.client, family.vip).contains("mtu 1300"), "the client knows");
            assert!(route(&world.backends, family.node).contains("mtu 1300"), "the backend knows");
        }
    });
}

#[test]
fn a_port_that_is_closed_is_told_by_the_address_that_was_asked() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        for family in FAMILIES {
            // The backend's server is kept from the datagram; its stack refuses it.
            let family_word = if family.vip.contains(':') { "ip6" } else { "ip" };
            world.backends.enter(|| {
                support::nft(&format!("add table {family_word} filter"));
                support::nft(&format!(
                    "add chain {family_word} filter input {{ type filter hook input priority 0; }}"
                ));
                support::nft(&format!("add rule {family_word} filter input udp dport 8080 reject"));
            });
            let datagrams = world.datagrams(family.vip);
            datagrams.0.send(b"question").unwrap();
            let refused = datagrams.0.recv(&mut [0; 10]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{family:?}");
        }
    });
}

/// Flows that no client confirms make room for each other, and not for those that are.
#[test]
fn a_flood_ends_no_flow() {
    flooded(0);
}

#[test]
fn a_flood_of_ipv6_ends_no_flow() {
    flooded(1);
}

fn flooded(family: usize) {
    let family = FAMILIES[family];
    let spoofed = std::env::var("PORTCULLIS_SPOOFED").map_or(100_000, |number| number.parse().unwrap());
    isolated(|pin_dir| {
        // With so many ports there are more flows than there is room for.
        let world = World::new(pin_dir, forward_world::with_ports(1024..=65_535));
        let mut connections: Vec<_> = (0..100).map(|_| world.connect(family.vip)).collect();
        let datagrams: Vec<_> = (0..100).map(|_| world.datagrams(family.vip)).collect();
        let seen: Vec<_> = datagrams.iter().map(|it| (it.ask(1), it.ask(1)).1).collect();
        connections.iter_mut().for_each(|connection| connection.echo().unwrap());
        assert!(
            connections.iter().all(|it| it.server == "backend") && seen.iter().all(|it| it.0 == "backend")
        );
        // What cannot be answered is not forwarded.
        support::ip("route add 100.64.0.0/10 via 10.99.0.2");
        support::ip("route add 2001:db8::/32 via fd99::2");
        // Backends answer the node alone.
        world.backends.enter(|| {
            support::nft("add table inet filter");
            support::nft("add chain inet filter input { type filter hook input priority 0; }");
            support::nft("add rule inet filter input ip saddr != 10.98.0.0/24 drop");
            support::nft("add rule inet filter input ip6 saddr != { fd98::/64, fe80::/10 } drop");
        });
        world.client.enter(|| spoof::flood(spoofed, family.vip.parse().unwrap()));
        let given = world.count(Reason::Forwarded) - 200;
        println!("{given} of {spoofed} were given a flow");
        assert!(given > u64::from(spoofed) / 4);
        println!("{} found no port", world.count(Reason::ForwardNoPort));
        connections.iter_mut().for_each(|connection| connection.echo().unwrap());
        let after: Vec<_> = datagrams.iter().map(|it| it.ask(1)).collect();
        assert_eq!(after, seen);
    });
}

/// From either side, by an attacker that knows both ends' ports and no numbers.
#[test]
fn forged_resets_end_no_idle_connection() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let mut connection = world.connect("10.50.0.1");
        connection.echo().unwrap();
        let client = connection.stream.local_addr().unwrap();
        for sequence in [0, 1 << 30, 1 << 31, 3 << 30] {
            world.backends.enter(|| spoof::reset("10.98.0.2:8080", connection.seen, sequence));
            world
                .client
                .enter(|| spoof::reset(&client.to_string(), "10.50.0.1:80".parse().unwrap(), sequence));
        }
        // Ten seconds are what a connection has that has been reset.
        thread::sleep(Duration::from_secs(11));
        world.forwarding.tend(Instant::now() + Duration::from_secs(60));
        assert_eq!(world.forwarding.report().flows, 1);
        connection.echo().unwrap();
        support::abort(&connection.stream);
        drop(connection);
        thread::sleep(Duration::from_secs(11));
        world.forwarding.tend(Instant::now() + Duration::from_secs(120));
        assert_eq!(world.forwarding.report().flows, 0);
    });
}

#[test]
fn frames_with_a_tag_are_rewritten_with_their_checksums() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let shown = support::ip("-o link show node0");
        let index: u32 = shown.split(':').next().unwrap().parse().unwrap();
        let mac = shown.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
        let mac: Vec<_> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let ([client, vip], backend) = ([[10, 99, 0, 2], [10, 50, 0, 1]].map(Ipv4Addr::from), [10, 98, 0, 2]);
        let frame = |to: Ipv4Addr, port: u16| {
            let packet = spoof::whole_syn(client, to, port);
            [&mac[..], &[2, 0, 0, 0, 0, 9], &[0x81, 0, 0, 42], &[8, 0], &packet].concat()
        };
        let forwarded = world.forwarding.run(Hook::In, &frame(vip, 80), index).unwrap();
        assert_eq!(forwarded, frame(backend.into(), 8080));
        let elsewhere = frame(vip, 81);
        assert_eq!(world.forwarding.run(Hook::In, &elsewhere, index).unwrap(), elsewhere);
    });
}

/// The maps take memory that is the kernel's.
#[test]
fn programs_and_maps_are_there_while_they_are_needed() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, forward_world::settings());
        let mut connection = world.connect(FAMILIES[0].vip);
        connection.echo().unwrap();
        let mut later = Instant::now();
        let mut tend = |world: &mut World| {
            later += Duration::from_secs(60);
            world.forwarding.tend(later);
            forward_world::maps(pin_dir)
        };
        world.stop();
        assert_eq!(tend(&mut world), 7, "a connection is open");
        connection.echo().unwrap();
        world.leave();
        tend(&mut world);
        assert_eq!(tend(&mut world), 0);
        assert!(world.forwarding.report().interfaces.is_empty());
        world.forward_all();
        assert_eq!(world.connect(FAMILIES[0].vip).server, "backend");
        assert_eq!(tend(&mut world), 7);
    });
}

/// As of an agent with other maps than this one's.
#[test]
fn flows_outlive_another_version() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, forward_world::settings());
        let mut connections = FAMILIES.map(|family| world.connect(family.vip));
        let datagrams = FAMILIES.map(|family| world.datagrams(family.vip));
        let seen = datagrams.each_ref().map(|datagrams| (datagrams.ask(1), datagrams.ask(1)).1);
        let mut go_on = || {
            connections.iter_mut().for_each(|connection| connection.echo().unwrap());
            assert_eq!(datagrams.each_ref().map(|datagrams| datagrams.ask(1)), seen);
        };
        go_on();
        let World { client, backends, datapath, forwarding } = world;
        support::close((datapath, forwarding));
        let version = std::fs::read_dir(pin_dir).unwrap().next().unwrap().unwrap().path();
        std::fs::rename(version, pin_dir.join("v0")).unwrap();
        let mut datapath = open(&options(pin_dir));
        let forwarding = Forwarding::open(&datapath, forward_world::settings()).unwrap();
        go_on();
        datapath.relieve_predecessors().unwrap();
        assert!(!pin_dir.join("v0").exists());
        go_on();
        let mut world = World { client, backends, datapath, forwarding };
        assert_eq!(world.connect(FAMILIES[0].vip).server, "backend", "rules stay, too");
        world.forward_all();
        go_on();
    });
}
