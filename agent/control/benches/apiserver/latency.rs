//! From the creation of a route to its first correct answer, next to when a bare watch has it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;

use crate::Bench;
use crate::http::Connection;
use crate::site::{Site, host};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two questions of the client.
const POLL: Duration = Duration::from_micros(200);
/// Statuses of the route before are written meanwhile.
const PAUSE: Duration = Duration::from_millis(60);

struct Round {
    watched: Duration,
    answered: Duration,
}

pub(crate) async fn measure(bench: &Bench) {
    let site = Site::create(bench).await;
    println!("Data path: {}.\n", site.agent.datapath());
    println!(
        "| routes | rounds | bare watch p50 ms | p99 ms | first correct answer p50 ms | p99 ms | answer − watch p50 ms | p99 ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut heard = watch(&site);
    let mut routes = 0;
    for more in bench.choose(vec![0, 1_000, 5_000], vec![0, 500]) {
        site.create_routes("bulk", routes..more).await;
        routes = more;
        if routes > 0 {
            site.await_attached(routes + 1, &format!("bulk-{}", routes - 1)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        report(routes, &rounds(&site, &mut heard, routes, bench.choose(200, 50)).await);
    }
    site.remove().await;
}

async fn rounds(site: &Site, heard: &mut Heard, routes: usize, count: usize) -> Vec<Round> {
    let mut rounds = Vec::with_capacity(count);
    for number in 0..count {
        let name = format!("probe-{routes}-{number}");
        let answered = tokio::task::spawn_blocking({
            let (to, host) = (site.address, host(&name));
            move || first_answer(to, &host)
        });
        tokio::time::sleep(PAUSE).await;
        let began = Instant::now();
        let (_, watched, answered) = tokio::join!(site.create_route(&name), hears(heard, &name), answered);
        rounds.push(Round { watched: watched - began, answered: answered.unwrap() - began });
        site.fixture.delete("HTTPRoute", &name).await;
    }
    rounds
}

fn first_answer(to: SocketAddr, host: &str) -> Instant {
    let mut connection = Connection::to(to);
    let deadline = Instant::now() + TIMEOUT;
    while connection.get(host, "/").ok() != Some(200) {
        assert!(Instant::now() < deadline, "{host} is not served");
        std::thread::sleep(POLL);
    }
    Instant::now()
}

type Heard = mpsc::UnboundedReceiver<(String, Instant)>;

/// Names of routes, when a watch that does nothing else has them.
fn watch(site: &Site) -> Heard {
    let events = watcher::watcher(site.fixture.api("HTTPRoute"), watcher::Config::default());
    let (to, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(route)) = event {
                let _ = to.send((route.metadata.name.unwrap_or_default(), Instant::now()));
            }
        }
    });
    heard
}

async fn hears(heard: &mut Heard, name: &str) -> Instant {
    loop {
        let (heard, at) = heard.recv().await.expect("the watch goes on");
        if heard == name {
            return at;
        }
    }
}

fn report(routes: usize, rounds: &[Round]) {
    let watched = sorted(rounds, |round| milliseconds(round.watched));
    let answered = sorted(rounds, |round| milliseconds(round.answered));
    let behind = sorted(rounds, |round| milliseconds(round.answered) - milliseconds(round.watched));
    let [watched, answered, behind] = [watched, answered, behind].map(|times| {
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        format!("{:.1} | {:.1}", at(50), at(99))
    });
    println!("| {routes} | {} | {watched} | {answered} | {behind} |", rounds.len());
}

fn sorted(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
