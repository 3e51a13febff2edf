//! The admin endpoints of an agent, and asking them. They are on a unix socket, and on a port of
//! loopback if asked for; nothing here can change what is served.

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod browsers;
pub(crate) mod client;
pub(crate) mod endpoints;
mod hosts;
mod page;
pub(crate) mod server;
pub(crate) mod sources;
mod taken;
pub(crate) mod watch;
