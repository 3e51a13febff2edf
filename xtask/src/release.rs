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
    /// Lay it out by this profile of an earlier release, in place of training it anew: the same
    /// program comes of it
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Also build it untrained, and count what requests cost both
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build(args.profile.as_deref())?;
    println!("release: {}, laid out by {}", program.display(), build::profile_of(&program).display());
    if !args.compare {
        return Ok(());
    }
    setup::run(&setup::Args::counting())?;
    let untrained = build::static_program(Profile::Release)?;
    let mut bench = pass_on::BENCH.command();
    command::run(bench.args(["instructions", "--agent"]).arg(&untrained).arg("--agent").arg(&program))
}

/// For another processor than this machine's, untrained.
pub(crate) fn build_for(architecture: Architecture, profile: Option<&Path>) -> Result<PathBuf> {
    if architecture == Architecture::host()? { build(profile) } else { cross::release(architecture) }
}

/// Laid out by the profile, or else by one of its own, which takes as long as a second build and
/// some minutes of load.
pub(crate) fn build(profile: Option<&Path>) -> Result<PathBuf> {
    let place = workspace::target_directory().join("counts.profdata");
    match profile {
        // It may lie where the release is built, of which nothing is kept.
        Some(profile) => {
            let bytes = fs::read(profile).with_context(|| format!("cannot read {}", profile.display()))?;
            fs::create_dir_all(workspace::target_directory())?;
            fs::write(&place, bytes)?;
        }
        None => train(&place)?,
    }
    build::trained(&place)
}

fn train(profile: &Path) -> Result<()> {
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
    command::run(Command::new(profdata).arg("merge").arg("--output").arg(profile).arg(&counts))
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
