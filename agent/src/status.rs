//! `portcullis status`: objects and their conditions.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use portcullis_control::status::read_statuses;
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
        Some(directory) => read_statuses(directory)
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
    output::table(&["KIND", "NAME", "FOR", "STATE", "MESSAGE"], &rows)
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
    let parents = parents.map(|parent| row(parent_name(&parent["parentRef"]), &parent["conditions"]));
    let listeners = list(&status["listeners"])
        .filter(|listener| summary(&listener["conditions"]).0 != "ok")
        .map(|listener| row(format!("listener {}", text(&listener["name"])), &listener["conditions"]));
    own.into_iter().chain(parents).chain(listeners).collect()
}

/// `ok`, or the conditions that are not as they should be.
fn summary(conditions: &Value) -> (String, String) {
    let bad: Vec<_> = list(conditions).filter(|condition| is_problem(condition)).collect();
    if bad.is_empty() {
        return ("ok".to_owned(), String::new());
    }
    let state =
        bad.iter().map(|c| format!("{}={}/{}", text(&c["type"]), text(&c["status"]), text(&c["reason"])));
    let mut messages: Vec<_> = bad.iter().map(|c| text(&c["message"])).filter(|m| !m.is_empty()).collect();
    messages.dedup();
    (state.collect::<Vec<_>>().join(","), messages.join("; "))
}

/// Whether a condition says that something is wrong.
pub(crate) fn is_problem(condition: &Value) -> bool {
    let holds = condition["status"] == "True";
    match condition["type"].as_str() {
        Some("Conflicted" | "PartiallyInvalid") => holds,
        Some("Accepted" | "Programmed" | "ResolvedRefs" | "SupportedVersion") => !holds,
        _ => false,
    }
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    format!("{}{}", namespace.unwrap_or_default(), text(&metadata["name"]))
}

fn parent_name(reference: &Value) -> String {
    let section = reference["sectionName"].as_str().map(|section| format!("/{section}")).unwrap_or_default();
    let port = reference["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let namespace = reference["namespace"].as_str().map(|it| format!("{it}/")).unwrap_or_default();
    format!("{} {namespace}{}{section}{port}", text(&reference["kind"]), text(&reference["name"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
