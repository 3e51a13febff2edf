//! `portcullis check`: what manifests would do, without an agent or a cluster.

use std::process::ExitCode;

use anyhow::{Result, bail};
use portcullis_control::offline::{Translated, Validity};
use portcullis_inspect::{Table, decided_by_age, dump_snapshot, escaped};
use serde_json::Value;

use crate::cli::{CheckArgs, CheckFormat, Show};
use crate::findings::{Finding, NOTHING, findings, summary};
use crate::{convert, offline, output};

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let format = match (args.show, args.output) {
        (Show::Status, None | Some(CheckFormat::Table)) => return report(args, print_table),
        (Show::Status, Some(CheckFormat::Github)) => return report(args, print_commands),
        (Show::Snapshot | Show::Ephemeral | Show::Infra, None) | (_, Some(CheckFormat::Yaml)) => {
            output::Format::Yaml
        }
        (_, Some(CheckFormat::Json)) => output::Format::Json,
        (_, Some(CheckFormat::Table | CheckFormat::Github)) => {
            bail!("tables and workflow commands are of statuses: with another --show, use -o yaml or -o json")
        }
    };
    let translated = offline::translate(&args.input.filename, &args.input.settings);
    translated.batch.problems.iter().for_each(|problem| output::error(&problem.to_string()));
    let mut validity = translated.validity();
    if validity == Validity::Empty {
        output::error(NOTHING);
    }
    let shown = match args.show {
        Show::Status => translated.with_statuses(),
        Show::Snapshot => vec![dump_snapshot(&translated.outcome.snapshot)],
        Show::Ephemeral => {
            let printed = translated.ephemeral();
            // Printed manifests do not carry an age.
            let parents = translated.outcome.ephemeral.keys();
            let by_age = decided_by_age(&translated.outcome.snapshot, parents);
            by_age.iter().chain(&printed.policies_left_behind).for_each(|line| caution(line, format));
            if !printed.policies_left_behind.is_empty() {
                validity = validity.max(Validity::Faulty);
            }
            printed.objects
        }
        Show::Infra => {
            let (objects, refused) = translated.generated(offline::settings(&args.input.settings));
            refused.iter().for_each(|line| output::error(line));
            if !refused.is_empty() {
                validity = validity.max(Validity::Faulty);
            }
            objects
        }
    };
    output::objects(&shown, format)?;
    for (object, problem) in translated.problems() {
        output::error(&format!("{object}: {problem}"));
    }
    Ok(exit_code(args, validity))
}

/// For the reader of the output, and for the one who applies it.
fn caution(line: &str, format: output::Format) {
    output::comment(line, format);
    output::error(line);
}

/// Findings only, and the number of all objects.
fn report(args: &CheckArgs, print: fn(&[Finding])) -> Result<ExitCode> {
    let translated: Translated = offline::translate(&args.input.filename, &args.input.settings);
    let objects: Vec<Value> = translated.with_statuses();
    let findings = findings(&translated, &objects);
    convert::hint(&translated.batch).iter().for_each(|line| output::error(line));
    print(&findings);
    output::text(&format!("{}\n", escaped(&summary(&objects, &findings))));
    Ok(exit_code(args, translated.validity()))
}

fn print_table(findings: &[Finding]) {
    if !findings.is_empty() {
        let table = Table::new(&Finding::HEADER, findings.iter().map(Finding::row));
        output::text(&format!("{}\n", table.text(output::look())));
    }
}

fn print_commands(findings: &[Finding]) {
    for finding in findings {
        output::text(&format!("{}\n", escaped(&finding.workflow_command())));
    }
}

fn exit_code(args: &CheckArgs, validity: Validity) -> ExitCode {
    ExitCode::from(match validity {
        Validity::Valid => 0,
        Validity::Empty if args.allow_empty => 0,
        Validity::Faulty => 1,
        Validity::Empty | Validity::Unreadable => 2,
    })
}
