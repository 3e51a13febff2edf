//! The rules of one Ingress at one host: its paths, canaries beside them, and what refuses where
//! something that protects is missing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::difference::{Difference, Outcome};
use super::ingress::{Backend, PathKind, World};
use super::paths;
use super::servers::{Location, Server, Target};
use super::terms::Terms;

/// Characters of paths that are meant for expressions.
const EXPRESSION: &str = "\\*+?()|[]{}^$";

/// The material of rules.
pub(super) struct Source<'a> {
    pub world: &'a World,
    pub server: &'a Server,
    /// Index of the Ingress, and its terms.
    pub ingress: usize,
    pub terms: &'a Terms,
    /// Begin of the names of its RouteFilters.
    pub base: &'a str,
    /// All of the host is closed.
    pub closed: bool,
}

/// RouteFilters of one Ingress: name and spec.
pub(super) type Filters = Vec<(String, Value)>;

/// A match of a header field.
type Condition = Option<Value>;

impl Source<'_> {
    /// By path. RouteFilters that they refer to are added, and so are the Ingresses of which they
    /// serve a path.
    pub(super) fn rules(
        &self,
        filters: &mut Filters,
        open: &mut BTreeSet<usize>,
        report: &mut Vec<Difference>,
    ) -> Vec<Vec<Value>> {
        let ingress = &self.world.ingresses[self.ingress];
        let mut rules = Vec::new();
        let own = || self.server.locations.iter().filter(|location| location.ingress == self.ingress);
        if let Some(root) = ingress.get("app-root").filter(|_| !self.closed && !self.terms.closed) {
            let redirect =
                json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": root}, "statusCode": 302});
            let filter = json!({"type": "RequestRedirect", "requestRedirect": redirect});
            rules.push(vec![
                json!({"matches": [{"path": {"type": "Exact", "value": "/"}}], "filters": [filter]}),
            ]);
            report.push(Difference::new(&ingress.key(), "app-root", Outcome::Became, "RequestRedirect of /"));
        }
        if ingress.is("use-regex") {
            let (outcome, text) = if own().all(Location::is_rest) {
                (Outcome::NotNeeded, "/ takes all without it")
            } else {
                (Outcome::Became, "matches RegularExpression")
            };
            report.push(Difference::new(&ingress.key(), "use-regex", outcome, text));
        }
        for location in own() {
            let of_path = self.path(location, filters, open, report);
            rules.push(of_path);
        }
        rules
    }

    fn path(
        &self,
        location: &Location,
        filters: &mut Filters,
        open: &mut BTreeSet<usize>,
        report: &mut Vec<Difference>,
    ) -> Vec<Value> {
        let ingress = &self.world.ingresses[self.ingress];
        let paths = &location.matches;
        if matches!(location.target, Target::Nothing) && !self.closed {
            let name = format!("{}-nothing", self.base);
            add(filters, &name, json!({"type": "DirectResponse", "directResponse": {"statusCode": 404}}));
            return vec![rule(paths, None, json!({"filters": [extension(&name)]}))];
        }
        self.tell_of_path(location, report);
        let main = match location.target {
            Target::Nothing => None,
            Target::Backend(_) => self.backend(location.backend(), &location.path, Outcome::Closed, report),
        };
        let rewrite = if self.terms.redirect.is_some() { Ok(None) } else { self.rewrite(location, report) };
        let main = main.filter(|_| rewrite.is_ok());
        if self.closed || self.terms.closed || (main.is_none() && self.terms.redirect.is_none()) {
            let name = format!("{}-closed", self.base);
            let response =
                json!({"statusCode": 503, "body": "This path is closed until its protection is in place.\n"});
            add(filters, &name, json!({"type": "DirectResponse", "directResponse": response}));
            return vec![rule(paths, None, json!({"filters": [extension(&name)]}))];
        }
        open.insert(self.ingress);
        if let Some(redirect) = &self.terms.redirect {
            let filter = json!({"type": "RequestRedirect", "requestRedirect": redirect});
            return vec![rule(paths, None, json!({"filters": [filter]}))];
        }
        let mut body = json!(self.terms.rule);
        let mut own = self.terms.filters.clone();
        own.extend(rewrite.ok().flatten().map(|spec| self.rewrite_filter(spec, filters, report)));
        if !own.is_empty() {
            body["filters"] = json!(own);
        }
        let main = main.unwrap_or_default();
        let with = |backends: Value| {
            let mut body = body.clone();
            body["backendRefs"] = backends;
            body
        };
        let canary = location.canary.as_ref().and_then(|(index, backend)| {
            Some((*index, self.backend(Some(backend), &location.path, Outcome::Lost, report)?))
        });
        let Some((index, canary)) = canary else { return vec![rule(paths, None, with(json!([main])))] };
        open.insert(index);
        self.canary_became(index, "canary", &format!("a backend of rules of {}", ingress.key()), report);
        self.tell_of_other_paths(index, location, report);
        let mut rules: Vec<_> = self
            .conditions(index, report)
            .into_iter()
            .map(|(condition, new)| rule(paths, condition, with(json!([if new { &canary } else { &main }]))))
            .collect();
        let number = |annotation: &str| self.world.ingresses[index].get(annotation)?.parse::<u32>().ok();
        let total = number("canary-weight-total").unwrap_or(100).clamp(1, 1_000_000);
        let weight = number("canary-weight").unwrap_or(0).min(total);
        let weights = format!("weights {} and {weight}", total - weight);
        for annotation in ["canary-weight", "canary-weight-total"] {
            self.canary_became(index, annotation, &weights, report);
        }
        let weighted = |backend: &Value, weight: u32| {
            let mut backend = backend.clone();
            backend["weight"] = json!(weight);
            backend
        };
        let all = if weight == 0 {
            json!([main])
        } else {
            json!([weighted(&main, total - weight), weighted(&canary, weight)])
        };
        rules.push(rule(paths, None, with(all)));
        rules
    }

    /// ingress-nginx has a canary beside a Service, at all of its paths.
    fn tell_of_other_paths(&self, canary: usize, location: &Location, report: &mut Vec<Difference>) {
        let Some(backend) = location.backend() else { return };
        let namespace = &self.world.ingresses[self.ingress].namespace;
        let all = self.world.ingresses.iter().filter(|it| it.namespace == *namespace && !it.is_canary());
        let paths = all.flat_map(|it| &it.rules).flat_map(|(_, paths)| paths);
        if paths.filter(|it| it.backend.as_ref() == Some(backend)).count() > 1 {
            let text = format!(
                "beside {} alone, where ingress-nginx has it beside all paths of Service {}",
                location.path, backend.service
            );
            let key = self.world.ingresses[canary].key();
            report.push(Difference::new(&key, "canary", Outcome::Differs, text));
        }
    }

    /// Says that an annotation of a canary is used, if it is there.
    fn canary_became(&self, index: usize, annotation: &str, text: &str, report: &mut Vec<Difference>) {
        let canary = &self.world.ingresses[index];
        if canary.get(annotation).is_some() {
            report.push(Difference::new(&canary.key(), annotation, Outcome::Became, text));
        }
    }

    /// Conditions of a canary in their order, and true if what meets them goes to the new version.
    fn conditions(&self, index: usize, report: &mut Vec<Difference>) -> Vec<(Condition, bool)> {
        let canary = &self.world.ingresses[index];
        let mut conditions = Vec::new();
        let mut tell = |annotation, outcome, text: &str| {
            report.push(Difference::new(&canary.key(), annotation, outcome, text))
        };
        if let Some(name) = canary.get("canary-by-header") {
            let header = |kind: &str, value: &str| Some(json!({"type": kind, "name": name, "value": value}));
            if let Some(value) = canary.get("canary-by-header-value") {
                conditions.push((header("Exact", value), true));
                tell("canary-by-header-value", Outcome::Became, "rules with header matches");
            } else if let Some(pattern) = canary.get("canary-by-header-pattern") {
                conditions.push((header("RegularExpression", &format!(".*(?:{pattern}).*")), true));
                tell(
                    "canary-by-header-pattern",
                    Outcome::Differs,
                    "a header match; without look-around and back-references",
                );
            } else {
                conditions.push((header("Exact", "always"), true));
                conditions.push((header("Exact", "never"), false));
            }
            tell("canary-by-header", Outcome::Became, "rules with header matches");
        }
        if let Some(name) = canary.get("canary-by-cookie") {
            for (value, new) in [("always", true), ("never", false)] {
                let name = paths::escaped(name);
                let pattern = format!("(?:.*;\\s*)?{name}={value}(?:\\s*;.*)?");
                conditions.push((
                    Some(json!({"type": "RegularExpression", "name": "Cookie", "value": pattern})),
                    new,
                ));
            }
            tell("canary-by-cookie", Outcome::Became, "rules with matches of the field Cookie");
        }
        conditions
    }

    /// `pathRewrite` of a RouteFilter, if the path is rewritten.
    ///
    /// # Errors
    /// There is one that cannot be written: it may have kept clients within a part of the backend.
    fn rewrite(&self, location: &Location, report: &mut Vec<Difference>) -> Result<Option<Value>, ()> {
        let ingress = &self.world.ingresses[self.ingress];
        let mut tell = |outcome, text: &str| {
            report.push(Difference::new(&ingress.key(), "rewrite-target", outcome, text));
        };
        let Some(target) = ingress.rewritten(&location.path) else {
            if ingress.get("rewrite-target").is_some() {
                tell(Outcome::NotNeeded, "a target that is the path itself rewrites nothing, as before");
            }
            return Ok(None);
        };
        match paths::rewrite(&location.path, target) {
            Ok(rewrite) => Ok(Some(rewrite)),
            Err(text) => {
                tell(Outcome::Closed, &text);
                Err(())
            }
        }
    }

    /// Refers to the RouteFilter that rewrites a path that is open.
    fn rewrite_filter(&self, rewrite: Value, filters: &mut Filters, report: &mut Vec<Difference>) -> Value {
        let ingress = &self.world.ingresses[self.ingress];
        let text = "RouteFilter PathRewrite";
        report.push(Difference::new(&ingress.key(), "rewrite-target", Outcome::Became, text));
        let spec = json!({"type": "PathRewrite", "pathRewrite": rewrite});
        let same = filters.iter().find(|(_, other)| *other == spec).map(|(name, _)| name.clone());
        let base = format!("{}-rewrite", self.base);
        let name = same.unwrap_or_else(|| numbered(filters, &base));
        add(filters, &name, spec);
        extension(&name)
    }

    fn backend(
        &self,
        backend: Option<&Backend>,
        path: &str,
        missing: Outcome,
        report: &mut Vec<Difference>,
    ) -> Option<Value> {
        let ingress = &self.world.ingresses[self.ingress];
        let port = match backend {
            None => Err("its backend is no Service: route it to one".to_owned()),
            Some(backend) => self.world.port(&ingress.namespace, backend),
        };
        match port {
            Ok((port, _)) => Some(json!({"name": backend?.service, "port": port})),
            Err(_) if self.terms.redirect.is_some() => None,
            Err(text) => {
                report.push(Difference::new(&ingress.key(), path, missing, text));
                None
            }
        }
    }

    fn tell_of_path(&self, location: &Location, report: &mut Vec<Difference>) {
        let ingress = &self.world.ingresses[self.ingress];
        let mut tell =
            |text: &str| report.push(Difference::new(&ingress.key(), &location.path, Outcome::Differs, text));
        if location.is_rest() {
            return;
        }
        if location.path.contains('%') {
            tell("nginx asks decoded paths: requests have %25 for this %, as before");
        }
        if self.server.is_regex(self.world) {
            let is_expression = location.path.contains(|c| EXPRESSION.contains(c));
            if !is_expression || !ingress.has_regex_at(&location.path) {
                tell(
                    "an expression without regard to case that takes what begins with it, as ingress-nginx had it because of use-regex or rewrite-target at the host",
                );
            }
        } else if location.kind == PathKind::Prefix && location.path.ends_with('/') {
            tell("taken without its last / as well, where nginx redirects such a request to it");
        }
    }
}

fn rule(paths: &[Value], condition: Condition, mut body: Value) -> Value {
    let matches = paths.iter().map(|path| match &condition {
        Some(header) => json!({"path": path, "headers": [header]}),
        None => json!({"path": path}),
    });
    body["matches"] = matches.collect();
    body
}

fn extension(name: &str) -> Value {
    json!({"type": "ExtensionRef", "extensionRef": {"group": "portcullis.dev", "kind": "RouteFilter", "name": name}})
}

fn add(filters: &mut Filters, name: &str, spec: Value) {
    if !filters.iter().any(|(known, _)| known == name) {
        filters.push((name.to_owned(), spec));
    }
}

fn numbered(filters: &[(String, Value)], name: &str) -> String {
    let count = filters.iter().filter(|(known, _)| known.starts_with(name)).count();
    if count == 0 { name.to_owned() } else { format!("{name}-{}", count + 1) }
}
