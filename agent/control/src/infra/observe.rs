//! Generated objects as they are, by a watch for each kind.

use std::collections::BTreeMap;

use futures::stream::{BoxStream, SelectAll, select_all};
use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::api::Api;
use kube::core::DynamicObject;
use kube::runtime::watcher::{self, Event};
use portcullis_gateway::infra::{self, Generated, GeneratedKind};
use portcullis_model::ObjectName;

use super::requests::{read, resource};
use crate::kube::backoff::spaced;
use crate::kube::listing::Listed;
use crate::kube::read_log::ReadLog;
use crate::kube::watch_code;

pub(super) type Events =
    SelectAll<BoxStream<'static, (GeneratedKind, watcher::Result<Event<DynamicObject>>)>>;

pub(super) struct Existing(BTreeMap<GeneratedKind, OfKind>);

struct OfKind {
    listed: Listed<ObjectName, Generated>,
    read_log: ReadLog,
}

pub(super) fn events(client: &Client, kinds: &[GeneratedKind]) -> Events {
    let selector = format!("{}={}", infra::MANAGED_BY_LABEL, infra::MANAGER);
    let ours = watcher::Config::default().labels(&selector);
    select_all(kinds.iter().map(|&kind| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        spaced(watcher::watcher(api, ours.clone())).map(move |event| (kind, event)).boxed()
    }))
}

// === impl Existing ===

impl Existing {
    pub(super) fn new(kinds: &[GeneratedKind]) -> Self {
        Self(kinds.iter().map(|kind| (*kind, OfKind::new(*kind))).collect())
    }

    /// Whatever becomes of pods and endpoints, Gateways are served by the agents: they need their
    /// Services.
    pub(super) fn is_known(&self) -> bool {
        self.0.iter().all(|(kind, it)| match kind {
            GeneratedKind::Service => it.listed.is_read(),
            GeneratedKind::EndpointSlice => true,
            _ => it.listed.is_read() || it.listed.is_denied(),
        })
    }

    pub(super) fn is_listed(&self, kind: GeneratedKind) -> bool {
        self.0.get(&kind).is_some_and(|it| it.listed.is_read())
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Generated> {
        self.0.values().flat_map(|it| it.listed.objects().values())
    }

    pub(super) fn get(&self, kind: GeneratedKind, name: &ObjectName) -> Option<&Generated> {
        self.0.get(&kind)?.listed.objects().get(name)
    }

    pub(super) fn see(&mut self, object: Generated) {
        if let Some(it) = self.0.get_mut(&object.kind) {
            it.listed.insert(object.name(), object);
        }
    }

    pub(super) fn forget(&mut self, kind: GeneratedKind, name: &ObjectName) {
        if let Some(it) = self.0.get_mut(&kind) {
            it.listed.remove(name);
        }
    }

    /// Receives all that there is: one decision for a whole burst. `None`: nothing will ever come.
    /// Cancel-safe.
    pub(super) async fn receive(&mut self, events: &mut Events) -> Option<()> {
        let mut next = events.next().await;
        while let Some((kind, event)) = next {
            if let Some(it) = self.0.get_mut(&kind) {
                it.receive(kind, event);
            }
            next = match events.next().now_or_never() {
                Some(next) => next,
                None => return Some(()),
            };
        }
        None
    }
}

// === impl OfKind ===

impl OfKind {
    fn new(kind: GeneratedKind) -> Self {
        Self { listed: Listed::default(), read_log: ReadLog::new(watched(kind)) }
    }

    fn receive(&mut self, kind: GeneratedKind, event: watcher::Result<Event<DynamicObject>>) {
        match event {
            Ok(event) => {
                // A list begins before the API server is asked for it.
                if !matches!(event, Event::Init) {
                    self.read_log.over();
                }
                let read = |object| read(kind, &object).map(|object| (object.name(), object));
                self.listed.receive(event, read);
            }
            Err(error) => {
                if watch_code(&error) == Some(403) {
                    self.listed.deny();
                }
                self.read_log.failed(&error);
            }
        }
    }
}

fn watched(kind: GeneratedKind) -> &'static str {
    match kind {
        GeneratedKind::ServiceAccount => "generated ServiceAccounts",
        GeneratedKind::Role => "generated Roles",
        GeneratedKind::RoleBinding => "generated RoleBindings",
        GeneratedKind::Deployment => "generated Deployments",
        GeneratedKind::Service => "generated Services",
        GeneratedKind::EndpointSlice => "generated EndpointSlices",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use kube::core::Status;
    use serde_json::json;

    type Received = watcher::Result<Event<DynamicObject>>;

    async fn receive(there: &mut Existing, kind: GeneratedKind, events: Vec<Received>) {
        let events = stream::iter(events).chain(stream::pending());
        let mut events = select_all([events.map(move |event| (kind, event)).boxed()]);
        there.receive(&mut events).await.unwrap();
    }

    fn object(name: &str) -> DynamicObject {
        let metadata = json!({"name": name, "namespace": "n"});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn names(there: &Existing) -> Vec<String> {
        there.objects().map(|object| object.name().name.to_string()).collect()
    }

    fn denied() -> Received {
        let status = Status::failure("forbidden", "Forbidden").with_code(403).boxed();
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))
    }

    #[tokio::test]
    async fn what_is_known_stays_until_there_is_a_new_list() {
        let mut there = Existing::new(&[GeneratedKind::Service]);
        let list = |name| vec![Ok(Event::Init), Ok(Event::InitApply(object(name))), Ok(Event::InitDone)];
        receive(&mut there, GeneratedKind::Service, list("old")).await;
        receive(&mut there, GeneratedKind::Service, vec![Ok(Event::Init), denied()]).await;
        assert_eq!(names(&there), ["old"]);
        receive(&mut there, GeneratedKind::Service, list("new")).await;
        assert_eq!(names(&there), ["new"]);
    }

    #[tokio::test]
    async fn nothing_is_decided_before_all_kinds_are_listed_but_for_pods_that_may_not_be_read() {
        let mut there = Existing::new(&GeneratedKind::ALL);
        for kind in GeneratedKind::ALL.into_iter().filter(|kind| *kind != GeneratedKind::EndpointSlice) {
            assert!(!there.is_known());
            let answer = if kind == GeneratedKind::Deployment { denied() } else { Ok(Event::InitDone) };
            receive(&mut there, kind, vec![Ok(Event::Init), answer]).await;
        }
        assert!(there.is_known());

        let mut there = Existing::new(&[GeneratedKind::Service]);
        receive(&mut there, GeneratedKind::Service, vec![denied()]).await;
        assert!(!there.is_known(), "a Gateway's address is its Service's");
    }
}
