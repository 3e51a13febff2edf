//! Agents of a cluster as an operator reaches them from elsewhere: their pods, the one that is
//! asked, and its admin port through the API server. It does not know what is asked.

use std::collections::BTreeSet;
use std::path::Path;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::io::DuplexStream;

use crate::kube::{ConnectError, code, connect_as_user, problem};

/// On the pods of agents; the chart sets both.
const AGENTS: &str = "app.kubernetes.io/name=portcullis,app.kubernetes.io/component=agent";
/// The variable of the pod that has the port, and the port if there is none.
const ADMIN_PORT: &str = "PORTCULLIS_ADMIN_PORT";
const DEFAULT_ADMIN_PORT: u16 = 9270;

/// The agent that is asked for; each part that is missing excludes none.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub namespace: Option<String>,
    pub node: Option<String>,
    pub pod: Option<String>,
}

/// An agent's pod, and the way to it.
pub struct RemoteAgent {
    client: Client,
    pub namespace: String,
    pub pod: String,
    pub port: u16,
}

/// A connection to the admin port, and the message of the node if it cannot be had.
pub struct Forwarded {
    pub stream: DuplexStream,
    pub failure: BoxFuture<'static, Option<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(
        "may not list pods {0}: give the agents' namespace with --agents-namespace, or ask for the right"
    )]
    Forbidden(String),
    #[error("cannot list the agents' pods: {0}")]
    List(String),
    #[error(
        "there is no agent {0}: pods have the labels {AGENTS}; are agents installed, and is this the right context?"
    )]
    None(String),
    #[error(
        "pods in several namespaces have the labels of agents ({0}), which all who make pods may give them: say which \
         is the agents' with --agents-namespace"
    )]
    Several(String),
    #[error("no agent is {wanted}: agents are {known}")]
    NotFound { wanted: String, known: String },
    #[error("no agent is ready: they are {0}; choose one with --node or --pod")]
    NotReady(String),
    #[error("pod {0} has no admin port that is known: its {ADMIN_PORT} is 0; give the agents a port")]
    NoPort(String),
    #[error(
        "cannot reach port {port} of pod {pod} through the API server (the rights are to get and create pods/portforward): \
         {problem}"
    )]
    Forward { pod: String, port: u16, problem: String },
}

// === impl RemoteAgent ===

impl RemoteAgent {
    /// The agent that leads, or else one that is ready; or the one of the node or of the pod's
    /// name. With the user's kubeconfig, and one of its contexts if it is given.
    ///
    /// # Errors
    /// When the API server does not tell, or there is no such agent.
    pub async fn find(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        wanted: &Wanted,
        lease: &str,
    ) -> Result<Self, RemoteError> {
        let client = connect_as_user(kubeconfig, context).await?;
        Self::find_with(client, wanted, lease).await
    }

    /// The same with a client.
    ///
    /// # Errors
    /// As [`RemoteAgent::find`].
    pub async fn find_with(client: Client, wanted: &Wanted, lease: &str) -> Result<Self, RemoteError> {
        let (pods, place): (Api<Pod>, _) = match &wanted.namespace {
            Some(namespace) => {
                (Api::namespaced(client.clone(), namespace), format!("in namespace {namespace}"))
            }
            None => (Api::all(client.clone()), "in any namespace".to_owned()),
        };
        let listed = pods.list(&ListParams::default().labels(AGENTS)).await;
        let pods = listed.map_err(|error| match code(&error) {
            Some(403) => RemoteError::Forbidden(place.clone()),
            _ => RemoteError::List(problem(&error)),
        })?;
        let namespaces: BTreeSet<_> = pods.items.iter().filter_map(ResourceExt::namespace).collect();
        let mut namespaces = namespaces.into_iter();
        let leader = match (namespaces.next(), namespaces.next()) {
            (None, _) => return Err(RemoteError::None(place)),
            (Some(namespace), None) => leader(&client, &namespace, lease).await,
            (Some(first), Some(second)) => {
                let all: Vec<_> = [first, second].into_iter().chain(namespaces).collect();
                return Err(RemoteError::Several(all.join(", ")));
            }
        };
        let pod = choose(&pods.items, wanted, leader.as_deref())?;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let port = admin_port(pod).ok_or_else(|| RemoteError::NoPort(name.clone()))?;
        Ok(Self { client, namespace, pod: name, port })
    }

    /// # Errors
    /// When the API server or the node's kubelet does not forward the port.
    pub async fn connect(&self) -> Result<Forwarded, RemoteError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let forwarder = pods.portforward(&self.pod, &[self.port]).await;
        let failed =
            |problem: String| RemoteError::Forward { pod: self.pod.clone(), port: self.port, problem };
        let mut forwarder = forwarder.map_err(|error| failed(problem(&error)))?;
        let failure = match forwarder.take_error(self.port) {
            Some(failure) => failure.boxed(),
            None => std::future::ready(None).boxed(),
        };
        match forwarder.take_stream(self.port) {
            Some(stream) => Ok(Forwarded { stream, failure }),
            None => Err(failed("it gives no stream".to_owned())),
        }
    }
}

/// The node of the agent that leads, as its Lease says: statuses are written there. Without the
/// right to read it, any agent will do.
async fn leader(client: &Client, namespace: &str, lease: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    leases.get(lease).await.ok()?.spec?.holder_identity
}

