//! Networks over which clients and backends are reached by what the kernel forwards, and what
//! becomes of packets there: forwarded, or user space's for a counted reason.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portcullis_node::Reason;

use crate::forward_world;
use crate::forward_world::{FAMILIES, World, settings, spoof};
use crate::support;
use crate::support::{ip, isolated};

/// A port of a bridge only passes frames on: it is the bridge that has the programs.
#[test]
fn an_uplink_may_be_a_port_of_a_bridge() {
    isolated(|pin_dir| {
        let world = World::over(pin_dir, settings(), |_, _| {
            for (bridge, port, network) in [("br0", "node0", 99), ("br1", "back0", 98)] {
                bridge_over(bridge, port, network);
            }
        });
        for family in FAMILIES {
            let mut connection = world.connect(family.vip);
            assert_eq!(
                (&*connection.server, connection.seen.ip().to_string()),
                ("backend", family.node.into())
            );
            connection.echo().unwrap();
            assert_eq!(world.datagrams(family.vip).ask(20_000).0, "backend");
        }
        assert_eq!(world.forwarding.report().interfaces, ["br0", "br1"]);
    });
}

/// The stack takes the tag off, and keeps it beside the frame. VLAN 0 is none, and only a priority.
#[test]
fn a_frame_of_a_vlan_that_the_node_is_not_in_begins_no_flow() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, settings());
        let shown = ip("-o link show node0");
        let mac = shown.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
        let mac: Vec<_> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let syn = spoof::whole_syn([10, 99, 0, 2].into(), [10, 50, 0, 1].into(), 80);
        let send = |vlan| {
            let frame = [&mac[..], &[2, 0, 0, 0, 0, 9], &[0x81, 0, 0, vlan], &[8, 0], &syn].concat();
            world.client.enter(|| spoof::send_frame("client0", &frame));
        };
        send(42);
        assert_eq!(world.count(Reason::Forwarded), 0);
        send(0);
        assert_eq!(world.count(Reason::Forwarded), 1);
    });
}

/// Client and backend in one network, behind the same interface.
#[test]
fn a_client_may_be_where_the_backend_is() {
    isolated(|pin_dir| {
        let world = World::new(pin_dir, settings());
        world.backends.enter(|| {
            ip("addr add 10.98.0.3/24 dev client0");
            ip("addr add fd98::3/64 dev client0 nodad");
        });
        for (family, neighbour) in FAMILIES.iter().zip(["10.98.0.3:0", "[fd98::3]:0"]) {
            // The backend itself, too.
            for from in [neighbour.parse().unwrap(), forward_world::at(family.backend, 0)] {
                let mut connection = world.connect_from(&world.backends, from, family.vip);
                assert_eq!(
                    (&*connection.server, connection.seen.ip().to_string()),
                    ("backend", family.node.into())
                );
                connection.echo().unwrap();
            }
        }
        assert_eq!(world.count(Reason::Forwarded), 4);
    });
}

/// Packets out to the backend and out to the client would look the same.
#[test]
fn a_backend_that_is_its_own_client_by_its_own_port_is_user_spaces() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, settings());
        let from = "10.98.0.2:5060".parse::<SocketAddr>().unwrap();
        world.forward_to_v4(from);
        let connection = world.connect_from(&world.backends, from, "10.50.0.1");
        assert_eq!((&*connection.server, connection.seen), ("node", from));
        assert_eq!(world.count(Reason::ForwardSameClient), 1);
    });
}

/// As Calico lays it: each pod is a route of its own, by an interface without an address.
#[test]
fn a_pod_may_be_behind_an_interface_without_an_address() {
    isolated(|pin_dir| {
        let mut world = World::over(pin_dir, settings(), |_, backends| {
            ip(&format!("link add cali0 type veth peer name pod0 netns {}", backends.path()));
            std::fs::write("/proc/sys/net/ipv4/conf/cali0/proxy_arp", "1").unwrap();
            // Linux answers for others after a random while.
            std::fs::write("/proc/sys/net/ipv4/neigh/cali0/proxy_delay", "0").unwrap();
            ip("link set cali0 up");
            // Only for what it would send elsewhere, as by a default route.
            ip("route add default via 10.99.0.2");
            ip("route add 10.96.0.2/32 dev cali0");
            backends.enter(|| {
                ip("link set pod0 up");
                ip("addr add 10.96.0.2/32 dev pod0");
                ip("route add 169.254.1.1 dev pod0 scope link");
                ip("route replace default via 169.254.1.1 dev pod0");
                forward_world::serve("pod", "10.96.0.2", 8080);
            });
        });
        world.forward_to_v4("10.96.0.2:8080".parse().unwrap());
        let mut connection = world.connect("10.50.0.1");
        assert_eq!((&*connection.server, connection.seen.ip().to_string()), ("pod", "10.99.0.1".into()));
        connection.echo().unwrap();
        // It is a client, too, and its own backend.
        let from = "10.96.0.2:0".parse().unwrap();
        let mut connection = world.connect_from(&world.backends, from, "10.50.0.1");
        assert_eq!(connection.server, "pod");
        connection.echo().unwrap();
    });
}

