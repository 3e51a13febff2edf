//! `cargo xtask reproduce`: the image of the last commit, built twice, here and in a clone that
//! lies elsewhere. Fails unless both are the same, byte by byte.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{build, command, workspace};
use tempfile::TempDir;

use crate::image::blobs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Lay both out by this profile of an earlier release, in place of training the first anew
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let here = workspace::root();
    let changed = command::output(Command::new("git").current_dir(here).args(["status", "--porcelain"]))?;
    ensure!(changed.is_empty(), "the clone would not have what is not committed:\n{changed}");
    let place = TempDir::with_prefix("portcullis-built-once-more-").context("no temporary directory")?;
    let [elsewhere, first, second] = ["clone", "first.tar", "second.tar"].map(|name| place.path().join(name));
    command::run(Command::new("git").args(["clone", "--quiet"]).arg(here).arg(&elsewhere))?;

    write_image((here, &workspace::target_directory()), args.profile.as_deref(), &first)?;
    let profile = build::profile_of(&build::shipped_path());
    write_image((&elsewhere, &elsewhere.join("target")), Some(&profile), &second)?;
    let [first, second] = [fs::read(first)?, fs::read(second)?].map(|image| blobs::digest(&image));
    ensure!(first == second, "the image that was built here is {first}, the clone's {second}");
    println!("reproduce: both are {first}");
    Ok(())
}

/// As the developer of a checkout does.
fn write_image((checkout, target): (&Path, &Path), profile: Option<&Path>, image: &Path) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["xtask", "image", "--output"]).arg(image);
    if let Some(profile) = profile {
        cargo.args([OsStr::new("--profile"), profile.canonicalize().context("no such profile")?.as_os_str()]);
    }
    command::run(cargo.current_dir(checkout).env("CARGO_TARGET_DIR", target))
}
