//! Portcullis, which forwards the site as Gateway API objects.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Proxy;
use crate::l4::site::{BACKEND, BACKEND_TCP, BACKEND_UDP, MANY_NAMES, ONE_NAME, Site, TCP, UDP, name};
use crate::l4::workload::Kind;
use crate::peers::{Peer, Portcullis, Running, config_directory};

/// As many as a TLSRoute may have.
const NAMES_PER_ROUTE: usize = 16;

impl Proxy for Portcullis {
    fn name(&self) -> &'static str {
        Peer::name(self)
    }

    fn address(&self) -> &'static str {
        Peer::address(self)
    }

    fn version(&self) -> Result<Option<String>> {
        Peer::version(self).map(Some)
    }

    fn forwards(&self, _kind: Kind) -> bool {
        true
    }

    fn configure(&self, _site: &Site, directory: &Path) -> Result<()> {
        let config = config_directory(directory);
        fs::create_dir(&config)?;
        fs::write(config.join("gateway.yaml"), gateway(Proxy::address(self))?)?;
        let names: Vec<_> = Site::names().collect();
        let routes = names.chunks(NAMES_PER_ROUTE).enumerate();
        let routes: String =
            routes.map(|(number, names)| tls_route(&format!("many-{number}"), "many", names)).collect();
        Ok(fs::write(config.join("routes.yaml"), routes)?)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        Peer::start(self, directory)
    }
}

fn gateway(address: &str) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}")?;
    writeln!(text, "spec:\n  gatewayClassName: portcullis")?;
    writeln!(text, "  addresses: [{{type: IPAddress, value: {address}}}]\n  listeners:")?;
    writeln!(text, "  - {{name: tcp, port: {TCP}, protocol: TCP}}")?;
    for (name, port) in [("one", ONE_NAME), ("many", MANY_NAMES)] {
        writeln!(text, "  - {{name: {name}, port: {port}, protocol: TLS, tls: {{mode: Passthrough}}}}")?;
    }
    writeln!(text, "  - {{name: udp, port: {UDP}, protocol: UDP}}")?;
    writeln!(text, "---\napiVersion: v1\nkind: Service\nmetadata: {{name: app}}\nspec:\n  ports:")?;
    writeln!(text, "  - {{name: tcp, port: {BACKEND_TCP}}}")?;
    writeln!(text, "  - {{name: udp, port: {BACKEND_UDP}, protocol: UDP}}")?;
    writeln!(text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4")?;
    writeln!(text, "metadata: {{name: app-1, labels: {{kubernetes.io/service-name: app}}}}\nports:")?;
    writeln!(text, "- {{name: tcp, port: {BACKEND_TCP}}}")?;
    writeln!(text, "- {{name: udp, port: {BACKEND_UDP}, protocol: UDP}}")?;
    writeln!(text, "endpoints: [{{addresses: [{BACKEND}]}}]")?;
    text += &route("TCPRoute", "tcp", "tcp", "", BACKEND_TCP);
    text += &route("UDPRoute", "udp", "udp", "", BACKEND_UDP);
    text += &tls_route("one", "one", &[name(0)]);
    Ok(text)
}

fn tls_route(name: &str, listener: &str, names: &[String]) -> String {
    let hostnames = format!("  hostnames: [{}]\n", names.join(", "));
    route("TLSRoute", name, listener, &hostnames, BACKEND_TCP)
}

fn route(kind: &str, name: &str, listener: &str, hostnames: &str, port: u16) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: edge, sectionName: {listener}}}]\n{hostnames}  \
         rules: [{{backendRefs: [{{name: app, port: {port}}}]}}]\n"
    )
}
