//! `portcullis dump`, `routes` and `explain`: asked of a running agent, or of manifests. The
//! answers are the same.

use std::process::ExitCode;

use anyhow::Result;
use portcullis_inspect::{Outcome, Question};
use portcullis_model::Snapshot;

use crate::cli::{DumpArgs, ExplainArgs, From, RoutesArgs};
use crate::plane::READING;
use crate::{admin, offline, output};

pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode> {
    print(&args.from, "/config", portcullis_inspect::dump)
}

pub(crate) fn routes(args: &RoutesArgs) -> Result<ExitCode> {
    print(&args.from, "/routes", portcullis_inspect::routes)
}

fn print(from: &From, endpoint: &str, text: fn(&Snapshot) -> String) -> Result<ExitCode> {
    output::text(&if from.filename.is_empty() {
        admin::client::get(&from.admin.path(), endpoint)?
    } else {
        text(&offline::translate_readable(&from.filename, &from.settings)?.snapshot)
    });
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode> {
    let question = Question {
        url: args.url.clone(),
        method: args.method.clone(),
        headers: args.headers.clone(),
        all: args.all,
    };
    let from = &args.from;
    let explanation = if from.filename.is_empty() {
        admin::client::explain(&from.admin.path(), serde_json::to_string(&question)?)?
    } else {
        let outcome = offline::translate_readable(&from.filename, &from.settings)?;
        portcullis_inspect::explain(&outcome.snapshot, &question, READING, &[])?
    };
    output::text(&explanation.text);
    Ok(match explanation.outcome {
        Outcome::Answered => ExitCode::SUCCESS,
        Outcome::Unanswered => ExitCode::from(1),
    })
}
