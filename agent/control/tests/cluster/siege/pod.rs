//! A network namespace with a pod's address, and the node's end of the wire to it. An address of
//! the node's own would be no backend.

use std::net::{TcpListener, UdpSocket};
use std::process::Command;

use super::node;

/// No object of the cluster has it.
pub(super) const POD: &str = "10.244.0.250";
/// No object of the cluster says that it is the node's: neither of a range of pods nor in a status.
pub(super) const NODES_END: &str = "10.253.0.1";

const NAME: &str = "siege";

/// Once for all sieges of the cluster, whose end takes it away.
pub(super) fn create() {
    if ip(&["link", "show", NAME]) {
        return;
    }
    // Of a cluster that was killed.
    ip(&["netns", "delete", NAME]);
    let nodes = &format!("{NODES_END}/32");
    let pods = &format!("{POD}/32");
    for arguments in [
        &["netns", "add", NAME][..],
        &["link", "add", NAME, "type", "veth", "peer", "name", "eth0", "netns", NAME],
        &["address", "add", nodes, "dev", NAME],
        &["link", "set", NAME, "up"],
        &["route", "add", pods, "dev", NAME],
        &["-n", NAME, "address", "add", pods, "dev", "eth0"],
        &["-n", NAME, "link", "set", "lo", "up"],
        &["-n", NAME, "link", "set", "eth0", "up"],
        &["-n", NAME, "route", "add", "default", "via", NODES_END, "dev", "eth0", "onlink"],
    ] {
        assert!(ip(arguments), "ip {arguments:?}");
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output().unwrap();
    output.status.success()
}

/// A listener on a port of the pod's.
pub(super) fn listener() -> TcpListener {
    inside(|| TcpListener::bind((POD, 0)).unwrap())
}

/// The same for datagrams.
pub(super) fn datagrams() -> UdpSocket {
    inside(|| UdpSocket::bind((POD, 0)).unwrap())
}

fn inside<T: Send>(bind: impl FnOnce() -> T + Send) -> T {
    let bind = || {
        node::enter(NAME);
        bind()
    };
    std::thread::scope(|scope| scope.spawn(bind).join()).unwrap()
}
