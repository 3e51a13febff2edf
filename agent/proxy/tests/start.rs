//! A data plane starts whole or not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::Snapshot;
use portcullis_proxy::{Proxy, Settings, SocketMode};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: usize = 256;

/// All descriptors that this process may still open, but for some.
fn all_but(free: usize) -> Vec<File> {
    let mut taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).take(LIMIT).collect();
    taken.truncate(taken.len() - free);
    taken
}

/// A connection that no listener is for is closed; by a core that is not there, it is not.
async fn is_served(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    timeout(Duration::from_secs(50), stream.read_to_end(&mut Vec::new())).await.is_ok()
}

/// Whatever cannot be opened: a core that was missing would go unnoticed, with its share of the
/// connections.
#[tokio::test]
async fn without_descriptors_it_does_not_start() {
    let mut command = Command::new("prlimit");
    command.arg(format!("--pid={}", std::process::id())).arg(format!("--nofile={LIMIT}:"));
    assert!(command.status().unwrap().success());
    for free in 0.. {
        assert!(free < 100, "it never starts");
        let taken = all_but(free);
        let started =
            Proxy::start(Settings { cores: 2, sockets: SocketMode::Steered, ..Settings::default() });
        let Ok(proxy) = started else { continue };
        assert!(free > 0, "without any descriptor");
        proxy.apply(Arc::new(Snapshot::default())).await;
        drop(taken);
        for core in proxy.sockets().iter() {
            let address = core.v4.local_addr().unwrap();
            assert!(is_served(address).await, "with {free} descriptors, no core accepts at {address}");
        }
        return;
    }
}
