//! ClientHellos that are refused: the packets that come out of the loaded program, and clients and
//! sockets in namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{
    Admission, Budget, BudgetOwner, ClientList, ClientRules, FrontendKey, HostPattern, L4Protocol,
    ObjectName, ParentKind, PortKey, SpeaksFirst,
};
use portcullis_node::{
    Believed, Datapath, Desired, EnforcedAt, Interfaces, NameTable, Options, Reason, Sharing,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::corpus::corpus;
use crate::names_frames::{Client, KNOWN, LINKS, Link, VIPS};
use crate::support;
use crate::support::{Cores, Offload, isolated, open, options, tcp};

/// Of all the hellos used here.
const NAME: &str = "app.example.com";

#[test]
fn both_ends_get_a_reset() {
    isolated(|pin_dir| {
        let mut datapath = open(&believing(pin_dir));
        let frontends = VIPS.map(|vip| tcp(&format!("{vip}:{KNOWN}")));
        datapath.apply(&named(&frontends, denying(&["0.0.0.0/0", "::/0"]))).unwrap();
        let wire = wire();
        let hello = hello();
        for (index, link) in LINKS.into_iter().enumerate() {
            for (case, cuts) in [vec![hello.len()], vec![60, hello.len() - 60]].into_iter().enumerate() {
                let (first, second) = hello.split_at(cuts[0]);
                let segments: Vec<_> = [first, second].into_iter().take(cuts.len()).collect();
                let frames = Client::new(100 * index + case, KNOWN, link).stream(&segments);
                let last = frames.last().unwrap();
                let before = count(&datapath, Reason::HelloDeniedClient);
                let left: Vec<_> = frames.iter().map(|frame| datapath.run_names(frame).unwrap()).collect();
                assert_eq!(left[..frames.len() - 1], frames[..frames.len() - 1], "{link:?}");
                let (sent, server) = (Packet::read(last), left.last().unwrap());
                if matches!(link, Link::V4Options | Link::V6Extensions) {
                    assert_eq!(server, last, "{link:?} is left to user space");
                    continue;
                }
                assert_eq!(count(&datapath, Reason::HelloDeniedClient), before + 1, "{link:?}");
                let server = Packet::read(server);
                assert_eq!(
                    (server.links, server.addresses),
                    (sent.links, sent.addresses.clone()),
                    "{link:?}"
                );
                assert_eq!(
                    (server.numbers, server.flags, server.payload),
                    (sent.numbers, 0x14, 0),
                    "{link:?}"
                );
                assert!(server.is_sound, "{link:?}");
                let client = next_reset(&wire);
                assert_eq!(client.links, [sent.links[1], sent.links[0]], "{link:?}");
                let [source, destination] = sent.addresses;
                assert_eq!(client.addresses, [destination, source], "{link:?}");
                let [sequence, acknowledged] = sent.numbers;
                let expected = [acknowledged, sequence.wrapping_add(sent.payload as u32)];
                assert_eq!((client.numbers, client.flags, client.payload), (expected, 0x14, 0), "{link:?}");
                assert!(client.is_sound, "{link:?}");
            }
        }
    });
}

#[test]
fn a_client_hears_at_once_and_nothing_is_left_of_its_connection() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&reading(pin_dir, "node0"));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontends = ["10.99.0.1:443", "[fd99::1]:443"].map(tcp);
        datapath.apply(&named(&frontends, limited(1, 1))).unwrap();
        let place = datapath.enforcement(&frontends[0], &HostPattern::parse(NAME).unwrap());
        assert_eq!((place.budgets.to_string(), place.clients), ("tc on node0".into(), EnforcedAt::Accept));
        for offload in [Offload::On, Offload::Off] {
            client.enter(|| support::offload_checksums("client0", offload));
            for address in ["10.99.0.1:443", "[fd99::1]:443"] {
                let address = address.parse().unwrap();
                // The one connection of this second may be taken already; and a busy machine may be
                // in the next one when it tries again.
                let deadline = Instant::now() + Duration::from_secs(60);
                let refused = loop {
                    let errors = attempt(&client, &cores, address);
                    if !errors.is_empty() {
                        break errors;
                    }
                    assert!(Instant::now() < deadline, "{address}, {offload:?}: none is refused");
                };
                assert_eq!(refused, [ErrorKind::ConnectionReset; 2], "{address}, {offload:?}");
            }
        }
        assert_eq!(connections(), "", "no socket of a connection is left");
        // It refills.
        let deadline = Instant::now() + Duration::from_secs(60);
        let address = "10.99.0.1:443".parse().unwrap();
        while attempt(&client, &cores, address) == [ErrorKind::ConnectionReset; 2] {
            assert!(Instant::now() < deadline, "the budget stays empty");
        }
        let (_, used) = datapath.budgets().next().unwrap();
        assert!(used.taken >= 2 && used.refused >= 4, "{used:?}");
    });
}

