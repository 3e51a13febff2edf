//! The node as the agent uses it, in a network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{FrontendKey, PortKey};
use portcullis_node::vips::{Arp, Everywhere, Tracking};
use portcullis_node::{Choice, Interfaces, Node, Settings, Tended};
use socket2::{Domain, Socket, Type};

use crate::support;
use crate::support::{Client, Cores, close, isolated, tcp};

const LONG: Duration = Duration::from_secs(60);

fn open(steering: Choice, pin_dir: &Path, drain: Duration) -> Node {
    open_where(Everywhere::All, steering, pin_dir, drain)
}

fn open_where(everywhere: Everywhere, steering: Choice, pin_dir: &Path, drain: Duration) -> Node {
    let (pin_dir, interfaces) = (pin_dir.to_owned(), Interfaces::None);
    let settings = Settings {
        steering,
        pin_dir,
        interfaces,
        name_interfaces: Interfaces::None,
        unknown_names: None,
        tracking: Tracking::On,
        arp: Arp::Untouched,
        syn_hold: None,
        everywhere,
        forwarding: None,
        drain,
        locks: Arc::default(),
    };
    Node::open(&settings).unwrap_or_else(|error| panic!("{error}"))
}

fn everywhere(port: u16) -> [FrontendKey; 2] {
    [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)]
        .map(|address| FrontendKey::new(address, PortKey::tcp(port)))
}

/// A socket as ordinary servers bind them, and as the proxy does without kernel programs.
fn bind(address: SocketAddr, only_v6: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[test]
fn a_port_is_refused_where_an_ordinary_socket_would_be() {
    isolated(|pin_dir| {
        let node = open(Choice::Programs, pin_dir, Duration::ZERO);
        assert!(node.is_steered());
        for (port, (address, only_v6)) in (7000..).zip([
            ("0.0.0.0", false),
            ("127.0.0.1", false),
            ("::", false),
            ("::", true),
            ("::1", true),
            ("::ffff:127.0.0.1", false),
        ]) {
            let frontends = everywhere(port);
            let listener = bind(SocketAddr::new(address.parse().unwrap(), port), only_v6).unwrap();
            listener.listen(1).unwrap();
            let refused = node.serve(BTreeSet::from(frontends));
            for frontend in frontends {
                let bound = bind(SocketAddr::new(frontend.address, port), true);
                let why = refused.get(&frontend).cloned();
                assert_eq!(bound.is_err(), why.is_some(), "{frontend} beside {address}: {why:?}");
                assert!(why.is_none_or(|why| why.contains("another process of the node listens on port")));
            }
            assert!(!refused.is_empty(), "{address} is not taken");
            close(listener);
            assert!(node.serve(BTreeSet::from(frontends)).is_empty(), "{address} is closed");
        }
    });
}

/// A process that was away for a moment, or comes later, gets its port back.
#[test]
fn a_port_is_given_up_when_another_process_listens_on_it() {
    isolated(|pin_dir| {
        let node = open(Choice::Programs, pin_dir, Duration::ZERO);
        let cores = Cores::new(1);
        node.set_sockets(&cores.sockets()).unwrap();
        let frontends = BTreeSet::from(everywhere(7000));
        assert!(
            node.prepare(&frontends, &BTreeSet::new()).is_empty() && node.serve(frontends.clone()).is_empty()
        );
        assert_eq!(node.tend(), Tended::Undisturbed);
        let ours = TcpStream::connect("127.0.0.1:7000").unwrap();
        drop((cores.accept(), ours));

        let returned = TcpListener::bind("127.0.0.1:7000").unwrap();
        assert_eq!(node.tend(), Tended::Disturbed);
        let refused = node.serve(frontends.clone());
        assert_eq!(refused.into_keys().collect::<Vec<_>>(), [tcp("0.0.0.0:7000")]);
        assert_eq!(node.tend(), Tended::Undisturbed, "that is known now");
        let theirs = TcpStream::connect("127.0.0.1:7000").unwrap();
        returned.accept().unwrap();

        close((theirs, returned));
        assert_eq!(node.tend(), Tended::Disturbed);
        assert!(node.serve(frontends).is_empty(), "the port is free again");
    });
}

#[test]
fn host_ports_are_on_the_nodes_addresses_and_not_on_loopbacks() {
    isolated(|pin_dir| {
        let node = open_where(Everywhere::Interfaces, Choice::Programs, pin_dir, Duration::ZERO);
        let cores = Cores::new(1);
        node.set_sockets(&cores.sockets()).unwrap();
        let client = Client::new();
        support::ip("addr add 169.254.20.10/16 dev node0");
        // Of the node itself, as where routes to it are announced.
        support::ip("addr add 10.250.0.1/32 dev lo");
        let [v4, v6] = everywhere(7000);
        let mut wanted: BTreeMap<_, _> = [v4, v6, tcp("10.50.0.1:80")].map(|it| (it, it)).into();
        node.spread(wanted.clone().keys()).on_each(&mut wanted);
        assert_eq!(wanted.remove(&tcp("10.50.0.1:80")), Some(tcp("10.50.0.1:80")));
        let expected =
            [(tcp("10.99.0.1:7000"), v4), (tcp("10.250.0.1:7000"), v4), (tcp("[fd99::1]:7000"), v6)];
        assert_eq!(wanted, expected.into());

        let kubelet = TcpListener::bind("127.0.0.1:7000").unwrap();
        let frontends: BTreeSet<_> = wanted.into_keys().collect();
        assert!(node.prepare(&frontends, &BTreeSet::new()).is_empty() && node.serve(frontends).is_empty());
        for address in ["10.99.0.1:7000", "[fd99::1]:7000"] {
            let stream = client.connect(address.parse().unwrap()).unwrap();
            drop((cores.accept(), stream));
        }
        let own = TcpStream::connect("127.0.0.1:7000").unwrap();
        drop((kubelet.accept().unwrap(), own));
        assert_eq!(node.tend(), Tended::Undisturbed);
        support::ip("addr add 10.99.0.7/24 dev node0");
        assert_eq!(node.tend(), Tended::Disturbed, "the node has another address");
    });
}

/// Their ports are chosen by the kernel: were they in the way, a port of a Gateway could be refused
/// by chance.
#[test]
fn connections_are_in_no_ports_way() {
    isolated(|pin_dir| {
        let node = open(Choice::Programs, pin_dir, Duration::ZERO);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let frontends = everywhere(connection.local_addr().unwrap().port());
        assert!(node.serve(BTreeSet::from(frontends)).is_empty());
    });
}

#[test]
fn no_more_cores_are_used_than_connections_can_be_steered_to() {
    isolated(|pin_dir| {
        let node = open(Choice::Programs, pin_dir, Duration::ZERO);
        assert_eq!([300, 256, 1].map(|cores| node.usable_cores(cores)), [256, 256, 1]);
    });
}

#[test]
fn an_address_stays_until_its_connections_have_ended() {
    isolated(|pin_dir| {
        let node = open(Choice::Sockets, pin_dir, LONG);
        let (listener, connection) = serve_and_connect(&node, "10.50.0.1:80");
        withdraw(&node);
        assert!(is_local("10.50.0.1"), "a connection is open");
        node.tend();
        assert!(is_local("10.50.0.1"), "a connection is still open");
        close((connection, listener));
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_local("10.50.0.1") {
            assert!(Instant::now() < deadline, "nothing is left to be sent");
            node.tend();
        }
    });
}

/// A tenant makes it stay: one connection is enough.
#[test]
fn an_address_that_stays_for_its_connections_leads_to_nothing_else() {
    isolated(|pin_dir| {
        let node = open(Choice::Programs, pin_dir, LONG);
        let (cores, client) = (Cores::new(1), Client::new());
        node.set_sockets(&cores.sockets()).unwrap();
        let _daemons = [22, 80].map(|port| TcpListener::bind(("0.0.0.0", port)).unwrap());
        let frontends = BTreeSet::from([tcp("10.50.0.1:80")]);
        assert!(node.prepare(&frontends, &BTreeSet::new()).is_empty() && node.serve(frontends).is_empty());
        let connect = |address: &str| client.connect(address.parse().unwrap());
        let open = (connect("10.50.0.1:80").unwrap(), cores.accept());
        withdraw(&node);
        node.tend();
        assert!(is_local("10.50.0.1"), "a connection is open");
        for address in ["10.50.0.1:22", "10.50.0.1:80"] {
            let refused = connect(address).map_err(|error| error.kind());
            assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused), "{address}");
        }
        close(open);
    });
}

