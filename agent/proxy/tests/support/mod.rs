//! A gateway under test with real sockets on loopback: fixtures, an echoing backend, and clients
//! for HTTP/1, HTTP/1 over TLS and HTTP/2 over TLS.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod auth;
pub mod authority;
pub mod backend;
pub mod client;
pub mod fixture;
pub mod guarded;
pub mod l4;
pub mod origin;
pub mod resilience;
pub mod rules;
pub mod settings;
pub mod tls_origin;
pub mod via;
pub mod world;
