//! A Gateway with pods of its own.

use anyhow::{Result, ensure};
use portcullis_test_cluster::{Check, Cluster, wait};
use portcullis_testbed::workspace;

use super::SCALING;
use super::client::PODS;
use super::words::{apply, apply_elsewhere, field, is_local};
use crate::TESTED;

const MANIFESTS: &str = "dedicated.yaml";
const KEYS_MANIFESTS: &str = "keys.yaml";

/// With a certificate, in another namespace than the Gateway.
pub(super) const KEYS: &str = "chart-test-keys";
/// Of a test certificate, relative to the workspace; the endings are added.
const CERTIFICATE: &str = "agent/gateway/tests/cases/certificates/a";

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a Gateway has pods of its own, with the specification's autoscaler and disruption budget", pods_serve),
    ("its pods serve HTTPS with a certificate of another namespace that grants it", pods_serve_https),
    ("its pods' account may read that certificate and no other Secret", account_reads_one_secret),
];

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

/// The pods read the certificate a little after it is there.
fn pods_serve_https(cluster: &Cluster) -> Result<()> {
    let file = |ending: &str| workspace::root().join(format!("{CERTIFICATE}.{ending}")).display().to_string();
    let (certificate, key) = (format!("--cert={}", file("crt")), format!("--key={}", file("key")));
    apply_elsewhere(cluster, KEYS_MANIFESTS)?;
    let create = ["create", "secret", "tls", "certificate", "--namespace", KEYS, &certificate, &key];
    cluster.kubectl(&create)?;
    let vip = field(cluster, "gateway/gateway", "{.status.addresses[0].value}")?;
    for pod in PODS {
        let answer = pod.await_answer(cluster, &format!("https://{vip}/by-tls"))?;
        ensure!(answer.contains("/by-tls"), "unexpected answer: {answer}");
    }
    Ok(())
}

/// So may users who can run pods in the Gateway's namespace.
fn account_reads_one_secret(cluster: &Cluster) -> Result<()> {
    let account = format!("--as=system:serviceaccount:{TESTED}:gateway-example");
    let may = |verb: &str, what: &str, place: &[&str]| {
        // Says no by its exit status, too.
        let arguments = [&["auth", "can-i", verb, what, &account], place].concat();
        cluster.kubectl(&arguments).is_ok_and(|answer| answer.trim() == "yes")
    };
    ensure!(may("get", "secrets/certificate", &["--namespace", KEYS]), "it cannot read its certificate");
    ensure!(!may("get", "secrets/other", &["--namespace", KEYS]), "it can read others of that namespace");
    for (verb, what) in
        [("get", "secrets/any"), ("list", "secrets"), ("watch", "secrets"), ("list", "configmaps")]
    {
        for place in [["--namespace", TESTED].as_slice(), &["--namespace", KEYS], &["--all-namespaces"]] {
            ensure!(!may(verb, what, place), "it may {verb} {what} {place:?}");
        }
    }
    Ok(())
}
