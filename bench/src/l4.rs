//! `cargo xtask bench l4`: connections and datagrams that are forwarded as they are. Every proxy
//! forwards the same ports at the same time, on CPU 0; in each round each is measured once, one
//! after the other. Load and backend are threads of this process, on CPU 1.

mod backend;
mod copying;
mod integrity;
mod load;
mod proxies;
mod report;
mod site;
mod workload;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use portcullis_testbed::until;

use self::integrity::Integrity;
use self::proxies::Proxy;
use self::report::{Measured, Report, Sample};
use self::site::Site;
use self::workload::{Length, WORKLOADS, Workload};
use super::document;
use super::peers::{Build, Running};
use super::process::{LOAD_CPU, cpu_time, has_ended, stay_on};

pub(super) use copying::Args as CopyingArgs;

/// Some peers take that long to read ten thousand names.
const START: Duration = Duration::from_secs(60);

/// The whole takes about four minutes; less than a third of that when quick.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Fewer and shorter rounds: for a look, not for a claim
    #[arg(long)]
    quick: bool,
    /// Measurements of each proxy in each workload [default: 7, quick: 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// Whom to compare with
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "haproxy,nginx")]
    peers: Vec<String>,
    /// Another agent to compare with, for a change's cost
    #[arg(long, value_name = "FILE")]
    earlier: Option<PathBuf>,
    /// Only workloads whose name begins like this; repeat for several
    #[arg(long)]
    workload: Vec<String>,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// A proxy that forwards the site.
struct Started {
    proxy: Box<dyn Proxy>,
    running: Running,
}

pub(super) fn copy(args: &CopyingArgs) -> Result<()> {
    copying::run(args)
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let proxies = proxies::all(args.build.portcullis()?, args.earlier.as_deref(), &args.peers)?;
    stay_on(LOAD_CPU)?;
    backend::start()?;
    let site = Site::create()?;
    let mut report = Report::new(proxies.iter().map(AsRef::as_ref), args.rounds())?;
    let started = proxies.into_iter().map(|proxy| start(proxy, &site, scratch.path()));
    let started = started.collect::<Result<Vec<_>>>()?;
    for workload in WORKLOADS.iter().filter(|workload| args.wants(workload)) {
        println!("bench: {}", workload.title);
        report.add(measure(workload, &started, &site, args)?);
    }
    if args.workload.is_empty() {
        println!("bench: bytes and ends");
        for Started { proxy, .. } in started.iter().filter(|it| it.proxy.is_whole()) {
            let checked = Integrity::check(proxy.address(), &site, args.length());
            report.check(proxy.name(), checked.with_context(|| proxy.name())?);
        }
    }
    println!("{}", report.text());
    if args.write { document::replace("l4", &report.text()) } else { Ok(()) }
}

fn start(proxy: Box<dyn Proxy>, site: &Site, scratch: &Path) -> Result<Started> {
    let directory = scratch.join(proxy.address());
    std::fs::create_dir_all(&directory)?;
    proxy.configure(site, &directory)?;
    let running = proxy.start(&directory).with_context(|| format!("starting {}", proxy.name()))?;
    let served = WORKLOADS.iter().filter(|workload| proxy.forwards(workload.kind));
    let served = served.map(|workload| {
        let answered = until(START, || match has_ended(running.pid()) {
            true => Ok(Err(anyhow!("it has ended"))),
            false => load::probe(workload.kind, proxy.address(), site).map(Ok),
        });
        answered.and_then(|answered| answered).with_context(|| workload.title)
    });
    let served = served.collect::<Result<Vec<()>>>();
    served.with_context(|| format!("{}; its files are in {}", proxy.name(), directory.display()))?;
    Ok(Started { proxy, running })
}

/// The first round is for caches and pools, and is not counted. The first proxy changes from round
/// to round, so that none always runs after the same neighbour.
fn measure(workload: &'static Workload, started: &[Started], site: &Site, args: &Args) -> Result<Measured> {
    const SETTLE: Duration = Duration::from_millis(100);
    let mut measured = Measured::new(workload, started.len());
    for round in 0..=args.rounds() {
        for turn in 0..started.len() {
            let at = (turn + round) % started.len();
            let Started { proxy, running } = &started[at];
            if !proxy.forwards(workload.kind) {
                continue;
            }
            thread::sleep(SETTLE);
            let before = cpu_time(running.pid())?;
            let seen = load::run(workload.kind, proxy.address(), site, args.length(), round);
            let seen = seen.with_context(|| format!("{}, {}", proxy.name(), workload.title))?;
            let used = cpu_time(running.pid())?.saturating_sub(before);
            if round > 0 {
                measured.samples[at].push(Sample::of(workload.kind, &seen, used));
            }
        }
    }
    Ok(measured)
}

impl Args {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 }).max(1)
    }

    fn length(&self) -> Length {
        if self.quick { Length::Quick } else { Length::Full }
    }

    fn wants(&self, workload: &Workload) -> bool {
        self.workload.is_empty() || self.workload.iter().any(|name| workload.name.starts_with(name.as_str()))
    }
}
