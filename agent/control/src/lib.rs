//! The control side: where objects come from, where statuses and generated objects go, and the loop
//! in between. All talk with disks and with an API server is here; what objects mean is
//! `portcullis-gateway`'s business, which also plans what is written.
//!
//! In a cluster, every agent reads, serves, and makes Events of what it cannot serve; all else is
//! written by the one that holds the Lease. Losing the API server, the Lease or the leader stops
//! writing and nothing else.

pub mod applier;
pub mod events;
pub mod infra;
pub mod key_ring;
pub mod kube;
pub mod lease;
pub mod mesh;
pub mod names;
pub mod offline;
pub mod remote;
pub mod source;
pub mod status;
pub mod succession;
pub mod uninstall;
