//! Clients: those that are refused, at a fixed rate, and those of the tenant beside them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use portcullis_testbed::TlsClient;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use socket2::SockRef;

use super::world::{SERVED, World};

/// Clients that take turns, so that one that waits for its answer does not hold up the rate.
const CLIENTS: u32 = 4;
/// New connections a second of the tenant's clients, each with a handshake and a request.
const TENANT_RATE: u32 = 100;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Hellos that pass: the budget, the unknown names of each second, and what there was at the start.
const SPARED: Duration = Duration::from_millis(500);

pub(super) struct Flood {
    pub(super) name: &'static str,
    /// Hellos a second.
    pub(super) rate: u32,
    pub(super) length: Duration,
}

/// Requests of the tenant's clients.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) asked: usize,
    pub(super) served: usize,
    /// From connect to the answer.
    times: Vec<Duration>,
}

/// Returns the number of hellos that were refused. It is an error if more than a few were not.
pub(super) fn flood(world: &World, flood: &Flood) -> Result<usize> {
    let hello = hello(flood.name)?;
    let clients = || {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let hello = &hello;
                    scope.spawn(move || turns(world, hello, flood, client))
                })
                .collect();
            let refused =
                clients.into_iter().map(|it| it.join().map_err(|_| anyhow!("a client panicked"))?);
            Ok(refused.collect::<Result<Vec<_>>>()?.into_iter().sum::<usize>())
        })
    };
    world.as_client(clients).with_context(|| world.form.name())
}

fn turns(world: &World, hello: &[u8], flood: &Flood, client: u32) -> Result<usize> {
    let begin = Instant::now();
    let interval = Duration::from_secs(1) / flood.rate;
    let (mut refused, mut spared) = (0, 0);
    for turn in (client..).step_by(CLIENTS as usize) {
        let due = interval * turn;
        if due >= flood.length || begin.elapsed() >= flood.length {
            break;
        }
        thread::sleep(due.saturating_sub(begin.elapsed()));
        match is_refused(world, hello)? {
            true => refused += 1,
            false => spared += 1,
        }
    }
    let most = 2 + flood.length.div_duration_f64(SPARED) as usize;
    ensure!(spared <= most, "{spared} hellos for {} were not refused, {refused} were", flood.name);
    Ok(refused)
}

/// Says hello, and waits for a reset or an alert.
fn is_refused(world: &World, hello: &[u8]) -> Result<bool> {
    const ALERT: u8 = 21;
    let mut stream = TcpStream::connect(world.address())?;
    // Closing it leaves no port that waits.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(hello)?;
    let mut answer = [0; 4096];
    match stream.read(&mut answer) {
        Ok(0) => Ok(true),
        Ok(_) => Ok(answer[0] == ALERT),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(true),
        Err(error) => bail!("no answer to a hello: {error}"),
    }
}

/// A real client's.
fn hello(name: &'static str) -> Result<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let mut client = ClientConnection::new(Arc::new(config), name.try_into()?)?;
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The tenant's clients alone.
pub(super) fn tenant(world: &World, length: Duration) -> Result<Tenant> {
    world.as_client(|| ask(world, length))
}

/// The tenant's clients while others are refused.
pub(super) fn tenant_beside(world: &World, other: &Flood) -> Result<Tenant> {
    thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(world, other));
        let seen = tenant(world, other.length);
        flooding.join().map_err(|_| anyhow!("the flood panicked"))??;
        seen
    })
}

/// Those that are late come one after the other, and count from when they were due.
fn ask(world: &World, length: Duration) -> Result<Tenant> {
    let client = TlsClient::new(&world.authority)?;
    let begin = Instant::now();
    let interval = Duration::from_secs(1) / TENANT_RATE;
    let mut seen = Tenant::default();
    for turn in 0.. {
        let due = interval * turn;
        if due >= length {
            break;
        }
        thread::sleep(due.saturating_sub(begin.elapsed()));
        seen.asked += 1;
        let connection = client.connect_within(TIMEOUT, world.address(), SERVED);
        if connection.and_then(|mut it| it.get("/")).is_ok_and(|answer| answer.status == 200) {
            seen.served += 1;
            seen.times.push(begin.elapsed().saturating_sub(due));
        }
    }
    Ok(seen)
}

impl Tenant {
    /// In milliseconds, of those that were served.
    pub(super) fn p99(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort();
        let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
        times.get(at).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}
