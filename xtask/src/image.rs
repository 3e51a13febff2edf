//! `cargo xtask image`: the agent as a container image, FROM scratch, without a container daemon.
//! The same input gives the same bytes.

pub(crate) mod archive;
pub(crate) mod blobs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::Object;
use object::read::elf::{ElfFile64, ProgramHeader};

use crate::architecture::Architecture;
use crate::release;
use archive::{Image, Layout, User};
use portcullis_testbed::{build, command, paths, workspace};

/// Authorities that BackendTLSPolicy's `wellKnownCACertificates: System` means, where Debian and
/// most others keep them.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Path of the archive
    #[arg(long, default_value = "target/image/portcullis.tar")]
    output: PathBuf,
    /// The image's name; may be given more than once [default: portcullis.dev/portcullis:VERSION]
    #[arg(long)]
    tag: Vec<String>,
    /// An agent that is built already; it must be static
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Build for this processor [default: this machine's]
    #[arg(long, value_enum, conflicts_with = "binary")]
    architecture: Option<Architecture>,
    /// Lay the agent out by this profile of an earlier release, in place of training it anew: the
    /// same image comes of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["binary", "architecture"])]
    profile: Option<PathBuf>,
    /// Leave the system's certificate authorities out
    #[arg(long)]
    without_authorities: bool,
    /// Run the program as user 65532: for images of the test cluster
    #[arg(long, hide = true, requires = "binary")]
    nobody: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let program = match (&args.binary, args.architecture) {
        (Some(binary), _) => binary.clone(),
        (None, Some(architecture)) => built(architecture, None)?,
        (None, None) => built(Architecture::host()?, args.profile.as_deref())?,
    };
    let program = shippable(&program)?;
    let authorities = (!args.without_authorities).then_some(Path::new(AUTHORITIES));
    let files: Vec<_> = authorities.into_iter().filter(|file| file.is_file()).collect();
    let user = if args.nobody { User::Nobody } else { User::Root };
    let compressed = args.binary.is_none();
    let image = Image { program: &program, user, files: &files, compressed };
    let tags = tags(args);
    let digest = image.write(&tags, &args.output)?;
    let size = fs::metadata(&args.output)?.len().div_ceil(1 << 20);
    println!("image: {} ({size} MiB), {} as {digest}", args.output.display(), tags.join(", "));
    Ok(())
}

/// The agent as it is shipped.
pub(crate) fn built(architecture: Architecture, profile: Option<&Path>) -> Result<PathBuf> {
    let program = release::build_for(architecture, profile)?;
    refuse_unlisted(&program)?;
    Ok(program)
}

/// A static program without its debug information.
fn shippable(program: &Path) -> Result<PathBuf> {
    refuse_dynamic(program)?;
    let program = strip(program)?;
    refuse_paths(&program)?;
    Ok(program)
}

/// An image that is published, and what is told about it.
pub(crate) struct Published {
    pub layout: Layout,
    /// The program in it.
    pub program: PathBuf,
    /// The profile that the program is laid out by, if it is.
    pub profile: Option<PathBuf>,
}

pub(crate) fn published(program: &Path) -> Result<Published> {
    let profile = Some(build::profile_of(program)).filter(|profile| profile.is_file());
    let program = shippable(program)?;
    refuse_unlisted(&program)?;
    let authorities = Path::new(AUTHORITIES);
    if !authorities.is_file() {
        bail!("there is no {AUTHORITIES}, which belongs into the image: install ca-certificates");
    }
    let image = Image { program: &program, user: User::Root, files: &[authorities], compressed: true };
    Ok(Published { layout: image.layout()?, program, profile })
}

/// Of a version of its own, so that a node never takes an old image for a new one.
fn tags(args: &Args) -> Vec<String> {
    if args.tag.is_empty() {
        vec![format!("portcullis.dev/portcullis:{}", env!("CARGO_PKG_VERSION"))]
    } else {
        args.tag.clone()
    }
}

/// Debug information is nine tenths of the program; function names, which back traces show, are
/// kept.
pub(crate) fn strip(program: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("the program has no name")?;
    let place = workspace::root().join("target/image").join(Architecture::of(program)?.name()).join(name);
    fs::create_dir_all(place.parent().unwrap_or(&place))?;
    if has_debug_information(program)? {
        // The compiler's own, which knows programs of all processors.
        let objcopy = release::compilers("rust-objcopy")?;
        command::run(Command::new(objcopy).arg("--strip-debug").arg(program).arg(&place))?;
    } else {
        fs::copy(program, &place)?;
    }
    Ok(place)
}

fn has_debug_information(program: &Path) -> Result<bool> {
    let bytes = fs::read(program)?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).context("the program is not ELF")?;
    Ok(file.has_debug_symbols())
}

/// The list of crates in the program, which scanners of images read.
const CRATES: &str = ".dep-v0";

fn refuse_unlisted(program: &Path) -> Result<()> {
    let bytes = fs::read(program)?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).context("the program is not ELF")?;
    if file.section_by_name(CRATES).is_none() {
        bail!("{} does not list its crates: cargo-auditable did not build it", program.display());
    }
    Ok(())
}

/// A program of other bytes than one that is built of the same sources elsewhere is refused.
fn refuse_paths(program: &Path) -> Result<()> {
    let bytes = fs::read(program)?;
    for path in paths::unnamed() {
        if memchr::memmem::find(&bytes, path.as_os_str().as_encoded_bytes()).is_some() {
            bail!(
                "{} names files in {}, a directory of this machine: build it with `cargo xtask release`",
                program.display(),
                path.display()
            );
        }
    }
    Ok(())
}

fn refuse_dynamic(program: &Path) -> Result<()> {
    match linkage(program)? {
        Linkage::Static => Ok(()),
        Linkage::Dynamic => {
            bail!("{} is linked dynamically; build it with `cargo xtask image`", program.display())
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linkage {
    Static,
    /// It names an interpreter, and needs files that it does not bring.
    Dynamic,
}

pub(crate) fn linkage(program: &Path) -> Result<Linkage> {
    let bytes = fs::read(program).with_context(|| format!("no program at {}", program.display()))?;
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).context("the program is not ELF")?;
    let is_interpreter =
        |header: &object::elf::ProgramHeader64<_>| header.p_type(file.endian()) == object::elf::PT_INTERP;
    let is_dynamic = file.elf_program_headers().iter().any(is_interpreter);
    Ok(if is_dynamic { Linkage::Dynamic } else { Linkage::Static })
}
