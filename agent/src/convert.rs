//! `portcullis convert`: Ingresses of ingress-nginx to the objects that do the same here, and what
//! differs. All of it is a function of the manifests; nothing is asked of a cluster.

mod annotations;
mod difference;
mod ingress;
mod listeners;
mod names;
mod options;
mod outcomes;
mod paths;
mod routes;
mod rules;
mod servers;
mod shape;
mod snippet;
mod terms;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use portcullis_control::source::{Batch, Effect};
use portcullis_inspect::{Cell, Colours, Look, Table};
use serde_json::Value;

use crate::cli::ConvertArgs;
use crate::output;
use difference::{Difference, Outcome};
use ingress::{Ingress, PREFIX, Unreadable, World};
use listeners::Listeners;
use names::Names;
use options::Options;
use outcomes::Outcomes;
use routes::{Routes, Written};
use servers::Servers;
use terms::Reading;

struct Converted {
    objects: Vec<Value>,
    differences: Vec<Difference>,
}

pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let options = Options::parse(&args.gateway, args.http_port, args.https_port)?;
    let batch = Batch::read(&args.filename, args.limits.max_file_size());
    // Other objects of the input may be refused; they are not converted.
    batch
        .problems
        .iter()
        .filter(|_| !batch.is_readable())
        .for_each(|problem| output::error(&problem.to_string()));
    let converted = convert(&batch, &options);
    if let Some(report) = &args.report {
        write_report(report, &converted.differences)?;
    }
    output::objects(&converted.objects, args.output)?;
    let rows = converted.differences.iter().map(|it| -> Vec<Cell> {
        let outcome = it.outcome.to_string();
        let outcome = if it.outcome.is_alarming() { Cell::bad(outcome) } else { outcome.into() };
        vec![it.ingress.clone().into(), it.subject.clone().into(), outcome, it.text.clone().into()]
    });
    let table = Table::new(&["INGRESS", "ANNOTATION", "OUTCOME", "NOW"], rows);
    output::error(&table.text(Look { width: None, colours: Colours::None }));
    output::error(&summary(&converted.differences));
    let nameless = unconverted(&batch);
    nameless.iter().for_each(|line| output::error(line));
    if !batch.manifests.iter().any(|manifest| manifest.head["kind"] == "Ingress") {
        output::error("there is no Ingress in the input");
    }
    let is_alarming = !nameless.is_empty() || converted.differences.iter().any(|it| it.outcome.is_alarming());
    Ok(ExitCode::from(if !batch.is_readable() { 2 } else { u8::from(is_alarming) }))
}

/// Lines about manifests that may be Ingresses, and do not say so.
fn unconverted(batch: &Batch) -> Vec<String> {
    let fault = |head: &Value| match head["kind"].as_str() {
        None => Some("has no kind: it is not converted"),
        Some("Ingress") => None,
        Some(kind) => kind.eq_ignore_ascii_case("Ingress").then_some("is not converted: write kind: Ingress"),
    };
    let faults = batch.manifests.iter().filter_map(|manifest| Some((manifest, fault(&manifest.head)?)));
    faults.map(|(manifest, fault)| format!("{}:{}: {fault}", manifest.file, manifest.line)).collect()
}

/// The table as a JSON list.
fn write_report(file: &Path, differences: &[Difference]) -> Result<()> {
    let mut values =
        serde_json::to_vec_pretty(&differences.iter().map(Difference::value).collect::<Value>())?;
    values.push(b'\n');
    fs::write(file, values).with_context(|| format!("cannot write --report {}", file.display()))
}

