//! Our own relay, which parses nothing: the floor under all of them.

use std::env::current_exe;
use std::path::Path;

use anyhow::Result;

use super::{Peer, RELAY, Running, start};
use crate::backend;
use crate::site::{HTTP_PORT, Site};
use crate::workload::{Load, Protocol};

pub(super) struct Relay;

impl Peer for Relay {
    fn name(&self) -> &'static str {
        RELAY
    }

    fn address(&self) -> &'static str {
        "127.0.0.96"
    }

    fn version(&self) -> Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn serves(&self, load: &Load) -> bool {
        load.protocol == Protocol::Http1
    }

    fn configure(&self, _: &Site, _: &Path) -> Result<()> {
        Ok(())
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        let program = current_exe()?.display().to_string();
        let listen = format!("{}:{HTTP_PORT}", self.address());
        let backend = format!("{}:{}", backend::ADDRESS, backend::PORT);
        start(&[&program, "relay", &listen, &backend], directory)
    }
}
