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
    minute: Mutex<Minute>,
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
        Self { started: Instant::now(), minute: Mutex::default() }
    }
}

// === impl LogBudgets ===

impl LogBudgets {
    /// Writes a line about a backend, unless there were many of its namespace.
    pub(crate) fn tell(&self, BackendName(backend): &BackendName, line: impl FnOnce()) {
        let namespace = backend.split('/').next().unwrap_or_default();
        let number = self.started.elapsed().as_secs() / 60;
        let turn = self.minute.lock().unwrap_or_else(PoisonError::into_inner).next(namespace, number);
        if turn != Turn::Over {
            line();
        }
        if turn == Turn::Last {
            tracing::warn!(
                "namespace {namespace}: what else becomes of its backends' endpoints and of its key sets within this \
                 minute is not logged; the metrics portcullis_endpoint_out and portcullis_key_set_fetches_total have it"
            );
        }
    }
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
            budgets.tell(&BackendName(format!("a/b{backend}:80").into()), || lines += 1);
        }
        assert_eq!(lines, LINES);
        budgets.tell(&BackendName("c/d:80".into()), || lines += 1);
        assert_eq!(lines, LINES + 1);
    }
}
