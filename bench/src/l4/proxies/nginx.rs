//! nginx's stream module, one worker.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Proxy;
use crate::l4::site::{BACKEND, BACKEND_TCP, BACKEND_UDP, MANY_NAMES, ONE_NAME, Site, TCP, UDP, name};
use crate::l4::workload::Kind;
use crate::peers::{self, Running};

const CONFIG: &str = "nginx.conf";
/// Of Debian's libnginx-mod-stream.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) struct Nginx;

impl Proxy for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn address(&self) -> &'static str {
        "127.0.0.93"
    }

    fn version(&self) -> Result<Option<String>> {
        peers::version("nginx", "-v").map(Some)
    }

    fn forwards(&self, _kind: Kind) -> bool {
        true
    }

    fn configure(&self, _site: &Site, directory: &Path) -> Result<()> {
        Ok(fs::write(directory.join(CONFIG), self.config(directory)?)?)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        peers::start(&["nginx", "-c", &directory.join(CONFIG).display().to_string()], directory)
    }
}

impl Nginx {
    fn config(&self, directory: &Path) -> Result<String> {
        let (address, at, backend) =
            (self.address(), directory.display(), format!("{BACKEND}:{BACKEND_TCP}"));
        let mut text =
            format!("load_module {MODULE};\ndaemon off; master_process off; worker_processes 1;\n");
        writeln!(text, "pid {at}/pid; error_log {at}/error.log;\nevents {{ worker_connections 10000; }}")?;
        writeln!(text, "stream {{\nmap_hash_max_size 65536; map_hash_bucket_size 128; proxy_half_close on;")?;
        writeln!(text, "map $ssl_preread_server_name $one {{ {} {backend}; }}", name(0))?;
        writeln!(text, "map $ssl_preread_server_name $many {{")?;
        for name in Site::names() {
            writeln!(text, "{name} {backend};")?;
        }
        writeln!(text, "}}\nserver {{ listen {address}:{TCP}; proxy_pass {backend}; }}")?;
        for (port, target) in [(ONE_NAME, "$one"), (MANY_NAMES, "$many")] {
            writeln!(text, "server {{ listen {address}:{port}; ssl_preread on; proxy_pass {target}; }}")?;
        }
        writeln!(text, "server {{ listen {address}:{UDP} udp; proxy_pass {BACKEND}:{BACKEND_UDP}; }}\n}}")?;
        Ok(text)
    }
}
