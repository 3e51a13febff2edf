//! What thousands of Secrets cost that nothing refers to.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;

use crate::Bench;
use crate::agent::Agent;
use crate::site::{Site, is_told};

const SIZE: usize = 32 << 10;

pub(crate) async fn measure(bench: &Bench) {
    let secrets = bench.choose(5_000, 500);
    let site = Site::create(bench).await;
    let before = settled(&site, "before").await;
    create(&site, secrets).await;
    let heard = settled(&site, "after").await;
    let Site { fixture, agent, address } = site;
    agent.stop();
    let mut agent = Agent::start(bench, &fixture);
    agent.await_ready();
    let site = Site { fixture, agent, address };
    let listed = settled(&site, "again").await;
    println!(
        "| Secrets of 32 KB that nothing refers to | RSS before, MB | after hearing of them | after a restart that lists them |"
    );
    println!("|---|---|---|---|");
    println!(
        "| {secrets} | {before:.1} | {heard:.1} ({:+.1}) | {listed:.1} ({:+.1}) |",
        heard - before,
        listed - before
    );
    site.remove().await;
}

/// The agent's memory once it has nothing to do.
async fn settled(site: &Site, route: &str) -> f64 {
    site.create_route(route).await;
    site.until("HTTPRoute", route, is_told).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    site.agent.resident()
}

async fn create(site: &Site, secrets: usize) {
    let data = json!({"data": {"a": "A".repeat(SIZE / 3 * 4)}});
    let create = |number: usize| {
        let data = data.clone();
        async move { drop(site.fixture.create("Secret", &format!("s{number}"), data).await) }
    };
    futures::stream::iter(0..secrets).for_each_concurrent(8, create).await;
}
