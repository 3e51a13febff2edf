//! Stories: `stories/NAME.yaml` is a list of steps, each with what it `does`, objects it `set`s and
//! names of objects it `delete`s; `stories/NAME.expected.yaml` says what every step changed, and
//! nothing else may change: statuses field by field, the listeners that the data plane has to
//! replace, and limits. `PORTCULLIS_BLESS=1` writes the expectations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_api::{Change, Kind, ObjectKey};
use portcullis_gateway::{Outcome, Translator, dump_status};
use portcullis_inspect::dump_snapshot;
use portcullis_model::{Gateway, Listener, ObjectName, Snapshot};
use serde_json::{Map, Value, json};

use crate::support;

#[test]
fn stories_go_as_told() {
    let bless = std::env::var_os("PORTCULLIS_BLESS").is_some();
    let differences: Vec<_> = stories().iter().filter_map(|story| check(story, bless)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn stories() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut stories: Vec<_> =
        files.filter(|path| !path.to_string_lossy().ends_with(".expected.yaml")).collect();
    stories.sort();
    stories
}

fn check(story: &Path, bless: bool) -> Option<String> {
    let file = story.with_extension("expected.yaml");
    let actual = support::to_yaml(&tell(story));
    if bless {
        fs::write(file, actual).unwrap();
        return None;
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    (actual != expected).then(|| format!("--- {}\nexpected:\n{expected}\nactual:\n{actual}", file.display()))
}

fn tell(story: &Path) -> Value {
    let steps: Vec<Value> = serde_saphyr::from_str(&fs::read_to_string(story).unwrap()).unwrap();
    let mut translator = Translator::new(support::settings());
    let mut before = translator.apply(support::base().into_iter().map(Change::Set).collect());
    let mut statuses = BTreeMap::new();
    let mut told = Vec::new();
    for step in steps {
        let outcome = translator.apply(changes(&step));
        let mut difference = json!({
            "does": step["does"],
            "statuses": status_differences(&mut statuses, &outcome),
            "listeners": listener_differences(&before.snapshot, &outcome.snapshot),
        });
        let limits = limit_differences(&before.snapshot, &outcome.snapshot);
        if !limits.is_empty() {
            difference["limits"] = limits.into();
        }
        told.push(difference);
        before = outcome;
    }
    Value::Array(told)
}

fn changes(step: &Value) -> Vec<Change> {
    let list = |field: &str| step[field].as_array().cloned().unwrap_or_default();
    let set = list("set").into_iter().map(|document| Change::Set(support::object(document)));
    let delete = list("delete").into_iter().map(|name| Change::Delete(key(name.as_str().unwrap())));
    set.chain(delete).collect()
}

/// `ListenerSet a/set`
fn key(text: &str) -> ObjectKey {
    let (kind, name) = text.split_once(' ').unwrap();
    let kind = Kind::ALL.iter().copied().find(|known| known.as_str() == kind).unwrap();
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    ObjectKey::new(kind, ObjectName::new(namespace, name))
}

// === statuses ===

type Fields = BTreeMap<String, String>;

fn status_differences(statuses: &mut BTreeMap<ObjectKey, Fields>, outcome: &Outcome) -> Value {
    let mut differences = Map::new();
    for (key, status) in outcome.statuses.iter().chain(&outcome.orphaned) {
        let mut now = Fields::new();
        flatten("", &dump_status(status), &mut now);
        let before = statuses.insert(key.clone(), now.clone());
        differences.insert(
            key.to_string(),
            before.map_or_else(|| json!(now), |before| fields_changed(&before, &now)),
        );
    }
    for key in &outcome.forgotten {
        statuses.remove(key);
        differences.insert(key.to_string(), json!("forgotten"));
    }
    Value::Object(differences)
}

fn fields_changed(before: &Fields, now: &Fields) -> Value {
    let none = String::from("none");
    let names = before.keys().chain(now.keys()).filter(|name| before.get(*name) != now.get(*name));
    let change = |name: &String| {
        let (before, now) = (before.get(name).unwrap_or(&none), now.get(name).unwrap_or(&none));
        (name.clone(), json!(format!("{before} -> {now}")))
    };
    Value::Object(names.map(change).collect())
}

/// `listeners.http.conditions.Accepted: True Accepted`; entries of lists by name, if they have one.
fn flatten(path: &str, value: &Value, fields: &mut Fields) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, _)| !["supportedKinds", "controllerName", "group"].contains(&name.as_str()))
            .for_each(|(name, value)| flatten(&below(name), value, fields)),
        Value::Array(list) => list.iter().enumerate().for_each(|(at, entry)| {
            let name = entry["name"].as_str().map_or_else(|| at.to_string(), str::to_owned);
            flatten(&below(&name), entry, fields);
        }),
        Value::Null => {}
        Value::String(text) => drop(fields.insert(path.to_owned(), text.clone())),
        other => drop(fields.insert(path.to_owned(), other.to_string())),
    }
}

// === limits ===

/// The ports where a served Gateway has become another version of itself, with the limits that it
/// has now.
fn limit_differences(before: &Snapshot, now: &Snapshot) -> Map<String, Value> {
    let dumped = dump_snapshot(now);
    let other = |before: &Gateway, now: &Gateway| !std::ptr::eq(before, now) && before.name == now.name;
    let replaced = now.frontends.iter().filter(|(key, port)| {
        before.frontends.get(key).is_some_and(|before| other(&before.gateway, &port.gateway))
    });
    let names = replaced.map(|(key, _)| key.to_string());
    names.map(|name| (name.clone(), dumped["frontends"][&name]["limits"].clone())).collect()
}

// === listeners ===

/// The listeners that came, changed or went; what is not listed keeps running, connections and all.
fn listener_differences(before: &Snapshot, now: &Snapshot) -> Value {
    let (before, now) = (listeners(before), listeners(now));
    let mut differences = Map::new();
    for (place, listener) in &now {
        match before.get(place) {
            None => drop(differences.insert(place.clone(), json!("new"))),
            Some(other) if !Arc::ptr_eq(listener, other) => {
                drop(differences.insert(place.clone(), json!("replaced")))
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().filter(|place| !now.contains_key(*place));
    differences.extend(gone.map(|place| (place.clone(), json!("gone"))));
    Value::Object(differences)
}

fn listeners(snapshot: &Snapshot) -> BTreeMap<String, Arc<Listener>> {
    let frontends = snapshot.frontends.iter();
    let all = frontends.flat_map(|(key, port)| port.listeners.iter().map(move |listener| (key, listener)));
    all.map(|(key, listener)| (format!("{key} {}", listener.id), listener.clone())).collect()
}
