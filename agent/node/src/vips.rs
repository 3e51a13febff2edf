//! The addresses of this node's Gateways.

pub mod addresses;
