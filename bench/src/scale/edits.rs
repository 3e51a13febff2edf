//! One object changes: how long until a client sees it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portcullis_testbed::{Authority, Connection, TlsClient, TlsStream};

use super::world::World;

const TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_micros(200);
const PROBES: usize = 40;

pub(super) struct Edits<'a> {
    pub(super) world: &'a World,
    pub(super) authority: &'a Authority,
    pub(super) client: &'a TlsClient,
}

impl Edits<'_> {
    /// A number of each kind, in turns.
    pub(super) fn run(&self, count: usize) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let mut connection = self.connect()?;
        let mut times = (Vec::new(), Vec::new());
        for number in 1..=count {
            times.0.push(self.route_on(&mut connection, number)?);
            times.1.push(self.certificate(number)?);
        }
        Ok(times)
    }

    pub(super) fn route(&self, number: usize) -> Result<Duration> {
        self.route_on(&mut self.connect()?, usize::MAX - number)
    }

    /// Time that the client's own part of seeing a certificate takes.
    pub(super) fn handshake(&self) -> Result<Duration> {
        let began = Instant::now();
        for _ in 0..PROBES {
            self.connect()?;
        }
        Ok(began.elapsed() / u32::try_from(PROBES)?)
    }

    fn connect(&self) -> Result<Connection<TlsStream>> {
        self.client.connect(self.world.socket()?, &self.world.editor.host)
    }

    /// A header that a route sets, on a connection that stays open.
    fn route_on(&self, connection: &mut Connection<TlsStream>, number: usize) -> Result<Duration> {
        let expected = format!("x-edit: {number}\r\n");
        let text = self.world.editor.edited_route(number);
        self.visible("editor-route.yaml", &text, || Ok(connection.get("/edited")?.head.contains(&expected)))
            .with_context(|| format!("route, edit {number}"))
    }

    fn certificate(&self, number: usize) -> Result<Duration> {
        let certificate = self.authority.issue(&[&self.world.editor.host])?;
        let before = self.connect()?.certificate().map(<[u8]>::to_vec);
        let text = self.world.editor.manifests(&certificate);
        let is_new = || Ok(self.connect()?.certificate() != before.as_deref());
        self.visible("editor.yaml", &text, is_new).with_context(|| format!("certificate, edit {number}"))
    }

    /// From the file being in place.
    fn visible(&self, file: &str, text: &str, mut seen: impl FnMut() -> Result<bool>) -> Result<Duration> {
        self.world.put(file, text)?;
        let began = Instant::now();
        while !seen()? {
            if began.elapsed() > TIMEOUT {
                bail!("not visible within {TIMEOUT:?}");
            }
            thread::sleep(POLL);
        }
        Ok(began.elapsed())
    }
}
