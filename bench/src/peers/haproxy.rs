//! HAProxy. Debian's build tags its memory pools for debugging by default, which costs about a
//! tenth; that is off.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{HAPROXY, Peer, Running, SUITE, start, version};
use crate::backend;
use crate::site::{HTTP_PORT, HTTPS_PORT, MANY, Site};

const CONFIG: &str = "haproxy.cfg";

pub(crate) struct Haproxy {
    /// As many as it has room for, on both sides.
    pub(crate) connections: u64,
}

impl Peer for Haproxy {
    fn name(&self) -> &'static str {
        HAPROXY
    }

    fn address(&self) -> &'static str {
        "127.0.0.92"
    }

    fn version(&self) -> Result<String> {
        version("haproxy", "-v")
    }

    fn configure(&self, site: &Site, directory: &Path) -> Result<()> {
        let map = directory.join("routes.map");
        fs::write(&map, site.paths().map(|path| format!("{path} web\n")).collect::<String>())?;
        Ok(fs::write(directory.join(CONFIG), self.config(site, &map)?)?)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        let config = directory.join(CONFIG);
        start(&["haproxy", "-db", "-dMno-tag", "-f", &config.display().to_string()], directory)
    }
}

impl Haproxy {
    fn config(&self, site: &Site, map: &Path) -> Result<String> {
        let (address, backend, port) = (self.address(), backend::ADDRESS, backend::PORT);
        let mut text = String::new();
        let connections = self.connections;
        writeln!(
            text,
            "global\n  nbthread 1\n  maxconn {connections}\n  ssl-default-bind-ciphersuites {SUITE}"
        )?;
        writeln!(
            text,
            "defaults\n  mode http\n  timeout client 60s\n  timeout server 60s\n  timeout connect 5s"
        )?;
        writeln!(
            text,
            "  option forwardfor\n  http-reuse always\nfrontend web-in\n  bind {address}:{HTTP_PORT}"
        )?;
        // A directory for many certificates, as documented.
        let pem = site.hosts.first().and_then(|host| host.both.parent()).unwrap_or(Path::new("."));
        writeln!(text, "  bind {address}:{HTTPS_PORT} ssl crt {} alpn h2,http/1.1", pem.display())?;
        writeln!(text, "  http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]")?;
        writeln!(text, "  acl many req.hdr(host) -i {MANY}")?;
        writeln!(text, "  use_backend %[path,map_beg({},none)] if many", map.display())?;
        writeln!(text, "  default_backend web\nbackend none\n  http-request deny deny_status 404")?;
        writeln!(text, "backend web\n  server web {backend}:{port}")?;
        Ok(text)
    }
}
