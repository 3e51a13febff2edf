//! `cargo xtask bench stalled`: clients that hold what others need. They ask and do not read, over
//! HTTP/1 or on a hundred streams of HTTP/2, or send a body a byte at a time. Each proxy serves
//! them in a control group of its own. Measured is what such a connection costs, what becomes of
//! the proxy, and what others see meanwhile.

mod memory_group;
mod others;
mod stalled_clients;

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portcullis_testbed::until;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::memory_group::MemoryGroup;
use self::others::{Others, Seen};
use self::stalled_clients::{ENDLESS_PATH, Kind, StalledClients, UPLOAD_PATH};
use super::backend::{ADDRESS, PORT};
use super::document;
use super::peers::{self, Build, Haproxy, Peer};
use super::process::{LOAD_CPU, Process, has_ended, memory};
use super::report::machine;
use super::site::{HTTP_PORT, Site, Size};

/// Bytes of the file that is never read to its end; it has none on disk.
const ENDLESS: u64 = 1 << 40;
/// From the last connection to the measurement: they have filled all there is by then, and none has
/// been too slow for long enough to be closed.
const SETTLE: Duration = Duration::from_secs(2);
/// For as long as others are watched beside the stalled ones.
const WATCH: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of which the cost of one is measured, before the rest comes: one in so many.
const SAMPLE: usize = 10;
/// Descriptors for all streams, at the proxy and at the backend, if there may be as many.
const DESCRIPTORS: u64 = 50_000;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Stalled connections of each kind
    #[arg(long, default_value_t = 200)]
    connections: usize,
    /// Memory of each proxy's control group
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    memory: u64,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

struct Outcome {
    /// KiB of one stalled connection.
    each: f64,
    /// MB of the proxy before there were any, and the most with them.
    before: f64,
    most: f64,
    /// Stalled connections that the proxy had closed by the end.
    closed: usize,
    /// Processes that the kernel ended.
    killed: u64,
    others: Seen,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let agent = args.build.portcullis()?;
    let descriptors = raise_descriptors()?;
    let scratch = super::scratch()?;
    let _backend = start_backend(scratch.path(), descriptors)?;
    let site = Site::create(Size::Small, &scratch.path().join("site"))?;
    // It does not start on fewer descriptors than two for each.
    let haproxy = Haproxy { connections: descriptors * 9 / 20 };
    let proxies: [&dyn Peer; 2] = [&agent, &haproxy];
    let mut text = machine().to_string();
    for proxy in proxies {
        text += &format!(", {} {}", proxy.name(), proxy.version()?);
    }
    text += &format!(";\n{} stalled connections, {} MiB for each proxy.\n\n", args.connections, args.memory);
    text += "| stalled | | KiB each | RSS MB before | most | closed | OOM | others ok | p99 ms |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
    for kind in Kind::ALL {
        for proxy in proxies {
            println!("bench: {}, {}", kind.title(), proxy.name());
            let directory = scratch.path().join(format!("{kind:?}-{}", proxy.name()));
            let outcome = measure(proxy, kind, &site, &directory, args);
            text += &outcome.with_context(|| proxy.name())?.row(kind, proxy.name());
        }
    }
    println!("\n{text}");
    if args.write { document::replace("stalled", &text) } else { Ok(()) }
}

fn measure(proxy: &dyn Peer, kind: Kind, site: &Site, directory: &Path, args: &Args) -> Result<Outcome> {
    let group = MemoryGroup::create(&proxy.name().to_lowercase(), args.memory)?;
    let killed_before = group.kills()?;
    let running = group.within(|| peers::serve(proxy, site, directory))?;
    let address = SocketAddr::new(proxy.address().parse()?, HTTP_PORT);
    let others = Others::start(address);
    thread::sleep(SETTLE);
    let before = memory(running.pid())?;
    let mut most = before;
    // A proxy that the kernel ended has no memory, and is seen by what others get.
    let mut look = |duration| {
        let begun = Instant::now();
        while begun.elapsed() < duration && !has_ended(running.pid()) {
            most = memory(running.pid()).unwrap_or_default().max(most);
            thread::sleep(LOOK_EVERY);
        }
    };
    let mut stalled = StalledClients::default();
    let sample = args.connections.div_ceil(SAMPLE);
    stalled.open(kind, address, sample);
    look(SETTLE);
    let with_sample = memory(running.pid()).unwrap_or_default();
    stalled.open(kind, address, args.connections - sample);
    look(WATCH);
    let others = others.finish()?;
    let closed = stalled.closed();
    Ok(Outcome {
        each: (with_sample - before) * 1e6 / 1024.0 / sample as f64,
        before,
        most,
        closed,
        killed: group.kills()? - killed_before,
        others,
    })
}

/// nginx, with a file that is longer than any client reads, and a place that waits for a whole
/// body.
fn start_backend(scratch: &Path, descriptors: u64) -> Result<Process> {
    let files = scratch.join("files");
    fs::create_dir(&files)?;
    File::create(files.join(ENDLESS_PATH.trim_start_matches('/')))?.set_len(ENDLESS)?;
    let (config, directory) = (scratch.join("backend.conf"), scratch.display());
    let body = "x".repeat(1024);
    let text = format!(
        "daemon off; master_process off; worker_processes 1; user root;\n\
         pid {directory}/backend.pid; error_log {directory}/backend.err;\n\
         events {{ worker_connections {descriptors}; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; client_max_body_size 0;\n\
         client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};\n\
         uwsgi_temp_path {directory}; scgi_temp_path {directory}; sendfile on; send_timeout 1h;\n\
         server {{ listen {ADDRESS}:{PORT} backlog=4096; root {files};\n\
         location = {ENDLESS_PATH} {{ }} location = {UPLOAD_PATH} {{ proxy_pass http://{ADDRESS}:{PORT}/; }}\n\
         location / {{ return 200 \"{body}\"; }} }} }}\n",
        files = files.display()
    );
    fs::write(&config, text)?;
    let config = config.display().to_string();
    let process = Process::start(LOAD_CPU, &["nginx", "-c", &config], &scratch.join("backend.log"))?;
    until(Duration::from_secs(5), || Ok(TcpStream::connect((ADDRESS, PORT))?))?;
    Ok(process)
}

/// For this process and those that it starts; returns how many there may be.
fn raise_descriptors() -> Result<u64> {
    let most = getrlimit(Resource::Nofile).maximum;
    let current = most.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: most })?;
    Ok(current)
}

impl Outcome {
    fn row(&self, kind: Kind, name: &str) -> String {
        let Seen { asked, failed, p99 } = self.others;
        format!(
            "| {} | {name} | {:.0} | {:.0} | {:.0} | {} | {} | {:.2} % of {asked} | {:.1} |\n",
            kind.title(),
            self.each,
            self.before,
            self.most,
            self.closed,
            self.killed,
            (asked - failed) as f64 * 100.0 / asked.max(1) as f64,
            p99.as_secs_f64() * 1e3,
        )
    }
}
