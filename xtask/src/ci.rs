//! `cargo xtask ci`: everything that must hold before a change goes in, in one command that
//! installs what it needs. A step that fails does not keep the others from being run, but for those
//! that could not work without it.

mod cluster;
mod disk;
mod tests;
mod warnings;

use std::fmt;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portcullis_testbed::{build, command, workspace};

use crate::{book, build_ebpf, codegen, dashboards, demo, deny, pass_on, setup, tidy};
use tests::Tally;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only steps whose name holds this, and the build that they need
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Relative to the workspace.
const CHECKING_LOG: &str = "target/ci/checking-build.log";

struct Step {
    name: &'static str,
    run: fn(&mut Tally) -> Result<()>,
    /// True if the rest makes no sense when it fails.
    fatal: bool,
}

/// The step by which those behind it have their programs.
const BUILD: &str = "build";
const BUILD_ARGUMENTS: &[&str] = &["build", "--workspace", "--all-targets", "--locked"];

const STEPS: &[Step] = &[
    Step { name: "setup", run: |_| setup::run(&setup::Args::ci()), fatal: true },
    Step { name: "cargo-deny and mdBook, in the background", run: |_| checking_early(), fatal: true },
    Step { name: "format", run: |_| format(), fatal: false },
    Step { name: "build-ebpf", run: |_| build_ebpf::run(&build_ebpf::Args::default()), fatal: true },
    Step { name: "codegen --check", run: |_| codegen::run(&codegen::Args::check()), fatal: false },
    Step { name: "dashboards --check", run: |_| dashboards::run(&dashboards::Args::check()), fatal: false },
    Step { name: "tidy", run: |_| tidy::run(&tidy::Args::default()), fatal: false },
    Step { name: BUILD, run: |_| build(), fatal: true },
    Step { name: "clippy", run: |_| warnings::of_workspace(), fatal: false },
    Step { name: "chart check", run: |_| command::run(pass_on::CHART.built().arg("check")), fatal: false },
    Step { name: "cluster build, in the background", run: |_| cluster::build_early(), fatal: true },
    Step { name: "agent of pods, in the background", run: |_| cluster::build_agent_early(), fatal: true },
    Step { name: "test", run: tests::run, fatal: false },
    Step { name: "test, HTTP/1 by the library", run: tests::run_with_http1_by_library, fatal: false },
    Step { name: "demo, ebpf", run: |_| demo(demo::Datapath::Ebpf), fatal: false },
    Step { name: "demo, userspace", run: |_| demo(demo::Datapath::Userspace), fatal: false },
    Step { name: "sign-in", run: sign_in, fatal: false },
    Step { name: "clients", run: |_| clients(), fatal: false },
    Step { name: "attack", run: |_| attack("own"), fatal: false },
    Step { name: "attack, HTTP/1 by the library", run: |_| attack("library"), fatal: false },
    Step { name: "check files", run: |_| check_files(), fatal: false },
    Step { name: "deny", run: |_| deny::run(&deny::Args {}), fatal: false },
    Step { name: "book", run: |_| book::run(&book::Args {}), fatal: false },
    Step { name: "cluster build", run: cluster::build, fatal: true },
    Step { name: "cluster test", run: cluster::test, fatal: false },
    Step { name: "API server tests", run: cluster::api_server_tests, fatal: false },
    // From here on, they need the agent that was built in the background.
    Step { name: "warnings of the agent alone", run: |_| warnings::of_agent(), fatal: false },
    Step { name: "instructions", run: |_| instructions(), fatal: false },
    Step { name: "chart test", run: cluster::chart, fatal: false },
    Step { name: "conformance", run: cluster::conformance, fatal: false },
];

