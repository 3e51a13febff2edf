//! The API server stops for two minutes under load, and the agent is restarted meanwhile.

use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::http::Connection;
use crate::latency::milliseconds;
use crate::load::{Load, Seen};
use crate::site::{Site, host, is_told};
use crate::{Bench, ask};

/// While no agent serves.
struct Gap {
    from: Instant,
    until: Instant,
}

pub(crate) async fn measure(bench: &Bench) {
    let outage = Duration::from_secs(bench.choose(120, 12));
    let site = Site::create(bench).await;
    // What is kept on disk is written a little later.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let load = Load::start(site.address, &host("first"));
    ask("stop apiserver");
    let stopped = Instant::now();
    std::thread::sleep(outage / 2);
    let (site, gap) = restart(bench, site);
    std::thread::sleep(outage.saturating_sub(stopped.elapsed()));
    ask("start apiserver");
    let out = stopped.elapsed();
    let (ready, served, told) = converge(&site).await;
    let seen = load.finish();
    report(out, &gap, &seen, [ready, served, told]);
    site.remove().await;
}

fn restart(bench: &Bench, site: Site) -> (Site, Gap) {
    let Site { fixture, agent, address } = site;
    let from = Instant::now();
    agent.stop();
    let agent = Agent::start(bench, &fixture);
    let mut connection = Connection::to(address);
    while connection.get(&host("first"), "/").ok() != Some(200) {
        assert!(from.elapsed() < Duration::from_secs(30), "the restarted agent does not serve");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!agent.is_ready(), "there is no API server");
    (Site { fixture, agent, address }, Gap { from, until: Instant::now() })
}

/// Until the API server answers questions about routes again.
async fn back(site: &Site) -> Instant {
    while site.fixture.api("HTTPRoute").get_opt("first").await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Instant::now()
}

/// After the API server is back: until the agent has read everything, and until the route is served
/// and told so.
async fn converge(site: &Site) -> (Duration, Duration, Duration) {
    let back = back(site).await;
    site.create_route("new").await;
    let mut connection = Connection::to(site.address);
    let mut served = None;
    while served.is_none() || !site.agent.is_ready() {
        assert!(back.elapsed() < Duration::from_secs(60), "nothing converges");
        if served.is_none() && connection.get(&host("new"), "/").ok() == Some(200) {
            served = Some(back.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let ready = back.elapsed();
    site.until("HTTPRoute", "new", is_told).await;
    (ready, served.unwrap_or_default(), back.elapsed())
}

fn report(out: Duration, gap: &Gap, seen: &Seen, [ready, served, told]: [Duration; 3]) {
    let in_gap = |asked: &&Instant| **asked + Duration::from_secs(2) >= gap.from && **asked <= gap.until;
    let in_gap = seen.failed.iter().filter(in_gap).count();
    println!(
        "| API server away, s | requests answered | failed outside of the restart | failed in it | restart: from SIGTERM to the first answer, ms |"
    );
    println!("|---|---|---|---|---|");
    let restarted = milliseconds(gap.until - gap.from);
    let outside = seen.failed.len() - in_gap;
    println!(
        "| {:.0} | {} | **{outside}** | {in_gap} | {restarted:.0} |\n",
        out.as_secs_f64(),
        seen.answered
    );
    println!(
        "| after the API server is back, ms: | everything read and applied | new route served | new route's status written |"
    );
    println!("|---|---|---|---|");
    println!("| | {:.0} | {:.0} | {:.0} |", milliseconds(ready), milliseconds(served), milliseconds(told));
}
