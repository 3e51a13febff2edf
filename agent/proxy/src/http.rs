//! HTTP requests, from their head to the last byte of the response: the edge policy, the decision,
//! the way to a backend or an answer of the gateway's own.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod decide;
pub(crate) mod edge;
pub(crate) mod forward;
pub(crate) mod headers;
pub(crate) mod path;
pub(crate) mod service;
pub(crate) mod upgrade;
