//! The configuration that the agent serves: by HTTP a host with one route and a host with
//! thousands, by HTTPS a host with one.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Result;
use portcullis_testbed::Authority;

pub(super) const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 93));
pub(super) const BACKEND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 94));
pub(super) const HTTP_PORT: u16 = 8080;
pub(super) const HTTPS_PORT: u16 = 8443;
pub(super) const BACKEND_PORT: u16 = 9090;
pub(super) const ONE: &str = "one.example.com";
pub(super) const MANY: &str = "many.example.com";
pub(super) const SECURE: &str = "secure.example.com";
pub(super) const ROUTES: usize = 10_000;
const ROUTES_PER_FILE: usize = 500;

pub(super) fn path(number: usize) -> String {
    format!("/r/{number}")
}

pub(super) fn write(directory: &Path, authority: &Authority) -> Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("gateway.yaml"), gateway())?;
    fs::write(directory.join("certificate.yaml"), authority.issue(&[SECURE])?.secret("default", "secure"))?;
    let numbers: Vec<_> = (0..ROUTES).collect();
    for (file, numbers) in numbers.chunks(ROUTES_PER_FILE).enumerate() {
        let routes = numbers.iter().map(|number| route(&format!("many-{number}"), MANY, &path(*number)));
        fs::write(directory.join(format!("routes-{file}.yaml")), routes.collect::<String>())?;
    }
    Ok(())
}

fn gateway() -> String {
    let gateway = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}\nspec:\n  \
         gatewayClassName: portcullis\n  addresses: [{{type: IPAddress, value: {VIP}}}]\n  listeners:\n  \
         - {{name: http, port: {HTTP_PORT}, protocol: HTTP}}\n  \
         - {{name: https, hostname: {SECURE}, port: {HTTPS_PORT}, protocol: HTTPS,\n     \
         tls: {{certificateRefs: [{{name: secure}}]}}}}\n"
    );
    let service = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{ports: [{{port: {BACKEND_PORT}}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\n\
         ports: [{{port: {BACKEND_PORT}}}]\nendpoints: [{{addresses: [{BACKEND}]}}]\n"
    );
    gateway + &service + &route("one", ONE, "/") + &route("secure", SECURE, "/")
}

fn route(name: &str, host: &str, path: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{{name: edge}}]\n  hostnames: [{host}]\n  rules:\n  \
         - matches: [{{path: {{type: PathPrefix, value: {path}}}}}]\n    \
         backendRefs: [{{name: web, port: {BACKEND_PORT}}}]\n"
    )
}
