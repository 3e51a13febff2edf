//! `portcullis convert`: Ingresses of ingress-nginx to the objects that do the same here, and what
//! differs. All of it is a function of the manifests; nothing is asked of a cluster.

mod annotations;
mod difference;
mod ingress;
mod listeners;
mod paths;
mod routes;
mod rules;
mod servers;
mod snippet;
mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::Result;
use portcullis_control::source::Batch;
use portcullis_inspect::{Cell, Colours, Look, Table};
use serde_json::{Value, json};

use crate::cli::ConvertArgs;
use crate::output;
use difference::{Difference, Outcome};
use ingress::World;
use listeners::Listeners;
use routes::Routes;
use terms::Reading;

/// The Gateway that everything is written for.
pub(crate) struct Options {
    /// Namespace and name.
    gateway: (String, String),
    http_port: u16,
    https_port: u16,
}

struct Converted {
    objects: Vec<Value>,
    differences: Vec<Difference>,
}

pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let batch = Batch::read(&args.filename, args.limits.max_file_size());
    // Other objects of the input may be refused; they are not converted.
    batch
        .problems
        .iter()
        .filter(|_| !batch.is_readable())
        .for_each(|problem| output::error(&problem.to_string()));
    let (namespace, name) = args.gateway.split_once('/').unwrap_or(("default", &args.gateway));
    let gateway = (namespace.to_owned(), name.to_owned());
    let options = Options { gateway, http_port: args.http_port, https_port: args.https_port };
    let converted = convert(&batch.written, &options);
    output::objects(&converted.objects, args.output)?;
    let rows = converted.differences.iter().map(|it| -> Vec<Cell> {
        let outcome = it.outcome.to_string();
        let outcome = if it.outcome.is_alarming() { Cell::bad(outcome) } else { outcome.into() };
        vec![it.ingress.clone().into(), it.subject.clone().into(), outcome, it.text.clone().into()]
    });
    let table = Table::new(&["INGRESS", "ANNOTATION", "OUTCOME", "NOW"], rows);
    output::error(&table.text(Look { width: None, colours: Colours::None }));
    output::error(&summary(&converted.differences));
    let is_alarming = converted.differences.iter().any(|it| it.outcome.is_alarming());
    Ok(ExitCode::from(if !batch.is_readable() { 2 } else { u8::from(is_alarming) }))
}

/// A line for `check`, if there are Ingresses in its input.
pub(crate) fn hint(batch: &Batch) -> Option<String> {
    let is_ingress = |manifest: &&Value| manifest["kind"] == "Ingress";
    let count = batch.written.iter().filter(is_ingress).count();
    if count == 0 {
        return None;
    }
    let gateway = ("default".to_owned(), "web".to_owned());
    let options = Options { gateway, http_port: 80, https_port: 443 };
    let summary = summary(&convert(&batch.written, &options).differences);
    Some(format!(
        "Ingress ({count}) is not served; `portcullis convert` writes what to serve instead: {summary}"
    ))
}

/// `3 became, 1 differs, 1 CLOSED`
fn summary(differences: &[Difference]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    for difference in differences {
        *counts.entry(difference.outcome).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    if counts.is_empty() { "no differences".to_owned() } else { counts.join(", ") }
}

fn convert(manifests: &[Value], options: &Options) -> Converted {
    let world = World::read(manifests);
    let mut report: Vec<_> = world
        .foreign
        .iter()
        .map(|(ingress, class)| {
            Difference::new(
                ingress,
                "ingressClassName",
                Outcome::Lost,
                format!("class {class} is of another controller; not written"),
            )
        })
        .collect();
    report.extend(world.unreadable.iter().map(|(ingress, fault)| {
        Difference::new(ingress, "spec", Outcome::Closed, format!("{fault}; not written"))
    }));
    let servers = servers::servers(&world, &mut report);
    let terms: Vec<_> = world
        .ingresses
        .iter()
        .map(|ingress| {
            let (world, servers, report) = (&world, &servers, &mut report);
            Reading { world, servers, ingress, terms: terms::Terms::default(), report }.terms()
        })
        .collect();
    let mut listeners = Listeners::new(&world, &servers);
    let mut routes = Routes {
        world: &world,
        servers: &servers,
        terms: &terms,
        options,
        listeners: &mut listeners,
        report: &mut report,
        objects: Vec::new(),
        backends: BTreeMap::new(),
        backend_tls: BTreeMap::new(),
        redirected: BTreeSet::new(),
    };
    for (index, _) in world.ingresses.iter().enumerate().filter(|(_, ingress)| !ingress.is_canary()) {
        routes.of(index);
    }
    routes.service_policies();
    let written = routes.objects;
    let mut objects = Vec::new();
    if !world.ingresses.is_empty() {
        objects = listeners.objects(&world, options, &mut report);
    }
    objects.extend(written);
    tell_of_the_rest(&world, &mut report);
    report.extend(of_all_ingresses(manifests));
    report.sort();
    report.dedup();
    Converted { objects, differences: report }
}

/// Annotations that are part of what others became.
fn tell_of_the_rest(world: &World, report: &mut Vec<Difference>) {
    let told: BTreeSet<_> = report.iter().map(|it| (it.ingress.clone(), it.subject.clone())).collect();
    for ingress in &world.ingresses {
        let own = ingress.annotations.keys().filter_map(|name| name.strip_prefix(ingress::PREFIX));
        for annotation in own.filter(|annotation| !told.contains(&(ingress.key(), (*annotation).to_owned())))
        {
            let (outcome, text) = match ingress.get(annotation) {
                None | Some("false") => (Outcome::NotNeeded, "it is off"),
                Some(_) if ingress.is_canary() && !annotation.starts_with("canary") => {
                    (Outcome::NotNeeded, "without effect in a canary, as before")
                }
                Some(_) => (Outcome::Became, "part of the routes, filters and policies of its Ingress"),
            };
            report.push(Difference::new(&ingress.key(), annotation, outcome, text));
        }
    }
}

/// Options of the controller itself, which keep requests out of all Ingresses.
const OF_THE_CONTROLLER: [&str; 9] = [
    "allowlist-source-range",
    "block-cidrs",
    "block-referers",
    "block-user-agents",
    "denylist-source-range",
    "enable-modsecurity",
    "global-auth-url",
    "server-snippet",
    "whitelist-source-range",
];

fn of_all_ingresses(manifests: &[Value]) -> impl Iterator<Item = Difference> {
    manifests.iter().filter(|manifest| manifest["kind"] == "ConfigMap").flat_map(|map| {
        let text = |value: &Value| value.as_str().unwrap_or("default").to_owned();
        let name = format!("{}/{}", text(&map["metadata"]["namespace"]), text(&map["metadata"]["name"]));
        let is_set = |option: &&str| {
            map["data"][*option].as_str().is_some_and(|value| !["", "false"].contains(&value))
        };
        let set: Vec<_> = OF_THE_CONTROLLER.into_iter().filter(is_set).collect();
        set.into_iter().map(move |option| {
            let text =
                "of the controller, for all Ingresses: write a TrafficPolicy whose target is the Gateway";
            Difference::new(&name, option, Outcome::Unprotected, text)
        })
    })
}

/// Lets objects of one namespace refer to one object of another.
fn grant(namespace: &str, from: &str, (group, kind): (&str, &str), to: &str, name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ReferenceGrant",
        "metadata": {"name": format!("{name}-for-{from}"), "namespace": namespace},
        "spec": {
            "from": [{"group": group, "kind": kind, "namespace": from}],
            "to": [{"group": "", "kind": to, "name": name}],
        },
    })
}
