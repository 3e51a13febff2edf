//! Listeners whose connections are forwarded as they are, and what is behind them.

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::{
    Backend, BackendName, L4Action, L4Backend, L4Rule, L4Target, Listener, ListenerId, ObjectName,
    ParentKind, RuleId, ServerNames, Serves, ShardMap, Split,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::fixture::{certificate, pattern, termination};

pub fn rule(action: L4Action) -> Arc<L4Rule> {
    let route = Arc::new(ObjectName::new("app", "route"));
    let id = RuleId { kind: "TCPRoute", route, index: 0, name: None, parent: None };
    Arc::new(L4Rule { id: Some(id.into()), action })
}

/// To backends by weight; one without name is an invalid reference.
pub fn to(backends: &[(&str, u32)]) -> Arc<L4Rule> {
    let backends = backends.iter().map(|(name, weight)| L4Backend {
        weight: *weight,
        target: match *name {
            "" => L4Target::Refuse("no such Service".into()),
            name => L4Target::Known(BackendName(name.into())),
        },
    });
    rule(L4Action::Forward(Split::new(backends.collect()).unwrap()))
}

/// Rules by server name.
pub fn names(rules: &[(&str, &str)]) -> Arc<ServerNames> {
    let mut names = ServerNames::default();
    for (name, backend) in rules {
        names.insert(&pattern(name), to(&[(backend, 1)]));
    }
    Arc::new(names)
}

/// Endpoints by the name of their backend.
pub fn backends(backends: &[(&str, &[SocketAddr])]) -> ShardMap<Arc<Backend>> {
    let backends = backends.iter().map(|(name, endpoints)| {
        let name = BackendName((*name).into());
        (name.0.clone(), Arc::new(Backend::new(name, endpoints.to_vec())))
    });
    backends.collect()
}

pub fn listener(name: &str, hostname: &str, serves: Serves) -> Listener {
    let gateway = ObjectName::new("infra", "web");
    let id = ListenerId {
        gateway: gateway.clone(),
        kind: ParentKind::Gateway,
        parent: gateway,
        name: name.into(),
    };
    Listener {
        id,
        hostname: pattern(hostname),
        serves,
        admission: Arc::default(),
        filters: Arc::default(),
        policy: None,
    }
}

pub fn tcp(backend: &str) -> Listener {
    listener("tcp", "*", Serves::Tcp(to(&[(backend, 1)])))
}

/// Everything of a server name is passed through to the backend.
pub fn passthrough(hostname: &str, backend: &str) -> Listener {
    listener(hostname, hostname, Serves::TlsPassthrough(names(&[(hostname, backend)])))
}

pub fn terminated(hostname: &str, backend: &str) -> Listener {
    let serves = Serves::TlsTerminated { tls: termination(hostname), rules: names(&[(hostname, backend)]) };
    listener(hostname, hostname, serves)
}

/// A backend that does this with each of its connections.
pub async fn backend<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A backend that says its name, then what it is sent.
pub async fn echo(name: &'static str) -> SocketAddr {
    backend(move |mut stream| async move {
        let _ = stream.write_all(name.as_bytes()).await;
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
        let _ = writer.shutdown().await;
    })
    .await
}

/// A backend that ends TLS itself, with a certificate for the name, and then says its name.
pub async fn tls_backend(name: &'static str) -> SocketAddr {
    let key = certificate(&[name]).key;
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let config = config.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    backend(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let _ = stream.write_all(name.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    })
    .await
}

/// Everything that a client gets of the server until it ends, on a connection that sends this.
pub async fn exchange(to: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(bytes).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
