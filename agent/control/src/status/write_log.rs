//! Problems with writing statuses, for the log: not once per object when the reason is one for all.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_api::{Kind, ObjectKey};
use portcullis_log::LastLogged;

use crate::kube::reverts::{self, NOTABLE};

/// Objects whose faults are remembered.
const MANY: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct WriteLog(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    /// The API server's last answer instead of taking statuses of the kind.
    kinds: LastLogged<Kind, Answer>,
    invalid: LastLogged<ObjectKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    None,
    Code(u16),
}

// === impl WriteLog ===

impl WriteLog {
    /// Statuses of this kind cannot be written now.
    pub(super) fn cannot_write(&self, key: &ObjectKey, code: Option<u16>, problem: &str) {
        let answer = code.map_or(Answer::None, Answer::Code);
        if self.logged().kinds.update(key.kind, Some(answer)).is_none() {
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
        let invalid = &mut self.logged().invalid;
        if let Some(problem) = invalid.update(key.clone(), Some(problem)) {
            tracing::warn!(
                "{key}: the API server refuses its status: {problem}; the object is served as it is. Has it more parents or \
                 conditions than a status may have?"
            );
            if invalid.subjects().len() > MANY {
                *invalid = LastLogged::default();
            }
        }
    }

    /// A status was written; `restored` counts how often in a row another client had changed it.
    pub(super) fn wrote(&self, key: &ObjectKey, restored: u32, others: &BTreeSet<String>) {
        let mut logged = self.logged();
        logged.invalid.clear(key);
        if logged.kinds.clear(&key.kind) {
            tracing::info!("{}: statuses are written again", key.kind);
        }
        if restored == NOTABLE {
            reverts::log(key, others);
        }
    }

    fn logged(&self) -> MutexGuard<'_, Logged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
