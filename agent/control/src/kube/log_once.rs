//! Problems that the log has already, so that it has each once: not at every attempt, and of
//! statuses not once per object when the reason is one for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_gateway::{Kind, ObjectKey};

use super::dispute::{self, NOTABLE};

/// Objects whose faults are remembered.
const MANY: usize = 1024;

/// The problem of each matter that the log has already: another one is logged, and the same one not
/// again.
#[derive(Debug)]
pub(super) struct LogOnce<M = ()>(BTreeMap<M, String>);

/// Problems with writing statuses.
#[derive(Debug, Default)]
pub(super) struct WriteFaults(Mutex<Words>);

#[derive(Debug, Default)]
struct Words {
    /// The API server's last answer instead of taking statuses of the kind; `None`: nothing.
    kinds: BTreeMap<Kind, Option<u16>>,
    invalid: BTreeMap<ObjectKey, String>,
}

// === impl LogOnce ===

impl<M: Ord> LogOnce<M> {
    /// Tells whether the log does not have it yet. Numbers do not count: a certificate expired
    /// another number of seconds ago each time.
    pub(super) fn is_new(&mut self, matter: M, problem: &str) -> bool {
        let words: String = problem.chars().filter(|it| !it.is_ascii_digit()).collect();
        self.0.insert(matter, words.clone()) != Some(words)
    }

    /// Returns whether there was a problem.
    pub(super) fn solved(&mut self, matter: &M) -> bool {
        self.0.remove(matter).is_some()
    }

    /// The problems of all other matters are solved.
    pub(super) fn keep_only(&mut self, is_open: impl Fn(&M) -> bool) {
        self.0.retain(|matter, _| is_open(matter));
    }
}

impl<M> Default for LogOnce<M> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

// === impl WriteFaults ===

impl WriteFaults {
    /// Statuses of this kind cannot be written now.
    pub(super) fn cannot_write(&self, key: &ObjectKey, code: Option<u16>, problem: &str) {
        if self.words().kinds.insert(key.kind, code) == Some(code) {
            return;
        }
        let advice = match code {
            Some(401 | 403) => "give the agents the rights of the chart's ClusterRole",
            _ => "the API server's own log may say why",
        };
        tracing::warn!(
            "{key}: cannot write its status: {problem}; {advice}. Tried again, like other statuses of the kind"
        );
    }

    /// It never will be as it is.
    pub(super) fn invalid(&self, key: &ObjectKey, problem: String) {
        let mut words = self.words();
        if words.invalid.get(key) == Some(&problem) {
            return;
        }
        tracing::warn!(
            "{key}: the API server refuses its status: {problem}; the object is served as it is. Has it more parents or \
             conditions than a status may have?"
        );
        if words.invalid.len() >= MANY {
            words.invalid.clear();
        }
        words.invalid.insert(key.clone(), problem);
    }

    /// A status was written, for the so many-th time in a row because somebody else had changed it.
    pub(super) fn wrote(&self, key: &ObjectKey, restored: u32, others: &BTreeSet<String>) {
        let mut words = self.words();
        words.invalid.remove(key);
        if words.kinds.remove(&key.kind).is_some() {
            tracing::info!("{}: statuses are written again", key.kind);
        }
        if restored == NOTABLE {
            dispute::complain(key, others);
        }
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
