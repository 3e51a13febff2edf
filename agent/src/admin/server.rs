//! HTTP/1.1 for the admin endpoints.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_node::Process;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::admin::access::{Access, Refusal, Unusable};
use crate::admin::browsers::guard;
use crate::admin::endpoints::text;
use crate::admin::hosts::{Hosts, has_one_host};
use crate::admin::sources::Admin;
use crate::admin::taken::Taken;
use crate::admin::{api, watch};
use crate::cli::RunArgs;
use crate::hand_over::predecessor::Predecessor;
use crate::plane::Plane;

/// Largest body of a question, in bytes: the head of a request that a Gateway may take has a third
/// of it, or twice as much as JSON.
const MAX_BODY: usize = 256 << 10;
/// Connections of one socket. One more ends the oldest that asks nothing: nothing that holds
/// connections keeps a probe out.
const MAX_CONNECTIONS: usize = 64;
/// Time that a connection is looked at for, and keeps its place, however many come after it: a
/// probe's request comes with it, and is answered at once.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// Answers that are made or sent at a time. Each may be about everything that is configured.
const MAX_ANSWERS: usize = 8;
/// Answers with metrics besides those, when they are as many.
const MAX_SCRAPES: usize = 1;
/// Time for a head to come, and for a body.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time for a client to take some byte of its answer. One that takes none keeps others out.
const TAKING_TIME: Duration = Duration::from_secs(5);
/// Time until one of the answers before has been sent: longer than a client that takes nothing has.
const QUEUE_TIME: Duration = Duration::from_secs(8);
/// Time for all that is asked and answered on one connection.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Between attempts to have a socket that an agent before this one had.
const RETRY: Duration = Duration::from_secs(1);
/// Between the beginnings of two TLS handshakes: clients that do nothing but begin some cost one of
/// the node's processors a few percent.
const HANDSHAKE_PACE: Duration = Duration::from_millis(10);
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// The sockets of the endpoints, taken before the agent touches anything else: one that cannot have
/// them must not cost the agent that does. Nothing is answered yet.
pub(crate) struct Sockets {
    path: PathBuf,
    unix: Option<(StdUnixListener, SocketFile)>,
    ports: Vec<Port>,
}

/// A TCP port that is answered on.
struct Port {
    address: SocketAddr,
    /// The option that it is from.
    option: &'static str,
    reach: Reach,
    /// `None` as long as another agent has it.
    taken: Option<StdTcpListener>,
}

/// The answers that a socket has, and for whom.
enum Reach {
    /// All of them, under these names.
    All(Hosts),
    /// Metrics alone.
    Metrics(Access),
}

/// The answers on one socket.
struct Service {
    admin: Admin,
    reach: Reach,
    answers: Arc<Semaphore>,
    scrapes: Arc<Semaphore>,
    /// Held by the handshake that begins next.
    handshakes: Mutex<()>,
}

/// A connection that is open.
struct Held {
    task: AbortHandle,
    /// True once it has had its [`FIRST_LOOK`].
    is_looked_at: Arc<AtomicBool>,
    /// Requests of it that are being answered.
    answering: Arc<AtomicUsize>,
}

/// Counts a request of a connection as long as it is being answered.
struct Answering(Arc<AtomicUsize>);

/// The bytes of an answer, which counts until the last of them is with the kernel.
struct Counted {
    bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
    _answering: Answering,
}

/// Removed when dropped.
struct SocketFile(PathBuf);

/// The open endpoints; [`Endpoints::close`] ends them and removes the socket.
pub(crate) struct Endpoints {
    unix: Acceptor,
    ports: Vec<Acceptor>,
}

/// The answers on one socket, which end with it.
struct Acceptor {
    task: JoinHandle<()>,
    open: Sender<()>,
}

/// Listens on a unix socket, and on the ports that are asked for. An agent that takes over gets
/// none as long as the other one has it.
pub(crate) fn listen(args: &RunArgs, predecessor: Option<&mut Predecessor>) -> Result<Sockets> {
    let path = args.admin.path();
    let admin_port = args.admin_port.map(|port| Port {
        address: (Ipv4Addr::LOCALHOST, port).into(),
        option: "--admin-port",
        reach: Reach::All(Hosts::Listed(args.admin_host.clone())),
        taken: None,
    });
    let access = Access::of(&args.metrics)?;
    let metrics_port = args.metrics.metrics_address.map(|address| Port {
        address,
        option: "--metrics-address",
        reach: Reach::Metrics(access),
        taken: None,
    });
    let mut ports: Vec<_> = admin_port.into_iter().chain(metrics_port).collect();
    let unix = match predecessor {
        Some(other) if StdUnixStream::connect(&path).is_ok() => {
            other.needs_admin_socket = true;
            None
        }
        Some(_) => Some(listen_on_file(&path)?),
        None => {
            for port in &mut ports {
                match (listen_on(port.address, port.option), &port.reach) {
                    (Ok(listener), _) => port.taken = Some(listener),
                    // Traffic is worth more than its metrics: they are tried for again.
                    (Err(error), Reach::Metrics(_)) => tracing::warn!("{error:#}"),
                    (Err(error), Reach::All(_)) => return Err(error),
                }
            }
            Some(listen_on_file(&path)?)
        }
    };
    Ok(Sockets { path, unix, ports })
}

