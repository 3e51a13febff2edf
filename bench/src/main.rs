//! Measurements of the agent that can be repeated anywhere: `cargo xtask bench <name>`. One module each; none knows the
//! agent's crates, all run its program.

mod instructions;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measure the agent", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// User instructions per request, which the machine's load does not change
    Instructions(instructions::Args),
}

fn main() -> Result<()> {
    match Cli::parse().benchmark {
        Benchmark::Instructions(args) => instructions::run(&args),
    }
}