#[test]
fn an_address_goes_when_its_time_is_over() {
    isolated(|pin_dir| {
        let node = open(Choice::Sockets, pin_dir, Duration::ZERO);
        let _open = serve_and_connect(&node, "10.50.0.1:80");
        withdraw(&node);
        assert!(!is_local("10.50.0.1"));
    });
}

#[test]
fn an_address_that_another_program_removes_comes_back() {
    isolated(|pin_dir| {
        let node = open(Choice::Sockets, pin_dir, LONG);
        assert!(node.prepare(&BTreeSet::from([tcp("10.50.0.1:80")]), &BTreeSet::new()).is_empty());
        support::ip("addr del 10.50.0.1/32 dev lo");
        assert!(!is_local("10.50.0.1"));
        node.tend();
        assert!(is_local("10.50.0.1"));
    });
}

fn serve_and_connect(node: &Node, address: &str) -> (TcpListener, [TcpStream; 2]) {
    let frontends = BTreeSet::from([tcp(address)]);
    assert!(node.prepare(&frontends, &BTreeSet::new()).is_empty());
    let listener = TcpListener::bind(address).unwrap();
    assert!(node.serve(frontends).is_empty());
    let client = TcpStream::connect(address).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    (listener, [client, accepted])
}

fn withdraw(node: &Node) {
    assert!(node.prepare(&BTreeSet::new(), &BTreeSet::new()).is_empty());
    assert!(node.serve(BTreeSet::new()).is_empty());
}

fn is_local(address: &str) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}
