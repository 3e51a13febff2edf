//! A network for each test: client – node – backends, each in a network namespace of its own, and
//! the real agent with its kernel programs on the node. Needs root, and says so without.
//!
//! ```text
//! client 10.1.0.2 ──veth── 10.1.0.1 node 10.2.0.1 ──veth── 10.2.0.2, 10.2.0.3 backends
//!                          VIP 10.9.0.1, which the agent makes local
//! ```

mod client;
pub mod foreign;
mod load;
mod namespace;
mod probe;
mod scenario;

pub use client::{Answer, Request, VIP};
pub use load::Load;
pub use namespace::Namespace;
pub use probe::Probe;
pub use scenario::{CLIENT_INTERFACE, Scenario};

/// A listener of TCP and one of UDP at [`VIP`], whose backend is in the namespace behind the node.
pub const GATEWAY_OF_STREAMS: &str = include_str!("../gateway-of-streams.yaml");
