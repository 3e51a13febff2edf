//! Whether an agent that ends is followed by another one on its node. What it leaves in the kernel is for that one; when the
//! agents are uninstalled, nothing may stay.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Client;
use kube::api::Api;

use super::code;

/// An agent that is told to end has little time.
const PATIENCE: Duration = Duration::from_secs(3);

/// The DaemonSet that an agent belongs to.
pub struct Succession {
    api: Api<DaemonSet>,
    name: String,
}

impl Succession {
    pub fn new(client: Client, namespace: &str, daemon_set: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), name: daemon_set.to_owned() }
    }

    /// Is the DaemonSet gone, or going? Its rights go together with it, in no certain order: an agent that may not even look
    /// any more was uninstalled. Whoever cannot reach the API server leaves everything in place.
    pub async fn is_over(&self) -> bool {
        match tokio::time::timeout(PATIENCE, self.api.get_opt(&self.name)).await {
            Ok(Ok(Some(there))) => there.metadata.deletion_timestamp.is_some(),
            Ok(Ok(None)) => true,
            Ok(Err(error)) => matches!(code(&error), Some(401 | 403)),
            Err(_) => false,
        }
    }
}
