//! The same without Helm.

use anyhow::{Result, ensure};

use portcullis_test_cluster::{Check, Cluster};
use portcullis_testbed::workspace;

pub(super) const CHECKS: &[(&str, Check)] =
    &[("the API server takes every object of deploy/kustomize", objects_are_taken)];

/// A trial: the chart's own objects are there.
fn objects_are_taken(cluster: &Cluster) -> Result<()> {
    let kustomize = workspace::root().join("deploy/kustomize").display().to_string();
    let trial = ["apply", "--dry-run=server", "--server-side", "--force-conflicts", "-o", "name"];
    let taken = cluster.kubectl(&[&trial, &["-k", kustomize.as_str()][..]].concat())?;
    for kind in ["daemonset.apps", "clusterrole.rbac.authorization.k8s.io", "gatewayclass.gateway.networking"]
    {
        ensure!(taken.lines().any(|name| name.starts_with(kind)), "no {kind} among {taken}");
    }
    Ok(())
}
