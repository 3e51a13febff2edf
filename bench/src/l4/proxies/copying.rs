//! This program as a proxy that copies.

use std::env;
use std::path::Path;

use anyhow::Result;

use super::Proxy;
use crate::l4::site::{BACKEND, BACKEND_TCP, Site, TCP};
use crate::l4::workload::Kind;
use crate::peers::{self, Running};

pub(super) struct Copying;

impl Proxy for Copying {
    fn name(&self) -> &'static str {
        "64 KiB copy"
    }

    fn address(&self) -> &'static str {
        "127.0.0.96"
    }

    fn version(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn forwards(&self, kind: Kind) -> bool {
        matches!(kind, Kind::Bulk(_))
    }

    fn configure(&self, _site: &Site, _directory: &Path) -> Result<()> {
        Ok(())
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        let program = env::current_exe()?.display().to_string();
        let (listen, backend) = (format!("{}:{TCP}", self.address()), format!("{BACKEND}:{BACKEND_TCP}"));
        peers::start(&[&program, "l4-copying", &listen, &backend], directory)
    }
}
