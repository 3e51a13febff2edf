//! VIPs on loopback, in a network namespace.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};

use portcullis_node::vips::addresses::{make_local, remove_all, retain};

use crate::support::{ip, isolated};

fn vips(addresses: &[&str]) -> BTreeSet<IpAddr> {
    addresses.iter().map(|address| address.parse().unwrap()).collect()
}

fn is_local(address: &str) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}

#[test]
fn vips_become_local_once_and_go_again() {
    isolated(|_| {
        let first = make_local(&vips(&["10.50.0.1", "fd50::1"])).unwrap();
        assert!(first.problems.is_empty(), "{:?}", first.problems);
        assert_eq!(first.added.len(), 2);
        assert!(is_local("10.50.0.1") && is_local("fd50::1"));

        let same = make_local(&vips(&["10.50.0.1", "fd50::1"])).unwrap();
        assert!(same.added.is_empty() && same.removed.is_empty(), "{same:?}");

        ip("addr del 10.50.0.1/32 dev lo");
        let again = make_local(&vips(&["10.50.0.1", "fd50::1"])).unwrap();
        assert_eq!(again.added, vec!["10.50.0.1".parse::<IpAddr>().unwrap()], "what another program removed");

        let wanted = vips(&["10.50.0.2", "fd50::1"]);
        let added = make_local(&wanted).unwrap();
        assert_eq!(added.added, vec!["10.50.0.2".parse::<IpAddr>().unwrap()]);
        assert!(is_local("10.50.0.2") && is_local("10.50.0.1"), "both, until the new one is served");
        let left = retain(&wanted).unwrap();
        assert_eq!(left.removed, vec!["10.50.0.1".parse::<IpAddr>().unwrap()]);
        assert!(is_local("10.50.0.2") && !is_local("10.50.0.1"));

        assert_eq!(remove_all().unwrap().removed.len(), 2);
        assert!(!is_local("10.50.0.2") && !is_local("fd50::1"));
    });
}

#[test]
fn addresses_of_the_node_are_left_alone() {
    isolated(|_| {
        ip("addr add 10.60.0.1/32 dev lo");
        let changes = make_local(&vips(&["10.60.0.1", "127.0.0.5", "0.0.0.0"])).unwrap();
        assert!(changes.added.is_empty() && changes.problems.is_empty(), "{changes:?}");
        assert!(remove_all().unwrap().removed.is_empty());
        assert!(is_local("10.60.0.1"));
    });
}
