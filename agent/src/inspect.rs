//! `portcullis dump`, `routes` and `explain`: asked of a running agent, or of manifests. The
//! answers are the same.

use std::process::ExitCode;

use anyhow::Result;
use portcullis_inspect::{Explanation, Outcome, Question, Routes};

use crate::admin::client::Agent;
use crate::cli::{DumpArgs, ExplainArgs, RoutesArgs};
use crate::plane::READING;
use crate::{offline, output};

pub(crate) fn dump(args: &DumpArgs, agent: &Agent) -> Result<ExitCode> {
    let from = &args.from;
    let dump = if from.filename.is_empty() {
        agent.get_json("/config")?
    } else {
        let outcome = offline::translate_readable(&from.filename, &from.settings)?;
        portcullis_inspect::dump_snapshot(&outcome.snapshot)
    };
    output::value(&dump, args.output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn routes(args: &RoutesArgs, agent: &Agent) -> Result<ExitCode> {
    let from = &args.from;
    let mut routes: Routes = if from.filename.is_empty() {
        agent.get_json("/routes")?
    } else {
        let outcome = offline::translate_readable(&from.filename, &from.settings)?;
        portcullis_inspect::routes(&outcome.snapshot)
    };
    if let Some(namespace) = &args.scope.namespace {
        routes.retain_of_namespace(namespace);
    }
    match args.output.format() {
        Some(format) => output::value(&serde_json::to_value(&routes)?, format)?,
        None => output::text(&routes.text(output::look())),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn explain(args: &ExplainArgs, agent: &Agent) -> Result<ExitCode> {
    let question = Question {
        url: args.url.clone(),
        method: args.method.clone(),
        headers: args.headers.clone(),
        all: args.all,
    };
    let from = &args.from;
    let explanation: Explanation = if from.filename.is_empty() {
        agent.explain(&question)?
    } else {
        let outcome = offline::translate_readable(&from.filename, &from.settings)?;
        portcullis_inspect::explain(&outcome.snapshot, &question, READING, &[])?
    };
    match args.output.format() {
        Some(format) => output::value(&serde_json::to_value(&explanation)?, format)?,
        None => output::text(&explanation.text(output::look())),
    }
    Ok(match explanation.outcome {
        Outcome::Answered => ExitCode::SUCCESS,
        Outcome::Unanswered => ExitCode::from(1),
    })
}
