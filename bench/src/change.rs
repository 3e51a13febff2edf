//! `cargo xtask bench change`: edits routes, certificates and listeners in the directory while load
//! runs, and measures for each how long it takes until a client sees it. No request of the load may
//! fail.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::Authority;

use super::load::{Background, Seen};
use super::peers::{self, Build, Peer, config_directory};
use super::report::machine;
use super::sample::median;
use super::site::{HTTP_PORT, HTTPS_PORT, ONE, Site, Size};
use super::workload::Load;
use super::{backend, document};

const TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(200);
const FIRST_PORT: usize = 10_000;
const PORTS: usize = 1_000;
/// The host whose certificate changes.
const EDITED: &str = "edited.example.com";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Number of edits, a third of each kind
    #[arg(long, default_value_t = 1_000)]
    edits: usize,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Kinds of edits, and how a client sees each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    /// A header that a route sets.
    Route,
    /// The certificate of a listener on the port under load.
    Certificate,
    /// The port of a listener.
    Listener,
}

const KINDS: [Edit; 3] = [Edit::Route, Edit::Certificate, Edit::Listener];

struct Bench<'a> {
    address: &'a str,
    config: PathBuf,
    authority: Authority,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let peer = args.build.portcullis()?;
    let _backend = backend::start(scratch.path())?;
    let site = Site::create(Size::Small, &scratch.path().join("site"))?;
    let directory = scratch.path().join("agent");
    let _running = peers::serve(&peer, &site, &directory)?;
    let config = config_directory(&directory);
    let bench = Bench { address: peer.address(), config, authority: Authority::new()? };
    bench.put("edited-tls.yaml", &tls_listener())?;
    let loads =
        [Load::HTTP1, Load::HTTPS].map(|load| Background::start(load, peer.address(), scratch.path()));
    let times = bench.edit_all(args.edits)?;
    let probe = bench.probe_cost()?;
    let seen = loads.into_iter().map(|load| load?.finish()).collect::<Result<Vec<_>>>()?;
    let text = report(&times, probe, &seen);
    println!("{text}");
    if args.write {
        document::replace("change", &text)?;
    }
    ensure!(seen.iter().all(|seen| seen.failed == 0 && seen.requests > 0), "requests of the load failed");
    Ok(())
}

impl Bench<'_> {
    fn edit_all(&self, edits: usize) -> Result<Vec<(Edit, Duration)>> {
        let mut connection = Connection::open(self.address)?;
        let mut times = Vec::with_capacity(edits);
        for number in 1..=edits {
            let edit = KINDS[number % KINDS.len()];
            let took = self.edit(edit, number, &mut connection);
            times.push((edit, took.with_context(|| format!("edit {number}, {edit:?}"))?));
        }
        Ok(times)
    }

    /// From the file being in place until a client sees it.
    fn edit(&self, edit: Edit, number: usize, connection: &mut Connection) -> Result<Duration> {
        match edit {
            Edit::Route => {
                self.put("edited-route.yaml", &route(number))?;
                let expected = format!("x-edit: {number}\r\n");
                visible(|| Ok(connection.get("/edited")?.contains(&expected)))
            }
            Edit::Certificate => {
                let certificate = self.authority.issue(&[EDITED])?;
                self.put("edited-secret.yaml", &certificate.secret("default", "edited"))?;
                visible(|| self.presents(&certificate.chain))
            }
            Edit::Listener => {
                let port = FIRST_PORT + number % PORTS;
                self.put("edited-listener.yaml", &listener(port))?;
                let port = u16::try_from(port)?;
                visible(|| Ok(TcpStream::connect((self.address, port)).is_ok()))
            }
        }
    }

    /// Median of showing a certificate, in milliseconds, under the same load.
    fn probe_cost(&self) -> Result<f64> {
        const PROBES: usize = 20;
        let mut times = Vec::with_capacity(PROBES);
        for _ in 0..PROBES {
            let begin = Instant::now();
            self.presents("-")?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        put(&self.config, name, text)
    }

    /// True if a handshake shows this certificate.
    fn presents(&self, chain: &str) -> Result<bool> {
        let to = format!("{}:{HTTPS_PORT}", self.address);
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &to, "-servername", EDITED]);
        let output =
            openssl.stdin(Stdio::null()).stderr(Stdio::null()).output().context("cannot run openssl")?;
        Ok(String::from_utf8_lossy(&output.stdout).contains(chain.trim()))
    }
}

