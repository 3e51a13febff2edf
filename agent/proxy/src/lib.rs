//! The user-space data plane: accepts connections, terminates TLS, routes and forwards HTTP.
//!
//! One OS thread per core, each with its own single-threaded runtime, its own listening sockets, connection pools and
//! counters. A core learns of the world through the [`Snapshot`](portcullis_model::Snapshot)s it is given and never shares
//! mutable state with another core, so nothing on the request path takes a lock. This crate knows neither Kubernetes nor
//! eBPF: in [`SocketMode::Steered`] somebody else brings connections for every port to the sockets of [`Proxy::sockets`].

mod accept;
mod access_log;
mod answer;
mod attempt;
mod body;
mod clients;
mod clock;
mod connection;
mod core;
mod decide;
mod edge;
mod endpoint;
mod forward;
mod frames;
mod gate;
mod guard;
mod headers;
mod multiplex;
mod outbox;
mod path;
mod pool;
mod proxy;
mod pulse;
mod reason;
mod record;
mod service;
mod settings;
mod socket;
mod stats;
mod tls;
mod upgrade;
mod upload;
mod vital;
mod wire;
mod worker;

pub use crate::core::Unbound;
pub use path::normalise as normalise_path;
pub use proxy::{CORE_THREAD, Proxy, StartError};
pub use reason::Reason;
pub use settings::{LogOutput, Settings, SocketMode, Upstream};
pub use socket::CoreSockets;
pub use stats::{GatewayStats, HandshakeFailure, ListenerStats, Refusal, Stats};
