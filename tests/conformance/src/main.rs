//! `cargo xtask conformance`: the official Gateway API conformance suite, unmodified, against the
//! agent on the test cluster.

mod files;
mod inventory;
mod newer;
mod outcome;
mod profile;
mod report;
mod successor;
mod suite;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use portcullis_chart_tests::{Agent, Installed, existing, install};
use portcullis_test_cluster::{Cluster, Options};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};

use self::files::FilesArgs;
use self::outcome::Outcome;
use self::report::Reports;
use self::successor::Successor;
use self::suite::Objects;

const CLASS: &str = "portcullis";

#[derive(clap::Parser)]
#[command(
    name = "cargo xtask conformance",
    about = "Run the official Gateway API conformance suite on the test cluster",
    args_conflicts_with_subcommands = true
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// A conformance profile; may be given more than once [default: GATEWAY-HTTP]
    #[arg(long, value_parser = profile::names())]
    profile: Vec<String>,
    /// All profiles, and what the release of our CRDs has tested since; those that cannot run here
    /// are named, and why
    #[arg(long, conflicts_with = "profile")]
    all: bool,
    /// One test, by its short name
    #[arg(long)]
    run_test: Option<String>,
    /// Claim these features instead of those in the GatewayClass's status, separated by commas
    #[arg(long)]
    supported_features: Option<String>,
    /// The suite of another release, such as v1.7.0, made to compile with the Go that is there
    #[arg(long, value_name = "VERSION")]
    suite_version: Option<String>,
    /// Path of the report [default: docs/conformance/VERSION-PROFILES.yaml, for whole runs of
    /// our agent that pass]
    #[arg(long)]
    report: Option<PathBuf>,
    #[command(flatten)]
    installed: Installed,
    /// Build the agent as it is shipped, which takes ten minutes and serves the same
    #[arg(long, conflicts_with = "binary")]
    release: bool,
    /// Run this agent as a process of the node instead of installing the chart
    #[arg(long, value_name = "FILE", conflicts_with_all = ["binary", "release"])]
    agent: Option<PathBuf>,
    /// Start no agent: something else is the gateway and has the GatewayClass `portcullis`
    #[arg(long, conflicts_with_all = ["agent", "binary", "release"])]
    no_agent: bool,
    /// The cluster's directory [default: target/cluster]
    #[arg(long, env = "PORTCULLIS_CLUSTER")]
    dir: Option<PathBuf>,
    /// More options for the suite itself, after `--`
    #[arg(last = true)]
    suite: Vec<String>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Compare what `portcullis check` says of the Gateway API's examples and the suite's manifests
    /// with docs/conformance/files.md
    CheckFiles(FilesArgs),
}

/// The gateway that is tested.
enum Gateway {
    /// The chart's DaemonSet, with this agent in its image.
    Chart(Installed),
    /// A process of the node.
    Process(PathBuf),
    /// One that is there already.
    Other,
}

fn main() -> Result<()> {
    portcullis_test_cluster::enter_if_asked()?;
    let args = Args::parse();
    match &args.command {
        Some(Command::CheckFiles(of_files)) => files::run(of_files),
        None => run(&args),
    }
}

fn run(args: &Args) -> Result<()> {
    let profiles = profile::wanted(args)?;
    let gateway = gateway(args)?;
    let newer = args.suite_version.as_deref().map(newer::build).transpose()?;
    let successor = Successor::build(args)?;
    let crds = crds(&args.suite_version.clone().map_or_else(portcullis_test_cluster::suite_version, Ok)?)?;
    let cluster = Cluster::obtain(portcullis_test_cluster::layout(args.dir.as_ref())?, &Options::default())?;
    let agent = gateway.start(&cluster, &crds)?;
    let runs = profile::runs(&cluster, args, profiles)?;
    let (mut outcome, mut reports) = (Outcome::default(), Reports::default());
    for (at, run) in runs.iter().enumerate() {
        let is_last = at + 1 == runs.len();
        let objects = if is_last { Objects::Remove } else { Objects::KeepForNextRun };
        suite::run(&cluster, newer.as_deref(), args, run, objects, &mut outcome)?;
        reports.add(&cluster, args, run)?;
    }
    drop(agent);
    if let Some(successor) = successor {
        successor.test(&cluster, &gateway, args, &mut outcome)?;
    }
    reports.print();
    if args.all {
        profile::print_those_not_run();
    }
    outcome.print();
    if !outcome.is_success() {
        bail!("not conformant; the whole log is {}", cluster.layout().log("conformance").display());
    }
    Ok(())
}

/// Builds what there is to build, before a cluster waits for it.
fn gateway(args: &Args) -> Result<Gateway> {
    let installed = |binary| Gateway::Chart(Installed { binary: Some(binary), ..args.installed.clone() });
    match (&args.agent, &args.installed.binary) {
        _ if args.no_agent => Ok(Gateway::Other),
        (Some(binary), _) => existing(binary).map(Gateway::Process),
        (None, Some(binary)) => Ok(installed(binary.clone())),
        (None, None) if args.release => build::shipped().map(installed),
        (None, None) => build::static_program(Profile::Quick).map(installed),
    }
}

/// The suite refuses CRDs of another release than its own, so ours for its release are made:
/// `codegen` patches them alike.
fn crds(version: &str) -> Result<PathBuf> {
    command::run(&mut workspace::xtask(&["codegen", "--bundle", version]))?;
    let made = workspace::root().join("target/crds").join(version);
    // Those of the release that we are of are in the repository.
    Ok(if made.is_dir() { made } else { workspace::root().join("deploy/crds") })
}

impl Gateway {
    fn start(&self, cluster: &Cluster, crds: &Path) -> Result<Option<Agent>> {
        match self {
            Self::Chart(installed) => install(cluster, crds, installed).map(|()| None),
            Self::Process(binary) => start_process(cluster, crds, binary).map(Some),
            Self::Other => cluster.install_crds(crds).map(|()| None),
        }
    }
}

fn start_process(cluster: &Cluster, crds: &Path, binary: &Path) -> Result<Agent> {
    cluster.install_crds(crds)?;
    Agent::start(cluster, binary, &[])
}
