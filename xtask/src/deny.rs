//! `cargo xtask deny`: dependencies are of allowed licences, from crates.io, and none of the banned
//! ones (`deny.toml`). `cargo xtask advisories`: none has a known vulnerability, which is a
//! question to a database that changes by itself; so it is no part of CI.

use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::versions::CARGO_DENY;
use portcullis_testbed::{cargo_tool, command, workspace};

/// The kernel programs have a lock file of their own.
const WORKSPACES: &[&str] = &["Cargo.toml", "ebpf/Cargo.toml"];

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<()> {
    check(&["bans", "licenses", "sources"])
}

pub(crate) fn advisories(_: &Args) -> Result<()> {
    check(&["advisories"])
        .context("dependencies with advisories, or no database of them: it is fetched from GitHub")
}

fn check(what: &[&str]) -> Result<()> {
    let program = cargo_tool::ensure(CARGO_DENY)?;
    for manifest in WORKSPACES {
        let mut deny = Command::new(&program);
        deny.arg("--manifest-path").arg(workspace::root().join(manifest)).arg("--locked");
        deny.arg("--config").arg(workspace::root().join("deny.toml"));
        deny.args(["check", "--hide-inclusion-graph"]).args(what);
        command::run(&mut deny)?;
    }
    Ok(())
}
