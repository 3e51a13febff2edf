//! Client connections: how they are accepted, the limits they are held to, TLS, the checks of their bytes, and how long they
//! may stay idle.

pub(crate) mod accept;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod frames;
pub(crate) mod gate;
pub(crate) mod guard;
pub(crate) mod outbox;
pub(crate) mod pulse;
pub(crate) mod tls;
pub(crate) mod wire;
pub(crate) mod worker;
