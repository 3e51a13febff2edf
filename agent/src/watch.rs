//! `portcullis watch`: the steps of the next request for a host or path, from a running agent.

use std::process::ExitCode;

use anyhow::Result;
use form_urlencoded::Serializer;
use portcullis_inspect::WatchReport;

use crate::admin::client::Agent;
use crate::admin::{api, watch};
use crate::cli::WatchArgs;
use crate::output;

pub(crate) fn run(args: &WatchArgs, agent: &Agent) -> Result<ExitCode> {
    if args.output.format().is_none() {
        output::error(&format!("waiting {} s at most; Ctrl-C ends it", args.seconds));
    }
    let report: WatchReport = agent.get_json(&target(args))?;
    match args.output.format() {
        Some(format) => output::value(&serde_json::to_value(&report)?, format)?,
        None => output::text(&report.text(output::look())),
    }
    Ok(if report.requests.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn target(args: &WatchArgs) -> String {
    let mut query = Serializer::new(String::new());
    let given = [
        ("host", &args.host),
        ("path", &args.of_path),
        ("method", &args.method),
        ("listener", &args.listener),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    for header in &args.headers {
        query.append_pair("header", header);
    }
    query.append_pair("seconds", &args.seconds.to_string()).append_pair("count", &args.count.to_string());
    format!("{}{}?{}", api::PREFIX, watch::NAME, query.finish())
}