/// Outcome of a step.
struct Outcome {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    disk::warn_early();
    let mut tally = Tally::default();
    let outcomes = run_steps(args, &mut tally);
    println!("\nci:");
    outcomes.iter().for_each(|outcome| println!("{outcome}"));
    let errors: Vec<_> = outcomes.iter().filter_map(Outcome::complaint).collect();
    let failed = errors.len();
    let full = disk::complaint().filter(|_| failed > 0);
    errors.iter().chain(&full).for_each(|complaint| println!("{complaint}"));
    // A failed step without a failed test still is a failure to be counted.
    tally.failed = tally.failed.max(u64::try_from(failed)?);
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn run_steps(args: &Args, tally: &mut Tally) -> Vec<Outcome> {
    let build = STEPS.iter().position(|step| step.name == BUILD).unwrap_or(STEPS.len());
    let wanted = |step: &Step| args.only.as_ref().is_none_or(|only| step.name.contains(only.as_str()));
    let needs_build = STEPS.iter().skip(build).any(wanted);
    let wanted = |step: &&Step| wanted(step) || needs_build && step.name == BUILD;
    let mut outcomes = Vec::new();
    for step in STEPS.iter().filter(wanted) {
        println!("\n=== {}", step.name);
        let begin = Instant::now();
        let error = (step.run)(tally).err();
        if let Some(error) = &error {
            println!("ci: {} FAILED: {error:#}", step.name);
        }
        let stop = error.is_some() && step.fatal;
        outcomes.push(Outcome { name: step.name, took: begin.elapsed(), error });
        if stop {
            break;
        }
    }
    outcomes
}

/// Starts building what checks dependencies and documents; who needs it waits for it.
fn checking_early() -> Result<()> {
    // By number: what runs it has an executable of its own.
    let mut setup = Command::new(format!("/proc/{}/exe", std::process::id()));
    setup.args(["setup", "--checking", "--no-ebpf"]);
    meanwhile(&setup, "cargo-deny and mdBook", CHECKING_LOG)
}

/// Starts what builds something that later steps need, with the time that the steps before them
/// leave of the processors.
fn meanwhile(build: &Command, what: &str, log: &str) -> Result<()> {
    let path = workspace::root().join(log);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(build.get_program()).args(build.get_args());
    for (name, value) in build.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(directory) = build.get_current_dir() {
        nice.current_dir(directory);
    }
    nice.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    nice.spawn().with_context(|| format!("cannot start building {what}"))?;
    println!("ci: building {what} meanwhile; its log is {log}");
    Ok(())
}

/// oauth2-proxy, which is built with Go the first time, in front of an application.
fn sign_in(tally: &mut Tally) -> Result<()> {
    let test = ["test", "--workspace", "--locked", "--test", "sign_in", "--", "--ignored"];
    tally.follow(warnings::linting_cargo().args(test))
}

/// TLS clients of all kinds that there are here, a few hundred connections.
fn clients() -> Result<()> {
    let mut clients = pass_on::BENCH.built();
    command::run(clients.args(["clients", "--quick", "--binary"]).arg(build::debug_program()))
}

/// Everything that clients and backends may try, at a tenth of its size, with this code for HTTP/1.
fn attack(http1: &str) -> Result<()> {
    let mut attack = pass_on::ATTACK.built();
    attack.env("PORTCULLIS_HTTP1", http1);
    command::run(attack.args(["--quick", "--binary"]).arg(build::debug_program()))
}

/// Fails if a request costs more than recorded, whatever else this machine does meanwhile.
fn instructions() -> Result<()> {
    command::run(pass_on::BENCH.built().args(["instructions", "--check"]))
}

/// Runs `check` over the Gateway API's own files, which Go fetches.
fn check_files() -> Result<()> {
    let mut check = pass_on::CONFORMANCE.built();
    command::run(check.args(["check-files", "--binary"]).arg(build::debug_program()))
}

fn format() -> Result<()> {
    command::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
    command::run(workspace::cargo().args(["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"]))
}

/// Tests, the agent that those in namespaces run, and the programs of later steps.
fn build() -> Result<()> {
    command::run(warnings::linting_cargo().args(BUILD_ARGUMENTS))?;
    match Command::new("id").arg("-u").output() {
        Ok(output) if output.stdout == b"0\n" => Ok(()),
        _ => bail!("the tests of kernel programs and namespaces need root"),
    }
}

/// With the agent that the tests run: the one that is shipped takes ten minutes more to build and
/// serves the same.
fn demo(datapath: demo::Datapath) -> Result<()> {
    demo::run(&demo::Args::once(datapath, build::debug_program()))
}

impl Outcome {
    fn complaint(&self) -> Option<String> {
        self.error.as_ref().map(|error| format!("\n{} FAILED: {error:#}", self.name))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.error.is_some() { "FAILED" } else { "ok" };
        write!(f, "  {:<32} {:>7.1} s  {verdict}", self.name, self.took.as_secs_f64())
    }
}
