//! The `portcullis` binary: command line, settings and wiring. Everything that decides anything is
//! in the crates below.

mod admin;
#[cfg(feature = "jemalloc")]
mod allocator;
mod check;
mod cleanup;
mod cli;
mod cluster;
mod expiry;
mod findings;
mod forwarding;
mod hand_over;
mod health_checks;
mod ignored_options;
mod inspect;
mod manual;
mod names;
mod offline;
mod output;
mod panics;
mod plane;
mod ready;
mod run;
mod scrape;
mod serving;
mod state;
mod status;
mod telemetry;
mod tenure;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Routes(args) => inspect::routes(&args),
        Command::Explain(args) => inspect::explain(&args),
        Command::Dump(args) => inspect::dump(&args),
        Command::Ready(args) => ready::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    };
    result.unwrap_or_else(|error| {
        output::error(&format!("portcullis: {error:#}"));
        ExitCode::from(2)
    })
}
