//! Objects generated for Gateways, in a cluster: what is there is observed, what translation wants
//! is applied, and what could not be had is translation's to know. The reasons for wanting
//! something are `portcullis-gateway`'s business.

mod access;
mod agents;
mod apply;
mod observe;
mod requests;

pub use apply::Generator;
pub(crate) use requests::{read, resource};
