//! Endpoints that come and go abruptly, at a thousand requests a second: what is on its way at such
//! an endpoint is asked again of another one, where it may be asked twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_model::BackendProtocol;
use tokio::task::JoinSet;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

/// Clients, each with a request every 20 ms: a thousand a second.
const CLIENTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
const FLIPS: usize = 10;
/// Requests from one flip to the next.
const BETWEEN: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Flip {
    /// The only endpoint has another one in its place, and ends the moment that is known.
    Replaced,
    /// One of two ends before it is known, which the data plane then has to find out.
    Killed,
}

/// Requests that are over, and those that were answered with an error, or by a response that broke
/// off with its endpoint.
#[derive(Clone, Default)]
struct Counts {
    answered: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Counts {
    /// Waits for so many more answers.
    async fn more(&self, requests: usize) {
        let most = self.answered.load(Ordering::SeqCst) + requests;
        eventually("answers", async || self.answered.load(Ordering::SeqCst) >= most).await;
    }
}

async fn ask(counts: Counts, via: Via, port: SocketAddr) {
    let mut client = Client::connect(via, port, "any.test").await;
    let mut turns = tokio::time::interval(PAUSE);
    while !counts.is_over.load(Ordering::SeqCst) {
        turns.tick().await;
        // Some are on their way to the endpoint at any time.
        let reply = client.try_send("GET /?delay=5").await;
        if reply.is_err() {
            client = Client::connect(via, port, "any.test").await;
        }
        let is_failed = reply.map_or(true, |reply| reply.status != 200);
        counts.failed.fetch_add(usize::from(is_failed), Ordering::SeqCst);
        counts.answered.fetch_add(1, Ordering::SeqCst);
    }
}

async fn origin(protocol: BackendProtocol) -> Origin {
    match protocol {
        BackendProtocol::Http1 => Origin::http1().await,
        BackendProtocol::H2c | BackendProtocol::Negotiated => Origin::h2c().await,
    }
}

async fn serve(world: &mut World, protocol: BackendProtocol, origins: &[Origin]) {
    let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    world.backend("echo", protocol, &addresses);
    world.apply().await;
}

/// "Flips at 1,000 requests/s: at most one failed idempotent request a flip."
#[tokio::test(flavor = "multi_thread")]
async fn a_flip_fails_one_request_at_most() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        for flip in [Flip::Replaced, Flip::Killed] {
            let mut origins = vec![origin(protocol).await];
            if let Flip::Killed = flip {
                origins.push(origin(protocol).await);
            }
            let mut world = World::new();
            world.http("*", vec![rule()]);
            world.https("*", vec![rule()]);
            serve(&mut world, protocol, &origins).await;
            let (counts, mut clients) = (Counts::default(), JoinSet::new());
            for at in 0..CLIENTS {
                let via = Via::ALL[at % Via::ALL.len()];
                let port = if matches!(via, Via::Http1 | Via::H2c) { world.plain } else { world.tls };
                clients.spawn(ask(counts.clone(), via, port));
            }
            counts.more(BETWEEN).await;
            for _ in 0..FLIPS {
                let ended = origins.remove(0);
                if let Flip::Killed = flip {
                    drop(ended);
                    counts.more(BETWEEN).await;
                    origins.push(origin(protocol).await);
                    serve(&mut world, protocol, &origins).await;
                } else {
                    origins.push(origin(protocol).await);
                    serve(&mut world, protocol, &origins).await;
                    drop(ended);
                }
                counts.more(BETWEEN).await;
            }
            counts.is_over.store(true, Ordering::SeqCst);
            while let Some(ended) = clients.join_next().await {
                ended.unwrap();
            }
            let [answered, failed] = [&counts.answered, &counts.failed].map(|it| it.load(Ordering::SeqCst));
            println!("{protocol:?} {flip:?}: {failed} of {answered} requests failed in {FLIPS} flips");
            assert!(failed <= FLIPS, "{protocol:?} {flip:?}: {failed} of {answered} failed");
        }
    }
}
