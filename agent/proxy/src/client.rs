//! Client connections: how they are accepted, the limits they are held to, TLS, the checks of their
//! bytes, and how long they may stay idle.

pub(crate) mod accept;
pub(crate) mod budget;
pub(crate) mod client_certificates;
pub(crate) mod client_identity;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod connection_limit;
pub(crate) mod exchange;
pub(crate) mod frame_budget;
pub(crate) mod framing;
pub(crate) mod hello;
pub(crate) mod listener;
pub(crate) mod open_limit;
pub(crate) mod pace;
pub(crate) mod progress;
pub(crate) mod proxy_header;
pub(crate) mod server_name;
pub(crate) mod stream;
pub(crate) mod tickets;
pub(crate) mod times;
pub(crate) mod tls;
pub(crate) mod turns;
pub(crate) mod write_buffer;
