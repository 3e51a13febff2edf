//! The connection to the API server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;
use tower::layer::layer_fn;

use super::outage::{Contact, Outage};

/// Bookmarks come about once a minute: a watch that is silent for longer than this is dead.
const SILENCE: Duration = Duration::from_secs(80);
/// Interval at which the API server's name is resolved again.
const LOOK_UP: Duration = Duration::from_secs(30);
/// Time that the API server's name has to be resolved.
const RESOLUTION: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot use kubeconfig {}: {problem}", path.display())]
    Kubeconfig { path: PathBuf, problem: KubeconfigError },
    #[error("neither in a cluster nor a kubeconfig found: give --kubeconfig ({0})")]
    Nowhere(Box<InferConfigError>),
    #[error("cannot make a client for the API server: {0}")]
    Client(Box<kube::Error>),
}

/// With the kubeconfig given, or as the environment has it: `KUBECONFIG`, `~/.kube/config`, the
/// pod's service account. Does not need the API server to answer. Callers try their requests again,
/// at their own pace.
///
/// # Errors
/// When the address of the API server is nowhere to be found, or cannot be read.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    Ok(connect_watched(kubeconfig).await?.0)
}

/// The same, with what becomes of the client's requests.
///
/// # Errors
/// As [`connect`].
pub async fn connect_watched(
    kubeconfig: Option<&Path>,
) -> Result<(Client, watch::Receiver<Contact>), ConnectError> {
    let mut config = config(kubeconfig).await?;
    // The client's own attempts take minutes, of which the log would have nothing.
    config.default_retry = false;
    client(config)
}

/// The same for a command, which makes each request once: what the API server has no time for the
/// client tries again by itself.
///
/// # Errors
/// As [`connect`].
pub async fn connect_for_command(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    Ok(client(config(kubeconfig).await?)?.0)
}

/// The same as the user of a kubeconfig, in one of its contexts, or in its current one.
///
/// # Errors
/// As [`connect`].
pub async fn connect_as_user(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    let Some(context) = context else { return connect_for_command(kubeconfig).await };
    let path = kubeconfig.unwrap_or(Path::new("of the environment"));
    let problem = |problem| ConnectError::Kubeconfig { path: path.to_owned(), problem };
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(read.map_err(problem)?, &options).await.map_err(problem)?;
    Ok(client(config)?.0)
}

/// The addresses by which [`connect`] reaches the API server, those of the proxy on the way, if
/// there is one, and those of the servers that are asked for their names. Without an answer to
/// that, or a configuration, none.
pub async fn api_server_addresses(kubeconfig: Option<&Path>) -> BTreeSet<IpAddr> {
    let Ok(config) = config(kubeconfig).await else { return BTreeSet::new() };
    let mut addresses = BTreeSet::new();
    for url in std::iter::once(&config.cluster_url).chain(&config.proxy_url) {
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = host.parse() {
            addresses.insert(address);
            continue;
        }
        let resolved = tokio::time::timeout(RESOLUTION, tokio::net::lookup_host((host, 0))).await;
        addresses.extend(resolved.ok().and_then(Result::ok).into_iter().flatten().map(|it| it.ip()));
        addresses.extend(name_servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()));
    }
    addresses
}

/// The same, followed as long as there is a receiver: names come to stand for other addresses, and
/// at the start they may stand for none. An address that was known once stays. Must be called
/// within the runtime.
pub fn follow_api_server(
    kubeconfig: Option<PathBuf>,
    known: BTreeSet<IpAddr>,
) -> watch::Receiver<BTreeSet<IpAddr>> {
    let (sender, receiver) = watch::channel(known);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(LOOK_UP) => {}
            }
            let now = api_server_addresses(kubeconfig.as_deref()).await;
            sender.send_if_modified(|known| {
                let before = known.len();
                known.extend(now);
                known.len() > before
            });
        }
    });
    receiver
}

/// From resolv.conf(5).
fn name_servers(configuration: &str) -> Vec<IpAddr> {
    let lines = configuration.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    lines.filter_map(|address| address.trim().parse().ok()).collect()
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => read(path).await?,
        None => Config::infer().await.map_err(|error| ConnectError::Nowhere(Box::new(error)))?,
    };
    config.read_timeout = Some(SILENCE);
    // How long a connection was idle before a request is no silence.
    config.reset_reader_on_write = true;
    Ok(config)
}

fn client(config: Config) -> Result<(Client, watch::Receiver<Contact>), ConnectError> {
    let builder = ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
    let outage = Outage::default();
    let noted = layer_fn(|requests| {
        let outage = outage.clone();
        ServiceExt::map_future(requests, move |answer| {
            let (outage, made) = (outage.clone(), Instant::now());
            async move {
                let ended = answer.await;
                outage.note(made, &ended);
                ended
            }
        })
    });
    Ok((builder.with_layer(&noted).build(), outage.contact()))
}

async fn read(path: &Path) -> Result<Config, ConnectError> {
    let problem = |problem| ConnectError::Kubeconfig { path: path.to_owned(), problem };
    let kubeconfig = Kubeconfig::read_from(path).map_err(problem)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(problem)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::code;
    use crate::kube::fake::ApiServer;

    #[tokio::test]
    async fn the_addresses_of_the_api_server_are_known_without_it() {
        let directory = tempfile::tempdir().unwrap();
        for (server, expected) in [
            ("https://10.96.0.1:443", "10.96.0.1"),
            ("https://[fd00::1]:6443", "fd00::1"),
            ("https://localhost:6443", "127.0.0.1"),
        ] {
            let path = directory.path().join("config");
            let cluster = json!({"name": "c", "cluster": {"server": server}});
            let context = json!({"name": "x", "context": {"cluster": "c", "user": "u"}});
            let config = json!({"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
                "users": [{"name": "u", "user": {}}], "current-context": "x"});
            std::fs::write(&path, config.to_string()).unwrap();
            let addresses = api_server_addresses(Some(&path)).await;
            assert!(addresses.contains(&expected.parse().unwrap()), "{server}: {addresses:?}");
        }
        assert_eq!(
            name_servers("search x\nnameserver 10.96.0.10\n nameserver fd00::a\n# nameserver"),
            ["10.96.0.10".parse::<IpAddr>().unwrap(), "fd00::a".parse().unwrap()]
        );
    }

    #[tokio::test]
    async fn an_api_server_without_time_is_asked_once() {
        let mut server = ApiServer::start().await;
        let client = server.client().await;
        let answer = tokio::spawn(async move { client.list_core_api_resources("v1").await });
        server.asked().await.answer(503, json!({"kind": "Status", "code": 503}));
        assert_eq!(code(&answer.await.unwrap().unwrap_err()), Some(503));
    }
}
