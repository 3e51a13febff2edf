//! `portcullis status`: objects and their conditions; and of a running agent the parts of its node
//! that serve the listeners.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use portcullis_control::status::read_statuses;
use portcullis_inspect::{Conditions, NodeStatus, Selection, escaped};
use serde_json::Value;

use crate::admin::client::Agent;
use crate::cli::StatusArgs;
use crate::output;

/// The kind that is no object's.
const LISTENERS: [&str; 2] = ["listener", "listeners"];

pub(crate) fn run(args: &StatusArgs, agent: &Agent) -> Result<ExitCode> {
    if args.kind.as_deref().is_some_and(|kind| LISTENERS.iter().any(|it| kind.eq_ignore_ascii_case(it))) {
        return listeners(args, agent);
    }
    let mut selection = Selection::parse(args.kind.as_deref(), args.name.as_deref())?;
    selection.namespace = args.scope.namespace.clone();
    let objects = read(args, agent);
    if objects.is_err() && wants_unstated(args, &selection) {
        say_unstated(agent)?;
    }
    let mut objects = objects?;
    objects.retain(|object| selection.contains(object));
    if objects.is_empty() && !selection.kinds.is_empty() {
        bail!("{}", nothing_chosen(args));
    }
    if args.problems {
        return problems(args, agent, selection, &objects);
    }
    match args.output.format() {
        Some(format) => output::objects(&objects, format)?,
        None => {
            output::text(&portcullis_inspect::statuses(&objects).text(output::look()));
            if let Some(node) = node(args, agent, &objects)? {
                output::text(&format!("\n{}", node.text(output::look())));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn nothing_chosen(args: &StatusArgs) -> String {
    let kind = args.kind.as_deref().unwrap_or("object");
    let name = args.name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    let namespace = args.scope.namespace.as_ref();
    let namespace = namespace.map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    format!(
        "no {kind}{name} has a status{namespace}: `portcullis status` lists all objects that have one, and \
         `portcullis status --problems` what was refused"
    )
}

/// The objects that are not well; and of all objects of an agent, what no status can say, and why
/// it is not ready.
fn problems(args: &StatusArgs, agent: &Agent, selection: Selection, objects: &[Value]) -> Result<ExitCode> {
    let wants_unstated = wants_unstated(args, &selection);
    let selection = Selection { conditions: Conditions::Faulty, ..selection };
    let faulty: Vec<_> = objects.iter().filter(|object| selection.contains(object)).cloned().collect();
    if let Some(format) = args.output.format() {
        output::objects(&faulty, format)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !faulty.is_empty() {
        let table = portcullis_inspect::faulty_statuses(&faulty);
        output::text(&format!("{}\n", table.text(output::look())));
    }
    if wants_unstated {
        say_unstated(agent)?;
    }
    output::text(&format!("{} of {} objects with a status are not well\n", faulty.len(), objects.len()));
    Ok(ExitCode::SUCCESS)
}

/// True of the problems of all objects of an agent, as text.
fn wants_unstated(args: &StatusArgs, selection: &Selection) -> bool {
    let is_of_all = *selection == Selection::default() && args.status_dir.is_none();
    args.problems && is_of_all && args.output.format().is_none()
}

/// Says why the agent is not ready, and what no status can say.
fn say_unstated(agent: &Agent) -> Result<()> {
    let (ready, said) = agent.ask_for("/readyz")?;
    let unready = if ready.is_success() { String::new() } else { said };
    let unstated = unready + &agent.get("/problems")?;
    unstated.lines().for_each(|line| output::text(&format!("{}\n", escaped(line))));
    output::text(if unstated.is_empty() { "" } else { "\n" });
    Ok(())
}

/// The part of the node that serves each listener, and why.
fn listeners(args: &StatusArgs, agent: &Agent) -> Result<ExitCode> {
    if args.status_dir.is_some() {
        bail!(
            "which part of a node serves a listener is not in status files: ask its agent, without --status-dir"
        );
    }
    if args.problems {
        bail!("--problems is of objects: leave it out, or ask for another kind");
    }
    let mut node = ask(agent)?;
    if let Some(namespace) = &args.scope.namespace {
        node.retain_of_namespace(namespace);
    }
    if let Some(name) = &args.name {
        node.retain_of(name);
        if node.listeners.is_empty() {
            bail!("no Gateway or ListenerSet of this name has a listener that is served here");
        }
    }
    match args.output.format() {
        Some(format) => output::objects(&[serde_json::to_value(&node)?], format)?,
        None => output::text(&node.text(output::look())),
    }
    Ok(ExitCode::SUCCESS)
}

/// The node with all listeners, or with those of the objects; `None` if the objects have none.
fn node(args: &StatusArgs, agent: &Agent, objects: &[Value]) -> Result<Option<NodeStatus>> {
    if args.status_dir.is_some() {
        return Ok(None);
    }
    let mut node = ask(agent)?;
    if let Some(namespace) = &args.scope.namespace {
        node.retain_of_namespace(namespace);
    }
    if args.kind.is_some() {
        node.retain_of_objects(objects);
    }
    Ok(Some(node).filter(|node| args.kind.is_none() || !node.listeners.is_empty()))
}

fn ask(agent: &Agent) -> Result<NodeStatus> {
    agent.get_json("/listeners")
}

fn read(args: &StatusArgs, agent: &Agent) -> Result<Vec<Value>> {
    match &args.status_dir {
        Some(directory) => read_statuses(directory)
            .with_context(|| format!("cannot read status files in {}", directory.display())),
        None => agent.get_json("/status"),
    }
}
