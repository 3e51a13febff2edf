//! Rules of the kernel that go with VIPs: set when these change, set again when another program
//! flushed them. Most works without; what does not is logged once.

use std::io;

use portcullis_log::LastLogged;

pub(super) struct Rules<R> {
    set: fn(&R) -> io::Result<()>,
    is_in_force: fn(&R) -> io::Result<bool>,
    /// In the log, before the error: what is otherwise, and for whom.
    consequence: &'static str,
    /// As they were set last; `None` if they never were, or are not any more.
    current: Option<R>,
    problem: LastLogged,
}

impl<R: Clone + PartialEq> Rules<R> {
    pub(super) fn new(
        set: fn(&R) -> io::Result<()>,
        is_in_force: fn(&R) -> io::Result<bool>,
        consequence: &'static str,
    ) -> Self {
        Self { set, is_in_force, consequence, current: None, problem: LastLogged::default() }
    }

    pub(super) fn keep(&mut self, wanted: R) {
        if self.current.as_ref() == Some(&wanted) {
            return;
        }
        match (self.set)(&wanted) {
            Ok(()) => {
                self.current = Some(wanted);
                self.problem.update((), None);
            }
            Err(error) => {
                if let Some(error) = self.problem.update((), Some(error.to_string())) {
                    tracing::warn!("{}, because nftables cannot be used: {error}", self.consequence);
                }
            }
        }
    }

    /// They may be others than were set last.
    pub(super) fn doubt(&mut self) {
        self.current = None;
    }

    /// Sets rules that could not be set before, or that are not there any more. Returns true for
    /// the latter.
    pub(super) fn restore(&mut self, wanted: R) -> bool {
        let were_flushed =
            self.current.as_ref().is_some_and(|current| (self.is_in_force)(current).is_ok_and(|is| !is));
        if were_flushed {
            self.current = None;
        }
        self.keep(wanted);
        were_flushed
    }
}
