//! The packet guard: parse → look up → act. Only the destination decides, so replies, forwarded
//! traffic and everything that is not addressed to a VIP are left to the kernel.

use crate::abi::{Address, FrontendKey, VIP_EXCLUSIVE};
use crate::packet::{self, Frame, Headers, Network, Payload};
use crate::reason::Reason;

/// The maps the guard reads.
pub trait Tables {
    /// [`crate::abi::VIPS`]: is the address a VIP, and is it exclusive?
    fn vip(&self, address: &Address) -> Option<u32>;
    /// [`crate::abi::FRONTENDS`]: the listener group of a frontend, exact match.
    fn frontend(&self, key: &FrontendKey) -> Option<u32>;
}

/// The treatment of a frame, as the reason for it.
#[inline(always)]
pub fn verdict(frame: &(impl Frame + ?Sized), tables: &impl Tables) -> Reason {
    let network = match packet::parse(frame) {
        Headers::NotIp => return Reason::PassedNotIp,
        Headers::Malformed => return Reason::PassedMalformed,
        Headers::Ip(network) => network,
    };
    match tables.vip(&network.destination) {
        None => Reason::PassedNotVip,
        Some(flags) => to_vip(frame, tables, &network, flags),
    }
}

/// The listener group of a frontend; the exact address goes before the wildcard of its family.
#[inline(always)]
pub fn listener_group(tables: &impl Tables, key: &FrontendKey) -> Option<u32> {
    match tables.frontend(key) {
        None => tables.frontend(&key.wildcard()),
        found => found,
    }
}

#[inline(always)]
fn to_vip(frame: &(impl Frame + ?Sized), tables: &impl Tables, network: &Network, flags: u32) -> Reason {
    let (protocol, offset) = match network.payload {
        Payload::Icmp => return Reason::PassedIcmp,
        Payload::Fragment => return Reason::PassedFragment,
        Payload::Extension => return Reason::PassedExtension,
        Payload::Other => return Reason::PassedOtherProtocol,
        Payload::Transport { protocol, offset } => (protocol, offset),
    };
    let Some(port) = packet::destination_port(frame, offset) else { return Reason::PassedMalformed };
    match listener_group(tables, &network.frontend(protocol, port)) {
        Some(_) => Reason::PassedListener,
        None if flags == VIP_EXCLUSIVE => Reason::DroppedNoListener,
        None => Reason::PassedSharedAddress,
    }
}
