//! Accept loops: one task per listening socket and core.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::core::stats::CoreCounters;

/// Out of descriptors or memory: give connections time to close.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Hands on every connection that comes to the socket.
pub(crate) async fn accept_forever(
    listener: TcpListener,
    counters: Rc<CoreCounters>,
    serve: impl Fn(TcpStream, SocketAddr),
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                counters.accepted.increment();
                serve(stream, peer);
            }
            Err(error) => {
                counters.accept_errors.increment();
                if !concerns_one_connection(&error) {
                    tracing::warn!(%error, "cannot accept connections: raise the limit of open files (ulimit -n)");
                    tokio::time::sleep(EXHAUSTED).await;
                }
            }
        }
    }
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