#[test]
fn other_names_are_not_affected_and_unknown_ones_have_a_rate() {
    isolated(|pin_dir| {
        let mut datapath = open(&believing(pin_dir));
        let frontends = VIPS.map(|vip| tcp(&format!("{vip}:{KNOWN}")));
        let mut desired = named(&frontends, limited(1, 2));
        let other = HostPattern::parse("*.example.org").unwrap();
        desired.names[0].names.insert(other, Arc::new(denying(&["0.0.0.0/0"])));
        datapath.apply(&desired).unwrap();
        let outcomes = |datapath: &mut Datapath, from: usize, kinds: [Reason; 2]| {
            let before = counts(datapath);
            for index in from..from + 5 {
                for frame in Client::new(index, KNOWN, Link::V4).stream(&[&hello()]) {
                    datapath.run_names(&frame).unwrap();
                }
            }
            let after = counts(datapath);
            let moved = |reason: &Reason| after[reason] - before[reason];
            assert_eq!(after.keys().map(moved).sum::<u64>(), 5);
            let [passed, refused] = kinds.map(|reason| moved(&reason));
            assert_eq!(passed + refused, 5, "{kinds:?} alone");
            passed
        };
        let begun = Instant::now();
        let known = [Reason::HelloKnownName, Reason::HelloOverBudget];
        let first = outcomes(&mut datapath, 0, known);
        assert!((2..=2 + given_since(begun, 1)).contains(&first), "{first} in {:?}", begun.elapsed());
        // What is taken is taken, whatever else changes.
        desired.names[0].names.remove(&HostPattern::parse("*.example.org").unwrap());
        datapath.apply(&desired).unwrap();
        let all = first + outcomes(&mut datapath, 10, known);
        assert!(all <= 2 + given_since(begun, 1), "{all} in {:?}", begun.elapsed());

        desired.names[0].names.clear();
        datapath.apply(&desired).unwrap();
        let unknown = [Reason::HelloUnknownName, Reason::HelloUnknownRefused];
        assert_eq!(outcomes(&mut datapath, 20, unknown), 5);
        desired.unknown_names = NonZeroU32::new(3);
        let begun = Instant::now();
        datapath.apply(&desired).unwrap();
        let passed = outcomes(&mut datapath, 30, unknown);
        assert!((3..=3 + given_since(begun, 3)).contains(&passed), "{passed} in {:?}", begun.elapsed());
        assert_eq!(datapath.budgets().count(), 0, "the listener is gone");
    });
}

/// All that a budget may have given back since then: a busy machine takes its time.
fn given_since(begun: Instant, per_second: u64) -> u64 {
    begun.elapsed().as_millis() as u64 * per_second / 1000
}

/// The debts of a larger budget, or of a slower one, are not the new one's.
#[test]
fn a_budget_that_gets_smaller_is_empty_at_most() {
    isolated(|pin_dir| {
        let mut datapath = open(&believing(pin_dir));
        let frontends = VIPS.map(|vip| tcp(&format!("{vip}:{KNOWN}")));
        datapath.apply(&named(&frontends, limited(1, 1_000))).unwrap();
        let hello = hello();
        let is_let_in = |datapath: &mut Datapath, client: usize| {
            let before = count(datapath, Reason::HelloKnownName);
            for frame in Client::new(client, KNOWN, Link::V4).stream(&[&hello]) {
                datapath.run_names(&frame).unwrap();
            }
            count(datapath, Reason::HelloKnownName) > before
        };
        // It would take five minutes until all of it is back.
        assert!((0..300).all(|client| is_let_in(&mut datapath, client)));
        datapath.apply(&named(&frontends, limited(100, 10))).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut others = (300..30_000).cycle();
        while !is_let_in(&mut datapath, others.next().unwrap()) {
            assert!(Instant::now() < deadline, "the smaller budget stays empty");
        }
        let (_, used) = datapath.budgets().next().unwrap();
        assert!(used.taken >= 301, "{used:?}");
    });
}

