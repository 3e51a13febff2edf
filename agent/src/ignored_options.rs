//! Options of `run` that are without effect beside the others, or on this node.

use portcullis_node::Node;

use crate::cli::{MetricsArgs, RunArgs};

const ALERTS: &str = "connections for names that no listener has are all answered by an alert";

/// A line for each, with what holds instead and what to do. What the packet guard would drop is
/// refused all the same: of that, status and metrics tell.
pub(crate) fn ignored_options(args: &RunArgs, node: &Node) -> Vec<String> {
    [of_metrics(&args.metrics), of_pods(args), of_names(args, node)].concat()
}

/// Of a collector that pods do not reach.
fn of_pods(args: &RunArgs) -> Vec<String> {
    let are_there = args.config_dir.is_none() && args.cluster.has_dedicated_pods();
    let Some(reason) = args.telemetry.kept_from_pods().filter(|_| are_there) else { return Vec::new() };
    vec![format!(
        "--otlp-endpoint is without effect for pods of mode Dedicated, as {reason}: they have no traces, and log to \
         standard output. Name a collector in the cluster, by the name of a Service, that takes what has no \
         credentials"
    )]
}

/// Of metrics for scrapers that there is no address for.
fn of_metrics(args: &MetricsArgs) -> Vec<String> {
    let options = [
        ("--metrics-token-file", args.metrics_token_file.is_some()),
        ("--metrics-certificate", args.metrics_certificate.is_some()),
        ("--metrics-client-ca", args.metrics_client_ca.is_some()),
        ("--metrics-open", args.metrics_open),
    ];
    let ignored = options.into_iter().filter(|(_, is_given)| *is_given && args.metrics_address.is_none());
    let line = |(option, _)| {
        format!(
            "{option} is without effect: there is no --metrics-address, and scrapers on other machines get no metrics. \
             Give one, or leave the option out"
        )
    };
    ignored.map(line).collect()
}

fn of_names(args: &RunArgs, node: &Node) -> Vec<String> {
    let reads_names = node.name_coverage().is_wanted;
    let rate = (args.unknown_names > 0).then(|| format!("--unknown-names {}", args.unknown_names));
    if node.is_steered() {
        let alone = rate.filter(|_| !reads_names);
        let line = |rate| {
            format!(
                "{rate} is without effect: no interface is named on which names are read, and {ALERTS}. Name some with \
                 --name-interface, or leave the option out"
            )
        };
        return alone.map(line).into_iter().collect();
    }
    let names = reads_names.then(|| format!("--name-interface {}", args.name_interface.join(",")));
    let ignored =
        [(names, "user space reads names all the same, and refuses at a higher price"), (rate, ALERTS)];
    let ignored = ignored.into_iter().filter_map(|(option, instead)| Some((option?, instead)));
    let line = |(option, instead)| {
        format!(
            "{option} is without effect: there are no kernel programs, and {instead}. See that they can be used (the \
             line \"datapath\" has the reason), or leave the option out"
        )
    };
    ignored.map(line).collect()
}
