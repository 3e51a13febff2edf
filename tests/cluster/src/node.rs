//! The nodes: their names and addresses.

use std::fmt;
use std::str::FromStr;

/// All addresses exist in the cluster's own network namespaces only. No route leads out. Of each
/// kind there are IPv4 addresses, which are those of the cluster's own parts, and IPv6 ones.
pub(crate) const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
pub(crate) const SERVICES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];

/// By its number. The first one is where the control plane runs, and the way from any node to the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node(u8);

impl Node {
    pub const FIRST: Self = Self(1);
    pub const SECOND: Self = Self(2);
    pub const MOST: u8 = 9;

    /// As many as that, the first one first.
    pub fn some(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(Self)
    }

    pub fn address(self) -> String {
        format!("10.250.0.{}", self.0)
    }

    pub fn ipv6_address(self) -> String {
        format!("fd00:10:250::{}", self.0)
    }

    /// Its pods' addresses.
    pub(crate) fn pods(self) -> [String; 2] {
        let index = self.0 - 1;
        [format!("10.244.{index}.0/24"), format!("fd00:10:244:{index}::/64")]
    }
}

/// `node-1`.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node-{}", self.0)
    }
}

impl FromStr for Node {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::some(Self::MOST).find(|node| node.to_string() == text).ok_or("nodes are node-1 to node-9")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_its_name() {
        for node in Node::some(Node::MOST) {
            assert_eq!(node.to_string().parse(), Ok(node));
        }
        for name in ["node", "node-0", "node-10", "node-02"] {
            assert!(name.parse::<Node>().is_err(), "{name}");
        }
    }

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let of = |node: Node| (node.address(), node.ipv6_address(), node.pods());
        let expected = |address: &str, ipv6: &str, pods: [&str; 2]| {
            (address.to_owned(), ipv6.to_owned(), pods.map(str::to_owned))
        };
        let first = expected("10.250.0.1", "fd00:10:250::1", ["10.244.0.0/24", "fd00:10:244:0::/64"]);
        assert_eq!(of(Node::FIRST), first);
        let second = expected("10.250.0.2", "fd00:10:250::2", ["10.244.1.0/24", "fd00:10:244:1::/64"]);
        assert_eq!(of(Node::SECOND), second);
    }
}
