//! The site as Gateway API objects: a Gateway, a ListenerSet for each certificate and an HTTPRoute
//! for each route.

use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Result;

use super::site::{HTTP_PORT, HTTPS_PORT, Host, MANY, ONE, Site};

const ROUTES_PER_FILE: usize = 500;

pub(super) struct Manifests {
    /// Of the Gateway.
    pub(super) address: IpAddr,
    /// All routes lead there.
    pub(super) backend: SocketAddr,
}

impl Manifests {
    /// Writes them into a directory of their own.
    pub(super) fn write(&self, site: &Site, directory: &Path) -> Result<()> {
        fs::create_dir(directory)?;
        fs::write(directory.join("gateway.yaml"), self.gateway()?)?;
        for host in &site.hosts {
            fs::write(directory.join(format!("{}.yaml", host.name)), self.tls_host(host)?)?;
        }
        let paths: Vec<_> = site.paths().enumerate().collect();
        for (number, paths) in paths.chunks(ROUTES_PER_FILE).enumerate() {
            let mut text = String::new();
            for (number, path) in paths {
                text += &self.http_route(&format!("many-{number}"), "{name: edge}", MANY, path);
            }
            fs::write(directory.join(format!("routes-{number}.yaml")), text)?;
        }
        Ok(())
    }

    fn gateway(&self) -> Result<String> {
        let (address, backend, port) = (self.address, self.backend.ip(), self.backend.port());
        let mut text = String::new();
        writeln!(text, "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}")?;
        writeln!(
            text,
            "spec:\n  gatewayClassName: portcullis\n  addresses: [{{type: IPAddress, value: {address}}}]"
        )?;
        writeln!(text, "  allowedListeners: {{namespaces: {{from: Same}}}}")?;
        writeln!(text, "  listeners: [{{name: http, port: {HTTP_PORT}, protocol: HTTP}}]")?;
        writeln!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{ports: [{{port: {port}}}]}}"
        )?;
        writeln!(text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4")?;
        writeln!(text, "metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}")?;
        writeln!(text, "ports: [{{port: {port}}}]\nendpoints: [{{addresses: [{backend}]}}]")?;
        text += &self.http_route("one", "{name: edge}", ONE, "/");
        Ok(text)
    }

    fn tls_host(&self, host: &Host) -> Result<String> {
        let name = &host.name;
        let mut text = host.certificate.secret("default", name);
        writeln!(
            text,
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: {name}}}"
        )?;
        writeln!(text, "spec:\n  parentRef: {{name: edge}}\n  listeners:")?;
        writeln!(text, "  - {{name: https, hostname: {name}, port: {HTTPS_PORT}, protocol: HTTPS,")?;
        writeln!(text, "     tls: {{certificateRefs: [{{name: {name}}}]}}}}")?;
        let parent = format!("{{group: gateway.networking.k8s.io, kind: ListenerSet, name: {name}}}");
        text += &self.http_route(name, &parent, name, "/");
        Ok(text)
    }

    fn http_route(&self, name: &str, parent: &str, host: &str, path: &str) -> String {
        let port = self.backend.port();
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
             parentRefs: [{parent}]\n  hostnames: [{host}]\n  rules:\n  \
             - matches: [{{path: {{type: PathPrefix, value: {path}}}}}]\n    backendRefs: [{{name: web, port: {port}}}]\n"
        )
    }
}
