//! The agent for processors that this machine does not have. The compiler is the one that builds
//! everything if rustup has its standard library for them; else Debian's, which is packaged with
//! one for each of Debian's architectures, fetched without telling dpkg of another architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};

use crate::architecture::Architecture;
use crate::{build_ebpf, debian};

/// The compiler of Debian's, and the package that has its standard library.
const COMPILER: &str = "rustc-web";
const STANDARD_LIBRARY: &str = "libstd-rust-web-dev";

/// Pages of the kernels that it runs on, as a power of two: those of arm64 have up to 64 KiB, and
/// an allocator made for smaller ones does not start there.
const LARGEST_PAGE: &str = "16";

/// Builds the release, untrained: a program for another processor cannot be put under load here.
pub(crate) fn release(architecture: Architecture) -> Result<PathBuf> {
    let host = Architecture::host()?;
    let (from, to) = (host.name(), architecture.processor());
    let gcc = format!("{to}-linux-gnu-gcc");
    if command::find(&gcc).is_none() {
        let libc = format!("libc6-dev-{}-cross", architecture.name());
        debian::install(&[&format!("gcc-{}-linux-gnu", to.replace('_', "-")), &libc])?;
    }
    build_ebpf::run(&build_ebpf::Args::default())?;
    println!("cross: building for {} on {from}, untrained", architecture.name());
    let target = format!("{to}-unknown-linux-gnu");
    let library = StandardLibrary::find(architecture, &target)?;
    // By its linker: what comes with the compiler cannot take it out of a static program for arm64.
    let mut flags = vec!["-Cstrip=debuginfo".to_owned()];
    flags.extend(library.flags());
    let mut cargo = build::static_build_for(&target, Profile::Release, &flags)?;
    library.have_compiled_by(&mut cargo);
    let of_target = |name: &str| format!("{name}_{}", target.replace('-', "_"));
    cargo.env(format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase()), &gcc);
    cargo.env(of_target("CC"), &gcc).env(of_target("AR"), format!("{to}-linux-gnu-ar"));
    cargo.env("JEMALLOC_SYS_WITH_LG_PAGE", LARGEST_PAGE);
    command::run(&mut cargo)?;
    Ok(build::static_path_for(&target, Profile::Release))
}

/// For another processor.
enum StandardLibrary {
    Rustups,
    /// In a directory like a compiler's own.
    Debians(PathBuf),
}

impl StandardLibrary {
    fn find(architecture: Architecture, target: &str) -> Result<Self> {
        let sysroot = command::ask("rustc", &["--print", "sysroot"]).context("there is no rustc")?;
        if Path::new(&sysroot).join("lib/rustlib").join(target).join("lib").is_dir() {
            return Ok(Self::Rustups);
        }
        let packaged = packaged(architecture);
        Ok(Self::Debians(packaged.with_context(|| {
            format!("no standard library for {target}: run `rustup target add {target}`, or use Debian 12")
        })?))
    }

    fn flags(&self) -> Vec<String> {
        match self {
            Self::Rustups => Vec::new(),
            Self::Debians(sysroot) => vec![format!("--sysroot={}", sysroot.display())],
        }
    }

    /// Standard library and compiler must be of one build.
    fn have_compiled_by(&self, cargo: &mut Command) {
        if let Self::Debians(_) = self {
            cargo.env("CARGO", "/usr/bin/cargo").env("RUSTC", "/usr/bin/rustc");
        }
    }
}

/// Debian's standard library for a processor, of the version of Debian's compiler here.
fn packaged(architecture: Architecture) -> Result<PathBuf> {
    let version = || {
        command::ask("dpkg-query", &["--show", "--showformat", "${Version}", COMPILER])
            .filter(|it| !it.is_empty())
    };
    if version().is_none() {
        debian::install(&[COMPILER])?;
    }
    let version = version().with_context(|| format!("{COMPILER} is not installed"))?;
    let place = workspace::cache().join(format!("{STANDARD_LIBRARY}-{version}-{}", architecture.name()));
    let sysroot = place.join("usr");
    if !sysroot.is_dir() {
        fs::create_dir_all(workspace::cache())?;
        let scratch = tempfile::tempdir_in(workspace::cache())?;
        debian::fetch(&format!("{STANDARD_LIBRARY}:{}={version}", architecture.name()), scratch.path())?;
        let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
        let mut files = fs::read_dir(scratch.path())?.filter_map(|entry| Some(entry.ok()?.path()));
        let package = files.find(is_package).context("apt-get has fetched no package")?;
        let unpacked = scratch.path().join("unpacked");
        command::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
        fs::rename(&unpacked, &place)?;
    }
    ensure!(sysroot.join("lib/rustlib").is_dir(), "{STANDARD_LIBRARY} has no standard library");
    Ok(sysroot)
}
