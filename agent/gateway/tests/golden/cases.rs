//! Golden cases: `cases/TOPIC/CASE/in.yaml` (objects) translates to `snapshot.yaml`, `status.yaml`
//! and, with delegation, `ephemeral.yaml`, next to it; where a Gateway has a UID, also to
//! `infra.yaml`, what is generated for it; where such a Service is among the objects, its addresses
//! are the Gateway's. `names.yaml` says which addresses the names of hosts have, `null` for none.
//! One behaviour each; the comment on top of `in.yaml` says which, and where it is specified.
//! `PORTCULLIS_BLESS=1 cargo test -p portcullis-gateway --test golden` writes the files; read what
//! you bless.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use portcullis_api::{Change, Objects};
use portcullis_gateway::delegate::{Names, copied_filters};
use portcullis_gateway::infra::{AssignedAddresses, Generated, generated_for};
use portcullis_gateway::{Feedback, Grants, NameAnswer, Outcome, Translator, dump_status};
use portcullis_inspect::dump_snapshot;
use serde_json::{Map, Value, json};

#[test]
fn cases_translate_as_written() {
    let bless = std::env::var_os("PORTCULLIS_BLESS").is_some();
    let only = std::env::var("PORTCULLIS_CASE").unwrap_or_default();
    let cases: Vec<_> = cases().into_iter().filter(|case| case.to_string_lossy().contains(&only)).collect();
    let differences: Vec<_> = cases.iter().flat_map(|case| check(case, bless)).collect();
    assert!(
        differences.is_empty(),
        "{} of {} cases:\n{}",
        differences.len(),
        cases.len(),
        differences.join("\n")
    );
    println!("{} cases", cases.len());
}

pub(crate) fn cases() -> Vec<PathBuf> {
    let topics = folders(&crate::support::cases());
    let mut cases: Vec<_> =
        topics.iter().flat_map(|topic| folders(topic)).filter(|case| case.join("in.yaml").exists()).collect();
    cases.sort();
    cases
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

fn check(case: &Path, bless: bool) -> Vec<String> {
    let (outcome, objects) = translate(case);
    let mut files =
        vec![("snapshot.yaml", dump_snapshot(&outcome.snapshot)), ("status.yaml", statuses(&outcome))];
    if !outcome.ephemeral.is_empty() {
        files.push(("ephemeral.yaml", ephemeral(&outcome, &objects)));
    }
    if let Some(infra) = infra(&outcome) {
        files.push(("infra.yaml", infra));
    }
    files
        .into_iter()
        .filter_map(|(name, value)| compare(&case.join(name), &crate::support::to_yaml(&value), bless))
        .collect()
}

/// With the case's objects.
fn translate(case: &Path) -> (Outcome, Objects) {
    let input = fs::read_to_string(case.join("in.yaml")).unwrap();
    let mut translator = Translator::new(crate::support::settings());
    translator.apply(crate::support::base().into_iter().map(Change::Set).collect());
    let read = crate::support::read(&input);
    let mut objects = Objects::default();
    for object in &read {
        objects.apply(Change::Set(object.clone()));
    }
    assigned(&objects).into_iter().for_each(|feedback| translator.observe(feedback));
    looked_up(case).into_iter().for_each(|feedback| translator.observe(feedback));
    (translator.apply(read.into_iter().map(Change::Set).collect()), objects)
}

/// The observation that the source makes of Gateways with a Service; `None` if there is none.
fn assigned(objects: &Objects) -> Option<Feedback> {
    let gateways = objects.services.values().filter_map(|service| generated_for(service));
    let assigned: BTreeMap<_, _> = gateways
        .map(|gateway| {
            let addresses = AssignedAddresses::of(&gateway, objects);
            (gateway, addresses)
        })
        .collect();
    (!assigned.is_empty()).then_some(Feedback::Assigned(assigned))
}

/// The answers of DNS servers for names, where a case has any.
fn looked_up(case: &Path) -> Option<Feedback> {
    let text = fs::read_to_string(case.join("names.yaml")).ok()?;
    let names: BTreeMap<String, Option<BTreeSet<IpAddr>>> = serde_saphyr::from_str(&text).unwrap();
    let answer = |addresses: Option<BTreeSet<IpAddr>>| NameAnswer {
        failure: addresses.is_none().then(|| "there is no such name (NXDOMAIN)".into()),
        addresses: addresses.unwrap_or_default(),
    };
    let names = names.into_iter().map(|(name, addresses)| (name.into(), answer(addresses)));
    Some(Feedback::Names(names.collect()))
}

fn statuses(outcome: &Outcome) -> Value {
    let statuses = outcome.statuses.iter().map(|(key, status)| (key.to_string(), dump_status(status)));
    let mut value: Map<_, _> = statuses.collect();
    for (key, problems) in &outcome.problems {
        value.insert(format!("{key} (problems)"), json!(problems));
    }
    Value::Object(value)
}

fn infra(outcome: &Outcome) -> Option<Value> {
    let desired = outcome.generated.iter().filter_map(|(gateway, desired)| {
        let objects = desired.as_ref()?.objects.as_ref();
        let manifests =
            |objects: &Vec<Generated>| objects.iter().map(|object| object.manifest.clone()).collect();
        Some((gateway.to_string(), objects.map_or_else(|| json!("stays as it is"), manifests)))
    });
    let desired: Map<_, _> = desired.collect();
    (!desired.is_empty()).then_some(desired.into())
}

fn ephemeral(outcome: &Outcome, there: &Objects) -> Value {
    let mut names = Names::new(there.iter().map(|object| object.key()));
    let grants = Grants::new(there);
    let mut printed = Map::new();
    for (key, family) in &outcome.ephemeral {
        let mut objects = Vec::new();
        if let Some(family) = family {
            objects.extend(family.objects(&mut names, grants));
            objects.extend(copied_filters(&mut names, there));
            objects.extend(family.grants(&mut names, grants));
        }
        printed.insert(key.to_string(), objects.into());
    }
    printed.into()
}

fn compare(file: &Path, actual: &str, bless: bool) -> Option<String> {
    if bless {
        fs::write(file, actual).unwrap();
        return None;
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    (expected != actual).then(|| format!("--- {}\n{}", file.display(), diff(&expected, actual)))
}

/// The lines that are only in one of both.
fn diff(expected: &str, actual: &str) -> String {
    let gone = expected
        .lines()
        .filter(|line| !actual.lines().any(|other| other == *line))
        .map(|line| format!("-{line}"));
    let new = actual
        .lines()
        .filter(|line| !expected.lines().any(|other| other == *line))
        .map(|line| format!("+{line}"));
    let lines: Vec<_> = gone.chain(new).collect();
    if lines.is_empty() { "(the order of lines differs)".to_owned() } else { lines.join("\n") }
}
