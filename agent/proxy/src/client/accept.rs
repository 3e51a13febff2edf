//! Accept loops: one task per listening socket and core.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::connection;
use crate::core::vital::vital;
use crate::thread::Core;

/// Out of descriptors or memory: give connections time to close.
const EXHAUSTED: Duration = Duration::from_millis(50);

pub(crate) fn spawn(core: &Rc<Core>, listener: TcpListener) -> JoinHandle<()> {
    tokio::task::spawn_local(vital(accept_forever(core.clone(), listener)))
}

async fn accept_forever(core: Rc<Core>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                core.counters.accepted.increment();
                core.connections.spawn_local(connection::serve(core.clone(), stream, peer));
            }
            Err(error) => {
                core.counters.accept_errors.increment();
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
