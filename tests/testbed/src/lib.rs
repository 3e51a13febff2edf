//! The product from outside, for all that run it: the demo, the benchmarks, the tests in network
//! namespaces. Starts agents, backends and certificate authorities, each with files of its own, and
//! leaves nothing behind. Knows the agent's command line and its admin socket, none of its crates.

mod admin;
mod agent;
mod backend;
pub mod build;
pub mod cargo_tool;
mod certificate;
pub mod command;
mod connection;
pub mod go;
pub mod helm;
mod leftovers;
pub mod paths;
pub mod quickstart;
mod tls;
pub mod versions;
mod wait;
pub mod workspace;

pub use admin::get;
pub use agent::{Agent, Datapath, Launch};
pub use backend::Backend;
pub use certificate::{Authority, Certificate};
pub use connection::{Answer, Connection};
pub use leftovers::{pin_directory, remove_leftovers};
pub use tls::{Refusal, TlsClient, TlsStream, refusal};
pub use wait::until;
