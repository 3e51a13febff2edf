//! One file's share of the configuration: its objects, and what is wrong with it. Reading a new
//! text keeps what the old one had wherever the new one is broken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use portcullis_api::admission::{Admission, Refusal};
use portcullis_api::{Object, ObjectKey};

use crate::source::document::{self, Document, Manifests, SyntaxError};
use crate::source::{Effect, InputProblem, input_problem};

/// Immutable; a new text makes a new value that shares what did not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    pub objects: BTreeMap<ObjectKey, Declaration>,
    pub problems: Vec<InputProblem>,
    /// Kinds of the file that translation does not use: `apps/v1 Deployment`.
    pub ignored: BTreeSet<String>,
    /// The manifests of each document, by the hash of its text: an edit re-parses only the
    /// documents it touches.
    memo: HashMap<u64, Parsed>,
}

/// An object and the line, from 1, that its document starts at.
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub object: Object,
    pub line: usize,
}

type Parsed = Arc<Result<Manifests, SyntaxError>>;

/// Collects what a text holds, beside what the file held before.
struct Reading<'a> {
    name: &'a Arc<str>,
    before: &'a File,
    after: File,
    has_broken_documents: bool,
}

// === impl File ===

impl File {
    /// The file with a new text.
    pub(crate) fn read(&self, name: &Arc<str>, text: &str, hasher: &RandomState) -> Self {
        let mut reading = Reading { name, before: self, after: Self::default(), has_broken_documents: false };
        for document in document::split(text) {
            reading.document(document, hasher.hash_one(document.text));
        }
        reading.finish()
    }

    /// The file when its text cannot be had.
    pub(crate) fn unreadable(&self, name: &Arc<str>, message: String) -> Self {
        let effect = Effect::Unreadable { kept: self.objects.len() };
        let problem = InputProblem { file: name.clone(), line: None, object: None, message, effect };
        Self { problems: vec![problem], ..self.clone() }
    }
}

// === impl Reading ===

impl Reading<'_> {
    fn document(&mut self, document: Document<'_>, hash: u64) {
        let parsed = self.before.memo.get(&hash).cloned();
        let parsed = parsed.unwrap_or_else(|| Arc::new(document::read(document.text)));
        match parsed.as_ref() {
            Ok(manifests) => self.manifests(manifests, document.line + manifests.line),
            Err(error) => self.broken(error, document.line),
        }
        self.after.memo.insert(hash, parsed);
    }

    fn manifests(&mut self, manifests: &Manifests, line: usize) {
        for admission in &manifests.admissions {
            match admission {
                Admission::Admitted { object, unknown_fields } => self.admitted(object, unknown_fields, line),
                Admission::Refused(refusal) => self.refused(refusal, line),
                Admission::Ignored(kind) => drop(self.after.ignored.insert(kind.clone())),
            }
        }
    }

    fn admitted(&mut self, object: &Object, unknown_fields: &[String], line: usize) {
        let key = object.key();
        if let Some(first) = self.after.objects.get(&key) {
            let message = format!("is defined in line {} of this file already", first.line);
            return self.problem(line, Some(key.to_string()), message, Effect::Shadowed);
        }
        for message in input_problem::of_unknown_fields(key.kind, unknown_fields) {
            self.problem(line, Some(key.to_string()), message, Effect::Warning);
        }
        self.after.objects.insert(key, Declaration { object: object.clone(), line });
    }

    fn refused(&mut self, refusal: &Refusal, line: usize) {
        let effect = match &refusal.key {
            Some(key) if self.after.objects.contains_key(key) => Effect::Shadowed,
            Some(key) => self.fall_back(key, refusal.closed.as_ref(), line),
            None => Effect::NotServed,
        };
        for reason in input_problem::of_refusal(refusal) {
            self.problem(line, Some(refusal.object.clone()), reason, effect);
        }
    }

    /// Puts the last good version in place of a refused object; without one, `closed`, or what was
    /// closed before.
    fn fall_back(&mut self, key: &ObjectKey, closed: Option<&Object>, line: usize) -> Effect {
        let before = self.before.objects.get(key);
        let closed = closed.map(|object| Declaration { object: object.clone(), line });
        let (effect, declaration) = match before {
            Some(good) if good.object.refused().is_none() => (Effect::LastGoodKept, good.clone()),
            _ => match closed.or_else(|| before.cloned()) {
                Some(closed) => (Effect::Closed, closed),
                None => return Effect::NotServed,
            },
        };
        self.after.objects.insert(key.clone(), declaration);
        effect
    }

    fn broken(&mut self, error: &SyntaxError, line: usize) {
        self.has_broken_documents = true;
        let message = error.message.clone();
        self.problem(line + error.line, None, message, Effect::Unreadable { kept: 0 });
    }

    /// A document that is not YAML may have been any of the objects that the file held before and
    /// now lacks: all of those stay.
    fn finish(mut self) -> File {
        if self.has_broken_documents {
            let missing =
                self.before.objects.iter().filter(|(key, _)| !self.after.objects.contains_key(*key));
            let missing: Vec<_> = missing.map(|(key, kept)| (key.clone(), kept.clone())).collect();
            let kept = missing.len();
            self.after.objects.extend(missing);
            for problem in &mut self.after.problems {
                if let Effect::Unreadable { kept: count } = &mut problem.effect {
                    *count = kept;
                }
            }
        }
        self.after
    }

    fn problem(&mut self, line: usize, object: Option<String>, message: String, effect: Effect) {
        let file = self.name.clone();
        self.after.problems.push(InputProblem { file, line: Some(line), object, message, effect });
    }
}

// === impl Declaration ===

impl Declaration {
    /// Tells whether both are the same text's object: documents are memoised, so the same text
    /// yields the same allocation.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.object.is(&other.object)
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
