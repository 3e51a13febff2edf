//! One run of the suite: its options, its output.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use portcullis_test_cluster::Cluster;

use super::outcome::Outcome;
use super::profile::{Run, Timeouts};
use super::{Args, CLASS, report};

/// An address that Gateways may ask for, and one from a documentation range that no host has, for
/// GatewayStaticAddresses.
const USABLE_ADDRESS: &str = "10.96.200.1";
const UNUSABLE_ADDRESS: &str = "192.0.2.1";

/// Seconds, of each of these, with [`Timeouts::Short`].
const SHORT: u32 = 10;
const WAITS: &[&str] = &[
    "DefaultTestTimeout",
    "GatewayListenersMustHaveConditions",
    "GatewayMustHaveAddress",
    "GatewayMustHaveCondition",
    "GatewayStatusMustHaveListeners",
    "HTTPRouteMustHaveCondition",
    "HTTPRouteMustNotHaveParents",
    "LatestObservedGenerationSet",
    "ListenerSetListenersMustHaveConditions",
    "ListenerSetMustHaveCondition",
    "NamespacesMustBeReady",
    "RouteMustHaveParents",
    "TCPRouteMustHaveCondition",
    "TLSRouteMustHaveCondition",
    "UDPRouteMustHaveCondition",
];

/// Fate of the objects that the suite has set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Objects {
    KeepForNextRun,
    Remove,
}

/// Runs the suite: the cluster's own, or a newer one. The set-up of an earlier run is used again;
/// only the last removes it.
pub(super) fn run(
    cluster: &Cluster,
    newer: Option<&Path>,
    args: &Args,
    run: &Run,
    objects: Objects,
    outcome: &mut Outcome,
) -> Result<()> {
    let start = Instant::now();
    let suite = newer.map_or_else(|| of_cluster(cluster), Path::to_owned);
    let report = report::place(cluster, run);
    let _ = fs::remove_file(&report);
    let mut command = cluster.command(&suite.display().to_string());
    // Plain -test.v says how a test went only when all others that run with it are through.
    // A newer one has unit tests of its own beside it.
    command.args([&selection(run), "-test.v=test2json", "-test.timeout=60m"]).args(flags(args, run, &report));
    command.arg(format!("-cleanup-base-resources={}", objects == Objects::Remove)).args(&args.suite);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let log = cluster.layout().log("conformance");
    command.stderr(appended(&log.with_extension("stderr.log"), outcome)?);
    let mut log = appended(&log, outcome)?;
    outcome.begin(&run.profiles.join(", "));
    let mut child = command.spawn().context("cannot start the conformance suite")?;
    let output = child.stdout.take().context("the suite has no output")?;
    follow(BufReader::new(output), &mut log, outcome)?;
    outcome.finish(child.wait()?, start.elapsed());
    Ok(())
}

/// The suite that the test cluster has.
pub(super) fn of_cluster(cluster: &Cluster) -> PathBuf {
    cluster.layout().path("artifacts/conformance.test")
}

/// Every conformance test is a subtest.
fn selection(run: &Run) -> String {
    match run.tests.as_slice() {
        [] => "-test.run=^TestConformance$".to_owned(),
        tests => format!("-test.run=^TestConformance$/^({})$", tests.join("|")),
    }
}

/// A file that the first run begins anew.
fn appended(path: &Path, outcome: &Outcome) -> Result<File> {
    let mut options = File::options();
    options.create(true).write(true).append(outcome.has_begun()).truncate(!outcome.has_begun());
    options.open(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes every line to the log, and each test's result to the terminal when it is there.
fn follow(output: impl BufRead, log: &mut File, outcome: &mut Outcome) -> Result<()> {
    for line in output.split(b'\n') {
        let line = line?;
        log.write_all(&line)?;
        log.write_all(b"\n")?;
        if let Some(result) = outcome.read(&String::from_utf8_lossy(&line)) {
            println!("{result}");
        }
    }
    Ok(())
}

fn flags(args: &Args, run: &Run, report: &Path) -> Vec<String> {
    let mut flags = vec![
        format!("-gateway-class={CLASS}"),
        format!("-conformance-profiles={}", run.profiles.join(",")),
        format!("-usable-address={USABLE_ADDRESS}"),
        format!("-unusable-address={UNUSABLE_ADDRESS}"),
        format!("-report-output={}", report.display()),
    ];
    flags.extend(report::implementation());
    flags.extend(args.run_test.iter().map(|test| format!("-run-test={test}")));
    flags.extend(args.supported_features.iter().map(|features| format!("-supported-features={features}")));
    if run.timeouts == Timeouts::Short {
        let waits: Vec<_> = WAITS.iter().map(|wait| format!("{wait}:{SHORT}")).collect();
        flags.push(format!("-timeout-config-overrides={}", waits.join(";")));
    }
    flags
}
