//! What the data plane costs: the gateway, a bare proxy on the same HTTP library that does the least a gateway must, and an
//! origin behind either. Load comes from outside (`wrk`, `h2load`); CPU time per request is read from `/proc/PID/stat`.
//!
//! ```text
//! measure origin 127.0.0.1:9000
//! measure gateway 127.0.0.1:9001 127.0.0.1:9000 [ROUTES]
//! measure bare 127.0.0.1:9002 127.0.0.1:9000
//! ```
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a tool for developers")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use portcullis_model::{
    Action, Backend, BackendName, BackendProtocol, BackendTarget, Entry, FrontendKey, HostMap, HostPattern,
    L4Protocol, Listener, ListenerGroup, ListenerId, ListenerProtocol, ObjectName, ParentKind, PathMatch,
    PathTable, Precedence, RouteMatch, RouteOrigin, RouteTable, Rule, RuleId, Snapshot, Split, Timeouts,
    WeightedBackend,
};
use portcullis_proxy::{Proxy, Settings};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |at: usize| arguments[at].parse::<SocketAddr>().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
    match arguments[0].as_str() {
        "origin" => runtime.block_on(origin(address(1))),
        "bare" => runtime.block_on(bare(address(1), address(2))),
        "gateway" => {
            let routes = arguments.get(3).map_or(1, |routes| routes.parse().unwrap());
            runtime.block_on(gateway(address(1), address(2), routes));
        }
        other => panic!("unknown role {other:?}"),
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

// --- origin ---

async fn origin(address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let io = TokioIo::new(accept(&listener).await);
        let service = hyper::service::service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(&[b'x'; 1024]))))
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
        tokio::task::spawn_local(connection);
    }
}

// --- gateway ---

async fn gateway(address: SocketAddr, origin: SocketAddr, routes: usize) {
    let proxy = Proxy::start(Settings { cores: 1, ..Settings::default() }).unwrap();
    assert_eq!(proxy.apply(Arc::new(snapshot(address, origin, routes))).await, []);
    std::future::pending().await
}

fn snapshot(address: SocketAddr, origin: SocketAddr, routes: usize) -> Snapshot {
    let name = BackendName::new("bench", "origin", 80);
    let mut table = RouteTable::default();
    let entries = (0..routes).map(|index| entry(index, &name)).collect();
    table.insert(&HostPattern::Any, Arc::new(PathTable::new(entries)));
    let gateway = ObjectName::new("bench", "gateway");
    let id = ListenerId {
        gateway: gateway.clone(),
        kind: ParentKind::Gateway,
        parent: gateway.clone(),
        name: "http".into(),
    };
    let (hostname, protocol) = (HostPattern::Any, ListenerProtocol::Http);
    let listener = Listener { id, hostname, protocol, routes: Arc::new(table) };
    let mut listeners = HostMap::default();
    listeners.insert(&HostPattern::Any, Arc::new(listener));
    let group = ListenerGroup { gateway, port: address.port(), tls: false, listeners };
    let key = FrontendKey { protocol: L4Protocol::Tcp, address: address.ip(), port: address.port() };
    let backend = Backend { name: name.clone(), protocol: BackendProtocol::Http1, endpoints: vec![origin] };
    Snapshot {
        generation: 1,
        frontends: [(key, Arc::new(group))].into(),
        backends: [(name.0, Arc::new(backend))].into_iter().collect(),
    }
}

/// Route 0 takes `/`, the others a prefix of their own.
fn entry(index: usize, backend: &BackendName) -> Entry {
    let path = if index == 0 { PathMatch::prefix("/") } else { PathMatch::prefix(&format!("/r/{index}")) };
    let matches = RouteMatch { path, ..RouteMatch::default() };
    let route = Arc::new(ObjectName::new("bench", format!("route-{index}")));
    let origin = RouteOrigin { created: 0, name: route.clone() };
    let target = BackendTarget::Known(backend.clone());
    let split = Split::new(vec![WeightedBackend { weight: 1, target, filters: Vec::new() }]).unwrap();
    let rule = Rule {
        id: RuleId { kind: "HTTPRoute", route, index: 0, name: None, parent: None },
        filters: Vec::new(),
        action: Action::Forward(split),
        timeouts: Timeouts::default(),
    };
    Entry {
        precedence: Precedence::of(&matches, &origin, 0, 0),
        matches: Arc::new(matches),
        rule: Arc::new(rule),
    }
}

// --- bare ---

type Idle = Rc<RefCell<Vec<SendRequest<Incoming>>>>;

/// Gives its connection back with its last byte.
struct Passed {
    incoming: Incoming,
    back: Option<(Idle, SendRequest<Incoming>)>,
}

async fn bare(address: SocketAddr, origin: SocketAddr) {
    let table: Rc<HashMap<String, SocketAddr>> = Rc::new(HashMap::from([("/".to_owned(), origin)]));
    let idle = Idle::default();
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let stream = accept(&listener).await;
        let peer = HeaderValue::from_str(&stream.peer_addr().unwrap().ip().to_string()).unwrap();
        let (table, idle) = (table.clone(), idle.clone());
        let service = hyper::service::service_fn(move |request| {
            let (table, idle, peer) = (table.clone(), idle.clone(), peer.clone());
            async move { Ok::<_, Infallible>(pass(&table, idle, peer, request).await) }
        });
        let io = TokioIo::new(stream);
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
        tokio::task::spawn_local(connection);
    }
}

async fn pass(
    table: &HashMap<String, SocketAddr>,
    idle: Idle,
    peer: HeaderValue,
    mut request: Request<Incoming>,
) -> Response<Passed> {
    let origin = table[request.uri().path()];
    let host = request.headers()[header::HOST].clone();
    let fields = request.headers_mut();
    for name in [header::CONNECTION, header::TE, header::TRANSFER_ENCODING, header::UPGRADE] {
        fields.remove(name);
    }
    fields.insert(HeaderName::from_static("x-forwarded-for"), peer);
    fields.insert(HeaderName::from_static("x-forwarded-proto"), HeaderValue::from_static("http"));
    fields.insert(HeaderName::from_static("x-forwarded-host"), host);
    let kept = idle.borrow_mut().pop().filter(|sender| sender.is_ready());
    let mut sender = match kept {
        Some(sender) => sender,
        None => connect(origin).await,
    };
    let (mut parts, incoming) = sender.send_request(request).await.unwrap().into_parts();
    parts.headers.remove(header::CONNECTION);
    Response::from_parts(parts, Passed { incoming, back: Some((idle, sender)) })
}

async fn connect(origin: SocketAddr) -> SendRequest<Incoming> {
    let stream = TcpStream::connect(origin).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::task::spawn_local(connection);
    sender
}

impl Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if self.incoming.is_end_stream()
            && let Some((idle, sender)) = self.back.take()
        {
            idle.borrow_mut().push(sender);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
