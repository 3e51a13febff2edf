//! Helm, built once for a given `tests/chart/go.sum` and kept in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::{command, go, workspace};
use sha2::{Digest, Sha256};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/chart";
const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm";

/// The program.
pub(super) fn program() -> Result<PathBuf> {
    let sums =
        fs::read(workspace::root().join(MODULE).join("go.sum")).context("cannot read tests/chart/go.sum")?;
    let key: String = Sha256::digest(sums).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let place = workspace::cache().join(format!("helm-{key}"));
    if !place.is_file() {
        build(&place)?;
    }
    Ok(place)
}

/// A program with the key in its name is whole: it gets its name last.
fn build(place: &Path) -> Result<()> {
    println!("chart: building Helm (a few minutes the first time)");
    let partial = place.with_extension("partial");
    go::ensure()?;
    let mut go = go::command(&workspace::root().join(MODULE));
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o"]).arg(&partial).arg(PACKAGE);
    command::run(&mut go)?;
    fs::rename(&partial, place)?;
    Ok(())
}

/// Helm, which neither reads nor leaves anything in the user's home.
pub(super) fn isolated(mut command: Command) -> Command {
    let home = workspace::root().join("target/helm");
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    command
}
