//! One task per kind: finds out whether the kind is served, lists and watches it, and passes on
//! what it receives. It never ends by itself.

use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::api::{Api, PartialObjectMeta};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, ListSemantic};
use kube::{Client, Resource};
use portcullis_api::{Kind, ObjectKey, Reading, Role};
use portcullis_gateway::infra;
use portcullis_model::ObjectName;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::kube::backoff::{Backoff, jittered};
use crate::kube::discovery::{is_served_otherwise, served};
use crate::kube::read_log::ReadLog;
use crate::kube::{code, watch_code};

/// Interval at which to ask whether a kind is served by now.
const RECHECK: Duration = Duration::from_secs(4);
/// The same of a kind that an API server serves only if it was started so.
const RECHECK_BUILT_IN: Duration = Duration::from_mins(1);
/// Time for which a kind that may not be read delays the others at the start.
const DENIED: Duration = Duration::from_secs(10);

/// An event of a watch.
#[derive(Debug)]
pub(super) enum Delta {
    /// The object in full; of a kind that is only fetched on demand, its metadata.
    Set(Kind, Box<Value>),
    Deleted(ObjectKey),
    /// A complete list follows; whatever is not in it is gone.
    Begin(Kind),
    Done(Kind),
    /// We may not, or cannot, read the kind; the source should not wait for it.
    Denied(Kind),
    /// Nothing was read so far, and there is no answer.
    Unreachable,
}

type Deltas = mpsc::Sender<Delta>;

/// The source is gone.
struct Closed;

/// The reason why a watch ended.
enum End {
    /// The kind is not served any more.
    NotServed,
    Closed,
}

struct KindWatch {
    client: Client,
    kind: Kind,
    to: Deltas,
    read_log: ReadLog,
    backoff: Backoff,
    /// True if the source knows what there is, or that it cannot.
    is_known: bool,
    /// Number of times in a row that the kind was not served.
    not_served: u32,
    /// Begin of the time without the right to read the kind.
    denied: Option<Instant>,
}

/// Runs until the source is gone.
pub(super) async fn watch(client: Client, kind: Kind, to: Deltas) {
    let (read_log, backoff) = (ReadLog::new(kind.as_str()), Backoff::for_watches());
    let watch =
        KindWatch { client, kind, to, read_log, backoff, is_known: false, not_served: 0, denied: None };
    let Closed = watch.run().await;
}

// === impl KindWatch ===

impl KindWatch {
    async fn run(mut self) -> Closed {
        loop {
            let step = match served(&self.client, self.kind).await {
                Ok(Some(resource)) => self.watch_resource(&resource).await,
                Ok(None) => self.not_served().await,
                Err(error) => self.failed(&error, code(&error)).await,
            };
            if let Err(closed) = step {
                return closed;
            }
        }
    }

    /// A kind that is not served has no objects. One that was served until now must be found
    /// missing twice: an API server that is just starting may not know all of its kinds yet. Of a
    /// policy in a version that we do not read there may be objects all the same.
    async fn not_served(&mut self) -> Result<(), Closed> {
        if self.kind.role() == Role::Policy {
            match is_served_otherwise(&self.client, self.kind).await {
                Ok(false) => {}
                Ok(true) => {
                    self.send(Delta::Denied(self.kind)).await?;
                    tokio::time::sleep(jittered(RECHECK)).await;
                    return Ok(());
                }
                Err(error) => return self.failed(&error, code(&error)).await,
            }
        }
        self.read_log.not_served();
        self.not_served += 1;
        if !self.is_known || self.not_served > 1 {
            self.send(Delta::Begin(self.kind)).await?;
            self.send(Delta::Done(self.kind)).await?;
        }
        let interval = match self.kind {
            Kind::ClusterTrustBundle => RECHECK_BUILT_IN,
            _ => RECHECK,
        };
        tokio::time::sleep(jittered(interval)).await;
        Ok(())
    }

    async fn send(&mut self, delta: Delta) -> Result<(), Closed> {
        self.is_known |= matches!(delta, Delta::Done(_) | Delta::Denied(_));
        self.to.send(delta).await.map_err(|_| Closed)
    }

