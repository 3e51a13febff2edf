//! Answers load balancers that ask this node whether it serves a Gateway: `healthCheckNodePort` of
//! Services with `externalTrafficPolicy: Local`, in the words of kube-proxy, which leaves these
//! Services alone. A port that another process has is that process' to answer: another service
//! proxy's, that thinks otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_control::applier::State;
use portcullis_model::HealthCheck;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::plane::Plane;

/// Interval at which it is tried again to have ports.
const RETRY: Duration = Duration::from_secs(5);
/// Connections of one port; one more ends the oldest.
const MAX_CONNECTIONS: usize = 64;
/// Time for a question and its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);
/// Of connections that are not accepted yet.
const BACKLOG: u32 = 128;

/// The number of the Service's endpoints on this node: Google's load balancers weigh by it.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Answers until the future is dropped, and not before this agent serves: another one may.
pub(crate) async fn answer(state: watch::Receiver<State>, plane: Plane) {
    plane.serves().await;
    answer_as(state).await;
}

async fn answer_as(mut state: watch::Receiver<State>) {
    let mut answering = BTreeMap::<u16, (HealthCheck, AbortHandle)>::new();
    let mut ports = JoinSet::new();
    loop {
        let wanted = state.borrow_and_update().snapshot.health_checks.clone();
        answering.retain(|port, (check, task)| {
            let stays = wanted.get(port) == Some(check);
            if !stays {
                task.abort();
            }
            stays
        });
        // An aborted task has its port until it has ended.
        while ports.len() > answering.len() && ports.join_next().await.is_some() {}
        for (port, check) in wanted {
            if answering.contains_key(&port) {
                continue;
            }
            match listen(port) {
                Ok(listener) => {
                    let task = ports.spawn(accept(listener, check.clone(), state.clone()));
                    answering.insert(port, (check, task));
                }
                Err(error) => {
                    tracing::debug!(port, %error, service = %check.service, "not ours to answer for its health");
                }
            }
        }
        let is_missing = answering.len() < state.borrow().snapshot.health_checks.len();
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if is_missing => {}
        }
    }
}

/// On all addresses of both families, or of IPv4 where there is no IPv6.
fn listen(port: u16) -> io::Result<TcpListener> {
    let listen_on = |socket: TcpSocket, address: IpAddr| {
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(address, port))?;
        socket.listen(BACKLOG)
    };
    match TcpSocket::new_v6() {
        Ok(socket) => listen_on(socket, Ipv6Addr::UNSPECIFIED.into()),
        Err(_) => listen_on(TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into()),
    }
}

async fn accept(listener: TcpListener, check: HealthCheck, state: watch::Receiver<State>) {
    let (mut connections, mut open) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    open.retain(|task| !task.is_finished());
                    if open.len() >= MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                        oldest.abort();
                    }
                    open.push_back(connections.spawn(converse(stream, check.clone(), state.clone())));
                }
                Err(_) => tokio::time::sleep(PAUSE_AFTER_ACCEPT_ERROR).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(stream: TcpStream, check: HealthCheck, state: watch::Receiver<State>) {
    let answer = service_fn(|_| async { Ok::<_, Infallible>(response(&check, &state.borrow())) });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(CONNECTION_TIME).keep_alive(false);
    // A client that went away, or does not end.
    let _ = timeout(CONNECTION_TIME, server.serve_connection(TokioIo::new(stream), answer)).await;
}

/// "200" with a local endpoint, "503" without: the agent is the only one there can be.
fn response(check: &HealthCheck, state: &State) -> Response<Full<Bytes>> {
    let endpoints = u8::from(is_served(check, state));
    let status = if endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let service = json!({"namespace": &*check.service.namespace, "name": &*check.service.name});
    let body = json!({"service": service, "localEndpoints": endpoints, "serviceProxyHealthy": true});
    let mut response = Response::new(Full::from(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(WEIGHT, HeaderValue::from(u16::from(endpoints)));
    response
}

/// True if the data plane serves the Gateway at any address.
fn is_served(check: &HealthCheck, state: &State) -> bool {
    state.snapshot.frontends.iter().any(|(frontend, port)| {
        port.gateway.name == check.gateway && !state.refused.frontends.contains_key(frontend)
    })
}

#[cfg(test)]
#[path = "health_checks_tests.rs"]
mod tests;
