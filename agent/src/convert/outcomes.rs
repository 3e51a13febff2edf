//! Outcomes that are known once all is written: of annotations whose objects are written with the
//! paths of their Ingress, if one of these is open, and of those that no converter used. Nothing is
//! assumed to have become something.

use std::collections::BTreeSet;

use super::annotations::{self, Fate};
use super::difference::{Difference, Outcome};
use super::ingress::{Ingress, PREFIX, World};
use super::servers::Servers;
use super::terms::Terms;

pub(super) struct Outcomes<'a> {
    pub world: &'a World,
    pub servers: &'a Servers,
    pub terms: &'a [Terms],
    /// Ingresses of which a route serves a path.
    pub open: &'a BTreeSet<usize>,
    pub report: &'a mut Vec<Difference>,
}

impl Outcomes<'_> {
    pub(super) fn tell(mut self) {
        self.of_terms();
        self.of_sizes();
        self.of_the_rest();
    }

    fn of_terms(&mut self) {
        for index in self.open {
            self.report.extend(self.terms[*index].told.iter().cloned());
        }
    }

    /// The reason for which there is nothing of an Ingress but what closes and redirects it.
    fn unwritten(&self, index: usize, annotation: &str) -> Option<(Outcome, &'static str)> {
        if self.open.contains(&index) {
            return None;
        }
        let mut servers = self.servers.values().filter(|server| server.has(index)).peekable();
        Some(if self.world.ingresses[index].is_canary() {
            (Outcome::Lost, "the canary goes beside no path that is open")
        } else if servers.peek().is_none() {
            let keeps_out = annotations::keeps_out(annotation);
            let outcome = if keeps_out { Outcome::Unprotected } else { Outcome::Lost };
            (outcome, "other Ingresses come first and have its paths")
        } else if servers.all(|server| server.passthrough) {
            (Outcome::NotNeeded, "TLS of its hosts is passed on, and it is without effect there, as before")
        } else {
            (Outcome::Lost, "its paths are closed: open them, and convert again")
        })
    }

    /// One line for what holds for all.
    fn of_sizes(&mut self) {
        let open = self.open.iter().map(|index| &self.world.ingresses[*index]);
        let silent = |ingress: &&Ingress| !ingress.is_canary() && ingress.get("proxy-body-size").is_none();
        let count = open.filter(silent).count();
        if count > 0 {
            let text = format!(
                "TrafficPolicy maxRequestBody of 1 MiB for {count} that do not say, as ingress-nginx has it; if its ConfigMap says otherwise, annotate them"
            );
            self.report.push(Difference::new("(all)", "proxy-body-size", Outcome::Differs, text));
        }
    }

    fn of_the_rest(&mut self) {
        let told: BTreeSet<_> =
            self.report.iter().map(|it| (it.ingress.clone(), it.subject.clone())).collect();
        for (index, ingress) in self.world.ingresses.iter().enumerate() {
            let key = ingress.key();
            let own = ingress.annotations.keys().filter_map(|name| name.strip_prefix(PREFIX));
            for annotation in own.filter(|it| !told.contains(&(key.clone(), (*it).to_owned()))) {
                let (outcome, text) = self.of_unused(index, ingress, annotation);
                self.report.push(Difference::new(&key, annotation, outcome, text));
            }
        }
    }

    fn of_unused(&self, index: usize, ingress: &Ingress, annotation: &str) -> (Outcome, String) {
        if ingress.lacks_rules_for(annotation) {
            return (Outcome::NotNeeded, "without effect in an Ingress without rules, as before".to_owned());
        }
        if matches!(ingress.get(annotation), None | Some("false")) {
            return (Outcome::NotNeeded, "it is off".to_owned());
        }
        if ingress.is_canary() && !annotation.starts_with("canary") {
            return (Outcome::NotNeeded, "without effect in a canary, as before".to_owned());
        }
        if let Fate::PartOf(wholes) = annotations::fate(annotation)
            && !annotations::has_one(ingress, wholes)
        {
            return (Outcome::NotNeeded, format!("without effect without {}", wholes.join(" or ")));
        }
        let text = if self.terms[index].redirect.is_some() {
            "its requests are redirected, and nothing else is done to them"
        } else {
            "nothing is written for it"
        };
        let (outcome, text) = self.unwritten(index, annotation).unwrap_or((Outcome::Lost, text));
        (outcome, text.to_owned())
    }
}