fn choose<'p>(pods: &'p [Pod], wanted: &Wanted, leader: Option<&str>) -> Result<&'p Pod, RemoteError> {
    let mut all: Vec<_> = pods.iter().collect();
    all.sort_by_key(|pod| pod.name_any());
    let known = || all.iter().map(|pod| described(pod)).collect::<Vec<_>>().join(", ");
    if wanted.node.is_some() || wanted.pod.is_some() {
        let is_wanted = |pod: &&&Pod| {
            wanted.node.as_deref().is_none_or(|node| node_of(pod) == Some(node))
                && wanted.pod.as_ref().is_none_or(|name| pod.name_any() == *name)
        };
        let node = wanted.node.iter().map(|node| format!("on node {node}"));
        let pod = wanted.pod.iter().map(|pod| format!("of name {pod}"));
        let text = pod.chain(node).collect::<Vec<_>>().join(" ");
        let mut found = all.iter().filter(is_wanted);
        // One that ends may be beside its successor.
        let ready = found.clone().find(|pod| is_ready(pod));
        return ready
            .or_else(|| found.next())
            .copied()
            .ok_or_else(|| RemoteError::NotFound { wanted: text, known: known() });
    }
    let leads = |pod: &&&Pod| leader.is_some() && node_of(pod) == leader;
    let mut ready = all.iter().filter(|pod| is_ready(pod));
    let leading = ready.clone().find(leads);
    leading.or_else(|| ready.next()).copied().ok_or_else(|| RemoteError::NotReady(known()))
}

/// `portcullis-abcde on node-1`
fn described(pod: &Pod) -> String {
    let state = if is_ready(pod) { "" } else { " (not ready)" };
    format!("{} on {}{state}", pod.name_any(), node_of(pod).unwrap_or("no node"))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
}

/// `None` if it is one that only the agent knows.
fn admin_port(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let variable = variables.find(|variable| variable.name == ADMIN_PORT);
    let port = match variable.and_then(|variable| variable.value.as_deref()) {
        Some(text) => text.parse().ok()?,
        None => DEFAULT_ADMIN_PORT,
    };
    (port > 0).then_some(port)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::fake::ApiServer;

    fn pod(name: &str, node: &str, ready: &str) -> serde_json::Value {
        json!({"metadata": {"name": name, "namespace": "gateways"},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "env": [{"name": "PORTCULLIS_ADMIN_PORT", "value": "9271"}]}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    }

    fn chosen(wanted: &Wanted, leader: Option<&str>) -> Result<String, String> {
        let pods =
            [pod("p-c", "node-3", "True"), pod("p-b", "node-2", "False"), pod("p-a", "node-1", "True")];
        let pods = pods.map(|pod| serde_json::from_value::<Pod>(pod).unwrap());
        let pod = choose(&pods, wanted, leader);
        pod.map(ResourceExt::name_any).map_err(|error| error.to_string())
    }

    #[test]
    fn the_leader_is_asked_if_it_is_ready_and_no_other_is_named() {
        let any = Wanted::default();
        assert_eq!(chosen(&any, Some("node-3")).unwrap(), "p-c");
        assert_eq!(chosen(&any, Some("node-2")).unwrap(), "p-a", "the leader is not ready");
        assert_eq!(chosen(&any, None).unwrap(), "p-a");
        let node = Wanted { node: Some("node-2".to_owned()), ..Wanted::default() };
        assert_eq!(chosen(&node, Some("node-3")).unwrap(), "p-b", "it may be why somebody asks");
        let both = Wanted { pod: Some("p-c".to_owned()), ..node };
        assert_eq!(
            chosen(&both, None).unwrap_err(),
            "no agent is of name p-c on node node-2: agents are p-a on node-1, p-b on node-2 (not ready), p-c on node-3"
        );
    }

    #[tokio::test]
    async fn pods_are_found_by_their_labels_and_the_leader_by_its_lease() {
        let mut server = ApiServer::start().await;
        let client = server.client().await;
        let found =
            tokio::spawn(async move { RemoteAgent::find_with(client, &Wanted::default(), "lease").await });
        let asked = server.asked().await;
        assert!(
            asked.path.starts_with("/api/v1/pods?") && asked.path.contains("labelSelector="),
            "{}",
            asked.path
        );
        let pods = [pod("p-a", "node-1", "True"), pod("p-b", "node-2", "True")];
        asked.answer(200, json!({"metadata": {}, "items": pods}));
        let asked = server.asked().await;
        assert_eq!(asked.path, "/apis/coordination.k8s.io/v1/namespaces/gateways/leases/lease");
        asked.answer(200, json!({"metadata": {"name": "lease"}, "spec": {"holderIdentity": "node-2"}}));
        let found = found.await.unwrap().unwrap();
        assert_eq!((found.pod.as_str(), found.port), ("p-b", 9271));

        let client = server.client().await;
        let found =
            tokio::spawn(async move { RemoteAgent::find_with(client, &Wanted::default(), "lease").await });
        let mut foreign = pod("p-0", "node-1", "True");
        foreign["metadata"]["namespace"] = "tenant".into();
        let pods = [foreign, pod("p-a", "node-1", "True")];
        server.asked().await.answer(200, json!({"metadata": {}, "items": pods}));
        let error = found.await.unwrap().map(|found| found.pod).unwrap_err().to_string();
        assert!(error.contains("(gateways, tenant)") && error.contains("--agents-namespace"), "{error}");

        let client = server.client().await;
        let found =
            tokio::spawn(async move { RemoteAgent::find_with(client, &Wanted::default(), "lease").await });
        server.asked().await.answer(403, json!({"kind": "Status", "code": 403, "reason": "Forbidden"}));
        let error = found.await.unwrap().map(|found| found.pod).unwrap_err().to_string();
        assert!(error.contains("--agents-namespace"), "{error}");
    }
}
