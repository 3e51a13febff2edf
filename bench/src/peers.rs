//! The proxies that are compared, each set up as its documentation recommends for one core:
//! keep-alive on both sides, no access log, the client's address and scheme forwarded, the same TLS
//! suite.

mod envoy;
mod haproxy;
mod nginx;
mod portcullis;
mod relay;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use portcullis_testbed::command;
use portcullis_testbed::{Agent, until};

use super::process::{PROXY_CPU, Process, has_ended};
use super::site::{HTTP_PORT, ONE, Site};
use super::workload::Load;

pub(super) use haproxy::Haproxy;
pub(super) use portcullis::{Build, Portcullis, config_directory};

/// Names of proxies.
pub(super) const HAPROXY: &str = "HAProxy";
pub(super) const NGINX: &str = "nginx";
pub(super) const ENVOY: &str = "Envoy";
pub(super) const RELAY: &str = "relay";

/// The suite that all of them are held to.
const SUITE: &str = "TLS_AES_128_GCM_SHA256";
/// A site of 10,000 routes or 1,000 certificates takes some peers that long.
const START: Duration = Duration::from_secs(120);
const LOG: &str = "agent.log";

pub(super) trait Peer {
    fn name(&self) -> &'static str;

    /// A loopback address of its own.
    fn address(&self) -> &'static str;

    fn version(&self) -> Result<String>;

    fn serves(&self, _: &Load) -> bool {
        true
    }

    /// Writes the site as its configuration.
    fn configure(&self, site: &Site, directory: &Path) -> Result<()>;

    /// Starts it on what was written there.
    fn start(&self, directory: &Path) -> Result<Running>;
}

pub(super) enum Running {
    Agent(Box<Agent>),
    Process(Process),
}

impl Running {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Agent(agent) => agent.pid(),
            Self::Process(process) => process.pid(),
        }
    }
}

/// Portcullis first; all others are compared with it.
pub(super) fn all(agent: Portcullis, chosen: &[String]) -> Result<Vec<Box<dyn Peer>>> {
    let mut peers: Vec<Box<dyn Peer>> = vec![Box::new(agent)];
    for name in chosen {
        peers.push(match name.as_str() {
            "haproxy" => Box::new(Haproxy { connections: 4000 }),
            "nginx" => Box::new(nginx::Nginx),
            "envoy" => Box::new(envoy::Envoy::install()?),
            "relay" => Box::new(relay::Relay),
            other => bail!("no peer is called {other:?}"),
        });
    }
    Ok(peers)
}

/// Configures and starts it, with files in `directory`, and waits until it serves.
pub(super) fn serve(peer: &dyn Peer, site: &Site, directory: &Path) -> Result<Running> {
    fs::create_dir_all(directory)?;
    let running = peer.configure(site, directory).and_then(|()| peer.start(directory));
    let running = running.with_context(|| format!("starting {}", peer.name()))?;
    wait_serving(peer, &running).with_context(|| {
        format!("its log: {}", fs::read_to_string(directory.join(LOG)).unwrap_or_default())
    })?;
    Ok(running)
}

/// Waits until the peer serves, or has ended instead.
fn wait_serving(peer: &dyn Peer, running: &Running) -> Result<()> {
    wait_answer(peer, running, &[&format!("-HHost: {ONE}"), &url(peer, "/")])
}

/// Waits until curl with these arguments gets the backend's body, or the peer has ended instead.
pub(super) fn wait_answer(peer: &dyn Peer, running: &Running, asking: &[&str]) -> Result<()> {
    let answered = until(START, || {
        if has_ended(running.pid()) {
            return Ok(Err(anyhow!("it has ended")));
        }
        let body = command::ask("curl", &[&["-sS", "--fail", "-m", "5"], asking].concat());
        body.filter(|body| body.len() > 1000).context("no answer yet").map(Ok)
    });
    let answered = answered.and_then(|answered| answered);
    answered.map(|_| ()).with_context(|| format!("{} does not serve the site", peer.name()))
}

/// By HTTP, at its address.
pub(super) fn url(peer: &dyn Peer, path: &str) -> String {
    format!("http://{}:{HTTP_PORT}{path}", peer.address())
}

/// Its output goes to a file there.
pub(super) fn start(command: &[&str], directory: &Path) -> Result<Running> {
    Process::start(PROXY_CPU, command, &directory.join(LOG)).map(Running::Process)
}

/// The first line that holds a version.
pub(super) fn version(program: &str, argument: &str) -> Result<String> {
    let output = std::process::Command::new(program).arg(argument).output();
    let output =
        output.with_context(|| format!("cannot run {program}: `cargo xtask setup --bench` installs it"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let word = text
        .split(|c: char| c.is_whitespace() || c == '/')
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    Ok(word.context("no version")?.to_owned())
}
