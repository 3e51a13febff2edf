//! Problems with reading from the API server, for the log: a line when one begins, when it becomes
//! another, and when it is over.

use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use portcullis_api::ObjectKey;
use tokio::time::Instant;

use super::{answered, problem};

/// Shortest time between two lines of one kind of problem in other words. Some change all the time:
/// how long ago a certificate expired, say.
const AGAIN: Duration = Duration::from_secs(60);

pub(crate) struct ReadLog {
    what: Cow<'static, str>,
    /// The participle of what is not done with it.
    done: &'static str,
    now: Option<Logged>,
}

struct Logged {
    class: Class,
    problem: String,
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    NotServed,
    Answered(u16),
    Unanswered,
}

// === impl ReadLog ===

impl ReadLog {
    /// With a watch.
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what: what.into(), done: "watched", now: None }
    }

    /// With objects that are read one by one.
    pub(crate) fn with_reading(what: String) -> Self {
        Self { what: what.into(), done: "read", now: None }
    }

    pub(crate) fn not_served(&mut self) {
        let problem = "the API server does not serve the kind: install its CRD to use it";
        self.log(Class::NotServed, problem.to_owned());
    }

    pub(crate) fn failed(&mut self, error: &(dyn Error + Sync + 'static)) {
        self.log(Class::of(error), problem(error));
    }

    pub(crate) fn failed_at(&mut self, key: &ObjectKey, error: &(dyn Error + Sync + 'static)) {
        self.log(Class::of(error), format!("{key}: {}", problem(error)));
    }

    pub(crate) fn over(&mut self) {
        if self.now.take().is_some() {
            tracing::info!("{}: {} again", self.what, self.done);
        }
    }

    fn log(&mut self, class: Class, problem: String) {
        if !self.is_new(class, &problem) {
            return;
        }
        let advice = match class {
            Class::Answered(403) => "; give the agents the rights of the chart's ClusterRole",
            _ => "",
        };
        tracing::warn!("{} not {}: {problem}{advice}; what is served stays as it is", self.what, self.done);
        self.now = Some(Logged { class, problem, at: Instant::now() });
    }

    fn is_new(&self, class: Class, problem: &str) -> bool {
        self.now.as_ref().is_none_or(|logged| {
            logged.class != class || (logged.problem != problem && logged.at.elapsed() >= AGAIN)
        })
    }
}

impl Class {
    fn of(error: &(dyn Error + 'static)) -> Self {
        answered(error).map_or(Self::Unanswered, |status| Self::Answered(status.code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn words_that_change_all_the_time_are_not_logged_all_the_time() {
        let mut log = ReadLog::new("Gateway");
        let mut logged = 0;
        for second in 0..90 {
            let problem = format!("certificate expired ({second} seconds ago)");
            logged += u32::from(log.is_new(Class::Unanswered, &problem));
            log.log(Class::Unanswered, problem);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, 2);
        assert!(log.is_new(Class::Answered(403), "forbidden"), "that is something else");
        log.over();
        assert!(log.is_new(Class::Unanswered, "connection refused"));
    }
}
