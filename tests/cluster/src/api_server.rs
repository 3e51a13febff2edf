//! The tests of `portcullis-control` that `cargo test` leaves out: they need an API server, so
//! cargo runs them inside the cluster's namespaces.

use std::process::id;

use anyhow::Result;
use portcullis_testbed::{command, workspace};

use crate::boot::{Cluster, Options};
use crate::layout::Layout;

/// Each of these tests has an agent and objects of its own; more at once wait for one API server.
const THREADS: &str = "--test-threads=3";
/// Looks like a test and is none: other tests start it as a process.
const NO_TEST: &str = "--skip=process::agent_of_another_test";

pub(crate) fn test(layout: Layout) -> Result<()> {
    let options = Options { nodes: 2, ..Options::default() };
    let cluster = Cluster::obtain(layout, &options)?;
    for crds in ["deploy/crds", "deploy/helm/portcullis/files"] {
        cluster.install_crds(&workspace::root().join(crds))?;
    }
    // Not the path of this program: cargo may replace it.
    let runner = format!("target.'cfg(all())'.runner=['/proc/{}/exe', 'exec']", id());
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast", "--test", "cluster"]);
    cargo.args(["--config", &runner]).env("PORTCULLIS_CLUSTER", cluster.layout().directory());
    command::run(cargo.args(["--", "--ignored", THREADS, NO_TEST]))
}
