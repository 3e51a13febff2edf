//! A wire to the API server that can be cut: to its users, the API server is gone, and to no
//! other client.

use std::net::SocketAddr;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Config;
use kube::config::Kubeconfig;
use portcullis_control::kube::{Contact, connect_watched};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, config};

pub(crate) struct Wire {
    local: SocketAddr,
    cut: watch::Sender<bool>,
    /// Number of connections.
    accepted: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Wire {
    pub(crate) async fn new() -> Self {
        let server = authority(&config().await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (local, cut) = (listener.local_addr().unwrap(), watch::Sender::new(false));
        let mut accepting = JoinSet::new();
        let accepted = Arc::default();
        accepting.spawn(accept(listener, server, cut.subscribe(), Arc::clone(&accepted)));
        Self { local, cut, accepted, _accepting: accepting }
    }

    /// The same cluster over this wire, by the agents' own connection.
    pub(crate) async fn to(&self, fixture: &Fixture) -> Fixture {
        self.watched(fixture).await.0
    }

    /// The same, with what becomes of the requests.
    pub(crate) async fn watched(&self, fixture: &Fixture) -> (Fixture, watch::Receiver<Contact>) {
        let path = std::env::var_os("KUBECONFIG").unwrap();
        let mut kubeconfig = json!(Kubeconfig::read_from(path).unwrap());
        let host = config().await.cluster_url.host().map(str::to_owned);
        for cluster in kubeconfig["clusters"].as_array_mut().unwrap() {
            cluster["cluster"]["server"] = format!("https://{}", self.local).into();
            cluster["cluster"]["tls-server-name"] = Value::from(host.clone());
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let (client, contact) = connect_watched(Some(&path)).await.unwrap();
        (fixture.seen_by(client), contact)
    }

    /// The number of connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn mend(&self) {
        self.cut.send_replace(false);
    }
}

fn authority(config: &Config) -> String {
    let url = &config.cluster_url;
    format!("{}:{}", url.host().unwrap(), url.port_u16().unwrap_or(443))
}

async fn accept(
    listener: TcpListener,
    server: String,
    cut: watch::Receiver<bool>,
    accepted: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        connections.spawn(connection(client, server.clone(), cut.clone()));
    }
}

/// Closes as soon as the wire is cut.
async fn connection(mut client: TcpStream, server: String, mut cut: watch::Receiver<bool>) {
    tokio::select! {
        biased;
        _ = cut.wait_for(|cut| *cut) => {}
        _ = async {
            let mut server = TcpStream::connect(server).await?;
            copy_bidirectional(&mut client, &mut server).await
        } => {}
    }
}
