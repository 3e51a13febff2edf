//! `cargo xtask bench http`: every proxy serves the same site at the same time; in each round each
//! is measured once, one after the other.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::backend;
use super::foreign::Snapshot;
use super::library::Counters;
use super::load::Run;
use super::peers::{self, Build, Peer, Running};
use super::plot;
use super::process::{cpu_time, memory};
use super::report::Report;
use super::sample::{Measured, Rounds, Sample};
use super::site::{Site, Size};
use super::workload::{Protocol, WORKLOADS, Workload};

/// The whole takes about half an hour, up to twice that if others disturb it; a fifth when quick.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Fewer and shorter rounds: for a look, not for a claim
    #[arg(long)]
    quick: bool,
    /// Measurements of each proxy in each workload [default: 9, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of one measurement [default: 2, quick: 1]
    #[arg(long)]
    seconds: Option<u64>,
    /// Percent of both CPUs; rounds in which others had more are dropped
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    foreign: f64,
    /// Whom to compare with
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "haproxy,nginx,envoy,relay")]
    peers: Vec<String>,
    /// Another agent to compare with, for a change's cost
    #[arg(long, value_name = "FILE")]
    earlier: Option<PathBuf>,
    /// Only workloads whose name begins like this; repeat for several
    #[arg(long)]
    workload: Vec<String>,
    #[command(flatten)]
    build: Build,
    /// Also write the tables into docs/performance.md, and draw its chart
    #[arg(long)]
    write: bool,
}

/// A proxy that serves a site.
struct Proxy<'a> {
    peer: &'a dyn Peer,
    running: Running,
}

pub(super) fn run(args: &Args) -> Result<()> {
    args.check()?;
    let scratch = super::scratch()?;
    let agent = args.build.portcullis()?;
    let earlier = args.earlier.as_ref().map(|binary| agent.earlier(binary));
    let mut peers = peers::all(agent, &args.peers)?;
    peers.extend(earlier.map(|agent| -> Box<dyn Peer> { Box::new(agent) }));
    let _backend = backend::start(scratch.path())?;
    let mut report = Report::new(&peers, args.rounds())?;
    let mut disturbed = Vec::new();
    for size in [Size::Small, Size::Routes, Size::Certificates] {
        let workloads: Vec<_> = WORKLOADS.iter().filter(|it| it.site == size && args.wants(it)).collect();
        if !workloads.is_empty() {
            let directory = scratch.path().join(format!("{size:?}").to_lowercase());
            disturbed.extend(measure_site(size, &directory, &peers, &workloads, &mut report)?);
        }
    }
    println!("{}", report.text());
    if args.write {
        report.write()?;
        plot::draw()?;
    }
    ensure!(disturbed.is_empty(), "too much foreign CPU time to measure: {}", disturbed.join("; "));
    Ok(())
}

/// Returns the titles of workloads of which too little is left once disturbed rounds are dropped.
fn measure_site(
    size: Size,
    directory: &Path,
    peers: &[Box<dyn Peer>],
    workloads: &[&'static Workload],
    report: &mut Report,
) -> Result<Vec<&'static str>> {
    println!("bench: a site of {} routes and {} certificates", size.routes(), size.certificates());
    let site = Site::create(size, &directory.join("site"))?;
    let proxies: Vec<_> =
        peers.iter().map(|peer| start(peer.as_ref(), &site, directory)).collect::<Result<_>>()?;
    let mut disturbed = Vec::new();
    for workload in workloads {
        println!("bench: {}", workload.title);
        let measured = measure_workload(workload, &proxies, &report.rounds, directory)?;
        // A round or two have no interval to speak of.
        if measured.kept() * 2 < report.rounds.count {
            disturbed.push(workload.title);
        } else {
            report.add(measured);
        }
    }
    Ok(disturbed)
}

