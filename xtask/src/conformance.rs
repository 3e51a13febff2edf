//! `cargo xtask conformance`: the official Gateway API conformance suite, unmodified, against the agent on the test cluster.

mod agent;
mod outcome;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use self::agent::Agent;
use self::outcome::Outcome;
use crate::cluster::{self, Cluster, Options};
use crate::{chart, shell};

const CLASS: &str = "portcullis";
const GATEWAY_CLASS: &str = "tests/cluster/conformance/gatewayclass.yaml";
const REPORTS: &str = "docs/conformance";

/// Every profile that this cluster can run. The MESH profiles' pods use an image that is published as a binary only.
const PROFILES: &[&str] = &["GATEWAY-HTTP", "GATEWAY-TLS", "GATEWAY-TCP", "GATEWAY-UDP", "GATEWAY-GRPC"];

/// An address that Gateways may ask for, and one from a documentation range that nobody has, for GatewayStaticAddresses.
const USABLE_ADDRESS: &str = "10.96.200.1";
const UNUSABLE_ADDRESS: &str = "192.0.2.1";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A conformance profile; may be given more than once [default: GATEWAY-HTTP]
    #[arg(long, value_parser = PROFILES.to_vec())]
    profile: Vec<String>,
    /// All profiles that can run here
    #[arg(long, conflicts_with = "profile")]
    all: bool,
    /// One test, by its short name
    #[arg(long)]
    run_test: Option<String>,
    /// Claim these features instead of those in the GatewayClass's status, separated by commas
    #[arg(long)]
    supported_features: Option<String>,
    /// Where the report goes [default: docs/conformance/VERSION.yaml, for whole runs with an agent]
    #[arg(long)]
    report: Option<PathBuf>,
    /// A static agent that is built already, for the DaemonSet [default: build one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Run this agent as a process of the node instead of installing the chart
    #[arg(long, value_name = "FILE", conflicts_with = "binary")]
    agent: Option<PathBuf>,
    /// Start no agent: something else is the gateway and has the GatewayClass `portcullis`
    #[arg(long, conflicts_with_all = ["agent", "binary"])]
    no_agent: bool,
    /// The cluster's directory [default: target/cluster]
    #[arg(long, env = "PORTCULLIS_CLUSTER")]
    dir: Option<PathBuf>,
    /// More options for the suite itself, after `--`
    #[arg(last = true)]
    suite: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let crds = crds()?;
    let cluster = Cluster::obtain(cluster::layout(args.dir.as_ref())?, &Options::default())?;
    let agent = match &args.agent {
        Some(binary) => Some(start(&cluster, &crds, binary)?),
        None if args.no_agent => cluster.install_crds(&crds).map(|()| None)?,
        None => chart::install(&cluster, &crds, args.binary.as_deref()).map(|()| None)?,
    };
    let outcome = run_suite(&cluster, args)?;
    drop(agent);
    outcome.print();
    if !outcome.is_success() {
        bail!("not conformant; the whole log is {}", cluster.layout().log("conformance").display());
    }
    Ok(())
}

/// With a GatewayClass of its own, made anew: the status that an earlier agent left claims what that one could do.
fn start(cluster: &Cluster, crds: &Path, binary: &Path) -> Result<Agent> {
    cluster.install_crds(crds)?;
    let manifest = shell::root().join(GATEWAY_CLASS).display().to_string();
    cluster.kubectl(&["delete", "--ignore-not-found", "-f", &manifest])?;
    cluster.kubectl(&["create", "-f", &manifest])?;
    Agent::start(cluster, &agent::existing(binary)?)
}

/// The suite refuses CRDs of another release than its own, so ours for its release are made: `codegen` patches them alike.
fn crds() -> Result<PathBuf> {
    let version = cluster::suite_version()?;
    shell::run(Command::new(std::env::current_exe()?).args(["codegen", "--bundle", &version]))?;
    Ok(shell::root().join("target/crds").join(version))
}

fn run_suite(cluster: &Cluster, args: &Args) -> Result<Outcome> {
    let start = Instant::now();
    let suite = cluster.layout().path("artifacts/conformance.test");
    let mut command = cluster.command(&suite.display().to_string());
    // Plain -test.v says how a test went only when all others that run with it are through.
    command.args(["-test.v=test2json", "-test.timeout=60m"]).args(flags(args)?);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let log = cluster.layout().log("conformance");
    command.stderr(File::create(log.with_extension("stderr.log"))?);
    let mut child = command.spawn().context("cannot start the conformance suite")?;
    let output = child.stdout.take().context("the suite has no output")?;
    let mut outcome = follow(BufReader::new(output), &log)?;
    outcome.finish(child.wait()?.success(), start.elapsed());
    Ok(outcome)
}

/// Writes every line to the log, and each test's result to the terminal when it is there.
fn follow(output: impl BufRead, log: &Path) -> Result<Outcome> {
    let mut log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut outcome = Outcome::default();
    for line in output.split(b'\n') {
        let line = line?;
        log.write_all(&line)?;
        log.write_all(b"\n")?;
        if let Some(result) = outcome.read(&String::from_utf8_lossy(&line)) {
            println!("{result}");
        }
    }
    Ok(outcome)
}

fn flags(args: &Args) -> Result<Vec<String>> {
    let mut flags = vec![
        format!("-gateway-class={CLASS}"),
        format!("-conformance-profiles={}", profiles(args).join(",")),
        format!("-usable-address={USABLE_ADDRESS}"),
        format!("-unusable-address={UNUSABLE_ADDRESS}"),
    ];
    flags.extend(args.run_test.iter().map(|test| format!("-run-test={test}")));
    flags.extend(args.supported_features.iter().map(|features| format!("-supported-features={features}")));
    if let Some(report) = report(args)? {
        flags.push(format!("-report-output={}", report.display()));
        flags.extend(implementation());
    }
    flags.extend(args.suite.iter().cloned());
    Ok(flags)
}

fn profiles(args: &Args) -> Vec<&str> {
    match args.profile.as_slice() {
        _ if args.all => PROFILES.to_vec(),
        [] => vec!["GATEWAY-HTTP"],
        given => given.iter().map(String::as_str).collect(),
    }
}

/// A run of one test, or without our agent, says nothing about conformance and overwrites no report.
fn report(args: &Args) -> Result<Option<PathBuf>> {
    let path = match &args.report {
        Some(path) => std::path::absolute(path)?,
        None if args.no_agent || args.run_test.is_some() => return Ok(None),
        None => shell::root().join(REPORTS).join(report_name(args)?),
    };
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    Ok(Some(path))
}

fn report_name(args: &Args) -> Result<String> {
    let version = cluster::suite_version()?;
    let profiles = if args.all { "all".to_owned() } else { profiles(args).join("-").to_lowercase() };
    Ok(format!("{version}-{profiles}.yaml"))
}

/// What a report must say about who wrote it.
fn implementation() -> [String; 5] {
    [
        "-organization=portcullis".to_owned(),
        "-project=portcullis".to_owned(),
        "-url=https://portcullis.dev".to_owned(),
        format!("-version=v{}", env!("CARGO_PKG_VERSION")),
        "-contact=https://portcullis.dev/issues".to_owned(),
    ]
}
