//! The workspace's packages as cargo sees them.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use portcullis_testbed::{command, workspace};
use serde_json::Value;

pub(super) struct Package {
    pub(super) name: String,
    /// Direct dependencies of any kind that are not in the workspace.
    pub(super) external: BTreeSet<String>,
    /// Direct dependencies in the workspace, but for tests.
    pub(super) internal: BTreeSet<String>,
    /// Everything that is compiled into it, but for tests.
    pub(super) compiled: BTreeSet<String>,
}

pub(super) fn packages() -> Result<Vec<Package>> {
    let text = cargo(&["metadata", "--format-version=1", "--no-deps"])?;
    let metadata: Value = serde_json::from_str(&text)?;
    list(&metadata["packages"]).map(describe).collect()
}

fn describe(package: &Value) -> Result<Package> {
    let in_workspace = |dependency: &&Value| dependency["path"].is_string();
    let name = |dependency: &Value| dependency["name"].as_str().unwrap_or_default().to_owned();
    let dependencies = || list(&package["dependencies"]);
    Ok(Package {
        external: dependencies().filter(|it| !in_workspace(it)).map(name).collect(),
        internal: dependencies().filter(in_workspace).filter(|it| it["kind"] != "dev").map(name).collect(),
        compiled: compiled(&name(package))?,
        name: name(package),
    })
}

/// As a build of this package alone would: `cargo metadata` mixes in the features that others ask
/// for.
fn compiled(package: &str) -> Result<BTreeSet<String>> {
    let tree = cargo(&["tree", "--package", package, "--edges=normal", "--prefix=none", "--format={p}"])?;
    Ok(tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

/// Without the network, if all was fetched once.
fn cargo(args: &[&str]) -> Result<String> {
    let manifest = workspace::root().join("Cargo.toml").display().to_string();
    let args = [args, &["--manifest-path", &manifest]].concat();
    let offline = [args.as_slice(), &["--offline"]].concat();
    let text = command::ask("cargo", &offline).or_else(|| command::ask("cargo", &args));
    text.with_context(|| format!("`cargo {}` failed", args.join(" ")))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