    /// Leaves what is known in force. At the start nothing is, and without an answer (`code`) the
    /// source must not wait for this kind for ever.
    async fn failed(
        &mut self,
        error: &(dyn std::error::Error + Sync + 'static),
        code: Option<u16>,
    ) -> Result<(), Closed> {
        self.read_log.failed(error);
        if !self.is_known && code.is_none() {
            self.send(Delta::Unreachable).await?;
        }
        self.backoff.wait().await;
        Ok(())
    }

    /// Like [`Self::failed`]. An API server that is just starting may not know its roles yet; if it
    /// goes on like that, the other kinds are served without this one.
    async fn denied(&mut self, error: &(dyn std::error::Error + Sync + 'static)) -> Result<(), Closed> {
        let since = *self.denied.get_or_insert_with(Instant::now);
        if !self.is_known && since.elapsed() >= DENIED {
            self.send(Delta::Denied(self.kind)).await?;
        }
        self.read_log.failed(error);
        self.backoff.wait().await;
        Ok(())
    }

    async fn watch_resource(&mut self, resource: &ApiResource) -> Result<(), Closed> {
        self.not_served = 0;
        let mut config = watcher::Config { list_semantic: ListSemantic::Any, ..watcher::Config::default() };
        // Every agent would be told of every other's readiness, once for each Gateway.
        if self.kind == Kind::EndpointSlice {
            config = config.labels(infra::OTHERS_SLICES);
        }
        let end = match self.kind.reading() {
            Reading::Metadata | Reading::OnDemand | Reading::Alone => {
                let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(self.client.clone(), resource);
                self.follow(watcher::watcher(api, config), resource).await
            }
            Reading::Whole => {
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
                self.follow(watcher::watcher(api, config), resource).await
            }
        };
        match end {
            End::NotServed => {
                // Whether it is served at all is asked next, and the answer may be that it is.
                self.backoff.wait().await;
                Ok(())
            }
            End::Closed => Err(Closed),
        }
    }

    async fn follow<K: Resource + Serialize>(
        &mut self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        resource: &ApiResource,
    ) -> End {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let step = match event {
                Ok(event) => self.received(event, resource).await,
                Err(error) => match watch_code(&error) {
                    Some(404) => return End::NotServed,
                    Some(403) => self.denied(&error).await,
                    code => self.failed(&error, code).await,
                },
            };
            if let Err(Closed) = step {
                return End::Closed;
            }
        }
        End::Closed
    }

    async fn received<K: Resource + Serialize>(
        &mut self,
        event: Event<K>,
        resource: &ApiResource,
    ) -> Result<(), Closed> {
        // A list begins before the API server is asked for it.
        if !matches!(event, Event::Init) {
            self.read_log.over();
            self.backoff.reset();
            self.denied = None;
        }
        match delta(event, self.kind, resource) {
            Some(delta) => self.send(delta).await,
            None => Ok(()),
        }
    }
}

fn delta<K: Resource + Serialize>(event: Event<K>, kind: Kind, resource: &ApiResource) -> Option<Delta> {
    match event {
        Event::Init => Some(Delta::Begin(kind)),
        Event::InitDone => Some(Delta::Done(kind)),
        Event::Apply(object) | Event::InitApply(object) => {
            let mut object = serde_json::to_value(object).ok()?;
            // Items of a list lack their kind.
            object["apiVersion"] = resource.api_version.as_str().into();
            object["kind"] = kind.as_str().into();
            Some(Delta::Set(kind, Box::new(object)))
        }
        Event::Delete(object) => {
            let metadata = object.meta();
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let name = ObjectName::new(namespace, metadata.name.as_deref().unwrap_or_default());
            Some(Delta::Deleted(ObjectKey::new(kind, name)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::fake::ApiServer;
    use serde_json::json;

    /// CRDs of a release that we do not know.
    #[tokio::test]
    async fn policies_in_a_version_that_is_not_read_are_not_taken_for_none() {
        let mut server = ApiServer::start().await;
        let (to, mut deltas) = mpsc::channel(100);
        let watch = tokio::spawn(watch(server.client().await, Kind::BackendTlsPolicy, to));
        for version in Kind::BackendTlsPolicy.versions() {
            let discovery = server.asked().await;
            assert_eq!(discovery.path, format!("/apis/gateway.networking.k8s.io/{version}"));
            discovery.answer_not_found();
        }
        let groups = server.asked().await;
        assert_eq!(groups.path, "/apis");
        let version = json!({"groupVersion": "gateway.networking.k8s.io/v2", "version": "v2"});
        let group = json!({"name": "gateway.networking.k8s.io", "versions": [version]});
        groups.answer(200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}));
        let discovery = server.asked().await;
        assert_eq!(discovery.path, "/apis/gateway.networking.k8s.io/v2");
        let policies = json!({"name": "backendtlspolicies", "singularName": "", "namespaced": true,
            "kind": "BackendTLSPolicy", "verbs": []});
        discovery
            .answer(200, json!({"groupVersion": "gateway.networking.k8s.io/v2", "resources": [policies]}));
        assert!(matches!(deltas.recv().await, Some(Delta::Denied(Kind::BackendTlsPolicy))));
        watch.abort();
    }

    /// Clusters without them are most of all.
    #[tokio::test]
    async fn trust_bundles_are_watched_in_a_version_that_there_is_or_not_at_all() {
        let mut server = ApiServer::start().await;
        let (to, mut deltas) = mpsc::channel(100);
        let kind = Kind::ClusterTrustBundle;
        let none = tokio::spawn(watch(server.client().await, kind, to.clone()));
        for version in kind.versions() {
            let discovery = server.asked().await;
            assert_eq!(discovery.path, format!("/apis/certificates.k8s.io/{version}"));
            discovery.answer_not_found();
        }
        assert!(matches!(deltas.recv().await, Some(Delta::Begin(_))));
        assert!(matches!(deltas.recv().await, Some(Delta::Done(_))), "nothing waits for them");
        none.abort();

        let older = tokio::spawn(watch(server.client().await, kind, to));
        server.asked().await.answer_not_found();
        let bundles = json!({"name": "clustertrustbundles", "singularName": "", "namespaced": false,
            "kind": kind.as_str(), "verbs": []});
        let group_version = "certificates.k8s.io/v1alpha1";
        server.asked().await.answer(200, json!({"groupVersion": group_version, "resources": [bundles]}));
        let list = server.asked().await;
        assert!(list.path.starts_with("/apis/certificates.k8s.io/v1alpha1/clustertrustbundles?"), "{list:?}");
        older.abort();
    }

    #[tokio::test]
    async fn a_kind_that_is_served_and_cannot_be_found_is_asked_for_less_and_less() {
        let mut server = ApiServer::start().await;
        let (to, mut deltas) = mpsc::channel(100);
        let watch = tokio::spawn(watch(server.client().await, Kind::Gateway, to));
        let began = Instant::now();
        for _ in 0..4 {
            let discovery = server.asked().await;
            assert_eq!(discovery.path, "/apis/gateway.networking.k8s.io/v1");
            let gateways = json!({"name": "gateways", "singularName": "", "namespaced": true, "kind": "Gateway", "verbs": []});
            discovery.answer(
                200,
                json!({"groupVersion": "gateway.networking.k8s.io/v1", "resources": [gateways]}),
            );
            let list = server.asked().await;
            assert!(list.path.starts_with("/apis/gateway.networking.k8s.io/v1/gateways?"), "{list:?}");
            list.answer(404, json!({"kind": "Status", "code": 404, "reason": "NotFound"}));
        }
        // At least half of 100, 200 and 400 ms.
        assert!(began.elapsed() >= Duration::from_millis(350));
        watch.abort();
        while let Some(delta) = deltas.recv().await {
            assert!(matches!(delta, Delta::Begin(_)), "nothing is known: {delta:?}");
        }
    }
}
