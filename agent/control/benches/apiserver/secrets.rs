//! The cost of thousands of Secrets that nothing refers to: the same agent before and after it
//! hears of them, and a restarted one without and with a list of them.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use serde_json::json;

use crate::Bench;
use crate::agent::Agent;
use crate::site::{Site, is_told};

const SIZE: usize = 32 << 10;
/// The allocator gives memory back within 10 s. What has not moved for longer than that is settled
/// …
const POLLS: usize = 15;
const POLL: Duration = Duration::from_secs(1);
/// … but for so many MB.
const STEADY: f64 = 0.3;
/// Number of polls to wait for that.
const MAX_POLLS: usize = 120;

pub(crate) async fn measure(bench: &Bench) {
    let secrets = bench.choose(5_000, 500);
    let site = restarted(bench, Site::create(bench).await);
    let restarted_before = settled(&site, "restarted-before").await;
    let before = settled(&site, "before").await;
    create(&site, secrets).await;
    let heard = settled(&site, "after").await;
    let site = restarted(bench, site);
    let listed = settled(&site, "restarted-after").await;
    println!(
        "{secrets} Secrets of 32 KB. RSS is taken when it has moved less than {STEADY} MB in {POLLS} s.\n"
    );
    println!("| RSS, MB | without the Secrets | with them | difference |");
    println!("|---|---|---|---|");
    report("the same agent, which hears of each", before, heard);
    report("a restarted agent, which lists them", restarted_before, listed);
    site.remove().await;
}

fn report(what: &str, before: f64, after: f64) {
    println!("| {what} | {before:.1} | {after:.1} | **{:+.1}** |", after - before);
}

fn restarted(bench: &Bench, site: Site) -> Site {
    let Site { fixture, agent, address } = site;
    agent.stop();
    let mut agent = Agent::start(bench, &fixture);
    agent.await_ready();
    Site { fixture, agent, address }
}

/// The agent's memory once it has served another route and then has nothing to do.
async fn settled(site: &Site, route: &str) -> f64 {
    site.create_route(route).await;
    site.until("HTTPRoute", route, is_told).await;
    let mut last = VecDeque::new();
    for _ in 0..MAX_POLLS {
        tokio::time::sleep(POLL).await;
        last.push_back(site.agent.resident());
        if last.len() > POLLS {
            last.pop_front();
        }
        let span =
            last.iter().copied().fold(f64::MIN, f64::max) - last.iter().copied().fold(f64::MAX, f64::min);
        if last.len() == POLLS && span < STEADY {
            break;
        }
    }
    eprintln!("{route}: {last:.1?}");
    assert_eq!(last.len(), POLLS);
    last.back().copied().unwrap()
}

async fn create(site: &Site, secrets: usize) {
    let data = json!({"data": {"a": "A".repeat(SIZE / 3 * 4)}});
    let create = |number: usize| {
        let data = data.clone();
        async move { drop(site.fixture.create("Secret", &format!("s{number}"), data).await) }
    };
    futures::stream::iter(0..secrets).for_each_concurrent(8, create).await;
}
