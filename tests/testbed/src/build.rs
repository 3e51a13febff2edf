//! Agents, built from this checkout for what is to be done with them.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::workspace::{cargo, root, target_directory, xtask};
use crate::{cargo_tool, command, paths, versions};

/// Those of a static, position-independent program. By default functions of other crates are called
/// through a table that the loader of a dynamic one fills in before it is made read-only, seven in
/// ten of all calls. The compiler calls them straight if it may leave the table to the linker,
/// which has no need of one, and makes what is left read-only all the same.
const OWN_FLAGS: [&str; 4] = [
    "-Ctarget-feature=+crt-static",
    "-Crelocation-model=pie",
    "-Crelro-level=partial",
    "-Clink-arg=-Wl,-z,relro,-z,now",
];

/// Builds kernel programs and agent the way they are shipped, but for the training, and dynamic.
/// Returns the program.
pub fn release() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    command::run(cargo().args(["build", "--release", "--locked", "--package", "portcullis"]))?;
    Ok(target_directory().join("release/portcullis"))
}

/// Builds kernel programs and agent in a fifth of the time; it serves the same, slower, and has the
/// system's allocator.
pub fn debug() -> Result<PathBuf> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    debug_agent()
}

/// The agent of [`debug`], with the kernel programs that are there, if they are. It is built once,
/// and debuggers do not step through it: a third of the time of its own crates is saved.
pub fn debug_agent() -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo.args(["build", "--locked", "--package", "portcullis", "--no-default-features"]);
    command::run(cargo.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "false"))?;
    Ok(debug_program())
}

/// Path at which `cargo build` puts the agent.
pub fn debug_program() -> PathBuf {
    target_directory().join("debug/portcullis")
}

/// Ways to compile an agent; the values are cargo's.
#[derive(Clone, Copy)]
pub enum Profile {
    /// As it is shipped, but for the training.
    Release,
    /// In a fifth of the time, without link-time optimisation. It serves the same, for a third more
    /// instructions.
    Quick,
}

/// The agent with the kernel programs and the C library linked in, and with a list of the crates
/// that it is made of, for scanners of images.
pub fn static_program(profile: Profile) -> Result<PathBuf> {
    command::run(&mut static_build(profile)?)?;
    Ok(static_path(&target_directory(), profile))
}

/// The command that builds it, after the kernel programs.
pub fn static_build(profile: Profile) -> Result<Command> {
    static_build_in(profile, &target_directory(), &[])
}

/// The agent as it is shipped: a static release, trained under load.
pub fn shipped() -> Result<PathBuf> {
    command::run(&mut xtask(&["release"]))?;
    Ok(shipped_path())
}

/// The program that [`shipped`] makes.
pub fn shipped_path() -> PathBuf {
    static_path(&trained_directory(), Profile::Release)
}

/// A static release that counts how often each of its branches is taken, and writes that into
/// `counts` when it ends.
pub fn counting(counts: &Path) -> Result<PathBuf> {
    let directory = target_directory().join("counting");
    let flag = format!("-Cprofile-generate={}", counts.display());
    command::run(&mut static_build_in(Profile::Release, &directory, &[flag])?)?;
    Ok(static_path(&directory, Profile::Release))
}

/// A static release laid out by what a [counting one](counting) wrote, merged into one file, which
/// is put [beside](profile_of) it. Everything is compiled anew: cargo does not notice that a
/// dependency's profile changed.
pub fn trained(profile: &Path) -> Result<PathBuf> {
    let directory = trained_directory();
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let flag = format!("-Cprofile-use={}", profile.display());
    command::run(&mut static_build_in(Profile::Release, &directory, &[flag])?)?;
    fs::copy(profile, profile_of(&shipped_path()))?;
    Ok(shipped_path())
}

/// The place of the profile that a program was laid out by: who has both can build it once more.
pub fn profile_of(program: &Path) -> PathBuf {
    program.with_extension("profdata")
}

fn trained_directory() -> PathBuf {
    target_directory().join("trained")
}

/// The explicit target keeps build scripts and procedural macros dynamic, and free of the flags.
/// Builds with other flags have directories of their own, or each would undo the other's.
fn static_build_in(profile: Profile, directory: &Path, flags: &[String]) -> Result<Command> {
    command::run(&mut xtask(&["build-ebpf"]))?;
    static_cargo(&target(), profile, directory, flags)
}

/// As [`static_build`], for another processor, and without the kernel programs, which are the same
/// for all.
pub fn static_build_for(target: &str, profile: Profile, flags: &[String]) -> Result<Command> {
    static_cargo(target, profile, &target_directory(), flags)
}

/// The program that [`static_build_for`] makes.
pub fn static_path_for(target: &str, profile: Profile) -> PathBuf {
    target_directory().join(target).join(profile.name()).join("portcullis")
}

fn static_cargo(target: &str, profile: Profile, directory: &Path, flags: &[String]) -> Result<Command> {
    let mut cargo = Command::new(cargo_tool::ensure(versions::CARGO_AUDITABLE)?);
    cargo.current_dir(root()).args(["auditable", "build", "--locked", "--profile", profile.name()]);
    cargo.args(["--package", "portcullis", "--target", target, "--target-dir"]).arg(directory);
    let flags: Vec<_> = OWN_FLAGS
        .map(str::to_owned)
        .into_iter()
        .chain(paths::rust_flags())
        .chain(flags.iter().cloned())
        .collect();
    // Unlike RUSTFLAGS, flags may contain spaces.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    paths::rename_in_c(&mut cargo, target);
    Ok(cargo)
}

fn static_path(directory: &Path, profile: Profile) -> PathBuf {
    directory.join(target()).join(profile.name()).join("portcullis")
}

fn target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

impl Profile {
    /// cargo's, also of the directory in which it builds.
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }
}