/// Others' addresses can be written into any packet, but not what the node sent to them.
#[test]
fn forged_hellos_take_from_no_budget() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&reading(pin_dir, "node0"));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontend = tcp("10.99.0.1:443");
        datapath.apply(&named(&[frontend], limited(1, 1))).unwrap();
        let node: SocketAddr = "10.99.0.1:443".parse().unwrap();
        let mut open = client.connect(node).unwrap();
        let (_, accepted) = cores.accept();
        let other = "10.99.0.2:9".parse().unwrap();
        for from in [open.local_addr().unwrap(), node, other] {
            let frame = segment(from, node, &hello());
            assert_eq!(datapath.run_names(&frame).unwrap(), frame, "{from}");
        }
        assert_eq!(count(&datapath, Reason::HelloUnconnected), 3);
        open.write_all(&hello()).unwrap();
        accepted.set_nonblocking(false).unwrap();
        (&accepted).read_exact(&mut [0; 5]).unwrap();
        assert_eq!(count(&datapath, Reason::HelloKnownName), 1);
    });
}

/// The hello brings the last part of the handshake with it: the node then has a connection that has
/// only begun, or nothing but the cookie that it has sent.
#[test]
fn hellos_that_complete_a_handshake_are_judged_before_there_is_a_connection() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&reading(pin_dir, "node0"));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontends = ["10.99.0.1:443", "[fd99::1]:443"].map(tcp);
        hold_back_handshakes(&client);
        for (cookies, expected) in [("0", "SYN-RECV"), ("2", "")] {
            fs::write("/proc/sys/net/ipv4/tcp_syncookies", cookies).unwrap();
            for address in frontends.map(|frontend| SocketAddr::new(frontend.address, frontend.port)) {
                let case = format!("{address}, tcp_syncookies={cookies}");
                let connect = |datapath: &mut Datapath, admission| {
                    datapath.apply(&named(&frontends, admission)).unwrap();
                    let before = counts(datapath);
                    let stream = client.connect(address).unwrap();
                    let found = connections();
                    assert_eq!(found.split_whitespace().next().unwrap_or_default(), expected, "{case}");
                    (stream, before)
                };

                let (mut stream, before) = connect(&mut datapath, denying(&["0.0.0.0/0", "::/0"]));
                if let (SocketAddr::V4(_), from) = (address, stream.local_addr().unwrap()) {
                    let frame = segment(from, address, &hello());
                    assert_eq!(datapath.run_names(&frame).unwrap(), frame, "{case}");
                    let forged = count(&datapath, Reason::HelloUnconnected);
                    assert_eq!(forged, before[&Reason::HelloUnconnected] + 1, "{case}");
                }
                stream.write_all(&hello()).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let answer = stream.read(&mut [0; 5]).map_err(|error| error.kind());
                assert_eq!(answer, Err(ErrorKind::ConnectionReset), "{case}");
                let refused = count(&datapath, Reason::HelloDeniedClient);
                assert_eq!(refused, before[&Reason::HelloDeniedClient] + 1, "{case}");
                until_none_is_left(&case);
                assert!(cores.is_idle(), "{case}: the agent has nothing to accept");

                let (mut stream, before) = connect(&mut datapath, limited(1_000, 1_000));
                stream.write_all(&hello()).unwrap();
                let (_, accepted) = cores.accept();
                accepted.set_nonblocking(false).unwrap();
                let mut arrived = vec![0; hello().len()];
                (&accepted).read_exact(&mut arrived).unwrap();
                assert_eq!(arrived, hello(), "{case}");
                let known = count(&datapath, Reason::HelloKnownName);
                assert_eq!(known, before[&Reason::HelloKnownName] + 1, "{case}");
                support::abort(&accepted);
                support::close((stream, accepted));
                until_none_is_left(&case);
            }
        }
        let used: Vec<_> = datapath.budgets().map(|(_, used)| (used.taken, used.refused)).collect();
        assert_eq!(used, [(1, 0)], "of the last policy");
    });
}

