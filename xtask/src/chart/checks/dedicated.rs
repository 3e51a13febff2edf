//! A Gateway with pods of its own.

use anyhow::{Result, ensure};

use super::SCALING;
use super::client::PODS;
use super::words::{apply, field, is_local};
use crate::cluster::{Check, Cluster, wait};

const MANIFESTS: &str = "dedicated.yaml";

pub(super) const CHECKS: &[(&str, Check)] = &[(
    "a Gateway has pods of its own, with the specification's autoscaler and disruption budget",
    pods_serve,
)];

/// The manifests of GEP-1762 name a class `example` and no namespace.
fn pods_serve(cluster: &Cluster) -> Result<()> {
    apply(cluster, MANIFESTS)?;
    for (object, path, value) in [
        ("hpa/gateway", "{.status.conditions[?(@.type=='AbleToScale')].status}", "True"),
        ("deployment/gateway-example", "{.status.availableReplicas}", "2"),
        ("pdb/gateway", "{.status.expectedPods}", "2"),
        ("pdb/gateway", "{.status.currentHealthy}", "2"),
        ("gateway/gateway", "{.status.conditions[?(@.type=='Programmed')].status}", "True"),
    ] {
        wait::until_true(&format!("{object} {path} is {value}"), SCALING, || {
            field(cluster, object, path).is_ok_and(|found| found == value)
        })?;
    }
    let vip = field(cluster, "gateway/gateway", "{.status.addresses[0].value}")?;
    for node in cluster.nodes() {
        ensure!(!is_local(cluster, node, &vip), "{vip} is served on {node}, too");
    }
    for pod in PODS {
        let answer = pod.await_answer(cluster, &format!("http://{vip}/from-a-pod"))?;
        ensure!(answer.contains("/from-a-pod"), "unexpected answer: {answer}");
    }
    Ok(())
}
