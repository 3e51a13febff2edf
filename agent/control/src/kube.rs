//! The API server, as everything that reads from it or writes to it needs it: the connection, which
//! kinds it serves, when to ask again, and what its answers mean. It knows none of our objects.

pub(crate) mod backoff;
pub(crate) mod delete;
pub(crate) mod discovery;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod listing;
pub(crate) mod manifest;
pub(crate) mod read_log;
pub(crate) mod reverts;

mod answer;
mod client;
mod outage;

pub use ::kube::Client;
pub(crate) use answer::{answered, code, is_unanswered, problem, watch_code, wording};
pub use client::{
    ConnectError, api_server_addresses, connect, connect_as_user, connect_for_command, connect_watched,
    follow_api_server,
};
pub use outage::Contact;

/// The field manager of everything we write.
pub(crate) const FIELD_MANAGER: &str = portcullis_gateway::infra::MANAGER;
