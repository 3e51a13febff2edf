//! The cluster side against a real API server: `cargo xtask cluster exec` runs this with `KUBECONFIG` set. Every test has
//! namespaces, a GatewayClass, a Mesh and a controller of its own, so that they run in parallel and next to a real agent.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests: clippy knows only #[test] functions as such"
)]

mod agent;
mod fixture;

mod generated;
mod leadership;
mod meshes;
mod sources;
mod statuses;
