//! Netlink as far as it is needed.

pub(crate) mod addresses;
