//! Bytes and datagrams that are passed on between a client and a backend as they are.

pub(crate) mod copy;
pub(crate) mod forward;
pub(crate) mod side;
pub(crate) mod splice;
pub(crate) mod streams;
pub(crate) mod target;
pub(crate) mod tunnel;
pub(crate) mod udp;
