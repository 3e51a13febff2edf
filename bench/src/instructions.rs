//! `cargo xtask bench instructions`: user instructions that the agent spends on a request, by
//! callgrind. They are the same on a busy machine and on an idle one, so a change that costs two in
//! a hundred shows without a quiet machine and many rounds. They are not time: what the kernel
//! does, and caches, are the business of `bench http`.
//!
//! One agent on ordinary sockets, one core, one connection, one request at a time. Counted are a
//! short run and a long one; the difference is what requests cost, without all that runs have in
//! common.

mod backend;
mod callgrind;
mod recorded;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{Authority, Datapath, Launch, pin_directory};

use self::backend::AGENT;
use self::callgrind::Callgrind;
use self::recorded::Recorded;
use super::client::{Client, Target};
use super::load::POST;
use super::manifests::Manifests;
use super::random::Random;
use super::site::{MANY, ONE, Site, Size, path};
use super::workload::BROWSER;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 93));
const BACKEND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 94)), 9090);
/// Requests of the two runs whose difference counts.
const SHORT: u64 = 50;
const LONG: u64 = 250;
/// Pairs of runs; the median counts.
const PAIRS: usize = 5;
const WARM_UP: u64 = 200;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// An agent that is built already; repeat to compare several with the first [default: build
    /// one without link-time optimisation]
    #[arg(long, value_name = "FILE")]
    agent: Vec<PathBuf>,
    /// Fail if a request costs over 2 % more or less than recorded in bench/instructions.json
    #[arg(long)]
    check: bool,
    /// Record what got cheaper, and what was never recorded
    #[arg(long, conflicts_with = "check")]
    update: bool,
    /// Write what 250 requests cost, function by function, into a file per workload, for
    /// callgrind_annotate
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

/// Kinds of requests; the names are those of the recorded numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    Http1,
    Http1TwelveHeaders,
    Post,
    Https,
    Http2,
    Routes,
}

const WORKLOADS: [Workload; 6] = [
    Workload::Http1,
    Workload::Http1TwelveHeaders,
    Workload::Post,
    Workload::Https,
    Workload::Http2,
    Workload::Routes,
];

/// Instructions per request: one value for each pair of runs.
struct Measured {
    workload: Workload,
    pairs: Vec<f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Without link-time optimisation, which takes most of the time of a build, a request takes a
    // third more instructions: what a change costs shows just as well.
    let agents = match &args.agent[..] {
        [] => vec![build::static_program(Profile::Quick)?],
        agents => agents.to_vec(),
    };
    backend::start(BACKEND)?;
    let keep = args.keep.as_deref();
    if let Some(keep) = keep {
        std::fs::create_dir_all(keep).with_context(|| format!("cannot create {}", keep.display()))?;
    }
    let measured = agents.iter().map(|agent| measure(agent, keep)).collect::<Result<Vec<_>>>()?;
    print(&agents, &measured);
    let recorded = Recorded::read()?;
    if args.check {
        measured.iter().try_for_each(|of_agent| recorded.check(of_agent))?;
    }
    if args.update { recorded.updated(&measured[0])?.write() } else { Ok(()) }
}

