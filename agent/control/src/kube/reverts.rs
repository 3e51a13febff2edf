//! Writes of ours that another client keeps undoing. The first times ours is put back at once:
//! mistakes happen. Two controllers that answer each other would write as fast as the API server
//! lets them, so after that it is put back ever more rarely.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use tokio::time::Instant;

use super::FIELD_MANAGER;

/// Number of times in a row that something is put back without waiting.
const AT_ONCE: u32 = 4;
/// Number of times in a row after which that is worth a line in the log.
pub(crate) const NOTABLE: u32 = 5;
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Time after which an object that was left alone starts anew.
const CALM: Duration = Duration::from_secs(60);

/// The writes of one object that were undone.
#[derive(Debug, Default)]
pub(crate) struct Reverts {
    /// The plan that was written last, as a hash, and when.
    last: Option<(u64, Instant)>,
    /// Number of times in a row that the same plan was written again.
    restored: u32,
}

impl Reverts {
    /// Takes note of a write. Returns how often in a row the same was put back.
    pub(crate) fn written(&mut self, plan: u64) -> u32 {
        match self.last {
            Some((_, when)) if when.elapsed() >= CALM => self.restored = 0,
            Some((last, _)) if last == plan => self.restored += 1,
            // A change of plan is no revert, and does not end them either.
            _ => {}
        }
        self.last = Some((plan, Instant::now()));
        self.restored
    }

    /// Tells whether the next time in a row is worth a line in the log.
    pub(crate) fn becomes_notable(&self) -> bool {
        self.restored + 1 == NOTABLE
    }

    /// Before when this plan must not be put back.
    pub(crate) fn not_before(&self, plan: impl FnOnce() -> u64) -> Option<Instant> {
        let waits = self.restored.checked_sub(AT_ONCE)?;
        let (last, when) = self.last?;
        let wait = SHORTEST_WAIT.saturating_mul(1 << waits.min(16)).min(LONGEST_WAIT);
        (last == plan()).then(|| when + wait)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.last.is_none_or(|(_, when)| when.elapsed() >= CALM)
    }
}

/// Other field managers of an object, or a part of it, as the API server keeps account of it.
pub(crate) fn others(entries: Option<&[ManagedFieldsEntry]>, subresource: Option<&str>) -> BTreeSet<String> {
    let of_part = entries.into_iter().flatten().filter(|entry| entry.subresource.as_deref() == subresource);
    let managers = of_part.filter_map(|entry| entry.manager.clone());
    managers.filter(|manager| manager != FIELD_MANAGER).collect()
}

/// Logs that reverts have become notable; once, until they are over.
pub(crate) fn log(what: &impl Display, others: &BTreeSet<String>) {
    tracing::warn!("{}", message(what, others));
}

fn message(what: &impl Display, others: &BTreeSet<String>) -> String {
    let names: Vec<_> = others.iter().map(String::as_str).collect();
    let who = match &*names {
        [] => "a client that gives no name".to_owned(),
        names => format!("field manager {}", names.join(" or ")),
    };
    let seconds = LONGEST_WAIT.as_secs();
    format!(
        "{what}: what Portcullis writes was undone {NOTABLE} times in a row, it seems by {who}. It is put back ever more rarely, at \
         the end every {seconds} s. Find that controller: it must leave alone what this one writes, and must not have its \
         controllerName"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plan 1 is written, undone after `held`, and put back as soon as it may be; returns how
    /// often.
    async fn writes(held: Duration, during: Duration) -> usize {
        let (mut reverts, began, mut writes) = (Reverts::default(), Instant::now(), 0);
        while began.elapsed() < during {
            reverts.written(1);
            writes += 1;
            tokio::time::sleep(held).await;
            if let Some(until) = reverts.not_before(|| 1) {
                tokio::time::sleep_until(until).await;
            }
        }
        writes
    }

    #[tokio::test(start_paused = true)]
    async fn a_rival_that_never_rests_is_answered_twice_a_minute() {
        assert_eq!(writes(Duration::from_millis(1), Duration::from_secs(31)).await, 9);
        assert!(writes(Duration::from_millis(1), Duration::from_secs(3600)).await < 130);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rival_that_comes_now_and_then_is_answered_each_time() {
        assert_eq!(writes(Duration::from_secs(40), Duration::from_secs(400)).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_plan_does_not_wait_and_calm_forgets() {
        let mut reverts = Reverts::default();
        for restored in 0..=NOTABLE {
            assert_eq!(reverts.written(1), restored);
        }
        assert!(reverts.not_before(|| 1).is_some());
        assert_eq!(reverts.not_before(|| 2), None);
        assert_eq!(reverts.written(2), NOTABLE);
        tokio::time::advance(CALM).await;
        assert!(reverts.is_over());
        assert_eq!(reverts.written(2), 0);
    }

    #[test]
    fn the_message_names_the_object_and_who_writes_it() {
        let line = message(&"HTTPRoute shop/web", &["rival".to_owned()].into());
        assert!(line.starts_with("HTTPRoute shop/web: "), "{line}");
        assert!(line.contains("by field manager rival. ") && line.contains("every 30 s"), "{line}");
        assert!(message(&"HTTPRoute shop/web", &BTreeSet::new()).contains("by a client that gives no name"));
    }
}
