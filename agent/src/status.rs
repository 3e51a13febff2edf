//! `portcullis status`: objects and their conditions.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use portcullis_control::status;
use serde_json::Value;

use crate::cli::StatusArgs;
use crate::{admin, output};

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let mut objects = read(args)?;
    objects.retain(|object| is_wanted(args, object));
    match args.output {
        Some(format) => output::objects(&objects, format)?,
        None => output::text(&table(&objects)),
    }
    if objects.is_empty() && args.kind.is_some() {
        bail!("no object of this kind and name has a status");
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &StatusArgs) -> Result<Vec<Value>> {
    match &args.status_dir {
        Some(directory) => status::read_statuses(directory)
            .with_context(|| format!("cannot read status files in {}", directory.display())),
        None => Ok(serde_json::from_str(&admin::client::get(&args.admin.path(), "/status")?)?),
    }
}

fn is_wanted(args: &StatusArgs, object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    let full = name(object);
    args.kind.as_ref().is_none_or(|wanted| is_kind(wanted, kind))
        && args.name.as_ref().is_none_or(|wanted| full == *wanted || full.ends_with(&format!("/{wanted}")))
}

/// `httproute`, `HTTPRoute` and `httproutes`, as kubectl takes them.
fn is_kind(wanted: &str, kind: &str) -> bool {
    let (wanted, kind) = (wanted.to_ascii_lowercase(), kind.to_ascii_lowercase());
    wanted == kind || wanted == format!("{kind}s") || wanted == format!("{kind}es")
}

fn table(objects: &[Value]) -> String {
    let rows: Vec<_> = objects.iter().flat_map(rows).collect();
    portcullis_inspect::table(&["KIND", "NAME", "FOR", "STATE", "MESSAGE"], &rows)
}

/// One row for the object, one for each parent or listener that has something else to say.
fn rows(object: &Value) -> Vec<Vec<String>> {
    let status = &object["status"];
    let row = |part: String, conditions: &Value| {
        let (state, message) = summary(conditions);
        vec![object["kind"].as_str().unwrap_or_default().to_owned(), name(object), part, state, message]
    };
    let own = status.get("conditions").map(|conditions| row("-".to_owned(), conditions));
    let parents = list(&status["parents"]);
    let parents = parents.map(|parent| row(status::parent_name(&parent["parentRef"]), &parent["conditions"]));
    let listeners = list(&status["listeners"])
        .filter(|listener| summary(&listener["conditions"]).0 != "ok")
        .map(|listener| row(format!("listener {}", text(&listener["name"])), &listener["conditions"]));
    own.into_iter().chain(parents).chain(listeners).collect()
}

/// `ok`, or the conditions that are not as they should be.
fn summary(conditions: &Value) -> (String, String) {
    match status::summary(conditions) {
        Some(summary) => (summary.state, summary.message),
        None => ("ok".to_owned(), String::new()),
    }
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    format!("{}{}", namespace.unwrap_or_default(), text(&metadata["name"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