/// It waits in the kernel for the hello, and does not outlive it.
#[test]
fn a_refused_hello_leaves_nothing_to_accept() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&reading(pin_dir, "node0"));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets_where(SpeaksFirst::Client)).unwrap();
        let frontends = ["10.99.0.1:443", "[fd99::1]:443"].map(tcp);
        let mut desired = named(&frontends, denying(&["0.0.0.0/0", "::/0"]));
        desired.clients_speak = frontends.into();
        datapath.apply(&desired).unwrap();
        for address in frontends.map(|frontend| SocketAddr::new(frontend.address, frontend.port)) {
            let mut stream = client.connect(address).unwrap();
            stream.write_all(&hello()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let answer = stream.read(&mut [0; 5]).map_err(|error| error.kind());
            assert_eq!(answer, Err(ErrorKind::ConnectionReset), "{address}");
            until_none_is_left(&address.to_string());
            assert!(cores.is_idle(), "{address}");
        }
        assert_eq!(count(&datapath, Reason::HelloDeniedClient), 2);
    });
}

/// Keeps segments without payload from leaving the client.
fn hold_back_handshakes(client: &support::Client) {
    let rules = "table inet test { chain out { type filter hook output priority 0; \
                 tcp dport 443 tcp flags & (fin | syn | rst | ack) == ack meta length < 100 drop; }; }";
    client.enter(|| support::nft(rules));
}

/// The client hears of its reset before the node's own socket does.
fn until_none_is_left(case: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !connections().is_empty() {
        assert!(Instant::now() < deadline, "{case}: {}", connections());
    }
}

/// With numbers that are no connection's.
fn segment(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(address) => address.ip().octets(),
        SocketAddr::V6(_) => unreachable!("addresses of IPv4"),
    };
    let [from_port, to_port] = [from, to].map(|address| address.port().to_be_bytes());
    let length = (40 + payload.len() as u16).to_be_bytes();
    let ip = [&[0x45, 0][..], &length, &[0, 1, 0x40, 0, 64, 6, 0, 0], &octets(from), &octets(to)].concat();
    let tcp = [&from_port[..], &to_port, &[7; 8], &[0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]].concat();
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &ip, &tcp, payload].concat()
}

/// As where the kernel is locked down: by user space, to which they come.
#[test]
fn hellos_of_connections_that_have_only_begun_may_be_left() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let believed = Believed::OfOpenConnections;
        let mut datapath = open(&Options { believed, ..reading(pin_dir, "node0") });
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        datapath.apply(&named(&[tcp("10.99.0.1:443")], denying(&["0.0.0.0/0"]))).unwrap();
        let address = "10.99.0.1:443".parse().unwrap();
        assert_eq!(attempt(&client, &cores, address), [ErrorKind::ConnectionReset; 2], "of one that is open");
        hold_back_handshakes(&client);
        let mut stream = client.connect(address).unwrap();
        stream.write_all(&hello()).unwrap();
        let (_, accepted) = cores.accept();
        accepted.set_nonblocking(false).unwrap();
        (&accepted).read_exact(&mut vec![0; hello().len()]).unwrap();
        assert_eq!(count(&datapath, Reason::HelloUnconnected), 1);
    });
}

