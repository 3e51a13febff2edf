//! A thousand names of TLS listeners at one port, every second one passed through, and a hundred of
//! HTTPS among them. Each has a ListenerSet, a certificate, a route and a backend of its own.

use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{Authority, Certificate, TlsClient, until};

/// Of the Gateway.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 97);
const PORT: u16 = 8443;
/// Names of each of the two modes of TLS, and of HTTPS.
const OF_TLS: u16 = 500;
const OF_HTTPS: u16 = 100;
const START: Duration = Duration::from_secs(60);

pub(super) struct World {
    pub(super) address: SocketAddr,
    pub(super) authority: Authority,
    /// For files of the clients.
    pub(super) directory: PathBuf,
    pub(super) names: Vec<Name>,
}

pub(super) struct Name {
    pub(super) kind: Kind,
    number: u16,
    pub(super) host: String,
    pub(super) certificate: Certificate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Passthrough,
    Terminate,
    Https,
}

impl World {
    pub(super) fn create(authority: Authority, directory: &Path) -> Result<Self> {
        let mut names = Vec::new();
        for number in 0..OF_TLS {
            names.push(Name::new(Kind::Passthrough, number, &authority)?);
            names.push(Name::new(Kind::Terminate, number, &authority)?);
            if number % (OF_TLS / OF_HTTPS) == 0 {
                names.push(Name::new(Kind::Https, number, &authority)?);
            }
        }
        let address = SocketAddr::new(ADDRESS.into(), PORT);
        let world = Self { address, authority, directory: directory.to_owned(), names };
        fs::write(world.authority_file(), world.authority.pem())?;
        fs::create_dir(world.config())?;
        fs::write(world.config().join("gateway.yaml"), gateway()?)?;
        for name in &world.names {
            fs::write(world.config().join(format!("{}.yaml", name.label())), name.manifests()?)?;
        }
        Ok(world)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.directory.join("config")
    }

    /// PEM of the authority that all certificates are from.
    pub(super) fn authority_file(&self) -> PathBuf {
        self.directory.join("authority.pem")
    }

    /// Those of so many connections, one after the other.
    pub(super) fn hosts(&self, connections: usize) -> impl Iterator<Item = &str> {
        // A step that is no divisor: neighbours are of all kinds, and far apart in any table.
        const STRIDE: usize = 379;
        (0..connections).map(|number| self.names[number * STRIDE % self.names.len()].host.as_str())
    }

    pub(super) fn wait_served(&self) -> Result<()> {
        let client = TlsClient::new(&self.authority)?;
        for name in self.names.iter().rev() {
            until(START, || {
                let answer = client.connect(self.address, &name.host)?.get("/")?;
                ensure!(answer.status == 200, "{}: {answer:?}", name.host);
                Ok(())
            })
            .with_context(|| format!("{} is not served", name.host))?;
        }
        Ok(())
    }
}

impl Name {
    fn new(kind: Kind, number: u16, authority: &Authority) -> Result<Self> {
        let host = format!("{}.example.com", label(kind, number));
        Ok(Self { kind, number, certificate: authority.issue(&[&host])?, host })
    }

    /// The answer of its backend.
    pub(super) fn label(&self) -> String {
        label(self.kind, self.number)
    }

    fn manifests(&self) -> Result<String> {
        let (label, host, port) = (self.label(), &self.host, self.kind.backend_port());
        let (protocol, tls, route) = match self.kind {
            Kind::Passthrough => ("TLS", "mode: Passthrough".to_owned(), "TLSRoute"),
            Kind::Terminate => ("TLS", format!("certificateRefs: [{{name: {label}}}]"), "TLSRoute"),
            Kind::Https => ("HTTPS", format!("certificateRefs: [{{name: {label}}}]"), "HTTPRoute"),
        };
        let mut text = match self.kind {
            Kind::Passthrough => String::new(),
            Kind::Terminate | Kind::Https => self.certificate.secret("default", &label),
        };
        writeln!(text, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet")?;
        writeln!(text, "metadata: {{name: {label}}}\nspec:\n  parentRef: {{name: edge}}\n  listeners:")?;
        writeln!(
            text,
            "  - {{name: a, port: {PORT}, protocol: {protocol}, hostname: {host}, tls: {{{tls}}}}}"
        )?;
        writeln!(text, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {route}")?;
        writeln!(text, "metadata: {{name: {label}}}\nspec:\n  hostnames: [{host}]")?;
        let group = "gateway.networking.k8s.io";
        writeln!(text, "  parentRefs: [{{group: {group}, kind: ListenerSet, name: {label}}}]")?;
        writeln!(text, "  rules: [{{backendRefs: [{{name: {label}, port: {port}}}]}}]")?;
        writeln!(text, "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {label}}}")?;
        writeln!(text, "spec: {{ports: [{{port: {port}}}]}}")?;
        writeln!(text, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4")?;
        writeln!(text, "metadata: {{name: {label}-1, labels: {{kubernetes.io/service-name: {label}}}}}")?;
        writeln!(text, "ports: [{{port: {port}}}]")?;
        writeln!(text, "endpoints: [{{addresses: [{}]}}]", backend_address(self.number))?;
        Ok(text)
    }
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Passthrough, Self::Terminate, Self::Https];

    pub(super) fn backend_port(self) -> u16 {
        match self {
            Self::Passthrough => 9443,
            Self::Terminate => 9444,
            Self::Https => 9445,
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Passthrough => 'p',
            Self::Terminate => 't',
            Self::Https => 'h',
        }
    }
}

/// The label of the name whose backend has this address.
pub(super) fn label_at(kind: Kind, address: Ipv4Addr) -> String {
    let [_, _, high, low] = address.octets();
    label(kind, u16::from_be_bytes([high, low]))
}

fn backend_address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 98, high, low)
}

fn label(kind: Kind, number: u16) -> String {
    format!("{}{number:04}", kind.letter())
}

fn gateway() -> Result<String> {
    let mut text = String::new();
    writeln!(text, "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: edge}}")?;
    writeln!(text, "spec:\n  gatewayClassName: portcullis")?;
    writeln!(text, "  addresses: [{{type: IPAddress, value: {ADDRESS}}}]")?;
    writeln!(text, "  allowedListeners: {{namespaces: {{from: Same}}}}")?;
    Ok(text)
}
