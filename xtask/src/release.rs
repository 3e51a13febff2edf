//! `cargo xtask release`: the agent as it is shipped. A first build counts how often each of its
//! branches is taken under the loads of `cargo xtask bench http`; the second is laid out by that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};

use crate::architecture::Architecture;
use crate::{cross, pass_on, setup};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also build it untrained, and count what requests cost both
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build()?;
    println!("release: {}", program.display());
    if !args.compare {
        return Ok(());
    }
    setup::run(&setup::Args::counting())?;
    let untrained = build::static_program(Profile::Release)?;
    let mut bench = pass_on::BENCH.command();
    command::run(bench.args(["instructions", "--agent"]).arg(&untrained).arg("--agent").arg(&program))
}

/// For another processor than this machine's, untrained.
pub(crate) fn build_for(architecture: Architecture) -> Result<PathBuf> {
    if architecture == Architecture::host()? { build() } else { cross::release(architecture) }
}

/// Takes as long as two builds and some minutes of load.
pub(crate) fn build() -> Result<PathBuf> {
    setup::run(&setup::Args::training())?;
    let profdata = profdata()?;
    let counts = workspace::target_directory().join("counts");
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    let program = build::counting(&counts)?;
    command::run(pass_on::BENCH.command().args(["train", "--binary"]).arg(&program))?;
    let written = counts.read_dir().is_ok_and(|mut files| files.next().is_some());
    ensure!(written, "the agent has written no counts into {}", counts.display());
    let profile = counts.with_extension("profdata");
    command::run(Command::new(profdata).arg("merge").arg("--output").arg(&profile).arg(&counts))?;
    build::trained(&profile)
}

/// LLVM's program for profiles, of the compiler's own version: rustup's component has it.
fn profdata() -> Result<PathBuf> {
    let program = compilers("llvm-profdata")?;
    if !program.is_file() {
        command::run(Command::new("rustup").args(["component", "add", "llvm-tools"]))
            .context("the compiler's llvm-profdata is needed: rustup has it as component llvm-tools")?;
    }
    Ok(program)
}

/// A program that comes with the compiler.
pub(crate) fn compilers(program: &str) -> Result<PathBuf> {
    let sysroot = command::ask("rustc", &["--print", "sysroot"]).context("there is no rustc")?;
    let host = format!("{}-unknown-linux-gnu", Architecture::host()?.processor());
    Ok(Path::new(&sysroot).join("lib/rustlib").join(host).join("bin").join(program))
}