/// Answers on the sockets; on those that another agent has once this one serves.
pub(crate) fn serve(admin: Admin, sockets: Sockets) -> Endpoints {
    let Sockets { path, unix, ports } = sockets;
    let service = |reach| {
        let answers = Arc::new(Semaphore::new(MAX_ANSWERS));
        let scrapes = Arc::new(Semaphore::new(MAX_SCRAPES));
        Arc::new(Service { admin: admin.clone(), reach, answers, scrapes, handshakes: Mutex::default() })
    };
    let (on_file, plane) = (service(Reach::All(Hosts::Any)), admin.plane.clone());
    let unix = Acceptor::start(async move |closed| {
        let (unix, _file) = match unix {
            Some(taken) => taken,
            None => once_served(&plane, || listen_on_file(&path)).await,
        };
        match UnixListener::from_std(unix) {
            Ok(listener) => {
                tracing::info!("admin endpoints on {}", path.display());
                accept(listener, on_file, closed).await;
            }
            Err(error) => tracing::error!("no admin endpoints on {}: {error}", path.display()),
        }
    });
    let ports = ports.into_iter().map(|port| {
        let Port { address, option, reach, taken } = port;
        let what = reach.to_string();
        let (service, plane) = (service(reach), admin.plane.clone());
        Acceptor::start(async move |closed| {
            let tcp = match taken {
                Some(taken) => taken,
                None => once_served(&plane, || listen_on(address, option)).await,
            };
            match tcp.local_addr().and_then(|local| Ok((TcpListener::from_std(tcp)?, local))) {
                Ok((listener, local)) => {
                    tracing::info!("{what}://{local}");
                    accept(listener, service, closed).await;
                }
                Err(error) => tracing::error!("no {what}://{address}: {error}"),
            }
        })
    });
    Endpoints { unix, ports: ports.collect() }
}

/// The other agent has let go of it by then; any other process that has it may do so later.
async fn once_served<L>(plane: &Plane, listen: impl Fn() -> Result<L>) -> L {
    plane.serves().await;
    let mut told = false;
    loop {
        match listen() {
            Ok(listener) => return listener,
            Err(error) if !told => tracing::warn!("{error:#}"),
            Err(_) => {}
        }
        told = true;
        tokio::time::sleep(RETRY).await;
    }
}

