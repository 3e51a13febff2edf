//! Everything a developer or CI runs that is not plain cargo: `cargo xtask <command>`. One module
//! per command; what measures or tests is a program of its own.

mod architecture;
mod book;
mod build_ebpf;
mod ci;
mod codegen;
mod cross;
mod dashboards;
mod deb;
mod debian;
mod demo;
mod deny;
mod fuzz;
mod image;
mod object_file;
mod pass_on;
mod publish;
mod release;
mod reproduce;
mod setup;
mod tidy;
mod toolchain;

use anyhow::Result;
use clap::{Parser, Subcommand};
use pass_on::Arguments;

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
    /// Everything that must hold before a change goes in
    Ci(ci::Args),
    /// Make the Kubernetes API types from the CRDs, and the CRDs from a Gateway API release
    Codegen(codegen::Args),
    /// Make the Grafana dashboards of the chart from tables of panels
    Dashboards(dashboards::Args),
    /// Check the rules no compiler checks: layers, links, dependencies, paths, circles, words
    Tidy(tidy::Args),
    /// Build the documents as a site, in target/book
    Book(book::Args),
    /// Check what dependencies there are: banned ones, licences, sources
    Deny(deny::Args),
    /// Check dependencies for known vulnerabilities; fetches the database of them
    Advisories(deny::Args),
    /// Build the agent as it is shipped: trained under load, and laid out by what that showed
    Release(release::Args),
    /// Build the image twice, in two places, and compare
    Reproduce(reproduce::Args),
    /// Build the agent's container image, without a container daemon
    Image(image::Args),
    /// Push image, list of its parts and chart to a registry, signed
    Publish(publish::Args),
    /// Build the agent's Debian package: program, systemd unit, manual pages
    Deb(deb::Args),
    /// Attack the agent as clients and backends may, and say what came of it
    #[command(disable_help_flag = true)]
    Attack(Arguments),
    /// Look for bytes that break a parser, guided by coverage
    Fuzz(fuzz::Args),
    /// Measure the agent, alone and next to other proxies
    #[command(disable_help_flag = true)]
    Bench(Arguments),
    /// A real Kubernetes of one or more nodes in namespaces of its own
    #[command(disable_help_flag = true)]
    Cluster(Arguments),
    /// Run the official Gateway API conformance suite on the test cluster
    #[command(disable_help_flag = true)]
    Conformance(Arguments),
    /// Render the Helm chart, install it on the test cluster, test it there
    #[command(disable_help_flag = true)]
    Chart(Arguments),
    /// Run controllers of others, cert-manager for instance, as docs/tasks tells, on the test
    /// cluster
    #[command(disable_help_flag = true)]
    Tasks(Arguments),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Setup(args) => setup::run(&args),
        Command::BuildEbpf(args) => build_ebpf::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Codegen(args) => codegen::run(&args),
        Command::Dashboards(args) => dashboards::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Book(args) => book::run(&args),
        Command::Deny(args) => deny::run(&args),
        Command::Advisories(args) => deny::advisories(&args),
        Command::Release(args) => release::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Deb(args) => deb::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Attack(given) => pass_on::ATTACK.run(&given),
        Command::Bench(given) => pass_on::BENCH.run(&given),
        Command::Cluster(given) => pass_on::CLUSTER.run(&given),
        Command::Conformance(given) => pass_on::CONFORMANCE.run(&given),
        Command::Chart(given) => pass_on::CHART.run(&given),
        Command::Tasks(given) => pass_on::TASKS.run(&given),
    }
}