fn measure(binary: &Path, keep: Option<&Path>) -> Result<Vec<Measured>> {
    let scratch = tempfile::Builder::new().prefix("portcullis-instructions-").tempdir()?;
    let config = scratch.path().join("config");
    let site = Site::create(Size::Routes, &scratch.path().join("site"))?;
    Manifests { address: VIP, backend: BACKEND }.write(&site, &config)?;
    let counts = scratch.path().join("counts");
    std::fs::create_dir(&counts)?;
    let launch = Launch {
        binary: std::path::absolute(binary)?,
        config,
        scratch: scratch.path().to_owned(),
        pins: pin_directory("instructions"),
        datapath: Datapath::Userspace,
        interface: "none".to_owned(),
        arguments: vec![
            "--cores".into(),
            "1".into(),
            "--log".into(),
            "warn".into(),
            "--beside-others".into(),
        ],
        through: Vec::new(),
    };
    println!("bench: starting {} under callgrind, with {} routes", binary.display(), site.routes);
    let callgrind = Callgrind::start(launch, &counts)?;
    *AGENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(callgrind.threads());
    let measured = WORKLOADS.into_iter().map(|workload| {
        let pairs = workload.measure(&callgrind, &site.authority, keep)?;
        Ok(Measured { workload, pairs })
    });
    measured.collect()
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http1TwelveHeaders => "http1-12-headers",
            Self::Post => "http1-post",
            Self::Https => "https",
            Self::Http2 => "http2",
            Self::Routes => "routes",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1, one header",
            Self::Http1TwelveHeaders => "HTTP/1.1, twelve headers",
            Self::Post => "HTTP/1.1, POST of 512 bytes",
            Self::Https => "HTTPS (HTTP/1.1)",
            Self::Http2 => "HTTP/2 over TLS",
            Self::Routes => "HTTP/1.1, a random one of 10,000 routes",
        }
    }

    fn measure(self, callgrind: &Callgrind, authority: &Authority, keep: Option<&Path>) -> Result<Vec<f64>> {
        let mut client = self.connect(authority).with_context(|| self.title())?;
        let mut random = Random::new();
        let mut ask = |requests: u64| -> Result<u64> {
            callgrind.count()?;
            for _ in 0..requests {
                let path = if self == Self::Routes {
                    path(random.below(Size::Routes.routes()))
                } else {
                    "/".to_owned()
                };
                client.ask(&path).with_context(|| format!("{}: {path}", self.title()))?;
                callgrind.threads().wait_idle()?;
            }
            match keep {
                Some(keep) if requests == LONG => callgrind.keep(&keep.join(self.name())),
                _ => callgrind.count(),
            }
        };
        ask(WARM_UP)?;
        (0..PAIRS)
            .map(|_| {
                let (short, long) = (ask(SHORT)?, ask(LONG)?);
                Ok((long as f64 - short as f64) / (LONG - SHORT) as f64)
            })
            .collect()
    }

    fn connect(self, authority: &Authority) -> Result<Box<dyn Client>> {
        let target = Target { address: VIP, authority };
        match self {
            Self::Http1 => target.plain(ONE, &[]),
            Self::Http1TwelveHeaders => target.plain(ONE, &BROWSER),
            Self::Post => target.post(ONE, POST),
            Self::Routes => target.plain(MANY, &[]),
            Self::Https => target.tls(),
            Self::Http2 => target.http2(),
        }
    }
}

impl Measured {
    fn median(&self) -> f64 {
        let mut pairs = self.pairs.clone();
        pairs.sort_by(f64::total_cmp);
        pairs.get(pairs.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Distance between the largest and the smallest pair, as a share of the median.
    fn spread(&self) -> f64 {
        let most = self.pairs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = self.pairs.iter().copied().fold(f64::INFINITY, f64::min);
        (most - least) / self.median()
    }
}

fn print(agents: &[PathBuf], measured: &[Vec<Measured>]) {
    println!(
        "\nUser instructions per request, medians of {PAIRS} pairs of runs (how far the pairs are apart).\n"
    );
    let names: String = agents.iter().map(|agent| format!(" {} |", agent.display())).collect();
    println!("| |{names}\n|---|{}", "---|".repeat(agents.len()));
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let first = measured[0][at].median();
        let cells = measured.iter().enumerate().map(|(agent, of_agent)| {
            let (median, spread) = (of_agent[at].median(), of_agent[at].spread() * 100.0);
            let compared = if agent == 0 { String::new() } else { format!(", × {:.4}", median / first) };
            format!(" {median:.0} ({spread:.2} %){compared} |")
        });
        println!("| {} |{}", workload.title(), cells.collect::<String>());
    }
    println!();
}
