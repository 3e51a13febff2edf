//! HTTP/1.1 for the admin endpoints.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::endpoints::{Admin, text};

/// Largest body of a question, in bytes.
const MAX_BODY: usize = 64 << 10;
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// The open endpoints; [`Endpoints::close`] ends them and removes the socket.
pub(crate) struct Endpoints {
    socket: PathBuf,
    acceptors: JoinSet<()>,
    /// Gone when they are to end.
    open: watch::Sender<()>,
}

/// Listens on a unix socket, and on a port of 127.0.0.1 if one is given.
pub(crate) async fn serve(admin: Admin, socket: &Path, port: Option<u16>) -> Result<Endpoints> {
    let listener = listen(socket)?;
    tracing::info!("admin endpoints on {}", socket.display());
    let (open, closed) = watch::channel(());
    let mut acceptors = JoinSet::new();
    acceptors.spawn(accept(listener, admin.clone(), closed.clone()));
    if let Some(port) = port {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener =
            listener.with_context(|| format!("cannot listen on 127.0.0.1:{port} (--admin-port)"))?;
        tracing::info!("admin endpoints on http://{}", listener.local_addr()?);
        acceptors.spawn(accept(listener, admin, closed));
    }
    Ok(Endpoints { socket: socket.to_owned(), acceptors, open })
}

/// Replaces a socket that no agent answers any more; only its owner may use the new one.
fn listen(socket: &Path) -> Result<UnixListener> {
    if StdUnixStream::connect(socket).is_ok() {
        bail!("another agent answers on {}: choose another --admin-socket", socket.display());
    }
    let directory = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let prepare = || -> io::Result<UnixListener> {
        if let Some(directory) = directory.filter(|directory| !directory.exists()) {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        }
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    prepare().with_context(|| format!("cannot open the admin socket {} (--admin-socket)", socket.display()))
}

/// The accepting side that both kinds of sockets have.
trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

/// Until the endpoints are closed. Connections end with it, idle ones above all: they would hold
/// the data plane.
async fn accept(listener: impl Listener, admin: Admin, mut closed: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            stream = listener.next() => match stream {
                Ok(stream) => drop(connections.spawn(connection(stream, admin.clone()))),
                Err(_) => tokio::time::sleep(PAUSE_AFTER_ACCEPT_ERROR).await,
            },
            Some(_) = connections.join_next() => {}
            _ = closed.changed() => break,
        }
    }
    connections.shutdown().await;
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin, admin: Admin) {
    let service = service_fn(|request| answer(&admin, request));
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10));
    // A client that went away.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(admin: &Admin, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let answer = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => admin.answer(Request::from_parts(head, body.to_bytes())).await,
        Err(_) => text(StatusCode::PAYLOAD_TOO_LARGE, "the question is too long\n"),
    };
    Ok(answer.map(Full::new))
}

// === impl Endpoints ===

impl Endpoints {
    /// Returns when nothing here holds the data plane any more.
    pub(crate) async fn close(mut self) {
        drop(self.open);
        while self.acceptors.join_next().await.is_some() {}
        let _ = fs::remove_file(&self.socket);
    }
}
