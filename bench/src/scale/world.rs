//! The tenants' files: one for each tenant, and three for the one whose route and certificate are
//! edited.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use portcullis_testbed::{Authority, Certificate, TlsClient};

use crate::backend;

pub(super) const ROUTES: usize = 16;
pub(super) const PORT: u16 = 8443;

pub(super) struct World {
    pub(super) address: String,
    pub(super) directory: PathBuf,
    pub(super) config: PathBuf,
    pub(super) tenants: Vec<Tenant>,
    /// The one that edits.
    pub(super) editor: Tenant,
}

pub(super) struct Tenant {
    name: String,
    pub(super) host: String,
}

impl World {
    /// With sixteen routes for each.
    pub(super) fn create(
        count: usize,
        address: &str,
        directory: &Path,
        authority: &Authority,
    ) -> Result<Self> {
        Self::with_routes(ROUTES, count, address, directory, authority)
    }

    /// With just enough of a route to be served.
    pub(super) fn of_names(
        count: usize,
        address: &str,
        directory: &Path,
        authority: &Authority,
    ) -> Result<Self> {
        Self::with_routes(1, count, address, directory, authority)
    }

    fn with_routes(
        routes: usize,
        count: usize,
        address: &str,
        directory: &Path,
        authority: &Authority,
    ) -> Result<Self> {
        let config = directory.join("config");
        fs::create_dir(&config)?;
        fs::write(config.join("edge.yaml"), gateway(address))?;
        let tenants: Vec<_> = (0..count).map(|number| Tenant::new(&format!("t{number}"))).collect();
        for tenant in &tenants {
            let certificate = authority.issue(&[&tenant.host])?;
            let mut text = tenant.manifests(&certificate);
            (0..routes).for_each(|number| text += &tenant.route(number));
            fs::write(config.join(format!("{}.yaml", tenant.name)), text)?;
        }
        let editor = Tenant::new("editor");
        fs::write(config.join("editor.yaml"), editor.manifests(&authority.issue(&[&editor.host])?))?;
        let world =
            Self { address: address.to_owned(), directory: directory.to_owned(), config, tenants, editor };
        world.put("editor-route.yaml", &world.editor.edited_route(0))?;
        Ok(world)
    }

    pub(super) fn socket(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.address.parse()?, PORT))
    }

    /// The tenant that is read last.
    pub(super) fn last(&self) -> &Tenant {
        self.tenants.last().unwrap_or(&self.editor)
    }

    /// Replaces a file as an editor does.
    pub(super) fn put(&self, name: &str, text: &str) -> Result<()> {
        let partial = self.config.join(format!(".{name}.partial"));
        fs::write(&partial, text)?;
        Ok(fs::rename(partial, self.config.join(name))?)
    }
}

impl Tenant {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), host: format!("{name}.example.com") }
    }

    /// By its first route, with a certificate of its own, which the client checks.
    pub(super) fn is_served(&self, world: &World, client: &TlsClient) -> Result<()> {
        let path = if self.name == world.editor.name { "/edited".to_owned() } else { path(0) };
        let answer = client.connect(world.socket()?, &self.host)?.get(&path)?;
        let own = format!("x-tenant: {}\r\n", self.name);
        ensure!(answer.status == 200 && answer.head.contains(&own), "{}: {answer:?}", self.name);
        Ok(())
    }

    /// All but the routes.
    pub(super) fn manifests(&self, certificate: &Certificate) -> String {
        let Self { name, host } = self;
        let (address, port) = (backend::ADDRESS, backend::PORT);
        let mut text = certificate.secret(name, "tls");
        let _ = write!(
            text,
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: web, namespace: {name}}}
spec:
  parentRef: {{name: edge, namespace: infra}}
  listeners:
  - {{name: https, port: {PORT}, protocol: HTTPS, hostname: {host}, tls: {{certificateRefs: [{{name: tls}}]}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: {name}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: app-1, namespace: {name}, labels: {{kubernetes.io/service-name: app}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [{address}]}}]
"
        );
        text
    }

    /// The first one says whose it is.
    fn route(&self, number: usize) -> String {
        let mark = if number == 0 { self.mark("") } else { String::new() };
        self.http_route(&format!("route-{number}"), &path(number), &mark)
    }

    pub(super) fn edited_route(&self, version: usize) -> String {
        let header = format!(", {{name: X-Edit, value: \"{version}\"}}");
        self.http_route("edited", "/edited", &self.mark(&header))
    }

    fn mark(&self, more: &str) -> String {
        let name = &self.name;
        format!(
            "    filters: [{{type: ResponseHeaderModifier, \
             responseHeaderModifier: {{set: [{{name: X-Tenant, value: {name}}}{more}]}}}}]\n"
        )
    }

    fn http_route(&self, name: &str, path: &str, filters: &str) -> String {
        let namespace = &self.name;
        format!(
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  parentRefs: [{{group: gateway.networking.k8s.io, kind: ListenerSet, name: web}}]
  rules:
  - matches: [{{path: {{type: PathPrefix, value: {path}}}}}]
{filters}    backendRefs: [{{name: app, port: 80}}]
"
        )
    }
}

fn path(number: usize) -> String {
    format!("/r{number}")
}

fn gateway(address: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: infra}}
spec:
  gatewayClassName: portcullis
  addresses: [{{type: IPAddress, value: {address}}}]
  allowedListeners: {{namespaces: {{from: All}}}}
"
    )
}
