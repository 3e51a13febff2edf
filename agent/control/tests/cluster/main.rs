//! The cluster side against a real API server: `cargo xtask cluster exec` runs this with
//! `KUBECONFIG` set. Every test has namespaces, a GatewayClass, a Mesh and a controller of its own,
//! so that they run in parallel and next to a real agent. Plain `cargo test` and clippy compile
//! them; they are `#[ignore]`d, because a cluster is nothing that every machine has.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests: clippy knows only #[test] functions as such"
)]

mod account;
mod agent;
mod crds;
mod fixture;
mod history;
mod logs;
mod process;
mod shipped;
mod siege;
mod wire;

mod dedicated;
mod draining;
mod endpoints;
mod events;
mod generated;
mod leadership;
mod meshes;
mod outages;
mod parameters;
mod permissions;
mod policies;
mod provisioned;
mod reaching;
mod rivals;
mod route_filters;
mod schema;
mod sources;
mod statuses;
mod tenants;
mod trust_bundles;
