//! The release that our CRDs are of, where it is newer than the test cluster's suite: its tests
//! that this suite has not, and the features that only it knows. They are claimed, so they are
//! tested: on the same cluster, with the CRDs as they are shipped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use portcullis_test_cluster::{Cluster, wait};
use portcullis_testbed::workspace;

use super::inventory::{Inventory, News};
use super::outcome::Outcome;
use super::profile::{self, Run};
use super::suite::{self, Objects};
use super::{Args, Gateway, newer};

/// As they are shipped, and one that every release has.
const CRDS: &str = "deploy/crds";
const CRD: &str = "deploy/crds/gateway.networking.k8s.io_gateways.yaml";
const VERSION: &str = "gateway.networking.k8s.io/bundle-version:";

/// Of the suite's namespaces, and the time for them to go.
const LABEL: &str = "gateway-conformance";
const GONE: Duration = Duration::from_secs(120);

pub(super) struct Successor {
    version: String,
    suite: PathBuf,
}

impl Successor {
    /// Builds its suite, if that is another one than the cluster's and everything is to be tested.
    pub(super) fn build(args: &Args) -> Result<Option<Self>> {
        let as_published = args.suite_version.is_none() && args.supported_features.is_none();
        let version = release_of_crds()?;
        let is_other = version != portcullis_test_cluster::suite_version()?;
        if !(args.all && args.run_test.is_none() && as_published && is_other) {
            return Ok(None);
        }
        let suite = newer::build(&version)?;
        Ok(Some(Self { version, suite }))
    }

    /// Runs what is new; every test of it has to pass, and every new name that is claimed needs
    /// one.
    pub(super) fn test(
        &self,
        cluster: &Cluster,
        gateway: &Gateway,
        args: &Args,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let news = self.news(cluster)?;
        namespaces_gone(cluster)?;
        let _agent = gateway.start(cluster, &workspace::root().join(CRDS))?;
        let claimed = profile::claims(cluster, args)?;
        let names = news.features(&claimed).join(", ");
        println!(
            "conformance: new in {}: {} tests; claimed of its names: {names}",
            self.version,
            news.count()
        );
        let run = Run { tests: news.tests().map(str::to_owned).collect(), ..Run::of(profile::all()) };
        suite::run(cluster, Some(&self.suite), args, &run, Objects::Remove, outcome)?;
        outcome.demand(news.tests());
        for feature in news.unproven(&claimed) {
            outcome.fault(format!("{feature}: claimed, and {} has no test of it", self.version));
        }
        Ok(())
    }

    fn news(&self, cluster: &Cluster) -> Result<News> {
        let older = Inventory::of(&suite::of_cluster(cluster))?;
        Ok(Inventory::of(&self.suite)?.since(older))
    }
}

/// The suite does not wait for what it has deleted, and nothing can be made in a namespace that is
/// about to go.
fn namespaces_gone(cluster: &Cluster) -> Result<()> {
    wait::until_true("the suite's namespaces gone", GONE, || {
        let left = cluster.kubectl(&["get", "namespaces", "--selector", LABEL, "--output", "name"]);
        left.is_ok_and(|names| names.trim().is_empty())
    })
}

fn release_of_crds() -> Result<String> {
    let crd =
        fs::read_to_string(workspace::root().join(CRD)).with_context(|| format!("cannot read {CRD}"))?;
    let version = crd.lines().find_map(|line| Some(line.trim().strip_prefix(VERSION)?.trim().to_owned()));
    version.with_context(|| format!("{CRD} does not say of which release it is"))
}
