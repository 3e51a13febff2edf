//! `cargo xtask bench scale`: many tenants, each with a ListenerSet, a certificate and sixteen
//! routes of its own, in one directory. How much memory they take, how long a start takes, and
//! whether an edit takes longer the more of them there are.

mod edits;
mod handshakes;
mod table;
mod world;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portcullis_testbed::build;
use portcullis_testbed::{Agent, Authority, Datapath, Launch, TlsClient, pin_directory, remove_leftovers};

use super::process::{memory, peak_memory};
use super::{backend, document};

use edits::Edits;
use table::{Measured, Memory, Start};
use world::{Tenant, World};

const PURPOSE: &str = "bench-scale";
const TIMEOUT: Duration = Duration::from_secs(60);
/// The whole of it: 2,500 ListenerSets, 40,000 routes.
const SIZES: [usize; 4] = [0, 63, 625, 2_500];
const NAMES: usize = 10_000;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Fewer edits and handshakes: for a look, not for a claim
    #[arg(long)]
    quick: bool,
    /// Only these numbers of tenants
    #[arg(long, value_delimiter = ',')]
    tenants: Vec<usize>,
    /// An agent that is built already
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Use ordinary sockets instead of the kernel programs
    #[arg(long)]
    userspace: bool,
    /// Also write the report into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Shared by all runs.
struct Bench {
    binary: PathBuf,
    datapath: Datapath,
    scratch: PathBuf,
    authority: Authority,
    client: TlsClient,
    edits: usize,
    handshakes: usize,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    remove_leftovers(PURPOSE)?;
    let _backend = backend::start(scratch.path())?;
    let bench = Bench::new(args, scratch.path())?;
    let sizes = if args.tenants.is_empty() { SIZES.as_slice() } else { &args.tenants };
    let measured = sizes.iter().map(|tenants| bench.measure(*tenants)).collect::<Result<Vec<_>>>()?;
    let names = if args.tenants.is_empty() { Some(bench.compare_handshakes(NAMES)?) } else { None };
    let text = table::text(&measured, names);
    println!("{text}");
    if args.write { document::replace("scale", &text) } else { Ok(()) }
}

/// Statuses are written, and the allocator gives back what the start took, in some seconds.
fn settled_memory(pid: u32) -> Result<f64> {
    const LOOKS: usize = 30;
    const CALM: usize = 6;
    let mut seen = vec![memory(pid)?];
    while seen.len() < LOOKS {
        std::thread::sleep(Duration::from_millis(500));
        seen.push(memory(pid)?);
        let before = seen.len().checked_sub(CALM).map(|at| seen[at]);
        if before.is_some_and(|before| (seen[seen.len() - 1] / before - 1.0).abs() < 0.003) {
            break;
        }
    }
    memory(pid)
}

impl Bench {
    fn new(args: &Args, scratch: &Path) -> Result<Self> {
        let binary = match &args.binary {
            Some(binary) => binary.clone(),
            None => {
                crate::setup()?;
                build::release()?
            }
        };
        let authority = Authority::new()?;
        Ok(Self {
            binary,
            datapath: if args.userspace { Datapath::Userspace } else { Datapath::Auto },
            scratch: scratch.to_owned(),
            client: TlsClient::new(&authority)?,
            authority,
            edits: if args.quick { 40 } else { 300 },
            handshakes: if args.quick { 4 } else { 16 },
        })
    }

    fn measure(&self, tenants: usize) -> Result<Measured> {
        println!("bench: {tenants} tenants");
        let world = self.world(tenants, "127.0.0.91")?;
        let edits = Edits { world: &world, authority: &self.authority, client: &self.client };
        let began = Instant::now();
        let agent = self.start(&world)?;
        self.wait_served(&world, world.last(), began)?;
        let ready = began.elapsed();
        let first_edit = edits.route(0)?;
        let resting = settled_memory(agent.pid())?;
        self.check_all(&world)?;
        let served = memory(agent.pid())?;
        let (routes, certificates) = edits.run(self.edits)?;
        let memory =
            Memory { resting, served, edited: memory(agent.pid())?, peak: peak_memory(agent.pid())? };
        let start = Start { ready, first_edit };
        Ok(Measured { tenants, start, memory, routes, certificates, handshake: edits.handshake()? })
    }

    fn world(&self, tenants: usize, address: &str) -> Result<World> {
        let directory = self.scratch.join(format!("{tenants}-{address}"));
        fs::create_dir_all(&directory)?;
        World::create(tenants, address, &directory, &self.authority)
    }

    fn start(&self, world: &World) -> Result<Agent> {
        let launch = Launch {
            binary: self.binary.clone(),
            config: world.config.clone(),
            scratch: world.directory.clone(),
            pins: pin_directory(&format!("{PURPOSE}-{}", world.address)),
            datapath: self.datapath,
            interface: "none".to_owned(),
            arguments: ["--log", "warn", "--beside-others"].map(Into::into).to_vec(),
            through: Vec::new(),
        };
        launch.spawn()
    }

    fn wait_served(&self, world: &World, tenant: &Tenant, began: Instant) -> Result<()> {
        loop {
            match tenant.is_served(world, &self.client) {
                Ok(()) => return Ok(()),
                Err(error) if began.elapsed() > TIMEOUT => {
                    return Err(error).context(format!("not served within {TIMEOUT:?}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Every tenant has its own certificate and its own route.
    fn check_all(&self, world: &World) -> Result<()> {
        world.tenants.iter().try_for_each(|tenant| tenant.is_served(world, &self.client))
    }
}
