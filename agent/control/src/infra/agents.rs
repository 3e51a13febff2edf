//! The agents of the installation, by a watch on their pods while this one leads. All others do
//! without: each would be told of every change of every agent.

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use portcullis_gateway::infra::{AgentPod, Agents};
use tokio::sync::watch;

use crate::kube::backoff::spaced;
use crate::kube::listing::Listed;
use crate::kube::read_log::ReadLog;

/// On the pods of agents; the chart sets both.
const AGENTS: &str = "app.kubernetes.io/name=portcullis,app.kubernetes.io/component=agent";

/// Keeps the agents known while this one leads, and `None` else. Returns when it never will again.
pub(super) async fn follow(
    pods: Api<Pod>,
    mut leading: watch::Receiver<bool>,
    agents: watch::Sender<Option<Agents>>,
) {
    while leading.wait_for(|leads| *leads).await.is_ok() {
        tokio::select! {
            _ = leading.wait_for(|leads| !*leads) => {}
            () = follow_pods(pods.clone(), &agents) => {}
        }
        agents.send_if_modified(|known| known.take().is_some());
    }
}

async fn follow_pods(api: Api<Pod>, agents: &watch::Sender<Option<Agents>>) {
    let mut events = spaced(watcher::watcher(api, watcher::Config::default().labels(AGENTS))).boxed();
    // `None` of a pod that runs nowhere.
    let mut pods = Listed::<String, Option<AgentPod>>::default();
    let mut read_log = ReadLog::new("the agents' pods");
    while let Some(first) = events.next().await {
        // One decision for a whole burst.
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    // A list begins before the API server is asked for it.
                    if !matches!(event, Event::Init) {
                        read_log.over();
                    }
                    pods.receive(event, |pod| Some((pod.name_any(), AgentPod::of(&pod))));
                }
                Err(error) => read_log.failed(&error),
            }
            next = events.next().now_or_never().flatten();
        }
        let now = pods.is_read().then(|| pods.objects().values().flatten().collect());
        agents.send_if_modified(|known| {
            let is_another = *known != now;
            *known = now;
            is_another
        });
    }
}
