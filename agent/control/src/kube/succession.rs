//! Whether an agent that ends is followed by another one on its node. What it leaves in the kernel is for that one; when the
//! agents are uninstalled, or their node is no longer theirs, nothing may stay.

mod selection;

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;

use super::code;
use selection::selects;

/// An agent that is told to end has little time.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(200);

/// The DaemonSet that an agent belongs to, and the node that it is on.
pub struct Succession {
    daemon_sets: Api<DaemonSet>,
    daemon_set: String,
    nodes: Api<Node>,
    node: String,
}

impl Succession {
    pub fn new(client: Client, namespace: &str, daemon_set: &str, node: &str) -> Self {
        Self {
            daemon_sets: Api::namespaced(client.clone(), namespace),
            daemon_set: daemon_set.to_owned(),
            nodes: Api::all(client),
            node: node.to_owned(),
        }
    }

    /// Whoever cannot reach the API server leaves everything in place.
    pub async fn is_over(&self) -> bool {
        tokio::time::timeout(PATIENCE, self.ask()).await.unwrap_or(false)
    }

    /// Is the DaemonSet gone, or going? Its rights go together with it, in no certain order: an agent that may not even look
    /// any more was uninstalled.
    async fn ask(&self) -> bool {
        loop {
            match self.daemon_sets.get_opt(&self.daemon_set).await.map_err(|error| code(&error)) {
                Ok(Some(there)) if there.metadata.deletion_timestamp.is_some() => return true,
                Ok(Some(there)) => return self.is_elsewhere(&there).await,
                Ok(None) | Err(Some(401 | 403)) => return true,
                // It has no time now.
                Err(Some(429 | 503 | 504)) => tokio::time::sleep(PAUSE).await,
                Err(_) => return false,
            }
        }
    }

    /// Does it run on other nodes only? An error there is no reason to think so.
    async fn is_elsewhere(&self, daemon_set: &DaemonSet) -> bool {
        let pod = daemon_set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        match (pod, self.nodes.get_opt(&self.node).await) {
            (Some(pod), Ok(Some(node))) => !selects(pod, &node.metadata),
            (_, Ok(None)) => true,
            (None, _) | (_, Err(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::fake::ApiServer;

    #[tokio::test]
    async fn an_api_server_that_has_no_time_is_asked_again() {
        let mut server = ApiServer::start().await;
        let succession = Succession::new(server.client().await, "infra", "portcullis", "node-1");
        let is_over = tokio::spawn(async move { succession.is_over().await });
        for (code, reason) in [(503, "ServiceUnavailable"), (404, "NotFound")] {
            let asked = server.asked().await;
            assert_eq!(asked.path, "/apis/apps/v1/namespaces/infra/daemonsets/portcullis");
            asked.answer(code, json!({"kind": "Status", "code": code, "reason": reason}));
        }
        assert!(is_over.await.unwrap());
    }
}
