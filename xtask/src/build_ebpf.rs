//! `cargo xtask build-ebpf`: compiles `ebpf/`, checks and strips the object, and puts it where the
//! agent's build looks. Then the kernel verifies it, if this is root.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use portcullis_testbed::{command, paths, workspace};

use crate::object_file;
use crate::toolchain::{Choice, Toolchain};

const TARGET: &str = "bpfel-unknown-none";
/// Relative to the workspace; `agent/node/build.rs` looks here.
const OBJECT: &str = "target/ebpf/portcullis-ebpf.o";

#[derive(Default, clap::Args)]
pub(crate) struct Args {
    /// Compiler to use
    #[arg(long, value_enum, default_value_t)]
    toolchain: Choice,
    /// Leave it to the agent that loads the programs to have them verified
    #[arg(long)]
    unverified: bool,
}

impl Args {
    /// For an agent that is started at once.
    pub(crate) fn unverified() -> Self {
        Self { unverified: true, ..Self::default() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let toolchain = Toolchain::choose(args.toolchain)?;
    println!("build-ebpf: {toolchain}");
    toolchain.install()?;
    let built = compile(toolchain)?;
    let object = fs::read(&built).with_context(|| format!("no object at {}", built.display()))?;
    object_file::refuse_panics(&object)?;
    let stripped = object_file::strip_debug(&object)?;
    let size = stripped.len();
    install(&stripped, &workspace::root().join(OBJECT))?;
    println!("build-ebpf: {OBJECT}, {} kB", size.div_ceil(1024));
    if args.unverified { Ok(()) } else { verify() }
}

/// Has the kernel verify the programs, where it lets us, and prints how much work that is.
fn verify() -> Result<()> {
    let mut cargo = workspace::cargo();
    command::run(cargo.args([
        "run",
        "--quiet",
        "--locked",
        "--package",
        "portcullis-node",
        "--example",
        "verified",
    ]))
}

/// Path at which cargo put the object.
fn compile(toolchain: Toolchain) -> Result<PathBuf> {
    let target = target_directory();
    let mut cargo = toolchain.cargo()?;
    cargo.args(["build", "--release", "--locked", "--target", TARGET, "-Zbuild-std=core", "--target-dir"]);
    cargo
        .arg(&target)
        .current_dir(workspace::root().join("ebpf"))
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags());
    command::run(&mut cargo)?;
    Ok(target.join(TARGET).join("release/portcullis-ebpf"))
}

/// BTF is made from debug information. The bindings want to know a processor, for its registers, of
/// which nothing here makes use: it is the same one everywhere, so that the object is.
fn rustflags() -> String {
    let flags = ["-Cdebuginfo=2", "-Clink-arg=--btf", "--cfg=bpf_target_arch=\"x86_64\""].map(str::to_owned);
    flags.into_iter().chain(paths::rust_flags()).collect::<Vec<_>>().join("\x1f")
}

fn target_directory() -> PathBuf {
    let host = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace::root().join(host).join("ebpf-build")
}

/// An unchanged object keeps its time, so that the agent is not rebuilt.
fn install(object: &[u8], place: &Path) -> Result<()> {
    if fs::read(place).is_ok_and(|old| old == object) {
        return Ok(());
    }
    let directory = place.parent().unwrap_or(place);
    let partial = place.with_extension("partial");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&partial, object))
        .and_then(|()| fs::rename(&partial, place))
        .with_context(|| format!("cannot write {}", place.display()))
}
