//! Addresses and frontends of the model as the maps hold them.

use std::net::IpAddr;

use portcullis_common::abi::{self, Address};
use portcullis_model::{FrontendKey, L4Protocol};

pub(crate) fn key(frontend: &FrontendKey) -> abi::FrontendKey {
    let protocol = match frontend.protocol {
        L4Protocol::Tcp => abi::TCP,
        L4Protocol::Udp => abi::UDP,
    };
    abi::FrontendKey::new(protocol, address(frontend.address), frontend.port)
}

pub(crate) fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}
