//! Names of printed objects. A part of an ephemeral route comes right behind its parent in the
//! order of names, before every other route: of routes of one age, the name decides. Nothing
//! printed takes the name of an object that there is already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;

/// Of any object's name.
const LONGEST_NAME: usize = 253;
/// Digits of a part's number, at least.
const DIGITS: usize = 4;

/// The names that are taken: by objects that are there, or by what was printed before.
#[derive(Debug, Default)]
pub struct Names {
    taken: BTreeSet<ObjectKey>,
    /// The names of copies of RouteFilters, by namespace and original.
    copies: BTreeMap<(Arc<str>, ObjectName), Arc<str>>,
    /// The copies that were not asked for yet.
    new_copies: Vec<(ObjectName, ObjectName)>,
}

// === impl Names ===

impl Names {
    pub fn new(taken: impl IntoIterator<Item = ObjectKey>) -> Self {
        Self { taken: taken.into_iter().collect(), ..Self::default() }
    }

    /// `web`, `web-e0001`, `web-e0002`; with more dashes if other names begin like that, and
    /// shortened if they would be too long.
    pub(super) fn parts(&mut self, parent: &ObjectKey, count: usize) -> Vec<String> {
        let own = &*parent.name.name;
        if count < 2 {
            return vec![own.to_owned(); count];
        }
        let digits = count.to_string().len().max(DIGITS);
        let mut base = own;
        let mut dashes = self.dashes_behind(parent, base);
        while base.len() + dashes.len() + "e".len() + digits > LONGEST_NAME {
            base = shortened(base, base.len() - 1);
            dashes = self.dashes_behind(parent, base);
        }
        let numbered = |at: usize| format!("{base}{dashes}e{at:0digits$}");
        // A shortened name comes before the whole one; the parts' own order has to stay.
        let first = if base == own { own.to_owned() } else { numbered(0) };
        let names: Vec<_> = std::iter::once(first).chain((1..count).map(numbered)).collect();
        self.taken.extend(names.iter().map(|name| with_name(parent, name)));
        names
    }

    /// More dashes than any other name has behind `base`: a dash comes before all other characters.
    fn dashes_behind(&self, parent: &ObjectKey, base: &str) -> String {
        let from = self.taken.range(with_name(parent, base)..);
        let others = from.take_while(|key| key.kind == parent.kind);
        let others = others.take_while(|key| key.name.namespace == parent.name.namespace);
        let rests = others.map_while(|key| key.name.name.strip_prefix(base));
        let most = rests.map(|rest| rest.len() - rest.trim_start_matches('-').len()).max();
        "-".repeat(most.unwrap_or_default() + 1)
    }

    /// A name for a grant to a parent, in the namespace of what it allows to refer to.
    pub(super) fn grant(&mut self, parent: &ObjectKey, namespace: &str) -> String {
        let base = format!("{}-{}", parent.name.namespace, parent.name.name);
        self.free(Kind::ReferenceGrant, namespace, &base)
    }

    /// The name of the copy of a RouteFilter in another namespace.
    pub(super) fn copy(&mut self, namespace: &Arc<str>, original: ObjectName) -> Arc<str> {
        let key = (namespace.clone(), original);
        if let Some(known) = self.copies.get(&key) {
            return known.clone();
        }
        let base = format!("{}-{}", key.1.namespace, key.1.name);
        let name: Arc<str> = self.free(Kind::RouteFilter, namespace, &base).into();
        self.new_copies.push((key.1.clone(), ObjectName::new(namespace.clone(), name.clone())));
        self.copies.insert(key, name.clone());
        name
    }

    /// The copies that are to be printed, each with its original.
    pub(super) fn take_copies(&mut self) -> Vec<(ObjectName, ObjectName)> {
        std::mem::take(&mut self.new_copies)
    }

    /// A name like `base` that no object of the kind has.
    fn free(&mut self, kind: Kind, namespace: &str, base: &str) -> String {
        let mut number = 1_usize;
        loop {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let name = format!("{}{suffix}", shortened(base, LONGEST_NAME - suffix.len()));
            let key = ObjectKey::new(kind, ObjectName::new(namespace, name.as_str()));
            if self.taken.insert(key) {
                return name;
            }
            number += 1;
        }
    }
}

fn with_name(key: &ObjectKey, name: &str) -> ObjectKey {
    ObjectKey::new(key.kind, ObjectName::new(key.name.namespace.clone(), name))
}

/// A label of a name does not end with a dash. Names are ASCII.
fn shortened(name: &str, length: usize) -> &str {
    name.get(..length).unwrap_or(name).trim_end_matches(['-', '.'])
}
