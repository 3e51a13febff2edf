//! HTTP requests, from their head to the last byte of the response: the edge policy, the decision,
//! the way to a backend or an answer of the gateway's own.
//!
//! HTTP/1 is read and written in `h1` as far as it is certain, and else by the HTTP library, to
//! which `detour` leads and from which it leads back; HTTP/2 in `h2`. Either way, requests to which
//! nothing happens but an edit of their heads are `plain`; `service`, `forward`, `body` and
//! `upgrade` have all others, as messages of the `http` crate. All that is decided, changed,
//! counted and logged is in the other files, which know nothing of parsers: they take any
//! [`Head`](crate::core::head::Head).

pub(crate) mod answer;
pub(crate) mod auth;
pub(crate) mod authenticate;
pub(crate) mod body;
pub(crate) mod change;
pub(crate) mod client_stream;
pub(crate) mod compress;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod date;
pub(crate) mod decide;
pub(crate) mod detour;
pub(crate) mod edge;
pub(crate) mod encoder;
pub(crate) mod forward;
pub(crate) mod grpc;
pub(crate) mod grpc_web;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod headers;
pub(crate) mod host_value;
pub(crate) mod library;
pub(crate) mod loops;
pub(crate) mod path;
pub(crate) mod plain;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod rate_limit;
pub(crate) mod request_id;
pub(crate) mod router;
pub(crate) mod search_time;
pub(crate) mod sender;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod steps;
pub(crate) mod templates;
pub(crate) mod tunnels;
pub(crate) mod upgrade;
pub(crate) mod websocket;