/// Its connections are taken from buckets of its own, which are full.
#[test]
fn an_agent_that_begins_has_full_buckets() {
    isolated(|pin_dir| {
        let frontends = VIPS.map(|vip| tcp(&format!("{vip}:{KNOWN}")));
        let outcomes = |datapath: &mut Datapath, clients: std::ops::Range<usize>| {
            let before = count(datapath, Reason::HelloOverBudget);
            for frame in clients.flat_map(|client| Client::new(client, KNOWN, Link::V4).stream(&[&hello()])) {
                datapath.run_names(&frame).unwrap();
            }
            let (_, used) = datapath.budgets().next().unwrap();
            assert_eq!(
                (used.taken + used.refused, count(datapath, Reason::HelloOverBudget) - before),
                (5, used.refused)
            );
            used.taken
        };
        let mut first = open(&believing(pin_dir));
        first.apply(&named(&frontends, limited(1, 3))).unwrap();
        let begun = Instant::now();
        let taken = outcomes(&mut first, 0..5);
        assert!((3..=3 + given_since(begun, 1)).contains(&taken), "{taken} in {:?}", begun.elapsed());
        drop(first);
        let mut next = open(&believing(pin_dir));
        next.apply(&named(&frontends, limited(1, 3))).unwrap();
        let begun = Instant::now();
        let taken = outcomes(&mut next, 5..10);
        assert!((3..=3 + given_since(begun, 1)).contains(&taken), "{taken} in {:?}", begun.elapsed());
        assert_eq!(next.contents().budgets.len(), 1, "those of the last one are gone");
    });
}

/// Before there is a connection, where no listener of a port permits them.
#[test]
fn denied_clients_of_a_port_are_refused_at_once() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&options(pin_dir));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let [v4, v6] = ["10.99.0.1:8080", "[fd99::1]:8080"].map(tcp);
        let mut desired = Desired::new([v4, v6], []);
        let with = |rules: &Admission| rules.clients.as_ref().unwrap().ranges().clone();
        let connect = |frontend: &FrontendKey| {
            client.connect(SocketAddr::new(frontend.address, frontend.port)).map_err(|error| error.kind())
        };
        desired.clients = BTreeMap::from([(v4, with(&denying(&["10.99.0.2"])))]);
        datapath.apply(&desired).unwrap();
        assert_eq!(connect(&v4).unwrap_err(), ErrorKind::ConnectionRefused);
        connect(&v6).unwrap();
        assert_eq!(datapath.enforcement(&v4, &HostPattern::Any).port_clients, EnforcedAt::SkLookup);
        assert_eq!(datapath.enforcement(&v6, &HostPattern::Any).port_clients, EnforcedAt::Accept);
        desired.clients = BTreeMap::from([
            (v4, with(&denying(&["10.99.0.3", "fd99::/64"]))),
            (v6, with(&denying(&["10.99.0.3", "fd99::/64"]))),
        ]);
        datapath.apply(&desired).unwrap();
        connect(&v4).unwrap();
        assert_eq!(connect(&v6).unwrap_err(), ErrorKind::ConnectionRefused);
        desired.clients.clear();
        datapath.apply(&desired).unwrap();
        connect(&v6).unwrap();
        assert!(datapath.contents().clients.is_empty(), "what is not referred to is gone");
    });
}

/// Each datagram, where a port's listener does not permit its address: the client hears of it.
#[test]
fn denied_datagrams_are_refused_and_others_arrive() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let mut datapath = open(&options(pin_dir));
        let addresses: [SocketAddr; 2] = ["10.99.0.1:5353", "[fd99::1]:5353"].map(|it| it.parse().unwrap());
        let sockets = addresses.map(|address| UdpSocket::bind(address).unwrap());
        let frontends = addresses.map(udp);
        let mut desired = Desired::new(frontends, []);
        let clients = |ranges: &[&str]| {
            let rules = denying(ranges).clients.unwrap();
            frontends.map(|frontend| (frontend, rules.ranges().clone())).into()
        };
        desired.clients = clients(&["10.99.0.2", "fd99::/64"]);
        datapath.apply(&desired).unwrap();
        for (address, frontend) in addresses.into_iter().zip(&frontends) {
            assert_eq!(datapath.enforcement(frontend, &HostPattern::Any).port_clients, EnforcedAt::SkLookup);
            let before = count(&datapath, Reason::RefusedDeniedClient);
            assert_eq!(datagram(&client, address), Err(ErrorKind::ConnectionRefused), "{address}");
            assert_eq!(count(&datapath, Reason::RefusedDeniedClient), before + 1, "{address}");
        }
        desired.clients = clients(&["10.99.0.3", "fd99::3"]);
        datapath.apply(&desired).unwrap();
        for (address, socket) in addresses.into_iter().zip(&sockets) {
            assert_eq!(
                datagram(&client, address),
                Err(ErrorKind::WouldBlock),
                "no error comes, nor an answer"
            );
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let (length, from) = socket.recv_from(&mut [0; 8]).unwrap();
            assert_eq!((length, from.ip().is_ipv4()), (1, address.is_ipv4()), "only what was permitted came");
            socket.set_nonblocking(true).unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    });
}

