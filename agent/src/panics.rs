//! Panics are bugs, and each is logged and counted. What one takes with it depends on where it
//! comes up: on a core's thread the connection, in translation the change. Anywhere else the
//! missing part would go unnoticed, so the process ends; the next one takes over the kernel's
//! programs.

use std::backtrace::Backtrace;
use std::panic::{self, PanicHookInfo};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use portcullis_control::applier;
use portcullis_proxy::CORE_THREAD;

const EVERYTHING: &str = "agent";

static SURVIVED: AtomicU64 = AtomicU64::new(0);

/// To be called once logging works.
pub(crate) fn watch() {
    panic::set_hook(Box::new(note));
}

/// Since the start.
pub(crate) fn survived() -> u64 {
    SURVIVED.load(Ordering::Relaxed)
}

fn note(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or_default();
    let backtrace = Backtrace::force_capture();
    let work = if applier::is_translating() { Work::Translation } else { Work::Other };
    let loss = loss(thread, work);
    tracing::error!(thread, loss, "{panic}\nThis is a bug, please report it.\n{backtrace}");
    if loss == EVERYTHING {
        process::abort();
    }
    SURVIVED.fetch_add(1, Ordering::Relaxed);
}

/// The work that panicked.
enum Work {
    Translation,
    Other,
}

fn loss(thread: &str, work: Work) -> &'static str {
    match work {
        _ if thread.starts_with(CORE_THREAD) => "connection",
        Work::Translation => "change",
        Work::Other => EVERYTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_and_translation_outlive_a_panic() {
        assert_eq!(loss("core-0", Work::Other), "connection");
        assert_eq!(loss("control", Work::Translation), "change");
        assert_eq!(loss("control", Work::Other), EVERYTHING);
    }
}
