//! The leader is killed: how long until another agent has written.

use std::time::{Duration, Instant};

use portcullis_control::lease::Timing;
use serde_json::json;

use crate::Bench;
use crate::in_process::Agent as Other;
use crate::latency::milliseconds;
use crate::site::{Site, is_programmed};

pub(crate) async fn measure(bench: &Bench) {
    let timing = Timing::default();
    println!("Leases are valid for {} s.\n", timing.valid_for.as_secs());
    println!("| leader killed | another leads after s | and has programmed a new Gateway after s |");
    println!("|---|---|---|");
    for round in 1..=bench.choose(3, 1) {
        let site = Site::create(bench).await;
        let other = Other::start_timed(&site.fixture, "other", timing);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!*other.leading.borrow(), "there is one leader");
        let Site { fixture, agent, .. } = site;
        agent.kill();
        let killed = Instant::now();
        let _ = other.leading.clone().wait_for(|leads| *leads).await;
        let leads = killed.elapsed();
        fixture.gateway("more", json!({})).await;
        fixture.until("Gateway", "more", is_programmed).await;
        let [leads, wrote] = [leads, killed.elapsed()].map(|time| milliseconds(time) / 1e3);
        println!("| {round} | {leads:.1} | {wrote:.1} |");
        drop(other);
        fixture.remove().await;
    }
}
