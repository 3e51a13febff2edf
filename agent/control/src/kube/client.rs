//! How the agent reaches the API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// Bookmarks come about once a minute: a watch that is silent for longer than this is dead.
const SILENCE: Duration = Duration::from_secs(80);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot use kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: KubeconfigError },
    #[error("neither in a cluster nor a kubeconfig found: give --kubeconfig or --config-dir ({0})")]
    Nowhere(Box<InferConfigError>),
    #[error("cannot make a client for the API server: {0}")]
    Client(Box<kube::Error>),
}

/// With the kubeconfig given, or as the environment says: `KUBECONFIG`, `~/.kube/config`, the pod's service account. Does not
/// need the API server to answer.
///
/// # Errors
/// When nothing says where the API server is, or what says so cannot be read.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => read(path).await?,
        None => Config::infer().await.map_err(|error| ConnectError::Nowhere(Box::new(error)))?,
    };
    config.read_timeout = Some(SILENCE);
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

async fn read(path: &Path) -> Result<Config, ConnectError> {
    let problem = |problem| ConnectError::Kubeconfig { path: path.to_owned(), problem };
    let kubeconfig = Kubeconfig::read_from(path).map_err(problem)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(problem)
}
