//! `kubectl portcullis`: the program under the name `kubectl-portcullis`. It asks an agent through
//! the API server, as the user of the kubeconfig, and the commands are those of `portcullis`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, Args, Parser, Subcommand};
use portcullis_control::remote::Wanted;

use crate::admin::client::Agent;
use crate::cli::{BugreportArgs, DumpArgs, ExplainArgs, RoutesArgs, StatusArgs, TopArgs, UiArgs, WatchArgs};
use crate::cluster::LEASE;
use crate::output::Colour;
use crate::{bugreport, inspect, output, status, top, ui, watch};

/// Ask an agent of the cluster what it serves.
#[derive(Parser)]
#[command(
    name = "kubectl-portcullis",
    bin_name = "kubectl portcullis",
    version,
    disable_help_subcommand = true
)]
struct Kubectl {
    /// Colours of tables
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHEN")]
    color: Colour,
    #[command(flatten)]
    way: Way,
    #[command(subcommand)]
    command: Command,
}

/// The agent that is asked, and the way to it.
#[derive(Args)]
struct Way {
    /// The kubeconfig file [default: KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    /// Namespace of the agents [default: all are searched, and one has to have them]
    #[arg(long, value_name = "NAME", global = true)]
    agents_namespace: Option<String>,
    /// Ask the agent of this node [default: the one that leads, or else one that is ready]
    #[arg(long, value_name = "NAME", global = true)]
    node: Option<String>,
    /// Ask the agent in this pod
    #[arg(long, value_name = "NAME", global = true)]
    pod: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Show the statuses of objects, and the part of the agent's node that serves each listener
    #[command(mut_arg("path", not_here), mut_arg("status_dir", not_here))]
    Status(StatusArgs),
    /// List routes in the order they are matched: listener, host, match, rule, backends
    #[command(mut_arg("path", not_here))]
    Routes(RoutesArgs),
    /// Say which listener, rule and backend take a request, and why not the others
    #[command(mut_arg("path", not_here), mut_arg("filename", |filename| filename.num_args(1)))]
    Explain(ExplainArgs),
    /// Wait for the next request for a host or path, and show what becomes of it step by step
    #[command(mut_arg("path", not_here))]
    Watch(WatchArgs),
    /// Print the configuration that the data plane runs
    #[command(mut_arg("path", not_here))]
    Dump(DumpArgs),
    /// Show listeners, routes and backends by their requests a second, live
    #[command(mut_arg("path", not_here))]
    Top(TopArgs),
    /// Open the agent's page in a browser, by a port that is there as long as this runs
    #[command(mut_arg("path", not_here))]
    Ui(UiArgs),
    /// Write all that the agent tells of itself into an archive, without secrets
    #[command(mut_arg("path", not_here))]
    Bugreport(BugreportArgs),
}

/// True of the name by which kubectl finds its plugins.
pub(crate) fn is_plugin(program: &Path) -> bool {
    program.file_stem().is_some_and(|name| name == "kubectl-portcullis")
}

pub(crate) fn run() -> Result<ExitCode> {
    let Kubectl { color, way, command } = Kubectl::parse();
    output::set_colour(color);
    let wanted = Wanted { namespace: way.agents_namespace, node: way.node, pod: way.pod };
    let agent = Agent::in_cluster(way.kubeconfig, way.context, wanted, LEASE)?;
    match command {
        Command::Status(args) => status::run(&args, &agent),
        Command::Routes(args) => inspect::routes(&args, &agent),
        Command::Explain(args) => inspect::explain(&args, &agent),
        Command::Watch(args) => watch::run(&args, &agent),
        Command::Dump(args) => inspect::dump(&args, &agent),
        Command::Top(args) => top::run(&args, &agent),
        Command::Ui(args) => ui::run(&args, &agent),
        Command::Bugreport(args) => bugreport::run(&args, &agent),
    }
}

/// An option of the program on a node.
fn not_here(argument: Arg) -> Arg {
    let refuse = |_: &str| -> Result<PathBuf, &str> { Err("the agent is asked through the API server") };
    argument.hide(true).env(None::<&str>).value_parser(refuse)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn kubectl_calls_it_by_its_name() {
        Kubectl::command().debug_assert();
        for (program, expected) in [
            ("kubectl-portcullis", true),
            ("/usr/local/bin/kubectl-portcullis", true),
            ("portcullis", false),
            ("/kubectl-portcullis/portcullis", false),
        ] {
            assert_eq!(is_plugin(Path::new(program)), expected, "{program}");
        }
        let socket = ["kubectl-portcullis", "status", "--admin-socket", "/run/x"];
        let error = Kubectl::try_parse_from(socket).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("the agent is asked through the API server"), "{error}");
        let node = Kubectl::try_parse_from(["kubectl-portcullis", "status", "gw", "-n", "a", "--node", "b"]);
        assert_eq!(node.unwrap().way.node.as_deref(), Some("b"));
    }
}
