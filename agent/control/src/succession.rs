//! The succession of agents on a node. What an agent leaves in the kernel is for the next one; when
//! the agents are uninstalled, or their node is no longer theirs, nothing may stay.

mod selection;

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;

use crate::kube::code;
use selection::selects;

/// An agent that has to end has little time.
const DEADLINE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(200);
/// Number of denials after which the API server is believed: one that starts denies for some
/// seconds what it allows, until it has read who may do what.
const DENIALS: usize = 25;

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

    /// True if no other agent follows on this node. Without an answer of the API server it is
    /// false: everything stays in place.
    pub async fn is_over(&self) -> bool {
        tokio::time::timeout(DEADLINE, self.ask()).await.unwrap_or(false)
    }

    /// Is the DaemonSet gone, or going? Its rights go together with it, in no certain order: an
    /// agent that may not even look any more was uninstalled.
    async fn ask(&self) -> bool {
        let mut denials = 0;
        while denials < DENIALS {
            match self.daemon_sets.get_opt(&self.daemon_set).await.map_err(|error| code(&error)) {
                Ok(Some(there)) if there.metadata.deletion_timestamp.is_some() => return true,
                Ok(Some(there)) => return self.is_elsewhere(&there).await,
                Ok(None) => return true,
                Err(Some(401 | 403)) => denials += 1,
                // It has no time now.
                Err(Some(429 | 503 | 504)) => {}
                Err(_) => return false,
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
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
    use serde_json::{Value, json};

    use super::*;
    use crate::kube::fake::ApiServer;

    fn status(code: u16, reason: &str) -> (u16, Value) {
        (code, json!({"kind": "Status", "code": code, "reason": reason}))
    }

    /// The conclusion of an agent that gets these answers.
    async fn concluded(answers: impl IntoIterator<Item = (u16, Value)>) -> bool {
        let mut server = ApiServer::start().await;
        let succession = Succession::new(server.client().await, "infra", "portcullis", "node-1");
        let is_over = tokio::spawn(async move { succession.is_over().await });
        for (code, body) in answers {
            let asked = server.asked().await;
            let objects = ["/apis/apps/v1/namespaces/infra/daemonsets/portcullis", "/api/v1/nodes/node-1"];
            assert!(objects.contains(&&*asked.path), "{}", asked.path);
            asked.answer(code, body);
        }
        is_over.await.unwrap()
    }

    #[tokio::test]
    async fn an_api_server_that_has_no_time_is_asked_again() {
        assert!(concluded([status(503, "ServiceUnavailable"), status(404, "NotFound")]).await);
    }

    #[tokio::test]
    async fn an_api_server_that_denies_while_it_starts_is_asked_again() {
        let daemon_set =
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "portcullis"}});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}});
        let denied = [status(403, "Forbidden"), status(401, "Unauthorized"), status(403, "Forbidden")];
        assert!(!concluded(denied.into_iter().chain([(200, daemon_set), (200, node)])).await);
    }

    #[tokio::test]
    async fn rights_that_stay_gone_went_with_the_agents() {
        assert!(concluded((0..DENIALS).map(|_| status(403, "Forbidden"))).await);
    }
}
