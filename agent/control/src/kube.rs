//! A cluster as source and as sink: objects come from an API server, statuses and generated objects
//! go there. What objects mean is `portcullis-gateway`'s business, which also plans what is
//! written; here are watches, requests and retries.
//!
//! Every agent reads, serves, and says by Events what it cannot serve; all else is written by the
//! one that holds the Lease. Losing the API server, the Lease or the leader stops writing and
//! nothing else.

use std::error::Error;

mod backoff;
mod client;
mod delete;
mod dispute;
mod events;
#[cfg(test)]
mod fake;
mod fetch;
mod generate;
mod last_good;
mod lease;
mod listings;
mod log_once;
mod manifest;
mod merge;
mod mesh;
mod pace;
mod pods;
mod read_log;
mod served;
mod source;
mod status_queue;
mod succession;
mod uninstall;
mod watch;
mod writer;

pub use ::kube::Client;
pub use client::{ConnectError, connect, connect_for_command};
pub use events::Announcer;
pub use generate::Generator;
pub use last_good::LastGood;
pub use lease::{Elector, Timing};
pub use mesh::{Mesh, MeshState};
pub use source::{KubeSource, SourceOptions};
pub use status_queue::StatusQueue;
pub use succession::Succession;
pub use uninstall::{Installation, uninstall};
pub use writer::StatusWriter;

/// The field manager of everything we write.
const FIELD_MANAGER: &str = portcullis_gateway::infra::MANAGER;

/// The status code of the API server's answer, if it answered.
fn code(error: &::kube::Error) -> Option<u16> {
    match error {
        ::kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The API server's own words, or else everything that led to not having any.
fn problem(error: &(dyn Error + 'static)) -> String {
    if let Some(status) = answered(error).filter(|status| !status.message.is_empty()) {
        return status.message.clone();
    }
    let mut text = String::new();
    for words in chain(error).map(ToString::to_string) {
        if !text.contains(&words) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{words}");
        }
    }
    text
}

/// The API server's answer that led to an error, if there was one.
fn answered<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e ::kube::core::Status> {
    let statuses = chain(error).filter_map(|error| match error.downcast_ref() {
        Some(::kube::Error::Api(status)) => Some(&**status),
        _ => None,
    });
    statuses.last()
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}
