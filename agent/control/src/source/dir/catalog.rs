//! All files together: which file defines an object, and what a file's new text changes. The first
//! file by name wins, so that the outcome does not depend on the order of edits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use portcullis_api::{Change, ObjectKey};

use super::file::{Declaration, File};
use crate::source::{Effect, InputProblem};

/// Sorts after every path: files take precedence.
pub(crate) const BUILT_IN: &str = "\u{10ffff}built-in";

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    files: BTreeMap<Arc<str>, File>,
    /// The files that define an object, in order.
    definers: HashMap<ObjectKey, Vec<Arc<str>>>,
    /// Objects with several definers.
    duplicated: BTreeSet<ObjectKey>,
    /// Files with problems of their own.
    faulty: BTreeSet<Arc<str>>,
}

// === impl Catalog ===

impl Catalog {
    pub(crate) fn file(&self, name: &str) -> Option<&File> {
        self.files.get(name)
    }

    /// Puts a file in place of what it was, or takes it away, and returns what that changes.
    pub(crate) fn replace(&mut self, name: &Arc<str>, file: Option<File>) -> Vec<Change> {
        let keys = self.touched(name, file.as_ref());
        let before: Vec<_> = keys.iter().map(|key| self.winner(key).cloned()).collect();
        self.put(name, file);
        keys.iter().for_each(|key| self.define(key, name));
        let after = keys.iter().zip(before);
        after.filter_map(|(key, before)| change(key, before.as_ref(), self.winner(key))).collect()
    }

    /// Everything that is wrong, by file.
    pub(crate) fn problems(&self) -> Vec<InputProblem> {
        let own = self.faulty.iter().filter_map(|name| self.files.get(name)).flat_map(|file| &file.problems);
        let mut problems: Vec<_> = own.cloned().collect();
        problems.extend(self.duplicated.iter().flat_map(|key| self.shadowed(key)));
        problems.sort();
        problems
    }

    /// Kinds that no translation uses, of all files.
    pub(crate) fn ignored(&self) -> BTreeSet<&String> {
        self.files.values().flat_map(|file| &file.ignored).collect()
    }

    /// The objects whose declaration differs between the file as it is and as it will be.
    fn touched(&self, name: &str, file: Option<&File>) -> Vec<ObjectKey> {
        let empty = BTreeMap::new();
        let before = self.files.get(name).map_or(&empty, |file| &file.objects);
        let after = file.map_or(&empty, |file| &file.objects);
        let changed = after.iter().filter(|(key, new)| !before.get(*key).is_some_and(|old| old.is_same(new)));
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        changed.map(|(key, _)| key).chain(gone).cloned().collect()
    }

    fn put(&mut self, name: &Arc<str>, file: Option<File>) {
        match &file {
            Some(file) if !file.problems.is_empty() => self.faulty.insert(name.clone()),
            _ => self.faulty.remove(name),
        };
        match file {
            Some(file) => self.files.insert(name.clone(), file),
            None => self.files.remove(name),
        };
    }

    /// Notes whether the file defines the object now.
    fn define(&mut self, key: &ObjectKey, name: &Arc<str>) {
        let defines = self.files.get(name).is_some_and(|file| file.objects.contains_key(key));
        let definers = self.definers.entry(key.clone()).or_default();
        match (definers.binary_search(name), defines) {
            (Err(at), true) => {
                // Hardly any object has a second one.
                definers.reserve_exact(1);
                definers.insert(at, name.clone());
            }
            (Ok(at), false) => drop(definers.remove(at)),
            _ => {}
        }
        let count = definers.len();
        if count > 1 {
            self.duplicated.insert(key.clone())
        } else {
            self.duplicated.remove(key)
        };
        if count == 0 {
            self.definers.remove(key);
        }
    }

    fn winner(&self, key: &ObjectKey) -> Option<&Declaration> {
        let name = self.definers.get(key)?.first()?;
        self.files.get(name)?.objects.get(key)
    }

    fn shadowed(&self, key: &ObjectKey) -> Vec<InputProblem> {
        let mut definitions = self.definers.get(key).into_iter().flatten().filter_map(|name| {
            self.files.get(name)?.objects.get(key).map(|declaration| (name, declaration.line))
        });
        let Some((winner, winning_line)) = definitions.next() else { return Vec::new() };
        let message = format!("is defined in {winner}:{winning_line}, which comes first");
        let others = definitions.filter(|(file, _)| &***file != BUILT_IN);
        others
            .map(|(file, line)| InputProblem {
                file: file.clone(),
                line: Some(line),
                object: Some(key.to_string()),
                message: message.clone(),
                effect: Effect::Shadowed,
            })
            .collect()
    }
}

fn change(key: &ObjectKey, before: Option<&Declaration>, after: Option<&Declaration>) -> Option<Change> {
    match (before, after) {
        (Some(before), Some(after)) if before.is_same(after) => None,
        (_, Some(after)) => Some(Change::Set(after.object.clone())),
        (Some(_), None) => Some(Change::Delete(key.clone())),
        (None, None) => None,
    }
}
