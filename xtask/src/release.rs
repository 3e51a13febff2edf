//! `cargo xtask release`: the agent as it is shipped. A first build counts which of its branches
//! are taken under the loads of `cargo xtask bench http`; the second is laid out by that.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};

use crate::{pass_on, setup};

/// Relative to the directory in which cargo builds.
const COUNTS: &str = "counting/counts";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also build it untrained, and measure both in the same run
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build()?;
    println!("release: {}", program.display());
    if !args.compare {
        return Ok(());
    }
    let untrained = build::static_program(Profile::Release)?;
    let mut bench = pass_on::BENCH.command();
    bench.args(["http", "--peers", "--binary"]).arg(&program).arg("--earlier").arg(&untrained);
    command::run(&mut bench)
}

/// Takes three times as long as one build.
pub(crate) fn build() -> Result<PathBuf> {
    setup::run(&setup::Args::training())?;
    let counts = workspace::target_directory().join(COUNTS);
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    let program = build::counting(&counts)?;
    command::run(pass_on::BENCH.command().args(["train", "--binary"]).arg(&program))?;
    build::guided(&merge(&counts)?)
}

/// Makes what each run counted one file.
fn merge(counts: &Path) -> Result<PathBuf> {
    let merged = counts.join("merged.profdata");
    let written = counts.read_dir().is_ok_and(|mut files| files.next().is_some());
    ensure!(written, "the agent has written no counts into {}", counts.display());
    let mut profdata = std::process::Command::new(profdata()?);
    command::run(profdata.arg("merge").arg("--output").arg(&merged).arg(counts))?;
    Ok(merged)
}

/// LLVM's program for profiles, of the compiler's own version: rustup's component has it.
fn profdata() -> Result<PathBuf> {
    let sysroot = command::ask("rustc", &["--print", "sysroot"]).context("there is no rustc")?;
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let program = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/llvm-profdata");
    if !program.is_file() {
        let added =
            command::run(std::process::Command::new("rustup").args(["component", "add", "llvm-tools"]));
        added.context("the compiler's llvm-profdata is needed: rustup has it as component llvm-tools")?;
    }
    Ok(program)
}
