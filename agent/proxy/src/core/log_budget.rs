//! Lines of the log about what becomes of backends, of which a namespace may have many at once:
//! some of each minute.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use portcullis_model::BackendName;

/// A minute's lines of a namespace.
const LINES: u32 = 20;

/// For all threads.
#[derive(Debug)]
pub(crate) struct LogBudgets {
    started: Instant,
    endpoints: Mutex<Minute>,
    /// Their own: endpoints go and come by the hundred, and key sets are what tokens pass by.
    key_sets: Mutex<Minute>,
}

#[derive(Debug, Default)]
struct Minute {
    number: u64,
    /// Those that were asked for, by namespace.
    lines: HashMap<Box<str>, u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Free,
    /// The one that should say that there are no more.
    Last,
    Over,
}

impl Default for LogBudgets {
    fn default() -> Self {
        Self { started: Instant::now(), endpoints: Mutex::default(), key_sets: Mutex::default() }
    }
}

// === impl LogBudgets ===

impl LogBudgets {
    /// Writes a line about an endpoint of a backend, unless there were many of its namespace.
    pub(crate) fn tell_of_endpoint(&self, backend: &BackendName, line: impl FnOnce()) {
        let namespace = namespace(backend);
        let turn = self.next(&self.endpoints, namespace);
        if turn != Turn::Over {
            line();
        }
        if turn == Turn::Last {
            tracing::warn!(
                "namespace {namespace}: what else becomes of its backends' endpoints within this minute is not logged; \
                 the metric portcullis_endpoint_out has it"
            );
        }
    }

    /// Writes a line about a key set of a backend, unless there were many of its namespace. Returns
    /// true if it did: a line that had no turn is tried again.
    pub(crate) fn tell_of_key_set(&self, backend: &BackendName, line: impl FnOnce()) -> bool {
        let namespace = namespace(backend);
        let turn = self.next(&self.key_sets, namespace);
        if turn != Turn::Over {
            line();
        }
        if turn == Turn::Last {
            tracing::warn!(
                "namespace {namespace}: what else becomes of its key sets within this minute is logged after it, if it \
                 lasts; the metric portcullis_key_set_fetches_total has it"
            );
        }
        turn != Turn::Over
    }

    fn next(&self, minute: &Mutex<Minute>, namespace: &str) -> Turn {
        let number = self.started.elapsed().as_secs() / 60;
        minute.lock().unwrap_or_else(PoisonError::into_inner).next(namespace, number)
    }
}

fn namespace(BackendName(backend): &BackendName) -> &str {
    backend.split('/').next().unwrap_or_default()
}

// === impl Minute ===

impl Minute {
    fn next(&mut self, namespace: &str, number: u64) -> Turn {
        if self.number != number {
            *self = Self { number, ..Self::default() };
        }
        let lines = match self.lines.get_mut(namespace) {
            Some(lines) => lines,
            None => self.lines.entry(namespace.into()).or_default(),
        };
        *lines = lines.saturating_add(1);
        match *lines {
            line if line < LINES => Turn::Free,
            LINES => Turn::Last,
            _ => Turn::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_twenty_lines_a_minute() {
        let mut minute = Minute::default();
        let turns: Vec<_> = (0..1000).map(|_| minute.next("a", 1)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn == Turn::Free).count(), 19);
        assert_eq!((turns[19], turns[20]), (Turn::Last, Turn::Over));
        assert_eq!((minute.next("b", 1), minute.next("a", 2)), (Turn::Free, Turn::Free));
    }

    #[test]
    fn backends_of_a_namespace_share_its_lines() {
        let budgets = LogBudgets::default();
        let mut lines = 0;
        for backend in 0..100 {
            budgets.tell_of_endpoint(&BackendName(format!("a/b{backend}:80").into()), || lines += 1);
        }
        assert_eq!(lines, LINES);
        budgets.tell_of_endpoint(&BackendName("c/d:80".into()), || lines += 1);
        assert_eq!(lines, LINES + 1);
    }

    #[test]
    fn endpoints_leave_key_sets_their_lines() {
        let budgets = LogBudgets::default();
        let backend = BackendName("a/b:80".into());
        (0..100).for_each(|_| budgets.tell_of_endpoint(&backend, || {}));
        let told = (0..100).filter(|_| budgets.tell_of_key_set(&backend, || {})).count();
        assert_eq!(told, LINES as usize);
    }
}
