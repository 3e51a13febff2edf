//! A client connection: which port it came to, TLS if the port speaks it, then HTTP until either side has had enough.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::{Limits, ListenerGroup};
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::client::clients::{Client, Clients, Patience};
use crate::client::frames::FrameBudget;
use crate::client::gate::Admitted;
use crate::client::guard::{Check, Guarded, Transport};
use crate::client::outbox::{Gathering, Outbox};
use crate::client::tls::UNRECOGNIZED_NAME;
use crate::client::wire::Framing;
use crate::client::worker::Worker;
use crate::core::stats::Refusal;
use crate::http::service;
use crate::thread::{self, Core};

/// HTTP/2 with prior knowledge starts so (RFC 9113 section 3.4); no HTTP/1 request can.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What the first read of a plain connection takes: most request heads whole.
const FIRST_READ: usize = 2048;
/// The HTTP library takes no smaller limit for a head; what is left of it is ours to enforce.
const SMALLEST_BUFFER: usize = 8 << 10;

/// What HTTP/2 counts for a field besides its bytes (RFC 9113 section 6.5.2).
const HTTP2_FIELD: u32 = 32;

/// HTTP/2 flow control: what a client may send before we have passed it on.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 64 << 10;
/// Resets a client may have pending, and those it may provoke, before the connection ends (CVE-2023-44487, CVE-2025-8671);
/// those of requests under way are counted in [`FrameBudget`].
const PENDING_RESETS: usize = 20;
const PROVOKED_RESETS: usize = 200;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs HTTP/2 streams and pooled connections on the core that owns them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

/// A connection on which HTTP is about to begin.
struct Ready {
    transport: Transport,
    /// What was read of the first request.
    replay: Vec<u8>,
    version: Version,
    tls: Option<Rc<Worker>>,
}

pub(crate) async fn serve(core: Rc<Core>, stream: TcpStream, peer: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let Some((admitted, terminating)) = enter(&core, local) else { return };
    let ready = match terminating {
        Some(group) => start_tls(&core, &group, admitted.limits(), stream).await,
        None => start_plain(&admitted, stream).await,
    };
    if let Some(ready) = ready {
        serve_http(&core, ready, admitted, peer, local).await;
    }
}

/// Lets a connection in, if its port is a Gateway's that has room for it; with the listeners to choose from, if they speak TLS.
/// The address and port that it came to say which Gateway's limits hold, before a byte is read.
fn enter(core: &Core, local: SocketAddr) -> Option<(Admitted, Option<Arc<ListenerGroup>>)> {
    let current = core.current();
    let Some(group) = thread::group(&current.snapshot, local) else {
        tracing::debug!(%local, "connection to a port without listener");
        return None;
    };
    let admitted = core.gates.admit(&group.gateway)?;
    Some((admitted, group.tls.then(|| group.clone())))
}

// --- before HTTP ---

async fn start_plain(admitted: &Admitted, stream: TcpStream) -> Option<Ready> {
    let start = timeout(admitted.limits().header_timeout, first_bytes(&stream)).await;
    let replay = start.inspect_err(|_| admitted.refused(Refusal::HeaderTimeout)).ok()?.ok()?;
    let version = if replay.starts_with(PREFACE) { Version::Http2 } else { Version::Http1 };
    Some(Ready { transport: Transport::Plain(stream), replay, version, tls: None })
}

/// Reads until it is clear whether the preface of HTTP/2 is what begins here.
async fn first_bytes(stream: &TcpStream) -> io::Result<Vec<u8>> {
    stream.readable().await?;
    let mut bytes = Vec::with_capacity(FIRST_READ);
    loop {
        match stream.try_read_buf(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if bytes.len() < PREFACE.len() && PREFACE.starts_with(&bytes) => {}
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}

async fn start_tls(
    core: &Rc<Core>,
    group: &ListenerGroup,
    limits: &Limits,
    stream: TcpStream,
) -> Option<Ready> {
    match timeout(limits.tls_handshake_timeout, handshake(core, group, stream)).await {
        Ok(Some((stream, worker))) => {
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let version = if http2 { Version::Http2 } else { Version::Http1 };
            let transport = Transport::Tls(Box::new(stream));
            Some(Ready { transport, replay: Vec::new(), version, tls: Some(worker) })
        }
        Ok(None) => None,
        Err(_) => {
            core.counters.handshake_timeout.increment();
            None
        }
    }
}

type Handshaken = (TlsStream<TcpStream>, Rc<Worker>);

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
            Some((stream, worker))
        }
        Err(error) => refused(core, &error),
    }
}

fn refused(core: &Core, error: &io::Error) -> Option<Handshaken> {
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

// --- HTTP ---

async fn serve_http(core: &Rc<Core>, ready: Ready, admitted: Admitted, peer: SocketAddr, local: SocketAddr) {
    let limits = admitted.limits();
    let (check, patience) = match ready.version {
        Version::Http1 => (Check::Http1(Framing::default()), Patience::http1(limits)),
        Version::Http2 => (Check::Http2(FrameBudget::default()), Patience::http2(limits)),
    };
    let client = Rc::new(Client::new(peer, local, ready.tls, admitted, patience));
    let limits = client.limits();
    let registered = Clients::register(core, &client);
    let stream = Guarded::new(ready.transport, ready.replay, check, client.pulse.clone());
    let for_service = (core.clone(), client.clone());
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        service::answer(for_service.0.clone(), for_service.1.clone(), request)
    });
    let ended = match ready.version {
        Version::Http1 => {
            let connection =
                http1_builder(limits).serve_connection(TokioIo::new(stream), service).with_upgrades();
            let ended = client.drive(connection, |it| it.graceful_shutdown()).await;
            ended.map(|ended| ended.map_err(io::Error::other))
        }
        Version::Http2 => {
            let outbox = Outbox::new(stream);
            registered.gathers(outbox.share());
            let connection = http2_builder(limits).serve_connection(TokioIo::new(outbox.share()), service);
            let connection = Gathering::new(connection, outbox);
            client.drive(connection, |it| it.connection().graceful_shutdown()).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(client = %peer, %error, "client connection ended");
    }
}

/// Time is the sweeper's business, see [`Clients`].
fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).half_close(false);
    builder.max_buf_size(head_bytes(limits).max(SMALLEST_BUFFER)).max_headers(limits.header_fields as usize);
    builder
}

/// What the HTTP library may take in before we look at target and fields on their own.
fn head_bytes(limits: &Limits) -> usize {
    limits.target_bytes as usize + limits.header_bytes as usize
}

fn http2_builder(limits: &Limits) -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
    builder.max_concurrent_streams(limits.http2_streams);
    let fields = limits.header_fields * HTTP2_FIELD;
    builder
        .max_header_list_size(u32::try_from(head_bytes(limits)).unwrap_or(u32::MAX).saturating_add(fields));
    builder.max_pending_accept_reset_streams(PENDING_RESETS).max_local_error_reset_streams(PROVOKED_RESETS);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder.max_send_buf_size(SEND_BUFFER);
    builder
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
