//! The user-space data plane: accepts connections, terminates TLS, routes and forwards HTTP, and
//! forwards connections and datagrams as they are.
//!
//! One OS thread per core, each with its own single-threaded runtime, its own listening sockets,
//! connection pools and counters. A core learns of the world through the
//! [`Snapshot`](portcullis_model::Snapshot)s it is given and never shares mutable state with
//! another core, so nothing on the request path takes a lock. This crate knows neither Kubernetes
//! nor eBPF: in [`SocketMode::Steered`] kernel programs bring the connections of every port to the
//! sockets of [`Proxy::sockets`].
//!
//! The folders are layers; each uses those below it only, and no file is part of an import circle:
//!
//! | layer | |
//! |---|---|
//! | `proxy`, `thread` | the handle, and the thread of a core, which puts the parts together |
//! | `fuzzing` | parsers of all layers, as `tests/fuzz` runs them; a feature that is off |
//! | `command`, `spread` | what a core is told, and which core serves a connection |
//! | `http` | requests: edge policy, decision, forwarding, own answers |
//! | `l4` | connections and datagrams forwarded as they are |
//! | `client`, `upstream` | connections from clients and to backends; neither knows the other |
//! | `export` | what goes to a collector |
//! | `log`, `trace` | access logs; traces and their spans |
//! | `core` | clock, counters, settings, the current snapshot |

mod client;
mod command;
mod core;
mod export;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod l4;
mod log;
mod proxy;
mod spread;
mod thread;
mod trace;
mod upstream;

pub use crate::core::durations::{DurationStats, ListenerDurations, RequestStats, RouteName};
pub use crate::core::ending::Ending;
pub use crate::core::histogram::Histogram;
pub use crate::core::ordinary_file::read_ordinary_file;
pub use crate::core::otlp::{Collector, Otlp, Parents, Traces};
pub use crate::core::reason::Reason;
pub use crate::core::settings::{
    Http1, L4, LogFile, LogOutput, Measure, MinimumRate, Placement, Settings, SocketMode, Upstream,
};
pub use crate::core::socket::{CoreSockets, Sockets};
pub use crate::core::stats::{
    AuthOutcome, BackendStats, BudgetStats, ExceededLimit, ExportStats, Forwarded, GatewayStats,
    HandshakeFailure, KeySetStats, ListenerStats, Mirrored, NotAdmitted, Stats, TraceStats,
};
pub use crate::http::edge::{bare_host, check_method};
pub use crate::http::headers::{is_claim, is_seen};
pub use crate::http::path::normalise as normalise_path;
pub use crate::http::search_time::search_limit;
pub use crate::proxy::{CORE_THREAD, Proxy, StartError};
pub use crate::trace::span::Value as SpanValue;
pub use crate::trace::watch::{WatchEnd, WatchedFor, WatchedPath, WatchedRequest, WatchedStep};
