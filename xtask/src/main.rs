//! Everything a developer or CI runs that is not plain cargo: `cargo xtask <command>`. One module per command.

mod agent;
mod bench;
mod build_ebpf;
mod chart;
mod ci;
mod cluster;
mod codegen;
mod conformance;
mod demo;
mod go;
mod image;
mod object_file;
mod setup;
mod shell;
mod tidy;
mod toolchain;
mod versions;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Portcullis development commands", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what this machine lacks to build, test and demonstrate Portcullis
    Setup(setup::Args),
    /// Build the kernel programs into target/ebpf, where the agent's build picks them up
    BuildEbpf(build_ebpf::Args),
    /// Serve examples/quickstart and show requests and answers
    Demo(demo::Args),
    /// Measure, against other proxies in the same run
    Bench(bench::Args),
    /// Everything that must hold before a change goes in
    Ci(ci::Args),
    /// Make the Kubernetes API types from the CRDs, and the CRDs from a Gateway API release
    Codegen(codegen::Args),
    /// Check the rules no compiler checks: layers, links, dependencies, paths
    Tidy(tidy::Args),
    /// A real Kubernetes of one or more nodes in namespaces of its own
    Cluster(cluster::Args),
    /// Run the official Gateway API conformance suite on the test cluster
    Conformance(conformance::Args),
    /// Build the agent's container image, without a container daemon
    Image(image::Args),
    /// Render the Helm chart, install it on the test cluster, test it there
    Chart(chart::Args),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Setup(args) => setup::run(&args),
        Command::BuildEbpf(args) => build_ebpf::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Codegen(args) => codegen::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Chart(args) => chart::run(&args),
    }
}
