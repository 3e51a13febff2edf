//! Portcullis: the site as Gateway API objects, a ListenerSet for each certificate and an HTTPRoute
//! for each route.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use portcullis_testbed::build;
use portcullis_testbed::{Datapath, Launch, pin_directory, remove_leftovers};

use super::{Peer, Running, version};
use crate::backend;
use crate::process::PROXY_CPU;
use crate::site::{HTTP_PORT, HTTPS_PORT, Host, MANY, ONE, Site};

const PURPOSE: &str = "bench";
const ROUTES_PER_FILE: usize = 500;

#[derive(Clone)]
pub(crate) struct Portcullis {
    pub(crate) binary: PathBuf,
    pub(crate) datapath: Datapath,
}

/// Which agent is measured.
#[derive(clap::Args)]
pub(crate) struct Build {
    /// An agent that is built already
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Use ordinary sockets instead of the kernel programs
    #[arg(long)]
    userspace: bool,
}

impl Build {
    /// Installs what benchmarks need and builds the agent, unless there is one already.
    pub(crate) fn portcullis(&self) -> Result<Portcullis> {
        let datapath = if self.userspace { Datapath::Userspace } else { Datapath::Auto };
        let binary = match &self.binary {
            Some(binary) => binary.clone(),
            None => {
                crate::setup()?;
                build::release()?
            }
        };
        Ok(Portcullis { binary, datapath })
    }
}

impl Peer for Portcullis {
    fn name(&self) -> &'static str {
        "Portcullis"
    }

    fn address(&self) -> &'static str {
        "127.0.0.91"
    }

    fn version(&self) -> Result<String> {
        version(&self.binary.display().to_string(), "--version")
    }

    fn configure(&self, site: &Site, directory: &Path) -> Result<()> {
        let config = config_directory(directory);
        fs::create_dir(&config)?;
        self.write(site, &config)
    }

    fn start(&self, directory: &Path) -> Result<Running> {
        remove_leftovers(PURPOSE)?;
        Ok(Running::Agent(Box::new(self.launch(directory).spawn()?)))
    }
}

impl Portcullis {
    pub(crate) fn launch(&self, directory: &Path) -> Launch {
        Launch {
            binary: self.binary.clone(),
            config: config_directory(directory),
            scratch: directory.to_owned(),
            pins: pin_directory(PURPOSE),
            datapath: self.datapath,
            interface: "none".to_owned(),
            arguments: vec!["--cores".into(), "1".into(), "--log".into(), "warn".into()],
            through: ["taskset", "--cpu-list", PROXY_CPU].map(Into::into).to_vec(),
        }
    }

    fn write(&self, site: &Site, config: &Path) -> Result<()> {
        fs::write(config.join("gateway.yaml"), self.gateway()?)?;
        for host in &site.hosts {
            fs::write(config.join(format!("{}.yaml", host.name)), tls_host(host)?)?;
        }
        let routes: Vec<_> = site.paths().collect();
        for (number, paths) in routes.chunks(ROUTES_PER_FILE).enumerate() {
            let text: String = paths
                .iter()
                .enumerate()
                .map(|(at, path)| route(number * ROUTES_PER_FILE + at, path))
                .collect();
            fs::write(config.join(format!("routes-{number}.yaml")), text)?;
        }
        Ok(())
    }

    fn gateway(&self) -> Result<String> {
        let (address, backend, port) = (self.address(), backend::ADDRESS, backend::PORT);
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
        text += &http_route("one", "{name: edge}", ONE, "/");
        Ok(text)
    }
}

/// Where the manifests are, among an agent's other files.
pub(crate) fn config_directory(directory: &Path) -> PathBuf {
    directory.join("config")
}

fn route(number: usize, path: &str) -> String {
    http_route(&format!("many-{number}"), "{name: edge}", MANY, path)
}

fn tls_host(host: &Host) -> Result<String> {
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
    text += &http_route(name, &parent, name, "/");
    Ok(text)
}

fn http_route(name: &str, parent: &str, host: &str, path: &str) -> String {
    let port = backend::PORT;
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
         parentRefs: [{parent}]\n  hostnames: [{host}]\n  rules:\n  \
         - matches: [{{path: {{type: PathPrefix, value: {path}}}}}]\n    backendRefs: [{{name: web, port: {port}}}]\n"
    )
}
