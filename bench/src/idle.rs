//! `cargo xtask bench idle`: connections that have had a request and wait for the next one.
//! Measured is the memory that each takes of a proxy, and how much of it is given back once they
//! are gone.

use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::client::{Client, Target};
use super::peers::{self, Build, Peer};
use super::process::own_memory;
use super::report::machine;
use super::site::{ONE, Site, Size};
use super::{backend, document};

/// From the last connection to the measurement: what is only needed in bursts is given back by
/// then.
const SETTLE: Duration = Duration::from_secs(3);
/// From the end of the last connection: allocators keep what was freed for a while.
const DECAY: Duration = Duration::from_secs(15);
/// Connections that come and go before the memory is measured that others are compared with.
const WARM_UP: usize = 100;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Connections of each kind
    #[arg(long, default_value_t = 2000)]
    connections: usize,
    /// Whom to compare with
    #[arg(long, value_delimiter = ',', num_args = 0.., default_value = "haproxy,nginx")]
    peers: Vec<String>,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Http1,
    Https,
    Http2,
}

/// Resident memory of a proxy in MB, without the pages of its program.
struct Seen {
    /// Before the first connection.
    idle: f64,
    before: f64,
    open: f64,
    after: f64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let peers = peers::all(args.build.portcullis()?, &args.peers)?;
    let _backend = backend::start(scratch.path())?;
    let site = Site::create(Size::Small, &scratch.path().join("site"))?;
    let mut text = format!("{}; {} connections of each kind.\n\n", machine(), args.connections);
    text += "| | MB before | HTTP/1.1: KiB each | given back | HTTPS | given back | HTTP/2 | given back |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    for peer in &peers {
        println!("bench: {}", peer.name());
        let directory = scratch.path().join(peer.name());
        text += &row(peer.as_ref(), &site, &directory, args).with_context(|| peer.name())?;
    }
    println!("\n{text}");
    if args.write { document::replace("idle", &text) } else { Ok(()) }
}

/// Each kind of connection has a proxy of its own.
fn row(peer: &dyn Peer, site: &Site, directory: &Path, args: &Args) -> Result<String> {
    let mut cells = String::new();
    let mut idle = 0.0_f64;
    for kind in [Kind::Http1, Kind::Https, Kind::Http2] {
        let seen = measure(peer, kind, site, &directory.join(format!("{kind:?}")), args.connections)?;
        let (taken, back) = (seen.open - seen.before, seen.open - seen.after);
        let each = taken * 1e6 / 1024.0 / args.connections as f64;
        cells += &format!(" {each:.1} | {:.0} % |", back / taken * 100.0);
        idle = idle.max(seen.idle);
    }
    Ok(format!("| {} | {idle:.0} |{cells}\n", peer.name()))
}

fn measure(peer: &dyn Peer, kind: Kind, site: &Site, directory: &Path, connections: usize) -> Result<Seen> {
    std::fs::create_dir_all(directory)?;
    let running = peers::serve(peer, site, directory)?;
    let address: IpAddr = peer.address().parse()?;
    let target = Target { address, authority: &site.authority };
    let idle = own_memory(running.pid())?;
    drop(open(kind, target, WARM_UP)?);
    thread::sleep(SETTLE);
    let before = own_memory(running.pid())?;
    let clients = open(kind, target, connections)?;
    thread::sleep(SETTLE);
    let open = own_memory(running.pid())?;
    drop(clients);
    thread::sleep(DECAY);
    Ok(Seen { idle, before, open, after: own_memory(running.pid())? })
}

/// Connections that have had an answer.
fn open(kind: Kind, target: Target<'_>, connections: usize) -> Result<Vec<Box<dyn Client>>> {
    let one = |_| {
        let mut client = match kind {
            Kind::Http1 => target.plain(ONE, &[])?,
            Kind::Https => target.tls()?,
            Kind::Http2 => target.http2()?,
        };
        client.ask("/")?;
        Ok(client)
    };
    (0..connections).map(one).collect()
}
