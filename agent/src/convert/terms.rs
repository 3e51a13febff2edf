//! The wishes of one Ingress' annotations, as parts of rules and policies. Each file has one
//! group of annotations.

mod access;
mod auth_service;
mod backends;
mod headers;
mod requests;

use serde_json::{Map, Value};

use super::annotations::{self, Fate};
use super::difference::{Difference, Outcome};
use super::ingress::{Ingress, PREFIX, World};
use super::servers::Servers;

/// Of one Ingress.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// Something protects and cannot be translated: the rules refuse all requests.
    pub closed: bool,
    /// Fields of its TrafficPolicy.
    pub traffic: Map<String, Value>,
    /// Filters of its rules, in their order, but for those that a path decides.
    pub filters: Vec<Value>,
    /// Fields of its rules.
    pub rule: Map<String, Value>,
    /// Fields of the BackendPolicies of its Services.
    pub backend: Map<String, Value>,
    /// `spec.validation` of the BackendTLSPolicies of its Services; the hostname may be missing.
    pub backend_tls: Option<Value>,
    /// Answers every request in place of a backend; its rules have no other field and filter.
    pub redirect: Option<Value>,
    /// Services of other namespaces that a TrafficPolicy refers to.
    pub granted: Vec<(String, String)>,
    /// Lines that are true if a path of it is open: what they tell of is written with it.
    pub told: Vec<Difference>,
}

/// An Ingress whose annotations are read, and what has become of them.
pub(super) struct Reading<'a> {
    pub world: &'a World,
    pub servers: &'a Servers,
    pub ingress: &'a Ingress,
    pub terms: Terms,
    pub report: &'a mut Vec<Difference>,
}

impl<'a> Reading<'a> {
    pub(super) fn terms(mut self) -> Terms {
        self.by_table();
        if !self.ingress.is_canary() {
            self.redirects();
            self.access();
            self.client_certificates();
            self.auth_service();
            if self.terms.redirect.is_none() {
                self.headers();
            }
            self.requests();
        }
        self.backends();
        self.terms
    }

    fn by_table(&mut self) {
        // Most of a canary's are without effect.
        let own = self.ingress.annotations.iter().filter(|_| !self.ingress.is_canary());
        for (name, value) in own {
            let Some(annotation) = name.strip_prefix(PREFIX) else { continue };
            // A switch that is off asks for nothing.
            if value == "false" || value.trim().is_empty() {
                continue;
            }
            match annotations::fate(annotation) {
                Fate::Read | Fate::PartOf(_) => {}
                Fate::NotNeeded(text) => self.say(annotation, Outcome::NotNeeded, text),
                Fate::Differs(text) => self.differs(annotation, text),
                Fate::Lost(text) => self.say(annotation, Outcome::Lost, text),
                Fate::Weakens(_) if value.trim() == "0" => {
                    self.say(annotation, Outcome::NotNeeded, "0 is no limit");
                }
                Fate::Weakens(text) => self.say(annotation, Outcome::Unprotected, text),
                Fate::Protects(text) => self.close(annotation, text),
            }
        }
    }

    fn get(&self, annotation: &str) -> Option<&'a str> {
        self.ingress.get(annotation)
    }

    /// A line that is true even if no path is open.
    fn say(&mut self, annotation: &str, outcome: Outcome, text: impl Into<String>) {
        self.report.push(Difference::new(&self.ingress.key(), annotation, outcome, text));
    }

    fn became(&mut self, annotation: &str, text: impl Into<String>) {
        self.tell(annotation, Outcome::Became, text);
    }

    /// Annotations that are fields of an object, as far as they are there.
    fn parts(&mut self, annotations: &[&str], object: &str) {
        let ingress = self.ingress;
        for annotation in annotations.iter().filter(|it| ingress.get(it).is_some()) {
            self.became(annotation, object);
        }
    }

    fn differs(&mut self, annotation: &str, text: impl Into<String>) {
        self.tell(annotation, Outcome::Differs, text);
    }

    fn tell(&mut self, annotation: &str, outcome: Outcome, text: impl Into<String>) {
        self.terms.told.push(Difference::new(&self.ingress.key(), annotation, outcome, text));
    }

    fn lost(&mut self, annotation: &str, text: impl Into<String>) {
        self.say(annotation, Outcome::Lost, text);
    }

    /// Paths that an annotation protects are answered 503 until its owner does what the text says.
    fn close(&mut self, annotation: &str, text: impl Into<String>) {
        self.terms.closed = true;
        self.say(annotation, Outcome::Closed, text);
    }
}

/// Names with commas between them.
fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect()
}
