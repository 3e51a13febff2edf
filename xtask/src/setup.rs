//! `cargo xtask setup`: looks at what is there, says what is missing, installs that and nothing
//! else.

use anyhow::Result;
use portcullis_testbed::versions::{
    ATTACK_TOOLS, BENCH_TOOLS, BROWSER_TOOLS, CARGO_AUDITABLE, CARGO_DENY, CLUSTER_TOOLS, COUNTING_TOOLS,
    LOAD_TOOLS, MDBOOK, TOOLS, Tool,
};
use portcullis_testbed::{cargo_tool, command, go};

use crate::debian;
use crate::toolchain::{Choice, Toolchain};

#[derive(Default, clap::Args)]
pub(crate) struct Args {
    /// Also the peers and load generators of the benchmarks
    #[arg(long)]
    bench: bool,
    /// Also what counts instructions, as `--bench` does, but none of its peers
    #[arg(long)]
    counting: bool,
    /// Also the load generators by which a release is trained
    #[arg(long)]
    training: bool,
    /// Also the servers that `attack` compares
    #[arg(long)]
    attacking: bool,
    /// Also the browser in which tests open the agent's page
    #[arg(long)]
    browser: bool,
    /// Also what the test cluster needs
    #[arg(long)]
    cluster: bool,
    /// Also mdBook, and cargo's commands that check and describe dependencies
    #[arg(long)]
    checking: bool,
    /// Leave the eBPF toolchain out: builds and tests run on the user-space fallback
    #[arg(long)]
    no_ebpf: bool,
    /// Compiler for the kernel programs
    #[arg(long, value_enum, default_value_t)]
    toolchain: Choice,
}

impl Args {
    pub(crate) fn ci() -> Self {
        Self { browser: true, cluster: true, counting: true, ..Self::default() }
    }

    pub(crate) fn counting() -> Self {
        Self { counting: true, ..Self::default() }
    }

    pub(crate) fn training() -> Self {
        Self { training: true, ..Self::default() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tools(TOOLS)?;
    if args.bench || args.counting {
        tools(COUNTING_TOOLS)?;
    }
    if args.bench || args.training {
        tools(LOAD_TOOLS)?;
    }
    if args.bench {
        tools(BENCH_TOOLS)?;
    }
    if args.attacking {
        tools(ATTACK_TOOLS)?;
    }
    if args.browser {
        tools(BROWSER_TOOLS)?;
    }
    if args.cluster {
        tools(CLUSTER_TOOLS)?;
        if command::find("go").is_none() {
            debian::install(&["golang-go"])?;
        }
        go::ensure()?;
    }
    if args.checking {
        cargo_tool::ensure(CARGO_AUDITABLE)?;
        cargo_tool::ensure(CARGO_DENY)?;
        cargo_tool::ensure(MDBOOK)?;
    }
    if !args.no_ebpf {
        let toolchain = Toolchain::choose(args.toolchain)?;
        println!("setup: eBPF toolchain: {toolchain}");
        toolchain.install()?;
    }
    println!("setup: everything is there");
    Ok(())
}

fn tools(wanted: &[Tool]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|tool| command::find(tool.command).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    debian::install(&missing.iter().map(|tool| tool.package).collect::<Vec<_>>())
}
