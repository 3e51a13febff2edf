//! Agents, built from this checkout for what is to be done with them.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
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
    /// In a tenth of the time; it serves the same.
    Dev,
}

/// The agent with the kernel programs and the C library linked in, and with a list of the crates
/// that it is made of, for scanners of images.
pub fn static_program(profile: Profile) -> Result<PathBuf> {
    Static { profile, target_directory: target_directory(), flags: vec![] }.build()
}

/// A release that counts how often each of its branches is taken, and writes that into a directory
/// when it ends. It serves the same at a third of the speed.
pub fn counting(counts: &Path) -> Result<PathBuf> {
    let flags = vec![format!("-Cprofile-generate={}", counts.display())];
    Static { profile: Profile::Release, target_directory: target_directory().join("counting"), flags }.build()
}

/// A release laid out by what a [counting one](counting) counted, merged into a file.
pub fn guided(profile: &Path) -> Result<PathBuf> {
    let flags = vec![format!("-Cprofile-use={}", profile.display())];
    Static { profile: Profile::Release, target_directory: target_directory().join("guided"), flags }.build()
}

/// A static program. Other flags are another build of everything, so those have a directory of
/// their own.
struct Static {
    profile: Profile,
    target_directory: PathBuf,
    flags: Vec<String>,
}

impl Static {
    /// The explicit target keeps build scripts and procedural macros dynamic, and free of the
    /// flags.
    fn build(&self) -> Result<PathBuf> {
        command::run(&mut xtask(&["build-ebpf"]))?;
        let (name, directory) = match self.profile {
            Profile::Release => ("release", "release"),
            Profile::Dev => ("dev", "debug"),
        };
        let target = format!("{ARCH}-unknown-linux-gnu");
        let mut cargo = Command::new(cargo_tool::ensure(versions::CARGO_AUDITABLE)?);
        cargo.current_dir(root()).args(["auditable", "build", "--locked", "--profile", name]);
        cargo.args(["--package", "portcullis", "--target", &target]);
        cargo.arg("--target-dir").arg(&self.target_directory);
        cargo.env(
            "RUSTFLAGS",
            [&["-Ctarget-feature=+crt-static".to_owned()], &*self.flags].concat().join(" "),
        );
        command::run(&mut cargo)?;
        Ok(self.target_directory.join(target).join(directory).join("portcullis"))
    }
}
