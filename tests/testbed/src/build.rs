//! Agents, built from this checkout for what is to be done with them.

use std::env::consts::ARCH;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::workspace::{cargo, root, target_directory, xtask};
use crate::{cargo_tool, command, versions};

/// Builds kernel programs and agent the way they are shipped. Returns the program.
pub fn release() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    command::run(cargo().args(["build", "--release", "--locked", "--package", "portcullis"]))?;
    Ok(target_directory().join("release/portcullis"))
}

/// Builds kernel programs and agent in a fifth of the time; it serves the same, slower, and has the
/// system's allocator.
pub fn debug() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    command::run(cargo().args(["build", "--locked", "--package", "portcullis", "--no-default-features"]))?;
    Ok(debug_program())
}

/// Path at which `cargo build` puts the agent.
pub fn debug_program() -> PathBuf {
    target_directory().join("debug/portcullis")
}

/// Ways to compile an agent; the values are cargo's.
#[derive(Clone, Copy)]
pub enum Profile {
    /// As it is shipped.
    Release,
    /// In a fifth of the time, without link-time optimisation. It serves the same, for a third more
    /// instructions.
    Quick,
}

/// The agent with the kernel programs and the C library linked in, and with a list of the crates
/// that it is made of, for scanners of images. The explicit target keeps build scripts and
/// procedural macros dynamic.
pub fn static_program(profile: Profile) -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    let name = match profile {
        Profile::Release => "release",
        Profile::Quick => "quick",
    };
    let target = format!("{ARCH}-unknown-linux-gnu");
    let mut cargo = Command::new(cargo_tool::ensure(versions::CARGO_AUDITABLE)?);
    cargo.current_dir(root()).args(["auditable", "build", "--locked", "--profile", name]);
    cargo.args(["--package", "portcullis", "--target", &target]);
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    command::run(&mut cargo)?;
    Ok(target_directory().join(target).join(name).join("portcullis"))
}
