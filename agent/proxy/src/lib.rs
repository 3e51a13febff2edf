//! The user-space data plane: accepts connections, terminates TLS, routes and forwards HTTP.
//!
//! One OS thread per core, each with its own single-threaded runtime, its own listening sockets, connection pools and
//! counters. A core learns of the world through the [`Snapshot`](portcullis_model::Snapshot)s it is given and never shares
//! mutable state with another core, so nothing on the request path takes a lock. This crate knows neither Kubernetes nor
//! eBPF: in [`SocketMode::Steered`] somebody else brings connections for every port to the sockets of [`Proxy::sockets`].

mod client;
mod core;
mod http;
mod log;
mod proxy;
mod thread;
mod upstream;

pub use crate::core::reason::Reason;
pub use crate::core::settings::{LogOutput, Settings, SocketMode, Upstream};
pub use crate::core::socket::CoreSockets;
pub use crate::core::stats::{GatewayStats, HandshakeFailure, ListenerStats, Refusal, Stats};
pub use crate::http::path::normalise as normalise_path;
pub use crate::proxy::{CORE_THREAD, Proxy, StartError};
pub use crate::thread::Unbound;
