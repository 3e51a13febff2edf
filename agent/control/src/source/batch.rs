//! Manifests read once, for offline commands: every manifest of the given files in order, with what
//! an API server would have made of it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_api::admission::{Admission, admit};
use portcullis_api::{Change, Object, ObjectKey};
use serde_json::Value;

use super::dir::disk;
use super::document::{self, Document};
use super::{Effect, InputProblem, input_problem};

const OF_INGRESSES: [&str; 5] = ["Ingress", "IngressClass", "Service", "Secret", "ConfigMap"];

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Batch {
    pub manifests: Vec<Manifest>,
    pub problems: Vec<InputProblem>,
    /// Kinds that translation does not use: `apps/v1 Deployment`.
    pub ignored: BTreeSet<String>,
    /// Ingresses and what they refer to, as written: what `convert` translates.
    pub written: Vec<Value>,
    /// The position of an object's first definition.
    positions: HashMap<ObjectKey, usize>,
}

/// One manifest and what became of it.
#[derive(Debug)]
pub struct Manifest {
    pub file: Arc<str>,
    pub line: usize,
    /// As written, without anything but `apiVersion`, `kind` and `metadata`.
    pub head: Value,
    /// Of a refused policy that protects, what closes its targets. `None`: refused, or of a kind
    /// that is not used.
    pub object: Option<Object>,
}

impl Batch {
    /// Reads files, directories and `-` (standard input).
    pub fn read(paths: &[PathBuf], max_file_size: u64) -> Self {
        let mut batch = Self::default();
        for path in paths {
            if path.as_os_str() == "-" {
                batch.text(&"(standard input)".into(), standard_input());
            } else {
                batch.path(path, max_file_size);
            }
        }
        batch
    }

    /// Takes manifests that are no text any more.
    pub fn of(manifests: Vec<Value>) -> Self {
        let mut batch = Self::default();
        let file = Arc::from("(manifests)");
        manifests.into_iter().for_each(|manifest| batch.manifest(&file, 1, manifest));
        batch
    }

    /// Of an object that is defined twice, the first definition.
    pub fn changes(&self) -> Vec<Change> {
        self.manifests.iter().filter_map(|manifest| manifest.object.clone()).map(Change::Set).collect()
    }

    pub fn is_readable(&self) -> bool {
        !self.problems.iter().any(|problem| matches!(problem.effect, Effect::Unreadable { .. }))
    }

    fn path(&mut self, path: &Path, max_file_size: u64) {
        if !path.is_dir() {
            return self.file(path, max_file_size);
        }
        let listing = disk::list(path);
        listing.files.keys().for_each(|file| self.file(file, max_file_size));
        for (directory, error) in listing.failures {
            let directory = directory.to_string_lossy().into();
            self.problem(&directory, None, None, error.to_string(), Effect::Unreadable { kept: 0 });
        }
    }

    fn file(&mut self, file: &Path, max_file_size: u64) {
        let text = disk::read(file, max_file_size).map(|(_, text)| text).map_err(|error| match error {
            // Nothing was read of it before that could be gone.
            disk::ReadError::Gone => "there is no such file".to_owned(),
            error => error.to_string(),
        });
        self.text(&file.to_string_lossy().into(), text);
    }

    fn text(&mut self, file: &Arc<str>, text: Result<String, String>) {
        match text {
            Ok(text) => {
                document::split(&text).into_iter().for_each(|document| self.document(file, document));
            }
            Err(message) => self.problem(file, None, None, message, Effect::Unreadable { kept: 0 }),
        }
    }

    fn document(&mut self, file: &Arc<str>, document: Document<'_>) {
        match document::manifests(document.text) {
            Ok(manifests) => {
                let line = document.line + document::first_content(document.text);
                manifests.into_iter().for_each(|manifest| self.manifest(file, line, manifest));
            }
            Err(error) => {
                let line = Some(document.line + error.line);
                self.problem(file, line, None, error.message, Effect::Unreadable { kept: 0 });
            }
        }
    }

    fn manifest(&mut self, file: &Arc<str>, line: usize, manifest: Value) {
        let head = head(&manifest);
        if head.get("kind").and_then(Value::as_str).is_some_and(|kind| OF_INGRESSES.contains(&kind)) {
            self.written.push(manifest.clone());
        }
        let object = match admit(manifest) {
            Admission::Admitted { object, unknown_fields } => {
                let key = object.key();
                for message in input_problem::of_unknown_fields(key.kind, &unknown_fields) {
                    self.problem(file, Some(line), Some(key.to_string()), message, Effect::Warning);
                }
                Some(object)
            }
            Admission::Refused(refusal) => {
                let effect = match &refusal.closed {
                    Some(closed) if !self.positions.contains_key(&closed.key()) => Effect::Closed,
                    _ => Effect::NotServed,
                };
                for reason in input_problem::of_refusal(&refusal) {
                    let object = Some(refusal.object.clone());
                    self.problem(file, Some(line), object, reason, effect);
                }
                refusal.closed
            }
            Admission::Ignored(kind) if is_ingress(&kind) => {
                let message = "is not of the Gateway API: `portcullis convert` writes what to serve instead";
                self.problem(file, Some(line), Some(ingress(&head)), message.to_owned(), Effect::ToConvert);
                None
            }
            Admission::Ignored(kind) => {
                self.ignored.insert(kind);
                None
            }
        };
        if let Some(object) = &object {
            match self.positions.entry(object.key()) {
                Entry::Occupied(first) => {
                    let first = *first.get();
                    return self.shadowed(file, line, first);
                }
                Entry::Vacant(place) => place.insert(self.manifests.len()),
            };
        }
        self.manifests.push(Manifest { file: file.clone(), line, head, object });
    }

    fn shadowed(&mut self, file: &Arc<str>, line: usize, first: usize) {
        let first = &self.manifests[first];
        let object = first.object.as_ref().map(|object| object.key().to_string());
        let message = format!("is defined in {}:{}, which comes first", first.file, first.line);
        self.problem(file, Some(line), object, message, Effect::Shadowed);
    }

    fn problem(
        &mut self,
        file: &Arc<str>,
        line: Option<usize>,
        object: Option<String>,
        message: String,
        effect: Effect,
    ) {
        self.problems.push(InputProblem { file: file.clone(), line, object, message, effect });
    }
}

fn standard_input() -> Result<String, String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(text)
}

/// True of `networking.k8s.io/v1 Ingress` and the versions before it; not of what others call so.
fn is_ingress(kind: &str) -> bool {
    let groups = ["networking.k8s.io/", "extensions/"];
    kind.ends_with(" Ingress") && groups.iter().any(|group| kind.starts_with(group))
}

/// `Ingress shop/web`
fn ingress(head: &Value) -> String {
    let field = |path: &str| head.pointer(path).and_then(Value::as_str);
    let namespace = field("/metadata/namespace").unwrap_or("default");
    format!("Ingress {namespace}/{}", field("/metadata/name").unwrap_or_default())
}

fn head(manifest: &Value) -> Value {
    let field = |name: &str| manifest.get(name).map(|value| (name.to_owned(), value.clone()));
    ["apiVersion", "kind", "metadata"].into_iter().filter_map(field).collect::<serde_json::Map<_, _>>().into()
}
