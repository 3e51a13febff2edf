//! The agent built for this machine.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{build_ebpf, shell};

/// Builds kernel programs and agent the way they are shipped. Returns the program.
pub(crate) fn build_release() -> Result<PathBuf> {
    build_ebpf::run(&build_ebpf::Args::default())?;
    shell::run(cargo().args(["build", "--release", "--locked", "--package", "portcullis"]))?;
    Ok(target_directory().join("release/portcullis"))
}

/// Builds kernel programs and agent in a quarter of the time; it serves the same, slower.
pub(crate) fn build_debug() -> Result<PathBuf> {
    build_ebpf::run(&build_ebpf::Args::default())?;
    shell::run(cargo().args(["build", "--locked", "--package", "portcullis"]))?;
    Ok(debug())
}

/// Where `cargo build` puts the agent.
pub(crate) fn debug() -> PathBuf {
    target_directory().join("debug/portcullis")
}

/// The cargo that runs us, at the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(shell::root());
    cargo
}

pub(crate) fn target_directory() -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    shell::root().join(directory)
}
