//! `cargo xtask bench start`: every proxy is started, on one CPU, on a site of 10,000 routes and
//! 1,000 certificates. Measured is the time until it answers for the last of them, and what that
//! cost.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::peers::{self, Build, Peer};
use super::process::{cpu_time, memory};
use super::report::machine;
use super::sample::median;
use super::site::{HTTPS_PORT, MANY, Site, Size, host_name, path};
use super::{backend, document};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Starts of each proxy
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Whom to compare with
    #[arg(long, value_delimiter = ',', default_value = "haproxy,nginx,envoy")]
    peers: Vec<String>,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// One start.
#[derive(Clone, Copy)]
struct Sample {
    /// Seconds until the last route and the last certificate answered.
    answers: f64,
    /// Seconds of CPU time.
    cpu: f64,
    /// Resident memory in MB.
    memory: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let peers = peers::all(args.build.portcullis()?, &args.peers)?;
    let _backend = backend::start(scratch.path())?;
    let site = Site::create(Size::Full, &scratch.path().join("site"))?;
    let directory = |peer: &dyn Peer| scratch.path().join(peer.name());
    for peer in &peers {
        fs::create_dir(directory(peer.as_ref()))?;
        peer.configure(&site, &directory(peer.as_ref()))?;
    }
    let mut samples = vec![Vec::new(); peers.len()];
    for _ in 0..args.rounds.max(1) {
        for (peer, samples) in peers.iter().zip(&mut samples) {
            samples.push(start(peer.as_ref(), &directory(peer.as_ref()))?);
        }
    }
    let text = report(&peers, &samples);
    println!("{text}");
    if args.write { document::replace("start", &text) } else { Ok(()) }
}

/// It ends with its sample.
fn start(peer: &dyn Peer, directory: &Path) -> Result<Sample> {
    let last_route = peers::url(peer, &path(Size::Full.routes() - 1));
    let last_host = host_name(Size::Full.certificates() - 1);
    let resolve = format!("{last_host}:{HTTPS_PORT}:{}", peer.address());
    let last_certificate = format!("https://{last_host}:{HTTPS_PORT}/");
    let begin = Instant::now();
    let running = peer.start(directory)?;
    peers::wait_answer(peer, &running, &["-H", &format!("Host: {MANY}"), &last_route])?;
    peers::wait_answer(peer, &running, &["--insecure", "--resolve", &resolve, &last_certificate])?;
    let answers = begin.elapsed().as_secs_f64();
    let cpu = cpu_time(running.pid())?.as_secs_f64();
    Ok(Sample { answers, cpu, memory: memory(running.pid())? })
}

fn report(peers: &[Box<dyn Peer>], samples: &[Vec<Sample>]) -> String {
    let mut text = format!("{}; medians of {} starts.\n\n", machine(), samples[0].len());
    text += "| | s until the last answers | CPU s | RSS MB |\n|---|---|---|---|\n";
    for (peer, samples) in peers.iter().zip(samples) {
        let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value).collect());
        let (answers, cpu, memory) = (of(|it| it.answers), of(|it| it.cpu), of(|it| it.memory));
        text += &format!("| {} | {answers:.2} | {cpu:.2} | {memory:.0} |\n", peer.name());
    }
    text
}
