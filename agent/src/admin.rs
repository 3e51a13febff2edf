//! The admin endpoints of an agent, and asking them. They are on a unix socket, and on a port of
//! loopback if asked for; nothing here can change anything.

pub(crate) mod access;
pub(crate) mod client;
pub(crate) mod endpoints;
mod hosts;
pub(crate) mod server;
