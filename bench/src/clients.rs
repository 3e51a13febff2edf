//! `cargo xtask bench clients`: TLS clients of all kinds and a thousand server names at one port,
//! of listeners that pass TLS through, that end it, and of HTTPS. Every answer says which backend
//! was reached, and every name has a backend and a certificate of its own: what is counted is
//! connections that a listener had which was not theirs, and connections that failed.

mod backends;
mod chromium;
mod curl;
mod go;
mod openssl;
mod rustls_client;
mod tally;
mod world;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use portcullis_testbed::{Authority, Datapath, Launch, build, command, pin_directory, remove_leftovers};

use self::backends::Backends;
use self::tally::Tally;
use self::world::World;
use super::document;
use super::report::machine;

/// Clients at a time.
const AT_ONCE: usize = 8;
const PURPOSE: &str = "bench-clients";

#[derive(clap::Args)]
pub(super) struct Args {
    /// A few hundred connections, as in CI; Chromium only where it is installed
    #[arg(long)]
    quick: bool,
    /// Connections of all clients together [default: 100000, quick: 600]
    #[arg(long)]
    connections: Option<usize>,
    /// Only these clients
    #[arg(long, value_delimiter = ',')]
    client: Vec<String>,
    /// An agent that is built already
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// A kind of client.
struct Client {
    name: &'static str,
    /// Of so many connections of all clients.
    share: fn(usize) -> usize,
    /// ` ` and a version; empty if it is ours, `None` if it is not installed.
    version: fn(&World) -> Result<Option<String>>,
    run: fn(&World, &Backends, usize) -> Result<Tally>,
}

const CLIENTS: &[Client] = &[
    Client {
        name: "rustls",
        share: |all| all * 45 / 100,
        version: |_| Ok(Some(String::new())),
        run: rustls_client::run,
    },
    Client { name: "Go", share: |all| all * 44 / 100, version: go::version, run: go::run },
    Client { name: "OpenSSL", share: |all| all * 5 / 100, version: openssl::version, run: openssl::run },
    Client { name: "curl", share: |all| all * 5 / 100, version: curl::version, run: curl::run },
    Client { name: "Chromium", share: |all| all / 100, version: chromium::version, run: chromium::run },
];

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build::debug()?,
    };
    let world = World::create(Authority::new()?, scratch.path())?;
    let backends = Backends::start(&world)?;
    remove_leftovers(PURPOSE)?;
    let agent = Launch {
        binary,
        config: world.config(),
        scratch: scratch.path().join("agent"),
        pins: pin_directory(PURPOSE),
        datapath: Datapath::Auto,
        interface: "none".to_owned(),
        arguments: ["--cores", "2", "--log", "warn", "--beside-others"].map(Into::into).to_vec(),
        through: vec![],
    };
    let _agent = agent.start()?;
    world.wait_served()?;
    let all = args.connections.unwrap_or(if args.quick { 600 } else { 100_000 });
    let mut text = format!(
        "{}, {}; {} names.\n\n| client | connections | wrong listener | failed | s |\n|---|---|---|---|---|\n",
        command::ask("date", &["-u", "+%F"]).unwrap_or_default(),
        machine(),
        world.names.len()
    );
    let mut total = Tally::default();
    for client in CLIENTS.iter().filter(|client| args.wants(client)) {
        let (name, begun) = (client.name, Instant::now());
        let Some(version) = (client.version)(&world)? else {
            ensure!(args.quick, "{name} is not installed");
            println!("bench: no {name} here");
            continue;
        };
        println!("bench: {name}");
        let connections = (client.share)(all).max(1);
        let tally = (client.run)(&world, &backends, connections)?;
        ensure!(tally.connections == connections, "{name} left connections out");
        tally.problems.iter().for_each(|problem| println!("bench: {name}: {problem}"));
        text += &format!("| {name}{version} {} | {:.0} |\n", tally.row(), begun.elapsed().as_secs_f64());
        total.add(tally);
    }
    text += &format!("| all {} | |\n", total.row());
    println!("\n{text}");
    ensure!(total.wrong == 0 && total.failed == 0, "connections reached a wrong listener, or failed");
    if args.write { document::replace("clients", &text) } else { Ok(()) }
}

impl Args {
    fn wants(&self, client: &Client) -> bool {
        self.client.is_empty() || self.client.iter().any(|name| name.eq_ignore_ascii_case(client.name))
    }
}

/// Splits the hosts into parts of a size, and has so many clients at once make each part's
/// connections.
fn in_parallel(hosts: &[&str], part: usize, make: impl Fn(&[&str]) -> Tally + Sync) -> Tally {
    let next = AtomicUsize::new(0);
    let parts: Vec<_> = hosts.chunks(part).collect();
    let client = || {
        let mut tally = Tally::default();
        while let Some(hosts) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            tally.add(make(hosts));
        }
        tally
    };
    let mut total = Tally::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(client)).collect();
        clients.into_iter().filter_map(|client| client.join().ok()).for_each(|tally| total.add(tally));
    });
    total
}
