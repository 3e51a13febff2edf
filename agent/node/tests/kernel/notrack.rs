//! VIP traffic past a rule that drops new connections to Services it does not know, as kube-proxy
//! has one.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use portcullis_model::{FrontendKey, PortKey};
use portcullis_node::notrack::{self, Untracked};
use portcullis_node::vips::addresses;

use crate::support::{Client, isolated, nft};

/// For what is dropped.
const SHORT: Duration = Duration::from_millis(300);
/// For what is let pass: sooner than the kernel asks again.
const SOON: Duration = Duration::from_millis(900);

fn vips(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn set(vips: &BTreeSet<IpAddr>) -> std::io::Result<()> {
    notrack::set(&untracked(vips))
}

fn is_in_force(vips: &BTreeSet<IpAddr>) -> bool {
    notrack::is_in_force(&untracked(vips)).unwrap()
}

fn untracked(vips: &BTreeSet<IpAddr>) -> Untracked {
    Untracked { addresses: vips.clone(), ..Untracked::default() }
}

/// Drops what is new, to whatever address of a Service, where it comes in and where it goes out.
fn drop_services() {
    nft("add table inet proxy");
    for hook in ["input", "output"] {
        nft(&format!("add chain inet proxy {hook} {{ type filter hook {hook} priority 0; }}"));
        nft(&format!("add rule inet proxy {hook} ct state new ip daddr 10.50.0.0/16 drop"));
        nft(&format!("add rule inet proxy {hook} ct state new ip6 daddr fd50::/64 drop"));
    }
}

#[test]
fn vips_are_reached_where_connections_to_unknown_services_are_dropped() {
    isolated(|_| {
        let client = Client::new();
        drop_services();
        let vips = vips(&["10.50.0.1", "fd50::1"]);
        assert!(addresses::make_local(&vips).unwrap().problems.is_empty());
        for vip in &vips {
            let _listener = TcpListener::bind((*vip, 80)).unwrap();
            let address = SocketAddr::new(*vip, 80);
            set(&BTreeSet::new()).unwrap();
            assert!(TcpStream::connect_timeout(&address, SHORT).is_err(), "{vip}: the rule does not drop");
            assert!(client.connect_within(address, SHORT).is_err(), "{vip}: the rule does not drop");
            set(&vips).unwrap();
            assert!(TcpStream::connect_timeout(&address, SOON).is_ok(), "{vip} from the node");
            assert!(client.connect_within(address, SOON).is_ok(), "{vip} from elsewhere");
        }
        let established = TcpListener::bind("10.50.0.1:81").unwrap();
        let before = client.connect_within("10.50.0.1:81".parse().unwrap(), SOON).unwrap();
        let (mut accepted, peer) = established.accept().unwrap();
        assert_eq!(peer.ip().to_string(), "10.99.0.2", "the client's address is kept");
        set(&self::vips(&["10.50.0.1", "10.50.0.2"])).unwrap();
        exchange(&before, &mut accepted);
    });
}

fn exchange(mut client: &TcpStream, server: &mut TcpStream) {
    client.write_all(b"still here").unwrap();
    let mut received = [0; 10];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still here");
}

#[test]
fn nothing_is_left_without_vips_and_others_tables_stay() {
    isolated(|_| {
        nft("add table inet theirs");
        let before = nft("list ruleset");
        set(&vips(&["10.50.0.1", "fd50::1"])).unwrap();
        let table = nft("list table ip portcullis");
        for line in
            ["ip daddr @vips notrack", "ip saddr @vips notrack", "elements = { 10.50.0.1 }", "priority raw"]
        {
            assert!(table.contains(line), "no {line:?} in {table}");
        }
        assert!(nft("list table ip6 portcullis").contains("elements = { fd50::1 }"));
        set(&BTreeSet::new()).unwrap();
        assert_eq!(nft("list ruleset"), before);
    });
}

/// Of an address that another Service has, too, the Gateways' ports only: a service proxy
/// translates the others, and translation needs tracking.
#[test]
fn ports_of_a_shared_address_are_untracked_and_others_translated() {
    isolated(|_| {
        let (client, pod) = (Client::new(), Client::on("pod0", 98));
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let mail: Vec<_> = ["10.98.0.2:25", "[fd98::2]:25"]
            .map(|address| pod.enter(|| TcpListener::bind(address).unwrap()))
            .into();
        drop_services();
        nft("add table inet nat");
        for (chain, hook) in [("pre", "prerouting"), ("out", "output")] {
            nft(&format!("add chain inet nat {chain} {{ type nat hook {hook} priority -100; }}"));
            nft(&format!("add rule inet nat {chain} ip daddr 10.50.0.1 tcp dport 25 dnat ip to 10.98.0.2"));
            nft(&format!("add rule inet nat {chain} ip6 daddr fd50::1 tcp dport 25 dnat ip6 to fd98::2"));
        }
        let vips = vips(&["10.50.0.1", "fd50::1"]);
        assert!(addresses::make_local(&vips).unwrap().problems.is_empty());
        let frontends = vips.iter().map(|vip| FrontendKey::new(*vip, PortKey::tcp(80)));
        let shared = Untracked { frontends: frontends.collect(), ..Untracked::default() };
        notrack::set(&shared).unwrap();
        assert!(notrack::is_in_force(&shared).unwrap());
        for (vip, mail) in vips.iter().zip(&mail) {
            let web = TcpListener::bind((*vip, 80)).unwrap();
            assert!(client.connect_within(SocketAddr::new(*vip, 80), SOON).is_ok(), "{vip}");
            assert!(TcpStream::connect_timeout(&SocketAddr::new(*vip, 80), SOON).is_ok(), "{vip}");
            web.accept().unwrap();
            assert!(client.connect_within(SocketAddr::new(*vip, 25), SOON).is_ok(), "{vip}");
            mail.accept().unwrap();
            assert!(client.connect_within(SocketAddr::new(*vip, 81), SHORT).is_err(), "{vip}: dropped");
        }
    });
}

#[test]
fn rules_that_were_flushed_are_missed() {
    isolated(|_| {
        let both = vips(&["10.50.0.1", "fd50::1"]);
        assert!(is_in_force(&vips(&[])) && !is_in_force(&both));
        set(&both).unwrap();
        assert!(is_in_force(&both));
        nft("flush chain ip6 portcullis output");
        assert!(!is_in_force(&both), "without the rules of a chain");
        set(&both).unwrap();
        nft("flush set ip portcullis vips");
        assert!(!is_in_force(&both), "without addresses");
        set(&both).unwrap();
        nft("flush ruleset");
        assert!(!is_in_force(&both), "as `systemctl reload nftables` leaves it");
    });
}

#[test]
fn ten_thousand_vips_fit() {
    isolated(|_| {
        let many: BTreeSet<IpAddr> =
            (0..10_000_u32).map(|host| IpAddr::from((0x0a32_0000 + host).to_be_bytes())).collect();
        set(&many).unwrap();
        assert!(nft("list set ip portcullis vips").contains("10.50.39.15"));
        assert!(is_in_force(&many), "counted over several messages");
        set(&BTreeSet::new()).unwrap();
    });
}
