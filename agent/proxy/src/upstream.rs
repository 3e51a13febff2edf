//! Backends: their endpoints, the connections to them, and the attempts at getting a response.

pub(crate) mod attempt;
pub(crate) mod balance;
pub(crate) mod dedicated;
pub(crate) mod dial;
pub(crate) mod discard;
pub(crate) mod endpoint;
pub(crate) mod extended_connect;
pub(crate) mod health;
pub(crate) mod hops;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod key_sets;
pub(crate) mod mirror;
pub(crate) mod plain;
pub(crate) mod pool;
pub(crate) mod proxy_header;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod stall;
pub(crate) mod stream;
pub(crate) mod tls;
