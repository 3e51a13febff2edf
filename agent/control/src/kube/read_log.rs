//! Problems with reading from the API server, for the log: a line when one has lasted, of each kind
//! of problem, and one when all are over. What is over within seconds is not worth one: an API
//! server that starts denies what it allows, and does not find what it serves. Of one that does not
//! answer at all, [`super::outage`] says so once for everything that reads.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use portcullis_api::ObjectKey;
use portcullis_log::LastLogged;
use tokio::time::Instant;

use super::{answered, is_unanswered, problem};

/// Time for which reading has to fail before that is logged.
const LASTING: Duration = Duration::from_secs(4);
/// The same while the API server has no time, or is not well: everything may be in the same way.
const OVERLOADED: Duration = Duration::from_secs(30);

pub(crate) struct ReadLog {
    what: Cow<'static, str>,
    /// The participle of what is not done with it.
    done: &'static str,
    /// Begin of the time without success.
    since: Option<Instant>,
    logged: LastLogged<Class, ()>,
}

/// Problems in other words are of one class: a certificate expired another number of seconds ago
/// each time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    NotServed,
    Status(u16),
    /// An answer that cannot be read, or that broke off.
    Broken,
}

// === impl ReadLog ===

impl ReadLog {
    /// With a watch.
    pub(crate) fn new(what: &'static str) -> Self {
        Self::with(what.into(), "watched")
    }

    /// With objects that are read one by one.
    pub(crate) fn with_reading(what: String) -> Self {
        Self::with(what.into(), "read")
    }

    fn with(what: Cow<'static, str>, done: &'static str) -> Self {
        Self { what, done, since: None, logged: LastLogged::default() }
    }

    pub(crate) fn not_served(&mut self) {
        let problem = "the API server does not serve the kind: install its CRD to use it";
        self.log(Class::NotServed, || problem.to_owned());
    }

    pub(crate) fn failed(&mut self, error: &(dyn Error + Sync + 'static)) {
        if !is_unanswered(error) {
            self.log(Class::of(error), || problem(error));
        }
    }

    pub(crate) fn failed_at(&mut self, key: &ObjectKey, error: &(dyn Error + Sync + 'static)) {
        if !is_unanswered(error) {
            self.log(Class::of(error), || format!("{key}: {}", problem(error)));
        }
    }

    pub(crate) fn over(&mut self) {
        self.since = None;
        if self.logged.subjects().len() > 0 {
            self.logged = LastLogged::default();
            tracing::info!("{}: {} again", self.what, self.done);
        }
    }

    fn log(&mut self, class: Class, problem: impl FnOnce() -> String) {
        if !self.is_due(class) {
            return;
        }
        let advice = match class {
            Class::Status(403) => "; give the agents the rights of the chart's ClusterRole",
            _ => "",
        };
        let problem = problem();
        tracing::warn!("{} not {}: {problem}{advice}; what is served stays as it is", self.what, self.done);
    }

    /// Takes note of a failure. Returns whether it has lasted, and is not in the log yet.
    fn is_due(&mut self, class: Class) -> bool {
        let failing = self.since.get_or_insert_with(Instant::now).elapsed();
        failing >= class.lasting() && self.logged.update(class, Some(())).is_some()
    }
}

impl Class {
    fn of(error: &(dyn Error + 'static)) -> Self {
        answered(error).map_or(Self::Broken, |status| Self::Status(status.code))
    }

    fn lasting(self) -> Duration {
        match self {
            Self::Status(429 | 500..) => OVERLOADED,
            Self::NotServed | Self::Status(_) | Self::Broken => LASTING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds at which a line is due, if reading fails every second.
    async fn lines(log: &mut ReadLog, classes: &[Class], seconds: u64) -> Vec<u64> {
        let mut due = Vec::new();
        for second in 0..seconds {
            for class in classes {
                due.extend(log.is_due(*class).then_some(second));
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        due
    }

    #[tokio::test(start_paused = true)]
    async fn a_problem_is_logged_once_and_when_it_has_lasted() {
        let mut log = ReadLog::new("Gateway");
        assert_eq!(lines(&mut log, &[Class::Status(403)], 3).await, [0; 0]);
        log.over();
        assert_eq!(lines(&mut log, &[Class::Status(403)], 90).await, [4]);
        assert_eq!(lines(&mut log, &[Class::Broken, Class::Status(403)], 9).await, [0], "something else");
        log.over();
        assert_eq!(lines(&mut log, &[Class::Status(503), Class::NotServed], 90).await, [4, 30]);
    }
}
