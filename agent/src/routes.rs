//! `portcullis routes`: every alternative of every rule, in the order in which it is matched.

use std::process::ExitCode;

use anyhow::Result;
use portcullis_model::{
    Action, BackendTarget, Entry, HostPattern, Listener, RouteMatch, Rule, Snapshot, ValueMatch,
};

use crate::cli::RoutesArgs;
use crate::{admin, offline, output};

pub(crate) fn run(args: &RoutesArgs) -> Result<ExitCode> {
    let from = &args.from;
    output::text(&if from.filename.is_empty() {
        admin::client::get(&from.admin.path(), "/routes")?
    } else {
        text(&offline::translate_readable(&from.filename, &from.settings)?.snapshot)
    });
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut seen = Vec::new();
    let mut rows = Vec::new();
    for port in snapshot.frontends.values() {
        // Several addresses of a Gateway share a port.
        if !seen.contains(&std::sync::Arc::as_ptr(port)) {
            seen.push(std::sync::Arc::as_ptr(port));
            for listener in port.listeners.sorted() {
                rows.extend(listener_rows(port.key.number, listener));
            }
        }
    }
    output::table(&["PORT", "LISTENER", "HOST", "MATCH", "RULE", "ACTION"], &rows)
}

fn listener_rows(port: u16, listener: &Listener) -> Vec<Vec<String>> {
    let hosts = listener.serves.routes().into_iter().flat_map(|routes| routes.hosts());
    hosts
        .flat_map(|(host, paths)| {
            paths.entries().into_iter().map(|entry| row(port, listener, &host, entry)).collect::<Vec<_>>()
        })
        .collect()
}

fn row(port: u16, listener: &Listener, host: &HostPattern, entry: &Entry) -> Vec<String> {
    vec![
        port.to_string(),
        listener.id.to_string(),
        host.to_string(),
        match_text(&entry.matches),
        entry.rule.id.to_string(),
        action_text(&entry.rule),
    ]
}

/// `GET PathPrefix /a, header x=1, query q~^a$`
pub(crate) fn match_text(matches: &RouteMatch) -> String {
    let method = matches.method.as_ref().map(|method| format!("{method} ")).unwrap_or_default();
    let mut text = format!("{method}{}", matches.path);
    for (what, conditions) in [("header", &matches.headers), ("query", &matches.query)] {
        for (name, value) in conditions {
            text += &format!(", {what} {name}{}", value_text(value));
        }
    }
    text
}

pub(crate) fn value_text(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(exact) => format!("={exact}"),
        ValueMatch::Regex(regex) => format!("~{regex}"),
    }
}

/// `shop/cart:80 (90 of 100), …`
pub(crate) fn action_text(rule: &Rule) -> String {
    match &rule.action {
        Action::Redirect(redirect) => format!("redirect {}", redirect.status),
        Action::Fail(failure) => format!("{}: {}", failure.status, failure.reason),
        Action::Forward(split) => {
            let total: u64 = split.backends().iter().map(|backend| u64::from(backend.weight)).sum();
            let share = |weight: u32| {
                if split.backends().len() == 1 { String::new() } else { format!(" ({weight} of {total})") }
            };
            let backends = split.backends().iter().map(|backend| match &backend.target {
                BackendTarget::Known(name) => format!("{name}{}", share(backend.weight)),
                BackendTarget::Invalid(failure) => {
                    format!("{}: {}{}", failure.status, failure.reason, share(backend.weight))
                }
            });
            backends.collect::<Vec<_>>().join(", ")
        }
    }
}
