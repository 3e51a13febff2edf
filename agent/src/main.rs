//! The `portcullis` binary: command line, settings and wiring. Everything that decides anything is
//! in the crates below.

mod about;
mod admin;
#[cfg(feature = "jemalloc")]
mod allocator;
mod bugreport;
mod check;
mod cleanup;
mod cli;
mod cluster;
mod convert;
mod expiry;
mod findings;
mod forwarding;
mod hand_over;
mod health_checks;
mod ignored_options;
mod inspect;
mod kubectl;
mod manual;
mod names;
mod offline;
mod output;
mod panics;
mod plane;
mod process;
mod ready;
mod recent_log;
mod run;
mod scrape;
mod serving;
mod state;
mod status;
mod supervisor;
mod telemetry;
mod tenure;
mod top;
mod ui;
mod watch;
mod watch_limits;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use admin::client::Agent;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let result = if kubectl::is_plugin(program.as_ref()) {
        kubectl::run()
    } else {
        let cli = Cli::parse();
        output::set_colour(cli.color);
        run(cli.command)
    };
    let result = result.and_then(|code| output::finish().map(|()| code));
    result.unwrap_or_else(|error| {
        output::error(&format!("portcullis: {}", in_full(&error)));
        ExitCode::from(2)
    })
}

/// The error and its causes, each once: some have their cause in their own words.
fn in_full(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Status(args) => status::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Routes(args) => inspect::routes(&args, &Agent::at_socket(args.from.admin.path())?),
        Command::Explain(args) => inspect::explain(&args, &Agent::at_socket(args.from.admin.path())?),
        Command::Watch(args) => watch::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Dump(args) => inspect::dump(&args, &Agent::at_socket(args.from.admin.path())?),
        Command::Top(args) => top::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Ui(args) => ui::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Ready(args) => ready::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Bugreport(args) => bugreport::run(&args, &Agent::at_socket(args.admin.path())?),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let refused = || std::io::Error::from_raw_os_error(13);
        let unusable = portcullis_node::Insecure::Unusable { path: PathBuf::from("/x"), problem: refused() };
        let said = in_full(&anyhow::Error::new(unusable).context("no hand-over"));
        assert_eq!(said, "no hand-over: cannot use the directory /x: Permission denied (os error 13)");
        let known = Err::<(), _>(refused()).context("Permission denied (os error 13), again");
        assert_eq!(in_full(&known.unwrap_err()), "Permission denied (os error 13), again");
    }
}
