//! Accept loops: one task per listening socket and core. They stop before the process is out of
//! descriptors: clients alone could use them all up, and requests need some for backends.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::core::log_limit::LogLimit;
use crate::core::stats::CoreCounters;

/// Out of descriptors or memory: give connections time to close.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Hands on every connection that comes to the socket, as long as no descriptor is numbered
/// `descriptors` or higher.
pub(crate) async fn accept_forever(
    listener: Rc<TcpListener>,
    descriptors: u64,
    counters: Rc<CoreCounters>,
    serve: impl Fn(TcpStream, SocketAddr),
) {
    let logged = LogLimit::default();
    loop {
        let error = match listener.accept().await {
            Ok((stream, peer)) => {
                counters.accepted.increment();
                if !is_below(&stream, descriptors) {
                    counters.accept_errors.increment();
                    if logged.is_due() {
                        tracing::warn!(
                            "no client is taken in while {descriptors} descriptors are open, the rest is for \
                             backends: raise the limit of open files (ulimit -Hn)"
                        );
                    }
                    wait_for_descriptors(&stream, descriptors).await;
                }
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
                    tracing::warn!(%error, "cannot accept connections: raise the limit of open files (ulimit -Hn)");
                }
                tokio::time::sleep(EXHAUSTED).await;
            }
        }
    }
}

/// The kernel gives the lowest number that is free, so the latest one tells how many are in use.
fn is_below(latest: &impl AsRawFd, descriptors: u64) -> bool {
    u64::try_from(latest.as_raw_fd()).is_ok_and(|number| number < descriptors)
}

async fn wait_for_descriptors(stream: &TcpStream, descriptors: u64) {
    loop {
        tokio::time::sleep(EXHAUSTED).await;
        let lowest_free = rustix::io::fcntl_dupfd_cloexec(stream.as_fd(), 0);
        if lowest_free.is_ok_and(|copy| is_below(&copy, descriptors)) {
            return;
        }
    }
}