/// By the packet guard, without an answer; connections that are open go on.
#[test]
fn denied_clients_are_dropped_where_they_come_in() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let interfaces = Interfaces::Named(vec!["node0".into()]);
        let mut datapath = open(&Options { interfaces, ..options(pin_dir) });
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let tcp_at = "10.99.0.1:8080".parse().unwrap();
        let udp_at: SocketAddr = "10.99.0.1:5353".parse().unwrap();
        let socket = UdpSocket::bind(udp_at).unwrap();
        let frontends = [tcp("10.99.0.1:8080"), udp(udp_at)];
        let mut desired = Desired::new(frontends, [(udp_at.ip(), Sharing::Shared)]);
        datapath.apply(&desired).unwrap();
        let mut open = client.connect(tcp_at).unwrap();
        let (_, accepted) = cores.accept();
        let rules = denying(&["10.99.0.2"]).clients.unwrap();
        desired.clients = frontends.map(|frontend| (frontend, rules.ranges().clone())).into();
        datapath.apply(&desired).unwrap();
        for frontend in &frontends {
            let place = datapath.enforcement(frontend, &HostPattern::Any);
            assert_eq!(place.port_clients, EnforcedAt::Xdp(vec!["node0".into()]));
        }
        let waited = client.connect_within(tcp_at, Duration::from_millis(200)).unwrap_err();
        assert_eq!(waited.kind(), ErrorKind::TimedOut, "nothing answers");
        let dropped = count(&datapath, Reason::DroppedDeniedClient);
        assert!(dropped >= 1);
        assert_eq!(datagram(&client, udp_at), Err(ErrorKind::WouldBlock), "nothing answers");
        assert!(count(&datapath, Reason::DroppedDeniedClient) > dropped);
        assert_eq!(count(&datapath, Reason::RefusedDeniedClient), 0, "none came that far");
        socket.set_nonblocking(true).unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        open.write_all(b"on").unwrap();
        accepted.set_nonblocking(false).unwrap();
        (&accepted).read_exact(&mut [0; 2]).unwrap();
    });
}

fn udp(at: SocketAddr) -> FrontendKey {
    FrontendKey::new(at.ip(), PortKey { protocol: L4Protocol::Udp, number: at.port() })
}

/// Sends one, and returns what the client hears of it: an error, or nothing.
fn datagram(client: &support::Client, address: SocketAddr) -> Result<(), ErrorKind> {
    client.enter(|| {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 8]).map(drop).map_err(|error| error.kind())
    })
}

/// The errors that the client and the node's socket get for a hello; none where it arrives.
fn attempt(client: &support::Client, cores: &Cores, address: SocketAddr) -> Vec<ErrorKind> {
    let mut stream = client.connect(address).unwrap();
    let (_, accepted) = cores.accept();
    accepted.set_nonblocking(false).unwrap();
    stream.write_all(&hello()).unwrap();
    let answer = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.read_exact(&mut [0; 5]).err().map(|error| error.kind())
    };
    let node = answer(&accepted);
    if node.is_none() {
        return vec![];
    }
    [answer(&stream), node].into_iter().flatten().collect()
}

/// Sockets of connections in this namespace, those that are closing apart.
fn connections() -> String {
    support::ss("-Htan state syn-recv state established state syn-sent")
}

/// For frames of no connection.
fn believing(pin_dir: &Path) -> Options {
    Options { believed: Believed::All, ..reading(pin_dir, "none0") }
}

fn reading(pin_dir: &Path, interface: &str) -> Options {
    Options { name_interfaces: Interfaces::Named(vec![interface.into()]), ..options(pin_dir) }
}

