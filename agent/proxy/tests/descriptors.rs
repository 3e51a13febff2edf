//! Clients that open connections until nothing is left: others are served none the less. Alone in
//! its process, whose descriptors are counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;

use portcullis_model::BackendProtocol;
use portcullis_proxy::Settings;
use support::origin::Origin;
use support::rules::rule;
use support::settings::settings;
use support::via::{Client, Via};
use support::world::{World, eventually};
use tokio::net::TcpStream;

/// Descriptors that may be opened until clients have to wait.
const FREE: usize = 64;

#[tokio::test]
async fn clients_do_not_take_the_descriptors_of_backends() {
    // Of this process, which has backend and clients in it, too.
    let next = File::open("/dev/null").unwrap().as_raw_fd() as usize;
    let settings = Settings { client_descriptors: (next + FREE) as u64, ..settings() };
    let mut world = World::with(settings);
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let mut early = Client::connect(Via::Http1, world.plain, "any.test").await;
    assert_eq!(early.send("GET /").await.status, 200);
    // They say nothing, and each has two descriptors here.
    let mut silent = Vec::new();
    for _ in 0..FREE {
        silent.push(TcpStream::connect(world.plain).await.unwrap());
    }
    eventually("the accept loop pauses", async || world.proxy.stats().await.accept_errors > 0).await;
    let accepted = world.proxy.stats().await.accepted;
    assert!(accepted < FREE as u64 / 2 + 2, "{accepted} are taken in");
    assert_eq!(early.send("GET /").await.status, 200, "there are descriptors for the backend");
    let mut late = Client::connect(Via::Http1, world.plain, "any.test").await;
    let waiting = tokio::spawn(async move { late.send("GET /").await.status });
    drop(silent);
    assert_eq!(waiting.await.unwrap(), 200, "who waits is taken in when others have gone");
}
