//! Flagger moves the weights of the HTTPRoute that it wrote, and curl sees the share move. Steps
//! are checked by a webhook, which leads through the Gateway to the new version.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::go;

use super::process::Process;
use super::report::Report;
use super::world::{World, await_answer};

pub(crate) const PAGE: &str = "progressive-delivery";

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/tasks/flagger";
const FLAGGER: &str = "github.com/fluxcd/flagger";

const NAMESPACES: &[&str] = &["infra", "shop"];
const VERSIONS: &str = "versions.yaml";
const FIRST: &str = "version-1";
const SECOND: &str = "version-2";
const BROKEN: &str = "version-3";
/// Requests by which a share is told.
const REQUESTS: usize = 400;

const PHASE: &str = "{.status.phase}";

pub(crate) fn controller() -> Result<String> {
    Ok(format!("Flagger {}", go::required(MODULE, FLAGGER)?))
}

pub(crate) fn build() -> Result<PathBuf> {
    go::built(MODULE, &format!("{FLAGGER}/cmd/flagger"), "flagger")
}

pub(crate) fn try_out(world: &World, report: &mut Report) -> Result<()> {
    let program = build()?;
    world.make_namespaces(NAMESPACES)?;
    world.cluster.install_crds(&go::source(MODULE, FLAGGER)?.join("artifacts/flagger/crd.yaml"))?;
    world.apply_file(VERSIONS, &[])?;
    let address = world.address("infra", "web")?;
    let mut flagger = world.command(&program);
    flagger.args(["-kubeconfig", &world.kubeconfig(), "-mesh-provider=gatewayapi:v1"]);
    // There is none: the page's analysis has no metric.
    flagger.arg("-metrics-server=http://127.0.0.1:9");
    let mut flagger = Process::start(&world.cluster, "flagger", &mut flagger)?;
    // Steps of which a test sees two; the page's take minutes.
    let shown = "{interval: 1m, threshold: 5, maxWeight: 50, stepWeight: 10}";
    let here = format!(
        "{{interval: 10s, threshold: 2, maxWeight: 50, stepWeight: 25,\n    \
         webhooks: [{{name: check, type: rollout, url: \"http://{address}/check\"}}]}}"
    );
    world.apply_shown(PAGE, "flagger/shop.yaml", &[(shown, &here)])?;
    let checked = Page { world, address }.checks(report);
    world.remove_namespaces(NAMESPACES)?;
    flagger.lives()?;
    checked.with_context(|| flagger.last_words())
}

struct Page<'a> {
    world: &'a World,
    address: String,
}

impl Page<'_> {
    fn checks(&self, report: &mut Report) -> Result<()> {
        report.check("Flagger writes the route and Services, and all is the first version's", || {
            self.await_phase("Initialized")?;
            let weights = self.await_weights("100 0")?;
            self.await_only(FIRST)?;
            Ok(format!("weights {weights}; {REQUESTS} of {REQUESTS} by {FIRST}"))
        })?;
        self.world.apply_file(VERSIONS, &[(FIRST, SECOND)])?;
        for (weights, share) in [("75 25", 25), ("50 50", 50)] {
            report.check(&format!("a new version has its share at weights {weights}"), || {
                self.await_weights(weights)?;
                self.share(SECOND, share)
            })?;
        }
        report.check("when its steps are done, all is the new version's", || {
            self.await_phase("Succeeded")?;
            let weights = self.await_weights("100 0")?;
            self.await_only(SECOND)?;
            Ok(format!("weights {weights}; {REQUESTS} of {REQUESTS} by {SECOND}"))
        })?;
        // It listens where its Service does not lead to, and is ready.
        let elsewhere = [(FIRST, BROKEN), ("\"8080\"", "\"8081\""), ("port: 8080", "port: 8081")];
        self.world.apply_file(VERSIONS, &elsewhere)?;
        report.check("a version that fails its step goes back", || {
            self.await_weights("75 25")?;
            self.await_phase("Failed")?;
            let weights = self.await_weights("100 0")?;
            self.await_only(SECOND)?;
            Ok(format!("phase Failed; weights {weights}; {REQUESTS} of {REQUESTS} by {SECOND}"))
        })
    }

    fn await_phase(&self, phase: &str) -> Result<String> {
        self.world.await_field("shop", &["canary", "shop"], PHASE, |found| found == phase)
    }

    /// Of primary and canary, in the order of Flagger's route.
    fn await_weights(&self, weights: &str) -> Result<String> {
        let path = "{.spec.rules[0].backendRefs[*].weight}";
        self.world.await_field("shop", &["httproute", "shop"], path, |found| found == weights)
    }

    /// Answers to many requests, which say the version that they are by.
    fn answers(&self) -> Result<String> {
        let (name, url) = (format!("shop.example:80:{}", self.address), "http://shop.example/[1-400]");
        self.world.curl(&["--resolve", &name, url])
    }

    fn await_only(&self, version: &str) -> Result<()> {
        let all = |found: &str| count(found, version) == REQUESTS;
        await_answer(&format!("all by {version}"), || self.answers(), all).map(drop)
    }

    /// The agent may learn of weights a moment later than this test.
    fn share(&self, version: &str, wanted: usize) -> Result<String> {
        let is_near = |found: &str| (count(found, version) * 100 / REQUESTS).abs_diff(wanted) <= 8;
        let answers = await_answer("the share", || self.answers(), is_near)?;
        let all = count(&answers, FIRST) + count(&answers, version);
        ensure!(all == REQUESTS, "{} requests are lost", REQUESTS - all);
        Ok(format!("{} of {REQUESTS} by {version}, none lost", count(&answers, version)))
    }
}

fn count(answers: &str, version: &str) -> usize {
    answers.matches(&format!("\"pod\": \"{version}\"")).count()
}
