//! `cargo xtask fuzz`: looks for bytes that break what `tests/fuzz` says of parsers, guided by
//! coverage. The stable compiler counts it, and libFuzzer, built from source, makes the bytes.

mod outcome;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use outcome::Outcome;
use portcullis_testbed::{command, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parsers, by the names of their folders in tests/fuzz/corpus; all of them without one
    targets: Vec<String>,
    /// Time for each, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Copy into the corpora what earlier runs found that reaches more, to choose from and to name;
    /// look for nothing
    #[arg(long)]
    merge: bool,
}

/// Relative to the workspace. What was built is in it, and what was found.
const DIRECTORY: &str = "target/fuzz";
const CORPORA: &str = "tests/fuzz/corpus";
/// Counters at edges, and the operands of comparisons.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Fast code in which an overflow is a panic, built in the time of an ordinary release.
const PROFILE: &[(&str, &str)] = &[
    ("OPT_LEVEL", "2"),
    ("DEBUG", "0"),
    ("DEBUG_ASSERTIONS", "true"),
    ("OVERFLOW_CHECKS", "true"),
    ("LTO", "off"),
    ("CODEGEN_UNITS", "16"),
];
/// Bytes of an input, seconds that one may take, and MiB of memory for all.
const LIMITS: &[&str] = &["-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"];

pub(crate) fn run(args: &Args) -> Result<()> {
    let targets = targets(&args.targets)?;
    let program = build()?;
    if args.merge {
        return targets.iter().try_for_each(|target| merge(&program, target));
    }
    let outcomes = targets.iter().map(|target| search(&program, target, args.seconds));
    let outcomes = outcomes.collect::<Result<Vec<_>>>()?;
    println!("\n{}", outcome::HEADING);
    outcomes.iter().for_each(|outcome| println!("{outcome}"));
    let broken: Vec<_> = outcomes.iter().filter(|outcome| outcome.crash.is_some()).collect();
    for Outcome { target, crash, log, .. } in &broken {
        let crash = crash.as_deref().unwrap_or_default();
        println!("\n{target} does not hold; {log} says why. To replay it with a backtrace:");
        println!("  cp {crash} {CORPORA}/{target}/WHAT-IT-IS && cargo test -p portcullis-fuzz");
    }
    if !broken.is_empty() {
        std::process::exit(1);
    }
    Ok(())
}

/// Those that were asked for, or all, which are the folders of corpora.
fn targets(asked: &[String]) -> Result<Vec<String>> {
    let corpora = workspace::root().join(CORPORA);
    let entries = fs::read_dir(&corpora).with_context(|| corpora.display().to_string())?;
    let mut known = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    known.sort();
    if let Some(other) = asked.iter().find(|asked| !known.contains(asked)) {
        bail!("{other} is no target; there are {}", known.join(", "));
    }
    Ok(if asked.is_empty() { known } else { asked.to_vec() })
}

fn build() -> Result<PathBuf> {
    let host = command::output(Command::new("rustc").arg("-vV"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--locked", "--release", "--package", "portcullis-fuzz", "--features", "libfuzzer"]);
    // With a target, build scripts and macros are without coverage.
    cargo.args(["--target", host, "--target-dir", DIRECTORY]).env("RUSTFLAGS", COVERAGE.join(" "));
    for (name, value) in PROFILE {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
    }
    command::run(&mut cargo)?;
    Ok(workspace::root().join(DIRECTORY).join(host).join("release/portcullis-fuzz"))
}

/// Looks for bytes that reach more, or break something, beginning with those of the corpus and of
/// earlier runs.
fn search(program: &PathBuf, target: &str, seconds: u32) -> Result<Outcome> {
    let (found, log) = (format!("{DIRECTORY}/found/{target}"), format!("{DIRECTORY}/{target}.log"));
    fs::create_dir_all(workspace::root().join(&found))?;
    println!("{target}: {seconds} s; its log is {log}");
    let mut fuzzer = fuzzer(program, target);
    fuzzer.args([&found, &format!("{CORPORA}/{target}")]).args(LIMITS);
    fuzzer.args(["-print_final_stats=1", &format!("-max_total_time={seconds}")]);
    fuzzer.arg(format!("-artifact_prefix={DIRECTORY}/{target}-"));
    let path = workspace::root().join(&log);
    let file = File::create(&path).with_context(|| format!("cannot write {log}"))?;
    let status = fuzzer.stdout(Stdio::null()).stderr(file).status().context("cannot run the fuzzer")?;
    let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    let outcome = Outcome::read(target, &log, &text);
    ensure!(status.success() || outcome.crash.is_some(), "{target}: {status}; {log} says why");
    Ok(outcome)
}

/// As few of the found files as reach all edges that they reach together.
fn merge(program: &PathBuf, target: &str) -> Result<()> {
    let mut fuzzer = fuzzer(program, target);
    fuzzer.args(LIMITS).args(["-set_cover_merge=1", "-use_counters=0", "-use_cmp=0"]);
    fuzzer.args([format!("{CORPORA}/{target}"), format!("{DIRECTORY}/found/{target}")]);
    command::run(&mut fuzzer)
}

fn fuzzer(program: &PathBuf, target: &str) -> Command {
    let mut fuzzer = Command::new(program);
    fuzzer.current_dir(workspace::root()).env("PORTCULLIS_FUZZ", target).stdin(Stdio::null());
    fuzzer
}