/// A line for `check`, if there are Ingresses in its input.
pub(crate) fn hint(batch: &Batch) -> Option<String> {
    let count = batch.problems.iter().filter(|problem| problem.effect == Effect::ToConvert).count();
    if count == 0 {
        return None;
    }
    let options = Options::parse("default/web", 80, 443).ok()?;
    let summary = summary(&convert(batch, &options).differences);
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

/// Rounds of conversion: what is written may not be taken, and is closed then, of which a part may
/// not be taken, either.
const ROUNDS: usize = 4;

fn convert(batch: &Batch, options: &Options) -> Converted {
    let manifests = batch.written.as_slice();
    let world = World::read(manifests, batch.manifests.iter().map(|manifest| &manifest.head));
    let mut closed = Closed::default();
    for _ in 0..ROUNDS {
        let (written, report) = written(manifests, &world, &closed, options);
        let faults = trial::faults(&written);
        let objects = || written.into_iter().map(|it| it.object).collect();
        if faults.is_empty() {
            return Converted { objects: objects(), differences: report };
        }
        let mut is_new = false;
        for fault in &faults {
            is_new |= closed.add(fault);
        }
        if !is_new {
            let mut differences = report;
            differences.extend(faults.iter().map(|fault| fault.difference(&world, Outcome::Unprotected)));
            differences.sort();
            return Converted { objects: objects(), differences };
        }
    }
    Converted { objects: Vec::new(), differences: written(manifests, &world, &closed, options).1 }
}

/// Ingresses that are closed because what was written for them is not taken as it is.
#[derive(Default)]
struct Closed {
    whole: BTreeSet<usize>,
    /// Not even their paths are.
    paths: BTreeSet<usize>,
    reasons: Vec<trial::Fault>,
}

impl Closed {
    /// Returns `false` if nothing more can be closed because of it.
    fn add(&mut self, fault: &trial::Fault) -> bool {
        let Some(ingress) = fault.ingress else { return false };
        if self.whole.insert(ingress) {
            self.reasons.push(fault.clone());
            return true;
        }
        self.paths.insert(ingress)
    }
}

fn written(
    manifests: &[Value],
    world: &World,
    closed: &Closed,
    options: &Options,
) -> (Vec<Written>, Vec<Difference>) {
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
    report.extend(closed.reasons.iter().map(|fault| fault.difference(world, Outcome::Closed)));
    let servers = servers::servers(world, &closed.paths, &mut report);
    report.extend(world.unreadable.iter().map(|unreadable| of_unreadable(unreadable, &servers)));
    let terms: Vec<_> = world
        .ingresses
        .iter()
        .enumerate()
        .map(|(index, ingress)| {
            let (servers, report) = (&servers, &mut report);
            let mut terms =
                Reading { world, servers, ingress, terms: terms::Terms::default(), report }.terms();
            terms.closed |= closed.whole.contains(&index);
            terms
        })
        .collect();
    let (mut listeners, mut names) = (Listeners::new(world, &servers, options), Names::new(world));
    let mut routes = Routes {
        world,
        servers: &servers,
        terms: &terms,
        options,
        listeners: &mut listeners,
        report: &mut report,
        names: &mut names,
        objects: Vec::new(),
        backends: BTreeMap::new(),
        backend_tls: BTreeMap::new(),
        plain: BTreeMap::new(),
        grants: BTreeSet::new(),
        redirected: BTreeSet::new(),
        open: BTreeSet::new(),
    };
    for (index, _) in world.ingresses.iter().enumerate().filter(|(_, ingress)| !ingress.is_canary()) {
        routes.of(index);
    }
    routes.service_policies();
    routes.service_grants();
    let (of_routes, open) = (routes.objects, routes.open);
    let mut objects = Vec::new();
    if !world.ingresses.is_empty() {
        let of_gateways = listeners.objects(world, options, &mut report).into_iter();
        objects.extend(of_gateways.map(|object| Written { ingress: None, object }));
    }
    objects.extend(of_routes);
    // Where they are applied one after the other, what protects is there before what it protects.
    objects.sort_by_key(|it| matches!(it.object["kind"].as_str(), Some("HTTPRoute" | "TLSRoute")));
    Outcomes { world, servers: &servers, terms: &terms, open: &open, report: &mut report }.tell();
    report.extend(world.ingresses.iter().flat_map(of_f5));
    report.extend(world.ingresses.iter().flat_map(of_other_prefixes));
    report.extend(of_all_ingresses(manifests));
    report.sort();
    report.dedup();
    (objects, report)
}

fn of_unreadable(unreadable: &Unreadable, servers: &Servers) -> Difference {
    let is_wide = |host: &String| servers::wider(servers, host).is_some();
    let is_closed = |host: &String| servers.get(host).map_or(!is_wide(host), |server| server.closed);
    let (outcome, rest) = if unreadable.hosts.is_empty() {
        (Outcome::Unprotected, "it is not written; see that no other Ingress has its paths")
    } else if unreadable.hosts.iter().all(is_closed) {
        (Outcome::Closed, "it is not written, and its hosts are closed")
    } else {
        (Outcome::Unprotected, "it is not written, and Ingresses of wider hosts have its requests")
    };
    Difference::new(&unreadable.key, "spec", outcome, format!("{}; {rest}", unreadable.fault))
}

/// Prefixes of annotations of F5's controller, which has the class `nginx` by default, too.
const OF_F5: &[&str] = &["nginx.com/", "nginx.org/"];

/// One line for all that have the same prefix.
fn of_f5(ingress: &Ingress) -> impl Iterator<Item = Difference> + use<> {
    let is_set = |prefix: &&str| ingress.annotations.keys().any(|name| name.starts_with(*prefix));
    let set: Vec<_> = OF_F5.iter().copied().filter(is_set).collect();
    let key = ingress.key();
    set.into_iter().map(move |prefix| {
        let text = "of F5's NGINX Ingress Controller, not of ingress-nginx: not converted; write what they do as filters and policies";
        Difference::new(&key, &format!("{prefix}*"), Outcome::Lost, text)
    })
}

/// A controller has another prefix than ingress-nginx's own by an option.
fn of_other_prefixes(ingress: &Ingress) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (name, value) in &ingress.annotations {
        let at = name.rfind('/').map_or(0, |slash| slash + 1);
        let (prefix, annotation) = name.split_at(at);
        let is_other = !prefix.is_empty() && prefix != PREFIX && !OF_F5.contains(&prefix);
        // Charts write both, for older controllers.
        let is_there = ingress.annotations.get(&format!("{PREFIX}{annotation}")) == Some(value);
        if !is_other || is_there || !annotations::is_known(annotation) || value == "false" {
            continue;
        }
        let keeps_out = annotations::keeps_out(annotation);
        let outcome = if keeps_out { Outcome::Unprotected } else { Outcome::Lost };
        let text = format!(
            "not converted: if the controller has --annotations-prefix, write {PREFIX}{annotation} in its place"
        );
        differences.push(Difference::new(&ingress.key(), name, outcome, text));
    }
    differences
}

