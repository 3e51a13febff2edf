//! A client connection: which port it came to, TLS if the port speaks it, then HTTP until either side has had enough.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::ListenerGroup;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::core::Core;
use crate::service;
use crate::tls::UNRECOGNIZED_NAME;

/// What all requests of a connection have in common.
#[derive(Debug)]
pub(crate) struct Client {
    pub peer: SocketAddr,
    /// The address and port the client connected to: VIP and listener port.
    pub local: SocketAddr,
    /// `None` without TLS; the inner `None` if the client named no server.
    pub tls: Option<Option<Box<str>>>,
}

/// Runs HTTP/2 streams and pooled connections on the core that owns them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

enum Version {
    Http1,
    Http2,
}

pub(crate) async fn serve(core: Rc<Core>, stream: TcpStream, peer: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    core.counters.open.increment();
    match core.group(local) {
        Some(group) if group.tls => serve_tls(&core, &group, stream, peer, local).await,
        Some(_) => serve_plain(&core, stream, Client { peer, local, tls: None }).await,
        None => tracing::debug!(%local, "connection to a port without listener"),
    }
    core.counters.open.decrement();
}

impl Client {
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

async fn serve_plain(core: &Rc<Core>, stream: TcpStream, client: Client) {
    let version = match timeout(core.settings.limits.header_read, preface(&stream)).await {
        Ok(Ok(version)) => version,
        _ => return,
    };
    serve_http(core, stream, version, client).await;
}

/// HTTP/2 with prior knowledge starts with a method that HTTP/1 does not have.
async fn preface(stream: &TcpStream) -> std::io::Result<Version> {
    let mut start = [0; 3];
    stream.peek(&mut start).await?;
    Ok(if start == *b"PRI" { Version::Http2 } else { Version::Http1 })
}

async fn serve_tls(
    core: &Rc<Core>,
    group: &ListenerGroup,
    stream: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
) {
    match timeout(core.settings.limits.handshake, handshake(core, group, stream)).await {
        Ok(Some((stream, name))) => {
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let version = if http2 { Version::Http2 } else { Version::Http1 };
            serve_http(core, stream, version, Client { peer, local, tls: Some(name) }).await;
        }
        Ok(None) => {}
        Err(_) => core.counters.handshake_timeout.increment(),
    }
}

type Handshaken = (TlsStream<TcpStream>, Option<Box<str>>);

async fn handshake(core: &Rc<Core>, group: &ListenerGroup, stream: TcpStream) -> Option<Handshaken> {
    let start = match LazyConfigAcceptor::new(Acceptor::default(), stream).await {
        Ok(start) => start,
        Err(error) => return refused(core, &error),
    };
    let name = start.client_hello().server_name().map(|name| name.to_ascii_lowercase().into_boxed_str());
    let Some(listener) = group.listeners.for_sni(name.as_deref()) else {
        return refuse_name(core, start, name.as_deref()).await;
    };
    let worker = core.workers.get(listener);
    let config = core.workers.server_config(&worker)?;
    match start.into_stream(config).await {
        Ok(stream) => {
            worker.counters().connections.increment();
            Some((stream, name))
        }
        Err(error) => refused(core, &error),
    }
}

fn refused(core: &Core, error: &std::io::Error) -> Option<Handshaken> {
    core.counters.handshake_protocol.increment();
    tracing::debug!(%error, "TLS handshake failed");
    None
}

async fn refuse_name(
    core: &Core,
    start: StartHandshake<TcpStream>,
    name: Option<&str>,
) -> Option<Handshaken> {
    core.counters.unknown_name.increment();
    tracing::debug!(name, "no listener of the port has this server name");
    let mut stream = start.io;
    let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
    let _ = stream.shutdown().await;
    None
}

async fn serve_http<S>(core: &Rc<Core>, stream: S, version: Version, client: Client)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let limits = &core.settings.limits;
    let for_service = (core.clone(), Rc::new(client));
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        service::answer(for_service.0.clone(), for_service.1.clone(), request)
    });
    match version {
        Version::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(limits.header_read);
            builder.max_buf_size(limits.header_bytes.max(8192)).max_headers(limits.headers).half_close(false);
            let connection = builder.serve_connection(io, service).with_upgrades();
            until_drained(core, connection, |it| it.graceful_shutdown()).await;
        }
        Version::Http2 => {
            let mut builder = http2::Builder::new(LocalExecutor);
            builder.timer(TokioTimer::new()).max_concurrent_streams(limits.streams);
            builder.max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX));
            builder.keep_alive_interval(limits.idle).keep_alive_timeout(limits.header_read);
            until_drained(core, builder.serve_connection(io, service), |it| it.graceful_shutdown()).await;
        }
    }
}

/// Runs the connection to its end; when the core drains, it may finish what it has begun.
async fn until_drained<C>(core: &Core, connection: C, shut_down: fn(Pin<&mut C>))
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = std::pin::pin!(connection);
    let mut draining = core.draining.subscribe();
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        _ = draining.wait_for(|draining| *draining) => {
            shut_down(connection.as_mut());
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "client connection ended");
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
