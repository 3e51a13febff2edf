//! Every version of an object since it was first looked at: who wrote it how often.

use std::collections::BTreeSet;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;

use crate::fixture::{DEADLINE, Fixture, version};

/// A watch passes on every single version, in order.
pub(crate) struct History {
    events: BoxStream<'static, watcher::Result<Event<DynamicObject>>>,
    versions: Vec<Value>,
}

impl History {
    /// Begins with the version that is there now.
    pub(crate) async fn of(fixture: &Fixture, kind: &str, name: &str) -> Self {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut history =
            Self { events: watcher::watcher(fixture.api(kind), config).boxed(), versions: Vec::new() };
        while !matches!(history.receive().await, Event::InitDone) {}
        history
    }

    /// The next version that is as expected, beginning with the `seen`-th, which is counted on.
    pub(crate) async fn until_next(&mut self, seen: &mut usize, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            while *seen >= self.versions.len() {
                self.receive().await;
            }
            *seen += 1;
            if holds(&self.versions[*seen - 1]) {
                return self.versions[*seen - 1].clone();
            }
        }
    }

    /// The number of versions after the first and up to `last` that no other client is known to
    /// have written.
    pub(crate) async fn written_until(&mut self, last: &str, by_others: &BTreeSet<String>) -> usize {
        let mut seen = 0;
        self.until_next(&mut seen, |object| version(object) == last).await;
        let versions = self.versions[1..seen].iter().map(version);
        versions.filter(|version| !by_others.contains(version)).count()
    }

    async fn receive(&mut self) -> Event<DynamicObject> {
        let event = tokio::time::timeout(DEADLINE, self.events.next()).await;
        let event = event.expect("nothing more is heard of the object").unwrap().unwrap();
        if let Event::Apply(object) | Event::InitApply(object) = &event {
            self.versions.push(serde_json::to_value(object).unwrap());
        }
        event
    }
}
