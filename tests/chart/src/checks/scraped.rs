//! Metrics as a Prometheus reads them that is in no node's network namespace.

use anyhow::{Result, ensure};
use portcullis_test_cluster::{Check, Cluster};
use portcullis_testbed::command;

use super::client::{Client, PODS};
use crate::{Installed, NAMESPACE};

pub(super) const CHECKS: &[(&str, Check)] =
    &[("each node's metrics are read from elsewhere, by those who have the token", metrics_need_the_token)];

/// The Secret with the token, which the chart's pods mount.
pub(super) const MANIFESTS: &str = "scrapers.yaml";
const TOKEN: &str = "let-prometheus-in";
const PORT: u16 = 9271;

/// Values of the chart, before those that are given.
pub(super) fn with_metrics(installed: &Installed) -> Installed {
    let mut set = ["metrics.address=0.0.0.0", "metrics.tokenSecret=scrapers"].map(str::to_owned).to_vec();
    set.extend_from_slice(&installed.set);
    Installed { set, ..installed.clone() }
}

pub(super) fn forget_the_token(cluster: &Cluster) -> Result<()> {
    let delete = ["delete", "--ignore-not-found", "--namespace", NAMESPACE, "secret/scrapers"];
    cluster.kubectl(&delete).map(drop)
}

fn metrics_need_the_token(cluster: &Cluster) -> Result<()> {
    for (node, client) in cluster.nodes().flat_map(|node| [(node, PODS[0]), (node, Client::Outside)]) {
        let url = format!("http://{}:{PORT}/metrics", node.address());
        let scraped = scrape(cluster, client, &url, TOKEN)?;
        ensure!(scraped.ends_with("\n200"), "{url}: {scraped}");
        ensure!(
            scraped.contains("gateway=\"chart-test/web\""),
            "{url} does not tell of chart-test/web: {scraped}"
        );
        let refused = scrape(cluster, client, &url, "let-me-in")?;
        ensure!(refused.ends_with("\n401") && !refused.contains("gateway="), "{url}: {refused}");
    }
    Ok(())
}

/// The answer, with its status as the last line.
fn scrape(cluster: &Cluster, client: Client, url: &str, token: &str) -> Result<String> {
    let mut curl = client.command(cluster, "curl")?;
    curl.args(["-sS", "--max-time", "5", "--write-out", "\n%{http_code}", "-H"]);
    command::output(curl.arg(format!("authorization: Bearer {token}")).arg(url))
}
