//! `portcullis status`: objects and their conditions.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use portcullis_control::status::read_statuses;
use portcullis_inspect::Selection;
use serde_json::Value;

use crate::cli::StatusArgs;
use crate::{admin, output};

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let selection = Selection { kind: args.kind.clone(), name: args.name.clone() };
    let mut objects = read(args)?;
    objects.retain(|object| selection.contains(object));
    match args.output {
        Some(format) => output::objects(&objects, format)?,
        None => output::text(&portcullis_inspect::statuses(&objects)),
    }
    if objects.is_empty() && args.kind.is_some() {
        bail!("no object of this kind and name has a status");
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &StatusArgs) -> Result<Vec<Value>> {
    match &args.status_dir {
        Some(directory) => read_statuses(directory)
            .with_context(|| format!("cannot read status files in {}", directory.display())),
        None => Ok(serde_json::from_str(&admin::client::get(&args.admin.path(), "/status")?)?),
    }
}
