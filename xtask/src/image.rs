//! `cargo xtask image`: the agent as a container image, FROM scratch, without a container daemon. The same input gives the same
//! bytes.

mod archive;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::read::elf::{ElfFile64, ProgramHeader};

pub(crate) use archive::{Image, User};

use crate::{agent, build_ebpf, shell};

/// Authorities that BackendTLSPolicy's `wellKnownCACertificates: System` means, where Debian and most others keep them.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the archive
    #[arg(long, default_value = "target/image/portcullis.tar")]
    output: PathBuf,
    /// The image's name; may be given more than once [default: portcullis.dev/portcullis:VERSION]
    #[arg(long)]
    tag: Vec<String>,
    /// An agent that is built already; it must be static
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Leave the system's certificate authorities out
    #[arg(long)]
    without_authorities: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let authorities = (!args.without_authorities).then_some(Path::new(AUTHORITIES));
    write(args.binary.as_deref(), &args.output, tags(args), authorities)
}

/// The image of an agent that is built already, or is built now.
pub(crate) fn write(
    binary: Option<&Path>,
    place: &Path,
    tags: Vec<String>,
    authorities: Option<&Path>,
) -> Result<()> {
    let program = match binary {
        Some(binary) => binary.to_owned(),
        None => build_agent(Profile::Release)?,
    };
    refuse_dynamic(&program)?;
    let program = strip(&program)?;
    let files: Vec<_> = authorities.into_iter().filter(|file| file.is_file()).collect();
    let image = Image { program: &program, tags, user: User::Root, files: &files };
    let digest = image.write(place)?;
    let size = fs::metadata(place)?.len().div_ceil(1 << 20);
    println!("image: {} ({size} MiB), {} as {digest}", place.display(), image.tags.join(", "));
    Ok(())
}

/// Of a version of its own, so that a node never takes an old image for a new one.
fn tags(args: &Args) -> Vec<String> {
    if args.tag.is_empty() {
        vec![format!("portcullis.dev/portcullis:{}", env!("CARGO_PKG_VERSION"))]
    } else {
        args.tag.clone()
    }
}

/// How an agent is compiled; the values are cargo's.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// As it is shipped.
    Release,
    /// In a tenth of the time; it serves the same.
    Dev,
}

/// The agent with the kernel programs and the C library linked in. The explicit target keeps build scripts and procedural macros dynamic.
pub(crate) fn build_agent(profile: Profile) -> Result<PathBuf> {
    build_ebpf::run(&build_ebpf::Args::default())?;
    let (name, directory) = match profile {
        Profile::Release => ("release", "release"),
        Profile::Dev => ("dev", "debug"),
    };
    let target = format!("{ARCH}-unknown-linux-gnu");
    let mut cargo = agent::cargo();
    cargo.args(["build", "--locked", "--profile", name, "--package", "portcullis", "--target", &target]);
    cargo.env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    shell::run(&mut cargo)?;
    Ok(agent::target_directory().join(target).join(directory).join("portcullis"))
}

/// Debug information is nine tenths of the program; function names, which back traces show, are kept.
fn strip(program: &Path) -> Result<PathBuf> {
    let place = shell::root().join("target/image/portcullis");
    fs::create_dir_all(place.parent().unwrap_or(&place))?;
    shell::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&place).arg(program))?;
    Ok(place)
}

/// A program that names an interpreter needs files that the image lacks.
fn refuse_dynamic(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("no program at {}", program.display()))?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).context("the program is not ELF")?;
    let is_interpreter =
        |header: &&object::elf::ProgramHeader64<_>| header.p_type(file.endian()) == object::elf::PT_INTERP;
    if file.elf_program_headers().iter().any(|header| is_interpreter(&header)) {
        bail!("{} is linked dynamically; build it with `cargo xtask image`", program.display());
    }
    Ok(())
}
