//! The gateway under test in one program: each module's tests are of one subject. A test that
//! counts what its whole process has is a program of its own, next to this directory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod access_log;
mod admission;
mod auth_bodies;
mod authentication;
mod backend_limits;
mod backend_proxy_header;
mod backend_tls;
mod balance;
mod changes;
mod client_address;
mod client_certificates;
mod client_identity;
mod compression;
mod cors;
mod durations;
mod edge;
mod endpoint_checks;
mod exchanges;
mod ext_authz;
mod extended_connect;
mod external_auth;
mod flips;
mod grpc;
mod grpc_calls;
mod grpc_web;
mod hand_over;
mod hostile;
mod l4_tcp;
mod l4_tls;
mod l4_udp;
mod large_bodies;
mod life;
mod limits;
mod listener_limits;
mod loops;
mod nearest;
mod outliers;
mod pace;
mod policy;
mod policy_auth;
mod policy_defaults;
mod proxy_protocol;
mod remote_keys;
mod requests;
mod retry;
mod retry_budget;
mod route_filters;
mod sessions;
mod shared_connections;
mod spread;
mod stalled_uploads;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod tls_options;
mod upstream;
mod vanished;
mod websocket;
mod windows;
