//! The program that measures: built, run inside of the cluster, and served with what can only be
//! done from outside.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};

use portcullis_test_cluster::{Cluster, Node};

const BENCH: &str = "apiserver";

/// Returns where it is.
pub(super) fn build() -> Result<PathBuf> {
    let mut build = portcullis_testbed::workspace::cargo();
    build.args(["build", "--release", "--locked", "--package", "portcullis-control", "--bench", BENCH]);
    build.args(["--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the measuring program does not build");
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let messages = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let of_bench = messages.filter(|message| message["target"]["name"] == BENCH);
    let program = of_bench.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next();
    program.context("cargo does not say where the measuring program is")
}

/// Returns what it found, as Markdown.
pub(super) fn run(cluster: &Cluster, program: &Path, agent: &Path, part: &str, size: &str) -> Result<String> {
    let directory = cluster.layout().path("bench");
    fs::create_dir_all(&directory)?;
    let mut command = cluster.command(&program.display().to_string());
    command.arg(part).arg(agent).arg(&directory).arg(size);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the measuring program")?;
    let found = attend(cluster, &mut child);
    if found.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let found = found?;
    if !status.success() {
        println!("\n{found}");
        bail!("measuring {part} failed: {status}; the agent's log is below {}", directory.display());
    }
    Ok(found)
}

/// Collects its lines, and does what those with an `@` ask for.
fn attend(cluster: &Cluster, child: &mut Child) -> Result<String> {
    let mut answers = child.stdin.take().context("no way to answer")?;
    let lines = BufReader::new(child.stdout.take().context("no way to listen")?).lines();
    let mut found = String::new();
    for line in lines {
        let line = line?;
        match line.strip_prefix("@ ") {
            Some(request) => {
                carry_out(cluster, request)?;
                answers.write_all(b"done\n")?;
            }
            None => found += &format!("{line}\n"),
        }
    }
    Ok(found)
}

fn carry_out(cluster: &Cluster, request: &str) -> Result<()> {
    match request.split_once(' ') {
        Some(("stop", part)) => cluster.stop(part, Node::FIRST),
        Some(("start", part)) => cluster.start(part, Node::FIRST),
        _ => bail!("the measuring program asks for what nobody knows: {request}"),
    }
}
