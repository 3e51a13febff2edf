//! A thousand routes at once: how often the Gateway's status is written, and how soon after the
//! last route it is right.

use std::time::Instant;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};

use crate::Bench;
use crate::latency::milliseconds;
use crate::site::{GATEWAY, Site};

const ROUTES: usize = 1_000;

pub(crate) async fn measure(bench: &Bench) {
    println!(
        "| routes | created within s | writes of the Gateway | `attachedRoutes` right after the last, ms |"
    );
    println!("|---|---|---|---|");
    for _ in 0..bench.choose(5, 1) {
        let site = Site::create(bench).await;
        round(&site).await;
        site.remove().await;
    }
}

async fn round(site: &Site) {
    // The route that the site begins with is the first.
    let counting = count(site);
    let creating = async {
        let began = Instant::now();
        site.create_routes("many", 1..ROUTES).await;
        (began, Instant::now())
    };
    let ((writes, right), (began, last)) = tokio::join!(counting, creating);
    let late = milliseconds(right.saturating_duration_since(last));
    println!("| {ROUTES} | {:.1} | {writes} | {late:.0} |", (last - began).as_secs_f64());
}

/// Writes until the count is right, and when it was.
async fn count(site: &Site) -> (usize, Instant) {
    let config = watcher::Config::default().fields(&format!("metadata.name={GATEWAY}"));
    let mut events = std::pin::pin!(watcher::watcher(site.fixture.api("Gateway"), config));
    let mut writes = 0;
    loop {
        if let Ok(Event::Apply(gateway)) = events.next().await.expect("a watch goes on") {
            writes += 1;
            if gateway.data["status"]["listeners"][0]["attachedRoutes"] == ROUTES {
                return (writes, Instant::now());
            }
        }
    }
}
