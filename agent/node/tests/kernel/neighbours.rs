//! VIPs in the network of the node itself, as a load balancer announces them from one of the nodes:
//! whether neighbours learn them from this one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use portcullis_node::vips::{Arp, Everywhere, Tracking};
use portcullis_node::{Choice, Interfaces, Node, Settings, clean};

use crate::support::{Client, ip, isolated, nft, tcp};

/// On the link to the client.
const VIPS: [&str; 2] = ["10.99.0.50:80", "[fd99::50]:80"];
const SHORT: Duration = Duration::from_millis(300);

fn node(arp: Arp) -> Node {
    let settings = Settings {
        steering: Choice::Sockets,
        pin_dir: "/nonexistent".into(),
        interfaces: Interfaces::None,
        name_interfaces: Interfaces::None,
        unknown_names: None,
        tracking: Tracking::Off,
        arp,
        syn_hold: None,
        everywhere: Everywhere::Interfaces,
        forwarding: None,
        drain: Duration::ZERO,
        locks: Arc::default(),
    };
    Node::open(&settings).unwrap()
}

/// Addresses the client has learnt the place of.
fn neighbours(client: &Client) -> String {
    client.enter(|| ip("neigh show dev client0"))
}

#[test]
fn nobody_learns_a_vip_from_a_node() {
    isolated(|_| {
        let client = Client::new();
        let node = node(Arp::Ignored);
        let refused = node.prepare(&VIPS.map(tcp).into(), &BTreeSet::new());
        assert!(refused.is_empty(), "{refused:?}");
        let listening = VIPS.map(|vip| TcpListener::bind(vip).unwrap());
        for vip in VIPS.map(|vip| vip.parse::<SocketAddr>().unwrap()) {
            assert!(client.connect_within(vip, SHORT).is_err(), "{vip} was announced");
        }
        // What is routed to the node arrives, and is answered without telling the VIP's place.
        client.enter(|| ip("route add 10.99.0.50/32 via 10.99.0.1"));
        client.enter(|| ip("route add fd99::50/128 via fd99::1"));
        client.enter(|| ip("neigh flush dev client0"));
        for (vip, listener) in VIPS.into_iter().zip(&listening) {
            ip("neigh flush dev node0");
            let connection = client.connect(vip.parse().unwrap()).unwrap();
            listener.accept().unwrap();
            drop(connection);
        }
        let learnt = neighbours(&client);
        assert!(learnt.contains("10.99.0.1 ") && learnt.contains("fd99::1 "), "{learnt}");
        assert!(!learnt.contains("10.99.0.50 lladdr") && !learnt.contains("fd99::50 lladdr"), "{learnt}");
        assert!(nft("list table arp portcullis").contains("10.99.0.50"));
        clean(Path::new("/nonexistent"));
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn a_node_answers_where_it_is_asked_to() {
    isolated(|_| {
        let client = Client::new();
        let node = node(Arp::Answered);
        assert!(node.prepare(&VIPS.map(tcp).into(), &BTreeSet::new()).is_empty());
        let _listening = VIPS.map(|vip| TcpListener::bind(vip).unwrap());
        client.connect(VIPS[0].parse().unwrap()).unwrap();
        assert!(neighbours(&client).contains("10.99.0.50 lladdr"));
    });
}

/// kube-vip puts the address on an interface of the node that leads, and takes it away again.
#[test]
fn an_address_that_another_program_announces_here_is_answered_for() {
    isolated(|_| {
        let client = Client::new();
        let node = node(Arp::Ignored);
        let wanted = VIPS.map(tcp).into();
        assert!(node.prepare(&wanted, &BTreeSet::new()).is_empty());
        let _listening = VIPS.map(|vip| TcpListener::bind(vip).unwrap());
        ip("addr add 10.99.0.50/32 dev node0");
        node.tend();
        client.connect(VIPS[0].parse().unwrap()).unwrap();
        let vip: IpAddr = "10.99.0.50".parse().unwrap();
        assert!(!nft("list ruleset").contains(&vip.to_string()), "its connections are tracked, too");
    });
}
