//! Addresses that no user may claim or be forwarded to.

use std::net::IpAddr;

/// Addresses that mean the machine itself, its link, or none in particular.
pub(crate) fn is_special(address: &IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    is_of_link || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}
