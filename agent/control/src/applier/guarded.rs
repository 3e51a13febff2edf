//! Translation that outlives its own bugs. All agents translate the same objects: were a panic the
//! end of the process, one object that causes it would end every node's, again and again. So what
//! is in force stays in force, the log names the changes, and the next change is translated
//! together with everything else from scratch.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use portcullis_api::Change;
use portcullis_gateway::{Feedback, Outcome, Translator};

/// So many objects are named at most: the first changes are all there are.
const NAMED: usize = 10;

/// [`Translator`], as far as the loop uses it.
pub trait Translate: Send {
    fn apply(&mut self, changes: Vec<Change>) -> Outcome;
    /// Takes note; the next `apply` follows it to the statuses.
    fn observe(&mut self, feedback: Feedback);
    /// After a panic in `apply`: forgets everything but the objects, and takes these changes before
    /// the next.
    fn begin_again(&mut self, changes: Vec<Change>);
}

thread_local! {
    static TRANSLATING: Cell<bool> = const { Cell::new(false) };
}

/// Tells whether this thread translates now: a panic is then dealt with here.
pub fn is_translating() -> bool {
    TRANSLATING.get()
}

/// Translates the changes; `None` if that panicked.
pub(super) fn translate(translator: &mut impl Translate, changes: Vec<Change>) -> Option<Outcome> {
    let again = changes.clone();
    TRANSLATING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| translator.apply(changes)));
    TRANSLATING.set(false);
    if outcome.is_err() {
        log_panic(&again);
        translator.begin_again(again);
    }
    outcome.ok()
}

fn log_panic(changes: &[Change]) {
    let changed: BTreeSet<_> = changes.iter().map(Change::key).collect();
    let named: Vec<_> = changed.iter().take(NAMED).map(ToString::to_string).collect();
    tracing::error!(
        objects = changed.len(),
        "translation panicked, which is a bug: what is served stays, and nothing takes effect until the cause is changed or \
         removed, which came with {}{}",
        named.join(", "),
        if changed.len() > NAMED { ", …" } else { "" }
    );
}

impl Translate for Translator {
    fn apply(&mut self, changes: Vec<Change>) -> Outcome {
        Self::apply(self, changes)
    }

    fn observe(&mut self, feedback: Feedback) {
        Self::observe(self, feedback);
    }

    fn begin_again(&mut self, changes: Vec<Change>) {
        Self::begin_again(self, changes);
    }
}
