//! Problems with reading from the API server, for the log: said when it begins, when it becomes
//! something else, and when it is over.

use std::error::Error;
use std::time::Duration;

use portcullis_gateway::ObjectKey;
use tokio::time::Instant;

use super::{answered, problem};

/// Shortest time between two lines that tell the same in other words. Some change all the time: how
/// long ago a certificate expired, say.
const AGAIN: Duration = Duration::from_secs(60);

pub(super) struct ReadLog {
    what: &'static str,
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
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, done: "watched", now: None }
    }

    /// With objects that are read one by one.
    pub(super) fn with_reading(what: &'static str) -> Self {
        Self { what, done: "read", now: None }
    }

    pub(super) fn not_served(&mut self) {
        let problem = "the API server does not serve the kind: install its CRD to use it";
        self.say(Class::NotServed, problem.to_owned());
    }

    pub(super) fn failed(&mut self, error: &(dyn Error + Sync + 'static)) {
        self.say(Class::of(error), problem(error));
    }

    pub(super) fn failed_at(&mut self, key: &ObjectKey, error: &(dyn Error + Sync + 'static)) {
        self.say(Class::of(error), format!("{key}: {}", problem(error)));
    }

    pub(super) fn over(&mut self) {
        if self.now.take().is_some() {
            tracing::info!("{}: {} again", self.what, self.done);
        }
    }

    fn say(&mut self, class: Class, problem: String) {
        if !self.is_news(class, &problem) {
            return;
        }
        let advice = match class {
            Class::Answered(403) => "; give the agents the rights of the chart's ClusterRole",
            _ => "",
        };
        tracing::warn!("{} not {}: {problem}{advice}; what is served stays as it is", self.what, self.done);
        self.now = Some(Logged { class, problem, at: Instant::now() });
    }

    fn is_news(&self, class: Class, problem: &str) -> bool {
        self.now
            .as_ref()
            .is_none_or(|said| said.class != class || (said.problem != problem && said.at.elapsed() >= AGAIN))
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
    async fn words_that_change_all_the_time_are_not_said_all_the_time() {
        let mut trouble = ReadLog::new("Gateway");
        let mut said = 0;
        for second in 0..90 {
            let problem = format!("certificate expired ({second} seconds ago)");
            said += u32::from(trouble.is_news(Class::Unanswered, &problem));
            trouble.say(Class::Unanswered, problem);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(said, 2);
        assert!(trouble.is_news(Class::Answered(403), "forbidden"), "that is something else");
        trouble.over();
        assert!(trouble.is_news(Class::Unanswered, "connection refused"));
    }
}