/// Replaces a file as an editor does.
pub(super) fn put(directory: &Path, name: &str, text: &str) -> Result<()> {
    let partial = directory.join(format!(".{name}.partial"));
    fs::write(&partial, text)?;
    Ok(fs::rename(partial, directory.join(name))?)
}

pub(super) fn visible(mut seen: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let begin = Instant::now();
    while !seen()? {
        if begin.elapsed() > TIMEOUT {
            bail!("not visible within {TIMEOUT:?}");
        }
        thread::sleep(POLL);
    }
    Ok(begin.elapsed())
}

/// A client's connection that stays open over all edits.
pub(super) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(super) fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect((address, HTTP_PORT))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn get(&mut self, path: &str) -> Result<String> {
        self.ask(ONE, path)
    }

    /// The head of the answer, in lower case.
    pub(super) fn ask(&mut self, host: &str, path: &str) -> Result<String> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.0.read_line(&mut head)? > 0, "the connection was closed after {head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.context("an answer without length")?.trim().parse()?];
        self.0.read_exact(&mut body)?;
        Ok(head)
    }
}

fn route(number: usize) -> String {
    let port = backend::PORT;
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: edited}}\nspec:\n  \
         parentRefs: [{{name: edge}}]\n  hostnames: [{ONE}]\n  rules:\n  \
         - matches: [{{path: {{type: PathPrefix, value: /edited}}}}]\n    filters:\n    \
         - type: ResponseHeaderModifier\n      \
         responseHeaderModifier: {{set: [{{name: X-Edit, value: \"{number}\"}}]}}\n    \
         backendRefs: [{{name: web, port: {port}}}]\n"
    )
}

fn listener(port: usize) -> String {
    listener_set("moving", &format!("{{name: http, port: {port}, protocol: HTTP}}"))
}

fn tls_listener() -> String {
    listener_set(
        "edited",
        &format!(
            "{{name: https, hostname: {EDITED}, port: {HTTPS_PORT}, protocol: HTTPS, \
             tls: {{certificateRefs: [{{name: edited}}]}}}}"
        ),
    )
}

fn listener_set(name: &str, listener: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRef: {{name: edge}}\n  listeners: [{listener}]\n"
    )
}

fn report(times: &[(Edit, Duration)], probe: f64, loads: &[Seen]) -> String {
    let mut text = format!("{}.\n\n", machine());
    text += "| edit | edits | until visible, median ms | p99 ms | max ms |\n|---|---|---|---|---|\n";
    for kind in KINDS {
        let of_kind = times.iter().filter(|(edit, _)| *edit == kind);
        text += &row(&format!("{kind:?}"), of_kind.map(|(_, time)| *time).collect());
    }
    text += &row("all", times.iter().map(|(_, time)| *time).collect());
    let requests: u64 = loads.iter().map(|seen| seen.requests).sum();
    let failed: u64 = loads.iter().map(|seen| seen.failed).sum();
    text += &format!(
        "\nRequests of the load meanwhile: {requests}, failed: {failed}. To see a certificate, openssl is started, which alone \
         takes {probe:.1} ms.\n"
    );
    text
}

fn row(name: &str, mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| {
        let time = times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
        time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    format!("| {name} | {} | {:.1} | {:.1} | {:.1} |\n", times.len(), at(50), at(99), at(100))
}
