//! nginx, one worker.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{NGINX, Peer, Running, SUITE, start, version};
use crate::backend;
use crate::site::{HTTP_PORT, HTTPS_PORT, MANY, Site};

const CONFIG: &str = "nginx.conf";

pub(super) struct Nginx;

impl Peer for Nginx {
    fn name(&self) -> &'static str {
        NGINX
    }

    fn address(&self) -> &'static str {
        "127.0.0.93"
    }

    fn version(&self) -> Result<String> {
        version("nginx", "-v")
    }

    fn configure(&self, site: &Site, directory: &Path) -> Result<()> {
        Ok(fs::write(directory.join(CONFIG), self.config(site, directory)?)?)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        start(&["nginx", "-c", &directory.join(CONFIG).display().to_string()], directory)
    }
}

impl Nginx {
    fn config(&self, site: &Site, directory: &Path) -> Result<String> {
        let (address, backend, port) = (self.address(), backend::ADDRESS, backend::PORT);
        let at = directory.display();
        let mut text = String::new();
        writeln!(
            text,
            "daemon off; master_process off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;"
        )?;
        writeln!(
            text,
            "events {{ worker_connections 10000; }}\nhttp {{ access_log off; keepalive_requests 1000000000;"
        )?;
        for path in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            writeln!(text, "{path}_temp_path {at};")?;
        }
        writeln!(
            text,
            "server_names_hash_max_size 8192; ssl_protocols TLSv1.2 TLSv1.3; ssl_conf_command Ciphersuites {SUITE};"
        )?;
        writeln!(
            text,
            "upstream web {{ server {backend}:{port}; keepalive 256; keepalive_requests 1000000000; }}"
        )?;
        writeln!(
            text,
            "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;"
        )?;
        writeln!(
            text,
            "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;"
        )?;
        writeln!(
            text,
            "server {{ listen {address}:{HTTP_PORT} default_server; location / {{ proxy_pass http://web; }} }}"
        )?;
        writeln!(text, "server {{ listen {address}:{HTTP_PORT}; server_name {MANY};")?;
        for path in site.paths() {
            writeln!(text, "location {path} {{ proxy_pass http://web; }}")?;
        }
        writeln!(text, "}}")?;
        for host in &site.hosts {
            let (name, chain, key) = (&host.name, host.chain.display(), host.key.display());
            writeln!(text, "server {{ listen {address}:{HTTPS_PORT} ssl http2; server_name {name};")?;
            writeln!(
                text,
                "ssl_certificate {chain}; ssl_certificate_key {key}; location / {{ proxy_pass http://web; }} }}"
            )?;
        }
        writeln!(text, "}}")?;
        Ok(text)
    }
}