/// As Flannel lays it. What is too large for the tunnel is told the client.
#[test]
fn a_backend_may_be_behind_a_tunnel_of_frames() {
    isolated(|pin_dir| {
        let mut world = World::over(pin_dir, settings(), |_, backends| {
            let tunnel = |own: u8, other: u8, under: &str| {
                ip(&format!(
                    "link add vx0 type vxlan id 7 dstport 4789 local 10.98.0.{own} remote 10.98.0.{other} dev {under}"
                ));
                ip(&format!("addr add 10.96.0.{own}/24 dev vx0"));
                ip("link set vx0 mtu 1450 up");
            };
            tunnel(1, 2, "back0");
            backends.enter(|| {
                tunnel(2, 1, "client0");
                forward_world::serve("far", "10.96.0.2", 8080);
            });
        });
        world.forward_to_v4("10.96.0.2:8080".parse().unwrap());
        let mut connection = world.connect("10.50.0.1");
        assert_eq!((&*connection.server, connection.seen.ip().to_string()), ("far", "10.96.0.1".into()));
        connection.stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        for _ in 0..100 {
            connection.echo().unwrap();
            connection.stream.write_all(&[0; 20_000]).unwrap();
            std::io::Read::read_exact(&mut connection.stream, &mut [0; 20_000]).unwrap();
        }
        let datagrams = world.datagrams("10.50.0.1");
        assert_eq!(datagrams.ask(10).0, "far");
        // 1460 bytes with the headers, which may not be divided: lost, but for the answer by ICMP.
        datagrams.0.send(&[7; 1432]).unwrap();
        let begun = Instant::now();
        let route = || world.client.enter(|| ip("route get 10.50.0.1"));
        while !route().contains("mtu 1450") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", route());
        }
        assert!(datagrams.0.take_error().unwrap().is_some(), "the socket knows, too");
        assert_eq!(datagrams.ask(1432).0, "far");
    });
}

/// Its packets have no link header, and it has no programs: user space serves.
#[test]
fn behind_a_tunnel_of_packets_user_space_serves() {
    isolated(|pin_dir| {
        let mut world = World::over(pin_dir, settings(), |_, _| {
            ip("tuntap add tun0 mode tun");
            ip("link set tun0 up");
            ip("route add 10.96.0.2/32 dev tun0 src 10.98.0.1");
        });
        world.forward_to_v4("10.96.0.2:8080".parse().unwrap());
        assert_eq!(world.connect("10.50.0.1").server, "node");
        assert_eq!(world.datagrams("10.50.0.1").ask(1).0, "node");
        assert_eq!(world.count(Reason::ForwardNoInterface), 2);
    });
}

/// Backends answer an address that no host has.
#[test]
fn flows_end_whose_address_the_node_has_lost() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, settings());
        let mut connection = world.connect("10.50.0.1");
        let mut other = world.connect("fd50::1");
        connection.echo().unwrap();
        ip("addr del 10.98.0.1/24 dev back0");
        ip("addr add 10.98.0.9/24 dev back0");
        world.backends.enter(|| ip("route replace default via 10.98.0.9"));
        // The chores of the next second.
        world.forwarding.tend(Instant::now());
        let next = world.connect("10.50.0.1");
        assert_eq!((&*next.server, next.seen.ip().to_string()), ("backend", "10.98.0.9".into()));
        world.forwarding.tend(Instant::now() + Duration::from_secs(60));
        let ended = connection.echo().unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
        other.echo().unwrap();
    });
}

/// The first one has the ports; a second first one, with others, is another listener's.
#[test]
fn overlapping_fragments_reach_no_other_listeners_backend() {
    isolated(|pin_dir| {
        let mut world = World::new(pin_dir, settings());
        world.backends.enter(|| {
            ip("addr add 10.98.0.3/24 dev client0");
            support::nft("add table ip seen");
            support::nft("add chain ip seen raw { type filter hook prerouting priority -450; }");
            for host in [2, 3] {
                support::nft(&format!(
                    "add rule ip seen raw ip daddr 10.98.0.{host} ip protocol udp counter"
                ));
            }
            forward_world::serve("other", "10.98.0.3", 8080);
        });
        world.forward_ports(&[(80, "10.98.0.2:8080"), (81, "10.98.0.3:8080")]);
        let send = |identification, offset, rest| {
            let port = [80, 81][usize::from(identification % 2)];
            world.client.enter(|| {
                spoof::fragment([10, 99, 0, 2], [10, 50, 0, 1], port, identification, offset, rest)
            });
        };
        let seen = || {
            let table = world.backends.enter(|| support::nft("list table ip seen"));
            let counts = table
                .lines()
                .filter_map(|line| line.split("packets ").nth(1)?.split(' ').next()?.parse().ok());
            <[u32; 2]>::try_from(counts.collect::<Vec<_>>()).unwrap()
        };
        // Each begins where its ports are, and is sent once more over itself.
        for identification in [10, 11] {
            send(identification, 0, spoof::Rest::Follows);
            for offset in [8, 16, 0, 24] {
                send(identification, offset, spoof::Rest::Follows);
            }
            send(identification, 32, spoof::Rest::Last);
        }
        assert_eq!(seen(), [6, 6]);
        // Without a first one they are the stack's.
        for identification in [12, 13] {
            send(identification, 8, spoof::Rest::Follows);
        }
        assert_eq!((seen(), world.count(Reason::ForwardFragment)), ([6, 6], 2));
    });
}

/// Moves an interface's addresses to a bridge over it.
fn bridge_over(bridge: &str, port: &str, network: u8) {
    ip(&format!("link add {bridge} type bridge"));
    std::fs::write(format!("/proc/sys/net/ipv6/conf/{bridge}/accept_dad"), "0").unwrap();
    ip(&format!("addr flush dev {port}"));
    ip(&format!("link set {port} master {bridge}"));
    ip(&format!("link set {bridge} up"));
    ip(&format!("addr add 10.{network}.0.1/24 dev {bridge}"));
    ip(&format!("addr add fd{network}::1/64 dev {bridge} nodad"));
}
