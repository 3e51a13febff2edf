//! Accept loops: one task per listening socket and core.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::core::log_limit::LogLimit;
use crate::core::stats::CoreCounters;

/// Out of descriptors or memory: give connections time to close.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Hands on every connection that comes to the socket.
pub(crate) async fn accept_forever(
    listener: TcpListener,
    counters: Rc<CoreCounters>,
    serve: impl Fn(TcpStream, SocketAddr),
) {
    let logged = LogLimit::default();
    loop {
        let error = match listener.accept().await {
            Ok((stream, peer)) => {
                counters.accepted.increment();
                serve(stream, peer);
                continue;
            }
            Err(error) => error,
        };
        counters.accept_errors.increment();
        match error.kind() {
            // These concern one connection.
            ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted => {}
            _ => {
                if logged.is_due() {
                    tracing::warn!(%error, "cannot accept connections: raise the limit of open files (ulimit -n)");
                }
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}
