//! VIP traffic past a rule that drops new connections to Services it does not know, as kube-proxy
//! has one.
#![cfg(test)]

#[expect(dead_code, reason = "no datapath is needed")]
mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use portcullis_node::notrack;
use portcullis_node::vips::addresses;
use support::{Client, isolated};

const SHORT: Duration = Duration::from_millis(300);

fn nft(arguments: &str) -> String {
    let output = Command::new("nft").arg(arguments).output().expect("nft (package nftables)");
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn vips(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
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
            notrack::set(&BTreeSet::new()).unwrap();
            assert!(TcpStream::connect_timeout(&address, SHORT).is_err(), "{vip}: the rule does not drop");
            assert!(client.connect_within(address, SHORT).is_err(), "{vip}: the rule does not drop");
            notrack::set(&vips).unwrap();
            assert!(TcpStream::connect_timeout(&address, SHORT).is_ok(), "{vip} from the node");
            assert!(client.connect_within(address, SHORT).is_ok(), "{vip} from elsewhere");
        }
        let established = TcpListener::bind("10.50.0.1:81").unwrap();
        let before = client.connect_within("10.50.0.1:81".parse().unwrap(), SHORT).unwrap();
        let (mut accepted, peer) = established.accept().unwrap();
        assert_eq!(peer.ip().to_string(), "10.99.0.2", "the client's address is kept");
        notrack::set(&self::vips(&["10.50.0.1", "10.50.0.2"])).unwrap();
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
        notrack::set(&vips(&["10.50.0.1", "fd50::1"])).unwrap();
        let table = nft("list table ip portcullis");
        for line in
            ["ip daddr @vips notrack", "ip saddr @vips notrack", "elements = { 10.50.0.1 }", "priority raw"]
        {
            assert!(table.contains(line), "no {line:?} in {table}");
        }
        assert!(nft("list table ip6 portcullis").contains("elements = { fd50::1 }"));
        notrack::set(&BTreeSet::new()).unwrap();
        assert_eq!(nft("list ruleset"), before);
    });
}

#[test]
fn rules_that_were_flushed_are_missed() {
    isolated(|_| {
        let both = vips(&["10.50.0.1", "fd50::1"]);
        assert!(notrack::is_in_force(&vips(&[])).unwrap() && !notrack::is_in_force(&both).unwrap());
        notrack::set(&both).unwrap();
        assert!(notrack::is_in_force(&both).unwrap());
        nft("flush chain ip6 portcullis output");
        assert!(!notrack::is_in_force(&both).unwrap(), "without the rules of a chain");
        notrack::set(&both).unwrap();
        nft("flush ruleset");
        assert!(!notrack::is_in_force(&both).unwrap(), "as `systemctl reload nftables` leaves it");
    });
}

#[test]
fn ten_thousand_vips_fit() {
    isolated(|_| {
        let many: BTreeSet<IpAddr> =
            (0..10_000_u32).map(|host| IpAddr::from((0x0a32_0000 + host).to_be_bytes())).collect();
        notrack::set(&many).unwrap();
        assert!(nft("list set ip portcullis vips").contains("10.50.39.15"));
        notrack::set(&BTreeSet::new()).unwrap();
    });
}