/// Options of the controller itself, which keep requests out of all Ingresses, or tell who clients
/// are.
const OF_THE_CONTROLLER: &[&str] = &[
    "allowlist-source-range",
    "block-cidrs",
    "block-referers",
    "block-user-agents",
    "denylist-source-range",
    "enable-modsecurity",
    "enable-owasp-modsecurity-crs",
    "enable-real-ip",
    "force-ssl-redirect",
    "global-auth-url",
    "http-snippet",
    "location-snippet",
    "modsecurity-snippet",
    "server-snippet",
    "use-forwarded-headers",
    "use-proxy-protocol",
    "whitelist-source-range",
];

fn of_all_ingresses(manifests: &[Value]) -> impl Iterator<Item = Difference> {
    manifests.iter().filter(|manifest| manifest["kind"] == "ConfigMap").flat_map(|map| {
        let text = |value: &Value| value.as_str().unwrap_or("default").to_owned();
        let name = format!("{}/{}", text(&map["metadata"]["namespace"]), text(&map["metadata"]["name"]));
        let is_set = |option: &&str| {
            map["data"][*option].as_str().is_some_and(|value| !["", "false"].contains(&value))
        };
        let set: Vec<_> = OF_THE_CONTROLLER.iter().copied().filter(is_set).collect();
        set.into_iter().map(move |option| {
            let text = match option {
                "use-forwarded-headers" | "use-proxy-protocol" | "enable-real-ip" => {
                    "of the controller: lists of addresses and limits see other clients without clientAddress or proxyProtocol of a ListenerPolicy"
                }
                "force-ssl-redirect" => {
                    "of the controller: hosts without a certificate are served without TLS"
                }
                _ => "of the controller, for all Ingresses: write a TrafficPolicy whose target is the Gateway",
            };
            Difference::new(&name, option, Outcome::Unprotected, text)
        })
    })
}
