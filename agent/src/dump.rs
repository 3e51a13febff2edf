//! `portcullis dump` and `/config`: what the data plane runs, readable.

use std::process::ExitCode;

use anyhow::Result;
use portcullis_gateway::dump_snapshot;
use portcullis_model::Snapshot;

use crate::cli::DumpArgs;
use crate::{admin, offline, output};

pub(crate) fn run(args: &DumpArgs) -> Result<ExitCode> {
    let from = &args.from;
    output::text(&if from.filename.is_empty() {
        admin::client::get(&from.admin.path(), "/config")?
    } else {
        text(&offline::translate_readable(&from.filename, &from.settings)?.snapshot)
    });
    Ok(ExitCode::SUCCESS)
}

/// YAML, without keys.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    serde_saphyr::to_string(&dump_snapshot(snapshot))
        .unwrap_or_else(|error| format!("the configuration cannot be shown: {error}\n"))
}