/// Repeats rounds that were disturbed, as many as were asked for at most.
fn measure_workload(
    workload: &'static Workload,
    proxies: &[Proxy<'_>],
    rounds: &Rounds,
    scratch: &Path,
) -> Result<Measured> {
    // For caches and pools, and not counted.
    measure_round(workload, 0, proxies, rounds.duration, scratch)?;
    let mut measured = Measured::new(workload, proxies.len());
    let before = Counters::read(&proxies[0].running)?;
    for round in 1..=2 * rounds.count {
        if measured.kept() == rounds.count {
            break;
        }
        let samples = measure_round(workload, round, proxies, rounds.duration, scratch)?;
        if samples.iter().any(|(_, sample)| sample.foreign > rounds.foreign) {
            measured.dropped += 1;
        } else {
            samples.into_iter().for_each(|(proxy, sample)| measured.samples[proxy].push(sample));
        }
    }
    if workload.load.protocol != Protocol::Http2 {
        measured.by_library = Some(Counters::read(&proxies[0].running)?.share_since(&before));
    }
    Ok(measured)
}

fn start<'a>(peer: &'a dyn Peer, site: &Site, directory: &Path) -> Result<Proxy<'a>> {
    let running = peers::serve(peer, site, &directory.join(peer.name()))?;
    Ok(Proxy { peer, running })
}

/// Measures each proxy once; samples are by the proxy's number. The first one changes from round to
/// round, so that none always runs after the same neighbour.
fn measure_round(
    workload: &Workload,
    round: usize,
    proxies: &[Proxy<'_>],
    duration: Duration,
    scratch: &Path,
) -> Result<Vec<(usize, Sample)>> {
    let turns = (0..proxies.len()).map(|turn| (turn + round) % proxies.len());
    let serving = turns.filter(|&at| proxies[at].peer.serves(&workload.load));
    let samples = serving.map(|at| {
        let sample = measure(workload, round, &proxies[at], duration, scratch);
        Ok((at, sample.with_context(|| format!("{}, {}", proxies[at].peer.name(), workload.title))?))
    });
    samples.collect()
}

fn measure(
    workload: &Workload,
    round: usize,
    proxy: &Proxy<'_>,
    duration: Duration,
    scratch: &Path,
) -> Result<Sample> {
    const SETTLE: Duration = Duration::from_millis(100);
    thread::sleep(SETTLE);
    let pid = proxy.running.pid();
    let others = Snapshot::take()?;
    let before = cpu_time(pid)?;
    let run = Run {
        load: workload.load,
        address: proxy.peer.address(),
        duration,
        routes: workload.site.routes(),
        certificates: workload.site.certificates(),
        round,
        scratch,
    };
    let seen = run.make()?;
    let used = cpu_time(pid)?.saturating_sub(before);
    Ok(Sample {
        cpu: used.as_secs_f64() * 1e6 / seen.requests.max(1) as f64,
        rate: seen.requests as f64 / seen.seconds,
        p50: seen.p50,
        p99: seen.p99,
        failed: seen.failed,
        memory: memory(pid)?,
        foreign: others.share_since()? * 100.0,
    })
}

impl Args {
    fn rounds(&self) -> Rounds {
        let (count, seconds) = if self.quick { (3, 1) } else { (9, 2) };
        Rounds {
            count: self.rounds.unwrap_or(count).max(1),
            duration: Duration::from_secs(self.seconds.unwrap_or(seconds)),
            foreign: self.foreign,
        }
    }

    fn check(&self) -> Result<()> {
        let names = || WORKLOADS.iter().map(|it| it.name);
        let known = |begin: &str| names().any(|name| name.starts_with(begin));
        let unknown = self.workload.iter().find(|begin| !known(begin));
        unknown.map_or(Ok(()), |begin| {
            bail!("no workload begins like {begin:?}: there are {}", names().collect::<Vec<_>>().join(", "))
        })
    }

    fn wants(&self, workload: &Workload) -> bool {
        self.workload.is_empty() || self.workload.iter().any(|name| workload.name.starts_with(name.as_str()))
    }
}
