//! HAProxy in mode tcp, without and with splicing where it thinks it worth while.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Proxy;
use crate::l4::site::{BACKEND, BACKEND_TCP, MANY_NAMES, ONE_NAME, Site, TCP, name};
use crate::l4::workload::Kind;
use crate::peers::{self, Running};

const CONFIG: &str = "haproxy.cfg";

pub(super) struct Haproxy(pub(super) Splicing);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splicing {
    Auto,
    Off,
}

impl Proxy for Haproxy {
    fn name(&self) -> &'static str {
        match self.0 {
            Splicing::Auto => "HAProxy",
            Splicing::Off => "HAProxy, copying",
        }
    }

    fn address(&self) -> &'static str {
        match self.0 {
            Splicing::Auto => "127.0.0.92",
            Splicing::Off => "127.0.0.94",
        }
    }

    fn version(&self) -> Result<Option<String>> {
        match self.0 {
            Splicing::Auto => peers::version("haproxy", "-v").map(Some),
            Splicing::Off => Ok(None),
        }
    }

    fn forwards(&self, kind: Kind) -> bool {
        match self.0 {
            Splicing::Auto => kind != Kind::Datagrams,
            Splicing::Off => kind.is_bulk(),
        }
    }

    fn configure(&self, _site: &Site, directory: &Path) -> Result<()> {
        let map = |file: &str, names: &mut dyn Iterator<Item = String>| {
            let path = directory.join(file);
            let lines: String = names.map(|name| format!("{name} web\n")).collect();
            fs::write(&path, lines).map(|()| path)
        };
        let one = map("one.map", &mut std::iter::once(name(0)))?;
        let many = map("many.map", &mut Site::names())?;
        Ok(fs::write(directory.join(CONFIG), self.config(&one, &many)?)?)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        let config = directory.join(CONFIG).display().to_string();
        peers::start(&["haproxy", "-db", "-dMno-tag", "-f", &config], directory)
    }
}

impl Haproxy {
    fn config(&self, one: &Path, many: &Path) -> Result<String> {
        let address = self.address();
        let mut text = "global\n  nbthread 1\n  maxconn 4000\ndefaults\n  mode tcp\n".to_owned();
        text += "  timeout client 60s\n  timeout server 60s\n  timeout connect 5s\n";
        if self.0 == Splicing::Auto {
            text += "  option splice-auto\n";
        }
        writeln!(text, "frontend tcp\n  bind {address}:{TCP}\n  default_backend web")?;
        for (name, port, map) in [("one", ONE_NAME, one), ("many", MANY_NAMES, many)] {
            writeln!(text, "frontend {name}\n  bind {address}:{port}\n  tcp-request inspect-delay 5s")?;
            writeln!(text, "  tcp-request content accept if {{ req_ssl_hello_type 1 }}")?;
            writeln!(text, "  use_backend %[req_ssl_sni,map({})]", map.display())?;
        }
        writeln!(text, "backend web\n  server web {BACKEND}:{BACKEND_TCP}")?;
        Ok(text)
    }
}
