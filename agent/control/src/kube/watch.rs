//! One task per kind: finds out whether the kind is served, lists and watches it, and passes on what it hears. It never ends
//! by itself; trouble is logged when it begins and when it ends.

use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::api::{Api, PartialObjectMeta};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, ListSemantic};
use kube::{Client, Resource};
use portcullis_gateway::{Kind, ObjectKey};
use portcullis_model::ObjectName;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::backoff::{Backoff, jittered};
use super::code;
use super::served::served;

/// How often to ask whether a kind is served by now.
const RECHECK: Duration = Duration::from_secs(4);

/// What a watch heard.
#[derive(Debug)]
pub(super) enum Delta {
    /// The object in full; of a kind that is only fetched on demand, its metadata.
    Set(Kind, Box<Value>),
    Deleted(ObjectKey),
    /// A complete list follows; whatever is not in it is gone.
    Begin(Kind),
    Done(Kind),
}

type Deltas = mpsc::Sender<Delta>;

/// Why a watch came to an end.
enum End {
    /// The kind is not served any more.
    NotServed,
    /// Nobody listens.
    Closed,
}

pub(super) async fn watch(client: Client, kind: Kind, to: Deltas) {
    let mut trouble = Trouble::new(kind.as_str());
    let mut backoff = Backoff::for_watches();
    loop {
        let resource = match served(&client, kind).await {
            Ok(Some(resource)) => resource,
            Ok(None) => {
                trouble.not_served();
                if absent(kind, &to).await.is_err() {
                    return;
                }
                tokio::time::sleep(jittered(RECHECK)).await;
                continue;
            }
            Err(error) => {
                trouble.failed(&error);
                backoff.wait().await;
                continue;
            }
        };
        backoff.reset();
        if let End::Closed = watch_resource(&client, kind, &resource, &to, &mut trouble).await {
            return;
        }
    }
}

/// A kind that is not served has no objects.
async fn absent(kind: Kind, to: &Deltas) -> Result<(), mpsc::error::SendError<Delta>> {
    to.send(Delta::Begin(kind)).await?;
    to.send(Delta::Done(kind)).await
}

/// Secrets and ConfigMaps by their metadata alone: only those that something refers to are read.
async fn watch_resource(
    client: &Client,
    kind: Kind,
    resource: &ApiResource,
    to: &Deltas,
    trouble: &mut Trouble,
) -> End {
    let config = watcher::Config { list_semantic: ListSemantic::Any, ..watcher::Config::default() };
    if matches!(kind, Kind::Secret | Kind::ConfigMap) {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), resource);
        follow(watcher::watcher(api, config), kind, resource, to, trouble).await
    } else {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        follow(watcher::watcher(api, config), kind, resource, to, trouble).await
    }
}

async fn follow<K: Resource + Serialize>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    kind: Kind,
    resource: &ApiResource,
    to: &Deltas,
    trouble: &mut Trouble,
) -> End {
    let mut events = std::pin::pin!(events);
    let mut backoff = Backoff::for_watches();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                trouble.over();
                backoff.reset();
                let delta = delta(event, kind, resource);
                if let Some(delta) = delta
                    && to.send(delta).await.is_err()
                {
                    return End::Closed;
                }
            }
            Err(error) if is_not_served(&error) => return End::NotServed,
            Err(error) => {
                trouble.failed(&error);
                backoff.wait().await;
            }
        }
    }
    End::Closed
}

fn delta<K: Resource + Serialize>(event: Event<K>, kind: Kind, resource: &ApiResource) -> Option<Delta> {
    match event {
        Event::Init => Some(Delta::Begin(kind)),
        Event::InitDone => Some(Delta::Done(kind)),
        Event::Apply(object) | Event::InitApply(object) => {
            let mut object = serde_json::to_value(object).ok()?;
            // Items of a list do not say what they are.
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

fn is_not_served(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => code(error) == Some(404),
        _ => false,
    }
}

/// What is wrong with the watch of a kind: said once, and once more when it is over.
pub(super) struct Trouble {
    what: &'static str,
    now: Option<String>,
}

impl Trouble {
    pub(super) fn new(what: &'static str) -> Self {
        Self { what, now: None }
    }

    pub(super) fn not_served(&mut self) {
        self.say("the API server does not serve the kind: install its CRD to use it".to_owned());
    }

    pub(super) fn failed(&mut self, error: &dyn std::error::Error) {
        let mut message = error.to_string();
        if let Some(source) = error.source() {
            message = format!("{message}: {source}");
        }
        self.say(message);
    }

    pub(super) fn over(&mut self) {
        if self.now.take().is_some() {
            tracing::info!("{}: watched again", self.what);
        }
    }

    fn say(&mut self, problem: String) {
        if self.now.as_ref() != Some(&problem) {
            tracing::warn!("{} not watched: {problem}; what is served stays as it is", self.what);
            self.now = Some(problem);
        }
    }
}
