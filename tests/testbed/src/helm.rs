//! Helm, built once for a given `tests/chart/go.sum` and kept in the cache.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{go, workspace};

/// The nested Go module, relative to the workspace.
const MODULE: &str = "tests/chart";
const PACKAGE: &str = "helm.sh/helm/v4/cmd/helm";

/// The program.
pub fn program() -> Result<PathBuf> {
    go::built(MODULE, PACKAGE, "helm")
}

/// Helm, which neither reads nor leaves anything in the user's home.
pub fn isolated(mut command: Command) -> Command {
    let home = workspace::root().join("target/helm");
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, &home);
    }
    command
}
