//! `cargo xtask setup`: looks at what is there, says what is missing, installs that and nothing
//! else.

use std::process::Command;

use anyhow::{Result, bail};
use portcullis_testbed::versions::{
    BENCH_TOOLS, CARGO_AUDITABLE, CARGO_DENY, CLUSTER_TOOLS, COUNTING_TOOLS, TOOLS, Tool,
};
use portcullis_testbed::{command, go};

use crate::toolchain::{Choice, Toolchain};

#[derive(Default, clap::Args)]
pub(crate) struct Args {
    /// Also the peers and load generators of the benchmarks
    #[arg(long)]
    bench: bool,
    /// Also what counts instructions, as `--bench` does, but none of its peers
    #[arg(long)]
    counting: bool,
    /// Also what the test cluster needs
    #[arg(long)]
    cluster: bool,
    /// Also cargo's commands that check and describe dependencies
    #[arg(long)]
    auditing: bool,
    /// Leave the eBPF toolchain out: builds and tests run on the user-space fallback
    #[arg(long)]
    no_ebpf: bool,
    /// Which compiler builds the kernel programs
    #[arg(long, value_enum, default_value_t)]
    toolchain: Choice,
}

impl Args {
    pub(crate) fn ci() -> Self {
        Self { cluster: true, counting: true, ..Self::default() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tools(TOOLS)?;
    if args.bench || args.counting {
        tools(COUNTING_TOOLS)?;
    }
    if args.bench {
        tools(BENCH_TOOLS)?;
    }
    if args.cluster {
        tools(CLUSTER_TOOLS)?;
        if command::find("go").is_none() {
            apt_install(&["golang-go"])?;
        }
        go::ensure()?;
    }
    if args.auditing {
        CARGO_AUDITABLE.ensure()?;
        CARGO_DENY.ensure()?;
    }
    if !args.no_ebpf {
        let toolchain = Toolchain::choose(args.toolchain)?;
        println!("setup: eBPF toolchain: {toolchain}");
        toolchain.install()?;
    }
    println!("setup: everything is there");
    Ok(())
}

/// Installs Debian packages; as root, or through sudo.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    if command::find("apt-get").is_none() {
        bail!("missing here: {}; install them with this system's package manager", packages.join(", "));
    }
    println!("setup: installing {}", packages.join(", "));
    command::run(apt().args(["-qq", "update"]))?;
    command::run(apt().args(["-qq", "install", "--yes", "--no-install-recommends"]).args(packages))
}

fn tools(wanted: &[Tool]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|tool| command::find(tool.command).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    apt_install(&missing.iter().map(|tool| tool.package).collect::<Vec<_>>())
}

fn apt() -> Command {
    let root = command::ask("id", &["-u"]).is_some_and(|uid| uid == "0");
    let mut command = Command::new(if root { "env" } else { "sudo" });
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}