fn named(frontends: &[FrontendKey], admission: Admission) -> Desired {
    let mut desired = Desired::new(frontends.iter().copied(), []);
    let names = BTreeMap::from([(HostPattern::parse(NAME).unwrap(), Arc::new(admission))]);
    desired.names = vec![NameTable { frontends: frontends.iter().copied().collect(), names }];
    desired
}

fn limited(per_second: u32, burst: u32) -> Admission {
    let owner =
        BudgetOwner { kind: ParentKind::Gateway, name: ObjectName::new("infra", "web"), listener: None };
    let [per_second, burst] = [per_second, burst].map(|number| NonZeroU32::new(number).unwrap());
    Admission { budgets: vec![Budget { owner, per_second, burst }], ..Admission::default() }
}

fn denying(ranges: &[&str]) -> Admission {
    let deny = ranges.iter().map(|range| range.parse().unwrap()).collect();
    let rules = ClientRules::new(vec![ClientList { allow: vec![], deny }]);
    Admission { clients: Some(Arc::new(rules)), ..Admission::default() }
}

fn hello() -> Vec<u8> {
    corpus()
        .into_iter()
        .find(|hello| hello.name.as_deref() == Some(NAME) && hello.bytes.len() < 600)
        .unwrap()
        .bytes
}

fn counts(datapath: &Datapath) -> BTreeMap<Reason, u64> {
    datapath.counters().unwrap().into_iter().collect()
}

fn count(datapath: &Datapath, reason: Reason) -> u64 {
    counts(datapath)[&reason]
}

/// Everything that passes an interface of this namespace.
fn wire() -> Socket {
    const ALL: u16 = 3;
    let protocol = Protocol::from(i32::from(ALL.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

/// The next packet that is sent, which loopback then also receives.
fn next_reset(mut wire: &Socket) -> Packet {
    let mut frame = [0; 2048];
    loop {
        let length = wire.read(&mut frame).unwrap();
        let sent = Packet::read(&frame[..length]);
        if sent.flags & 4 != 0 {
            let again = wire.read(&mut frame).unwrap();
            assert_eq!(Packet::read(&frame[..again]), sent);
            return sent;
        }
    }
}

/// A TCP packet taken apart.
#[derive(Debug, PartialEq)]
struct Packet {
    /// Destination and source.
    links: [[u8; 6]; 2],
    /// Addresses and ports of source and destination.
    addresses: [(Vec<u8>, u16); 2],
    /// Sequence, and what is acknowledged.
    numbers: [u32; 2],
    flags: u8,
    payload: usize,
    /// Both checksums hold.
    is_sound: bool,
}

impl Packet {
    fn read(frame: &[u8]) -> Self {
        let tagged = usize::from(frame[12] == 0x81) * 4;
        let packet = &frame[14 + tagged..];
        let (ip, width, at, length) = match packet[0] >> 4 {
            4 => (usize::from(packet[0] & 15) * 4, 4, 12, usize::from(number(&packet[2..]))),
            _ => (40, 16, 8, 40 + usize::from(number(&packet[4..]))),
        };
        let extensions = if packet[0] >> 4 == 6 && packet[6] != 6 { 24 } else { 0 };
        let tcp = &packet[ip + extensions..length];
        let (source, destination) = (&packet[at..at + width], &packet[at + width..at + 2 * width]);
        let pseudo = [source, destination, &[0, 6], &(tcp.len() as u16).to_be_bytes(), tcp].concat();
        let header = if width == 4 { &packet[..ip] } else { &[0xff; 2] };
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        Self {
            links: [frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap()],
            addresses: [(source.into(), number(tcp)), (destination.into(), number(&tcp[2..]))],
            numbers: [word(4), word(8)],
            flags: tcp[13],
            payload: tcp.len() - usize::from(tcp[12] >> 4) * 4,
            is_sound: sum(header) == 0xffff && sum(&pseudo) == 0xffff,
        }
    }
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| number(&[word[0], *word.get(1).unwrap_or(&0)]));
    let sum: u32 = words.map(u32::from).sum();
    (sum & 0xffff) + (sum >> 16)
}