fn listen_on(address: SocketAddr, option: &str) -> Result<StdTcpListener> {
    let mut bound = StdTcpListener::bind(address);
    // Machines without IPv6 have all addresses of IPv4.
    if let Err(error) = &bound
        && error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
        && address.ip().is_unspecified()
    {
        bound = StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()));
    }
    let listener = bound.with_context(|| {
        format!("cannot listen on {address}: stop the process that has it, or choose another {option}")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Replaces a socket that no agent answers any more; only its owner may use the new one.
fn listen_on_file(socket: &Path) -> Result<(StdUnixListener, SocketFile)> {
    if StdUnixStream::connect(socket).is_ok() {
        let path = socket.display();
        let holder = Process::named(&Process::listening_on(&path.to_string()));
        bail!("another agent{holder} answers on {path}: stop it, or choose another --admin-socket");
    }
    let directory = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let prepare = || -> io::Result<StdUnixListener> {
        if let Some(directory) = directory.filter(|directory| !directory.exists()) {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        }
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = StdUnixListener::bind(socket)?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = prepare()
        .with_context(|| format!("cannot open the admin socket {} (--admin-socket)", socket.display()))?;
    Ok((listener, SocketFile(socket.to_owned())))
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
async fn accept(listener: impl Listener, service: Arc<Service>, mut closed: Receiver<()>) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Held> = VecDeque::new();
    loop {
        tokio::select! {
            stream = listener.next() => match stream {
                Ok(stream) => {
                    make_room(&mut open).await;
                    let answering = Arc::<AtomicUsize>::default();
                    let serving = connection(stream, service.clone(), answering.clone());
                    open.push_back(Held::begin(&mut connections, serving, answering));
                }
                Err(_) => tokio::time::sleep(PAUSE_AFTER_ACCEPT_ERROR).await,
            },
            Some(_) = connections.join_next() => {}
            _ = closed.changed() => break,
        }
    }
    connections.shutdown().await;
}

/// Ends the oldest connection that asks nothing, or else the oldest, if there are too many; not
/// before each has had its [`FIRST_LOOK`].
async fn make_room(open: &mut VecDeque<Held>) {
    loop {
        open.retain(|held| !held.task.is_finished());
        if open.len() < MAX_CONNECTIONS {
            return;
        }
        let is_new = |held: &Held| !held.is_looked_at.load(Relaxed);
        let idle = open.iter().position(|held| !is_new(held) && held.answering.load(Relaxed) == 0);
        if idle.is_none() && open.iter().any(is_new) {
            sleep(FIRST_LOOK).await;
        } else if let Some(held) = open.remove(idle.unwrap_or_default()) {
            held.task.abort();
        }
    }
}

// === impl Held ===

impl Held {
    /// Serves it in a task of its own.
    fn begin(
        connections: &mut JoinSet<()>,
        serving: impl Future<Output = ()> + Send + 'static,
        answering: Arc<AtomicUsize>,
    ) -> Self {
        let is_looked_at = Arc::<AtomicBool>::default();
        let looked_at = is_looked_at.clone();
        let task = connections.spawn(async move {
            let mut serving = pin!(serving);
            // By its own clock, and in this order: on a machine that stood still, what has come
            // meanwhile is read before the time is over.
            tokio::select! {
                biased;
                () = &mut serving => return,
                () = sleep(FIRST_LOOK) => {}
            }
            looked_at.store(true, Relaxed);
            serving.await;
        });
        Self { task, is_looked_at, answering }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: Arc<Service>,
    answering: Arc<AtomicUsize>,
) {
    let acceptor = match &service.reach {
        Reach::All(_) => Ok(None),
        Reach::Metrics(access) => access.acceptor(),
    };
    match acceptor {
        Ok(None) => answer_on(stream, &service, &answering).await,
        Ok(Some(acceptor)) => {
            service.pace_handshakes().await;
            match timeout(REQUEST_TIME, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => answer_on(stream, &service, &answering).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake of a scraper failed"),
                Err(_) => tracing::debug!("a scraper did not complete its TLS handshake"),
            }
        }
        Err(Unusable) => {}
    }
}

async fn answer_on(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: &Service,
    answering: &Arc<AtomicUsize>,
) {
    let waiting = Arc::<AtomicUsize>::default();
    let answer = service_fn(|request| service.answer(request, Answering::begin(answering), &waiting));
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME);
    let stream = TokioIo::new(Taken::within(TAKING_TIME, stream));
    let mut serving = pin!(server.serve_connection(stream, answer));
    // A client that went away, or does not end; an operator who waits for requests has more time.
    while timeout(CONNECTION_TIME, &mut serving).await.is_err() && waiting.load(Relaxed) > 0 {}
}

fn is_watch(path: &str) -> bool {
    path.strip_prefix(api::PREFIX) == Some(watch::NAME)
}

// === impl Service ===

impl Service {
    /// Those that wait have their turns in order.
    async fn pace_handshakes(&self) {
        let _turn = self.handshakes.lock().await;
        tokio::time::sleep(HANDSHAKE_PACE).await;
    }

    /// To make the answer of a path and send it; `None` if there is none in time.
    async fn permit(&self, path: &str) -> Option<OwnedSemaphorePermit> {
        let permits = match path {
            "/metrics" if self.answers.available_permits() == 0 => &self.scrapes,
            _ => &self.answers,
        };
        timeout(QUEUE_TIME, Arc::clone(permits).acquire_owned()).await.ok()?.ok()
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        answering: Answering,
        waiting: &Arc<AtomicUsize>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        if !has_one_host(&head) {
            let refusal = text(StatusCode::BAD_REQUEST, "a request has one Host field\n");
            return Ok(counted(refusal, None, answering));
        }
        if let Some(refusal) = self.reach.refusal(&head) {
            return Ok(counted(refusal, None, answering));
        }
        let body = match timeout(REQUEST_TIME, Limited::new(body, MAX_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => {
                let long = text(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "the question is too long: no Gateway takes such a request (431)\n",
                );
                return Ok(counted(long, None, answering));
            }
            Err(_) => {
                let late = format!("the question did not come within {REQUEST_TIME:?}\n");
                return Ok(counted(text(StatusCode::REQUEST_TIMEOUT, late), None, answering));
            }
        };
        let request = Request::from_parts(head, body);
        // It is not being made as long as it is waited for, and there are few of those.
        if is_watch(request.uri().path()) {
            let _waiting = Answering::begin(waiting);
            return Ok(counted(self.admin.answer(request).await, None, answering));
        }
        // Probes never wait.
        if matches!(request.uri().path(), "/livez" | "/readyz") {
            return Ok(counted(self.admin.answer(request).await, None, answering));
        }
        let Some(permit) = self.permit(request.uri().path()).await else {
            let busy = format!("{MAX_ANSWERS} other answers are being sent: ask again later\n");
            return Ok(counted(text(StatusCode::SERVICE_UNAVAILABLE, busy), None, answering));
        };
        let answer = self.admin.answer(request).await;
        Ok(counted(answer, Some(permit), answering))
    }
}

// === impl Reach ===

impl Reach {
    /// The answer to a request that is not to have another one.
    fn refusal(&self, head: &Parts) -> Option<Response<Bytes>> {
        match self {
            Self::All(hosts) => {
                hosts.refusal(head).map(|refusal| text(StatusCode::MISDIRECTED_REQUEST, refusal))
            }
            Self::Metrics(access) => match access.admit(head) {
                Err(Refusal::Token) => {
                    let mut refusal = text(StatusCode::UNAUTHORIZED, "a token is wanted, and this is none\n");
                    let bearer = HeaderValue::from_static("Bearer realm=\"metrics\"");
                    refusal.headers_mut().insert(WWW_AUTHENTICATE, bearer);
                    Some(refusal)
                }
                Err(Refusal::Unknown) => {
                    Some(text(StatusCode::SERVICE_UNAVAILABLE, "there is no token to compare with\n"))
                }
                Ok(()) if head.uri.path() != "/metrics" => {
                    Some(text(StatusCode::NOT_FOUND, "there is nothing but /metrics here\n"))
                }
                Ok(()) => None,
            },
        }
    }
}

/// With the scheme of its URL.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(_) => f.write_str("admin endpoints on http"),
            Self::Metrics(access) if access.is_encrypted() => f.write_str("metrics on https"),
            Self::Metrics(_) => f.write_str("metrics on http"),
        }
    }
}

/// Small answers need no permit.
fn counted(
    mut answer: Response<Bytes>,
    permit: Option<OwnedSemaphorePermit>,
    answering: Answering,
) -> Response<Full<Bytes>> {
    guard(answer.headers_mut());
    answer.map(|bytes| {
        let counted = Counted { bytes, _permit: permit, _answering: answering };
        Full::new(Bytes::from_owner(counted))
    })
}

// === impl Answering ===

impl Answering {
    fn begin(answering: &Arc<AtomicUsize>) -> Self {
        answering.fetch_add(1, Relaxed);
        Self(answering.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

// === impl Endpoints ===

impl Endpoints {
    pub(crate) async fn close_port(&mut self) {
        for port in &mut self.ports {
            port.close().await;
        }
    }

    pub(crate) async fn close_socket(&mut self) {
        self.unix.close().await;
    }

    pub(crate) async fn close(mut self) {
        self.close_port().await;
        self.close_socket().await;
    }
}

// === impl Acceptor ===

impl Acceptor {
    fn start<F>(answer: impl FnOnce(Receiver<()>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (open, closed) = channel(());
        let mut end = closed.clone();
        let answering = answer(closed);
        let task = tokio::spawn(async move {
            let mut answering = std::pin::pin!(answering);
            tokio::select! {
                () = &mut answering => {}
                // It may wait for a socket that it is not to have.
                _ = end.changed() => drop(timeout(FIRST_LOOK, answering).await),
            }
        });
        Self { task, open }
    }

    /// Returns when nothing is answered any more. A second time does nothing.
    async fn close(&mut self) {
        let (open, _) = channel(());
        drop(std::mem::replace(&mut self.open, open));
        if !self.task.is_finished() {
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// However long the machine stands still after the oldest one was accepted.
    #[tokio::test]
    async fn no_connection_gives_its_place_away_before_it_was_looked_at() {
        let mut connections = JoinSet::new();
        let asking = Arc::<AtomicUsize>::default();
        let asked = asking.clone();
        let oldest = async move {
            asked.fetch_add(1, Relaxed);
            pending().await
        };
        let mut open = VecDeque::from([Held::begin(&mut connections, oldest, asking)]);
        let oldest = open[0].task.clone();
        while open.len() < MAX_CONNECTIONS {
            open.push_back(Held::begin(&mut connections, pending(), Arc::default()));
        }
        std::thread::sleep(2 * FIRST_LOOK);
        make_room(&mut open).await;
        tokio::task::yield_now().await;
        assert_eq!((open.len(), oldest.is_finished()), (MAX_CONNECTIONS - 1, false));
    }
}
