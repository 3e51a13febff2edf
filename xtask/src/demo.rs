//! `cargo xtask demo`: `examples/quickstart` on a real agent, with real backends and clients.
//! Certificates are made, everything else is as it is in the example. It leaves nothing behind: its
//! files are temporary, its pins are its own.

mod page;
mod requests;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use portcullis_testbed as testbed;
use portcullis_testbed::build;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use testbed::{Agent, Authority, Backend, Launch, quickstart};

use crate::toolchain::{Choice, Toolchain};
use crate::{build_ebpf, setup};
use page::Page;
use requests::REQUESTS;

const EXAMPLE: &str = "examples/quickstart";
const PURPOSE: &str = "demo";
/// As the example's EndpointSlices say.
const BACKENDS: &[(&str, &str)] = &[("shop", quickstart::SHOP), ("blog", quickstart::BLOG)];
const BACKEND_PORT: u16 = 8080;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make the requests, check the answers, and end: with 0 if all are as they should be, else
    /// with 1
    #[arg(long)]
    once: bool,
    /// The way connections find their listener
    #[arg(long, value_enum, default_value_t)]
    datapath: Datapath,
    /// Build the agent as it is shipped, which takes three times as long
    #[arg(long)]
    release: bool,
    /// An agent that is built already
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    binary: Option<PathBuf>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Datapath {
    #[default]
    Auto,
    Ebpf,
    Userspace,
}

impl Args {
    pub(crate) fn once(datapath: Datapath, binary: PathBuf) -> Self {
        Self { once: true, datapath, release: false, binary: Some(binary) }
    }
}

/// Everything that runs, and goes when this goes: agent first, files last.
struct Demo {
    agent: Agent,
    backends: Vec<Backend>,
    files: tempfile::TempDir,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let binary = program(args)?;
    // From here on there is something to leave behind.
    let signals = if args.once { None } else { Some(Signals::new([SIGINT, SIGTERM, SIGHUP])?) };
    println!("demo: starting {} backends and an agent", BACKENDS.len());
    let demo = Demo::start(binary, args.datapath)?;
    demo.introduce(begin.elapsed());
    let failed = demo.request_all()?;
    let page = Page::open(&demo.agent)?;
    if let Some(mut signals) = signals {
        println!(
            "\ndemo: try these yourself, or edit the YAML in {}; Ctrl-C ends it",
            demo.agent.config().display()
        );
        println!("demo: what is served, and what of it is wrong, as a page: {}", page.address());
        signals.forever().next();
        println!("demo: leaving nothing behind");
    } else {
        if failed > 0 {
            bail!(
                "{failed} of {} answers are not as they should be; the agent's log:\n{}",
                REQUESTS.len(),
                demo.agent.log()
            );
        }
        println!("demo: all {} answers are as they should be", REQUESTS.len());
        println!("demo: the page was at {}", page.address());
    }
    drop(page);
    demo.stop()
}

fn program(args: &Args) -> Result<PathBuf> {
    if let Some(binary) = &args.binary {
        return Ok(binary.clone());
    }
    if args.release {
        setup::run(&setup::Args::default())?;
        return build::release();
    }
    both_at_once()
}

/// Most of what the agent is made of is compiled while the tools are installed and the kernel
/// programs built. If the crate that embeds these was there before them, the second build makes up
/// for it.
fn both_at_once() -> Result<PathBuf> {
    Toolchain::choose(Choice::default())?;
    thread::scope(|scope| {
        let agent = scope.spawn(build::debug_agent);
        let programs = setup::run(&setup::Args::default())
            .and_then(|()| build_ebpf::run(&build_ebpf::Args::unverified()))
            .inspect_err(|error| eprintln!("demo: {error:#}; it ends when the agent is compiled"));
        let agent = agent.join().map_err(|_| anyhow!("the build of the agent panicked"))?;
        programs.and(agent)
    })?;
    build::debug_agent()
}

impl Demo {
    fn start(binary: PathBuf, datapath: Datapath) -> Result<Self> {
        testbed::remove_leftovers(PURPOSE)?;
        let files = tempfile::Builder::new().prefix("portcullis-demo-").tempdir()?;
        let config = files.path().join("config");
        let authority = Authority::new()?;
        quickstart::write(&config, &authority, &[])?;
        fs::write(files.path().join("ca.pem"), authority.pem())?;
        let start = |(name, address): &(&str, &str)| {
            Backend::start(name, SocketAddr::new(address.parse()?, BACKEND_PORT))
        };
        let backends = BACKENDS.iter().map(start).collect::<Result<_>>()?;
        let launch = Launch {
            binary,
            config,
            scratch: files.path().join("agent"),
            pins: testbed::pin_directory(PURPOSE),
            datapath: datapath.into(),
            // Loopback only: no interface of this machine is touched.
            interface: "none".to_owned(),
            // The example's addresses are its own.
            arguments: vec!["--beside-others".into()],
            through: Vec::new(),
        };
        Ok(Self { agent: launch.start()?, backends, files })
    }

    fn introduce(&self, elapsed: Duration) {
        let log = self.agent.log();
        let datapath =
            log.lines().find_map(|line| line.split_once("datapath: ")).map_or("unknown", |(_, it)| it);
        println!("demo: {EXAMPLE} is served after {:.1} s; datapath: {datapath}\n", elapsed.as_secs_f64());
    }

    /// Returns how many answers are wrong.
    fn request_all(&self) -> Result<usize> {
        let mut failed = 0;
        for request in REQUESTS {
            let answer = request.make(&self.authority())?;
            println!("# {}\n$ {}\n{}", request.shows, answer.command, answer.text.trim_end());
            if let Some(problem) = request.problem(&answer) {
                println!("demo: WRONG: {problem}");
                failed += 1;
            }
            println!();
        }
        Ok(failed)
    }

    fn authority(&self) -> PathBuf {
        self.files.path().join("ca.pem")
    }

    fn stop(self) -> Result<()> {
        self.agent.terminate().context("stopping the agent")?;
        drop(self.backends);
        Ok(self.files.close()?)
    }
}

impl From<Datapath> for testbed::Datapath {
    fn from(datapath: Datapath) -> Self {
        match datapath {
            Datapath::Auto => Self::Auto,
            Datapath::Ebpf => Self::Ebpf,
            Datapath::Userspace => Self::Userspace,
        }
    }
}
