//! `portcullis check`: what manifests would do, without an agent or a cluster. The same reading and
//! translation as `run`, printed instead of served.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use portcullis_control::source::batch::Manifest;
use portcullis_control::source::built_in::{gateways_without_class, with_built_in};
use portcullis_control::status::has_problem;
use portcullis_gateway::{Change, Object, ObjectKey, Outcome, Settings, Status, Translator};
use portcullis_inspect::dump_snapshot;
use serde_json::{Value, json};

use crate::cli::{CheckArgs, Show};
use crate::offline::{self, Translated};

use crate::output;

const ALL_IS_WELL: u8 = 0;
const PROBLEMS: u8 = 1;
const UNREADABLE: u8 = 2;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let translated = offline::translate(&args.input.filename, &args.input.settings);
    let shown = match args.show {
        Show::Status => with_statuses(&translated),
        Show::Snapshot => vec![dump_snapshot(&translated.outcome.snapshot)],
        Show::Ephemeral => ephemeral(&translated.outcome),
        Show::Infra => infra(&translated, &offline::settings(&args.input.settings)),
    };
    output::objects(&shown, args.output)?;
    report_unsaid(&translated.outcome);
    let dangling = gateways_without_class(&translated.batch);
    dangling.iter().for_each(|line| output::error(line));
    Ok(ExitCode::from(verdict(&translated, dangling.is_empty())))
}

const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// One object per object of the input, in its order.
fn with_statuses(translated: &Translated) -> Vec<Value> {
    let statuses = &translated.outcome.statuses;
    translated.batch.manifests.iter().map(|manifest| with_status(manifest, statuses)).collect()
}

fn with_status(manifest: &Manifest, statuses: &BTreeMap<ObjectKey, Status>) -> Value {
    let mut object = manifest.head.clone();
    let status = manifest.object.as_ref().and_then(|object| statuses.get(&object.key()));
    if let Some(read) = &manifest.object {
        object["metadata"] = json!(read.metadata());
    }
    object["status"] = status.map_or_else(|| json!({}), Status::to_json);
    object
}

/// The routes that delegation makes, and the grants they need when they are applied in place of
/// parents and children.
fn ephemeral(outcome: &Outcome) -> Vec<Value> {
    let families = || outcome.ephemeral.values().flatten();
    let routes = families().flat_map(|family| family.objects());
    routes.chain(families().flat_map(|family| family.grants())).collect()
}

/// The objects that would be generated in a cluster, for every Gateway that is ours. Offline,
/// Gateways have no UID yet.
fn infra(translated: &Translated, settings: &Settings) -> Vec<Value> {
    let objects = translated.batch.manifests.iter().filter_map(|manifest| manifest.object.clone());
    let changes = objects.map(with_uid).map(Change::Set).collect();
    let outcome = Translator::new(settings.clone()).apply(with_built_in(changes));
    let wanted = outcome.generated.values().flatten();
    wanted.flat_map(|wanted| wanted.objects()).map(|object| object.manifest.clone()).collect()
}

fn with_uid(object: Object) -> Object {
    match object {
        Object::Gateway(mut gateway) => {
            let uid = &mut Arc::make_mut(&mut gateway).metadata.uid;
            uid.get_or_insert_with(|| NO_UID.to_owned());
            Object::Gateway(gateway)
        }
        other => other,
    }
}

fn report_unsaid(outcome: &Outcome) {
    for (object, problems) in &outcome.problems {
        problems.iter().for_each(|problem| output::error(&format!("{object}: {problem}")));
    }
}

fn verdict(translated: &Translated, is_complete: bool) -> u8 {
    let Translated { batch, outcome } = translated;
    if !batch.is_readable() {
        return UNREADABLE;
    }
    let is_well = is_complete
        && batch.problems.is_empty()
        && outcome.problems.values().all(Vec::is_empty)
        && outcome.statuses.values().map(Status::to_json).all(|status| !has_problem(&status));
    if is_well { ALL_IS_WELL } else { PROBLEMS }
}
