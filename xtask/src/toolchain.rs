//! The compiler for the kernel programs. They need `core` built from source, so compiler and source
//! must match: rustup's nightly with `rust-src`, or on Debian 12 the packages named in
//! [`versions`]. Mixing the two does not compile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt};

use anyhow::{Context, Result, bail};
use portcullis_testbed::versions::{BPF_LINKER, DEBIAN_LLVM, DEBIAN_TOOLCHAIN, RUSTUP_TOOLCHAIN};
use portcullis_testbed::{command, workspace};

use crate::debian;

const RUSTUP_INSTALL: &str =
    "run `rustup toolchain install nightly --component rust-src`, which also updates the toolchain";

/// Choice on the command line.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
pub(crate) enum Choice {
    /// rustup's nightly if it has rust-src, else Debian's packages
    #[default]
    Auto,
    Debian,
    Rustup,
}

#[derive(Clone, Copy)]
pub(crate) enum Toolchain {
    Debian,
    Rustup,
}

impl Toolchain {
    pub(crate) fn choose(choice: Choice) -> Result<Self> {
        match choice {
            Choice::Debian => Ok(Self::Debian),
            Choice::Rustup => Ok(Self::Rustup),
            Choice::Auto if rustup_has_source() => Ok(Self::Rustup),
            Choice::Auto if command::find("apt-get").is_some() => Ok(Self::Debian),
            Choice::Auto => bail!("no toolchain for eBPF: {RUSTUP_INSTALL}, or use Debian 12"),
        }
    }

    /// Installs whatever of Debian's toolchain is missing, and the linker. A rustup toolchain is
    /// the user's, shared with all their projects: installing into it would also update it, so it
    /// is asked for and not touched.
    pub(crate) fn install(self) -> Result<()> {
        match self {
            Self::Debian => install_packages()?,
            Self::Rustup if rustup_has_source() => {}
            Self::Rustup => bail!("{RUSTUP_TOOLCHAIN} lacks rust-src: {RUSTUP_INSTALL}"),
        }
        self.install_linker()
    }

    /// A cargo that builds for the kernel's target with the linker at hand.
    pub(crate) fn cargo(self) -> Result<Command> {
        let mut cargo = match self {
            Self::Debian => debian_cargo(),
            Self::Rustup => rustup_cargo(),
        };
        let linker = self.linker().context("bpf-linker is missing: run `cargo xtask setup`")?;
        let directory = linker.parent().unwrap_or(Path::new("/"));
        cargo.env("PATH", command::path_with(&[directory, &self.llvm_prefix().join("bin")])?);
        // The outer cargo's choices are for the host.
        cargo.env_remove("CARGO").env_remove("RUSTFLAGS").env_remove("CARGO_BUILD_TARGET");
        Ok(cargo)
    }

    /// Path of bpf-linker: our own build of the pinned version, or with rustup also the one in
    /// PATH.
    fn linker(self) -> Option<PathBuf> {
        let own = self.linker_root().join("bin/bpf-linker");
        match self {
            _ if own.is_file() => Some(own),
            Self::Debian => None,
            Self::Rustup => command::find("bpf-linker"),
        }
    }

    /// Each version and LLVM has a directory of its own, so a new pin never meets an old build.
    fn linker_root(self) -> PathBuf {
        workspace::cache().join(format!("bpf-linker-{BPF_LINKER}-llvm-{}", self.llvm()))
    }

    /// The major version of the compiler's LLVM, which the linker must understand.
    fn llvm(self) -> String {
        match self {
            Self::Debian => DEBIAN_LLVM.to_owned(),
            Self::Rustup => rustup_llvm().unwrap_or_else(|| "unknown".to_owned()),
        }
    }

    fn install_linker(self) -> Result<()> {
        if self.linker().is_some() {
            return Ok(());
        }
        let (llvm, prefix) = (self.llvm(), self.llvm_prefix());
        println!("setup: building bpf-linker {BPF_LINKER} with LLVM {llvm} (about a minute, once)");
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        // LLVM does the work, and is built already: optimising the rest takes longer than it saves.
        cargo.args(["install", "bpf-linker", "--debug", "--locked", "--quiet", "--version", BPF_LINKER]);
        cargo.arg("--root");
        cargo.arg(self.linker_root()).current_dir(env::temp_dir());
        cargo.args(["--no-default-features", "--features", &format!("llvm-{llvm}")]);
        if prefix.is_dir() {
            cargo.env("LLVM_PREFIX", &prefix).env("PATH", command::path_with(&[&prefix.join("bin")])?);
        }
        command::run(&mut cargo)
            .with_context(|| format!("LLVM {llvm} with headers is needed; or put a bpf-linker into PATH"))
    }

    /// Directories in which Debian's packages, and those of the LLVM project, put LLVM.
    fn llvm_prefix(self) -> PathBuf {
        PathBuf::from(format!("/usr/lib/llvm-{}", self.llvm()))
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian => write!(f, "Debian's {} with LLVM {DEBIAN_LLVM}", DEBIAN_TOOLCHAIN[0])?,
            Self::Rustup => write!(f, "rustup's {RUSTUP_TOOLCHAIN} with rust-src")?,
        }
        write!(f, ", bpf-linker {BPF_LINKER}")
    }
}

fn rustup_llvm() -> Option<String> {
    let version = command::ask("rustup", &["run", RUSTUP_TOOLCHAIN, "rustc", "-vV"])?;
    Some(version.split_once("LLVM version: ")?.1.split_once('.')?.0.to_owned())
}

fn rustup_has_source() -> bool {
    let sysroot = command::ask("rustup", &["run", RUSTUP_TOOLCHAIN, "rustc", "--print", "sysroot"]);
    sysroot.is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir())
}

fn install_packages() -> Result<()> {
    let installed =
        command::ask("dpkg-query", &["--show", "--showformat", "${Package} ${db:Status-Status}\n"])
            .context("Debian's toolchain was asked for, but there is no dpkg-query")?;
    let is_missing = |package: &&&str| !installed.lines().any(|line| line == format!("{package} installed"));
    let missing: Vec<_> = DEBIAN_TOOLCHAIN.iter().filter(is_missing).copied().collect();
    if missing.is_empty() { Ok(()) } else { debian::install(&missing) }
}

fn debian_cargo() -> Command {
    let mut cargo = Command::new("/usr/bin/cargo");
    // A release compiler; `-Z build-std` is all that is wanted of nightly.
    cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
    cargo
}

fn rustup_cargo() -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", RUSTUP_TOOLCHAIN, "cargo"]).env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    cargo
}
