//! This checkout: its root, what cargo builds in it, and the cache for what takes long to build.
//! Other developer commands are run as programs, so that no test and no benchmark compiles them.

use std::env::{self, consts::ARCH};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{command, versions};

/// The workspace's root.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest)
}

/// The cargo that runs us, at the workspace's root.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// `cargo xtask`, with arguments.
pub fn xtask(arguments: &[&str]) -> Command {
    let mut xtask = cargo();
    xtask.args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments);
    xtask
}

/// Where cargo builds, relative to the root unless CARGO_TARGET_DIR is absolute.
pub fn target_directory() -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(directory)
}

/// Builds kernel programs and agent the way they are shipped. Returns the program.
pub fn build_release() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    command::run(cargo().args(["build", "--release", "--locked", "--package", "portcullis"]))?;
    Ok(target_directory().join("release/portcullis"))
}

/// Builds kernel programs and agent in a quarter of the time; it serves the same, slower.
pub fn build_debug() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    command::run(cargo().args(["build", "--locked", "--package", "portcullis"]))?;
    Ok(debug())
}

/// Where `cargo build` puts the agent.
pub fn debug() -> PathBuf {
    target_directory().join("debug/portcullis")
}

/// How an agent is compiled; the values are cargo's.
#[derive(Clone, Copy)]
pub enum Profile {
    /// As it is shipped.
    Release,
    /// In a tenth of the time; it serves the same.
    Dev,
}

/// The agent with the kernel programs and the C library linked in, and with a list of the crates
/// that it is made of, for scanners of images. The explicit target keeps build scripts and
/// procedural macros dynamic.
pub fn build_static(profile: Profile) -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    let (name, directory) = match profile {
        Profile::Release => ("release", "release"),
        Profile::Dev => ("dev", "debug"),
    };
    let target = format!("{ARCH}-unknown-linux-gnu");
    let mut cargo = Command::new(versions::CARGO_AUDITABLE.ensure()?);
    cargo.current_dir(root()).args(["auditable", "build", "--locked", "--profile", name]);
    cargo.args(["--package", "portcullis", "--target", &target]);
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    command::run(&mut cargo)?;
    Ok(target_directory().join(target).join(directory).join("portcullis"))
}

/// What takes long to build and depends on a version only: `$PORTCULLIS_CACHE`, or under the user's
/// cache directory.
pub fn cache() -> PathBuf {
    let user = || env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let default = || user().or_else(home).unwrap_or_else(env::temp_dir).join("portcullis");
    env::var_os("PORTCULLIS_CACHE").map(PathBuf::from).unwrap_or_else(default)
}
