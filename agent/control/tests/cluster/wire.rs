//! A wire to the API server that can be cut: to its users, the API server is gone, and to no
//! other client.

use std::net::SocketAddr;

use kube::{Client, Config};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, config};

pub(crate) struct Wire {
    local: SocketAddr,
    cut: watch::Sender<bool>,
    _accepting: JoinSet<()>,
}

impl Wire {
    pub(crate) async fn new() -> Self {
        let server = authority(&config().await);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (local, cut) = (listener.local_addr().unwrap(), watch::Sender::new(false));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server, cut.subscribe()));
        Self { local, cut, _accepting: accepting }
    }

    /// The same cluster over this wire.
    pub(crate) async fn to(&self, fixture: &Fixture) -> Fixture {
        let mut config = config().await;
        config.tls_server_name = config.cluster_url.host().map(str::to_owned);
        config.cluster_url = format!("https://{}", self.local).parse().unwrap();
        fixture.seen_by(Client::try_from(config).unwrap())
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

async fn accept(listener: TcpListener, server: String, cut: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
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
