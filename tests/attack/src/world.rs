//! An agent that serves a plain and a TLS port, a backend that is what it should be, one that is
//! not, and the client that is to notice nothing of all this.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use portcullis_testbed::{Agent, Authority, Datapath, Launch, pin_directory};
use tempfile::TempDir;

use crate::backend::{self, Asked};
use crate::issuer::{self, Issuer};
use crate::report::{Passed, Report};
use crate::witness::Witness;

/// The name that the routes are for.
pub(crate) const HOST: &str = "a.test";
/// Prefix of the paths that lead to hostile backends.
pub(crate) const HOSTILE: &str = "/hostile";
/// Of a request's head, and of a TLS handshake: the agent's defaults.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const ADDRESS: &str = "127.0.0.96";

pub(crate) struct World {
    pub(crate) plain: SocketAddr,
    pub(crate) tls: SocketAddr,
    pub(crate) asked: Asked,
    pub(crate) issuer: Issuer,
    agent: Agent,
    witness: Witness,
    /// Goes last.
    _directory: TempDir,
}

impl World {
    pub(crate) fn start(binary: PathBuf) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("portcullis-attack-").tempdir()?;
        let (plain, tls) = (address(8080)?, address(8443)?);
        let asked = backend::start(address(9001)?)?;
        let config = directory.path().join("config");
        let issuer = Issuer::new()?;
        write(&config, &issuer)?;
        let launch = Launch {
            binary,
            config,
            scratch: directory.path().join("agent"),
            pins: pin_directory("attack"),
            datapath: Datapath::Userspace,
            interface: "none".to_owned(),
            // On one core, attackers and the other client meet each other.
            arguments: ["--cores", "1", "--beside-others"].map(Into::into).into(),
            through: Vec::new(),
        };
        let agent = launch.start()?;
        let witness = Witness::start(plain, HOST);
        Ok(Self { plain, tls, asked, issuer, agent, witness, _directory: directory })
    }

    /// The other client got all that it asked for, and nothing broke that must not.
    pub(crate) fn verify(self, report: &mut Report) -> Result<()> {
        let seen = self.witness.end();
        report.add(
            "all the while: another client",
            format!(
                "{} of {} answered, {:?} at most",
                seen.answered,
                seen.answered + seen.failed,
                seen.slowest
            ),
            (seen.failed == 0 && seen.answered > 0).then_some(Passed),
        );
        let (agent, log) = (&self.agent, self.agent.log());
        ensure!(agent.get("/readyz").is_ok(), "the agent is not ready:\n{log}");
        let panics = agent.metric("portcullis_panics_total")?;
        report.add("all the while: the agent", format!("{panics} panics"), (panics == 0.0).then_some(Passed));
        let smuggled = self.asked.count("/smuggled");
        let malformed = self.asked.streams().iter().filter(|stream| stream.malformed.is_some()).count();
        report.add(
            "all the while: the backend",
            format!("{smuggled} smuggled requests, {malformed} malformed ones"),
            (smuggled + malformed == 0).then_some(Passed),
        );
        Ok(())
    }
}

/// A port of the address that all of it is at.
pub(crate) fn address(port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(ADDRESS.parse()?, port))
}

fn write(config: &Path, issuer: &Issuer) -> Result<()> {
    fs::create_dir_all(config)?;
    let authority = Authority::new()?;
    fs::write(config.join("secret.yaml"), authority.issue(&[HOST])?.secret("default", "a"))?;
    let manifests = format!(
        "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: portcullis}}
spec: {{controllerName: portcullis.dev/gateway}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: default}}
spec:
  gatewayClassName: portcullis
  addresses: [{{value: {ADDRESS}}}]
  listeners:
  - {{name: http, port: 8080, protocol: HTTP}}
  - {{name: https, port: 8443, protocol: HTTPS, tls: {{certificateRefs: [{{name: a}}]}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: a, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{HOST}]
  rules:
  - matches: [{{path: {{value: {HOSTILE}}}}}]
    backendRefs: [{{name: hostile, port: 80}}]
{}  - backendRefs: [{{name: good, port: 80}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: any-host, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  rules:
  - matches: [{{path: {{value: /h2spec}}}}]
    backendRefs: [{{name: good, port: 80}}]
{}{}{}",
        guarded_rules(),
        service("good", 9001),
        service("hostile", 9002),
        issuer::manifests(issuer),
    );
    fs::write(config.join("gateway.yaml"), manifests)?;
    Ok(())
}

/// Those that ask for credentials; the policies name them.
fn guarded_rules() -> String {
    let paths = [issuer::TOKEN, issuer::STAFF, issuer::KEY, issuer::PASSWORD];
    let rule = |path: &str| {
        let name = path.trim_start_matches('/');
        format!(
            "  - name: {name}\n    matches: [{{path: {{value: {path}}}}}]\n    backendRefs: [{{name: good, port: 80}}]\n"
        )
    };
    paths.map(rule).concat()
}

/// A Service with its endpoint.
fn service(name: &str, port: u16) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec: {{ports: [{{port: 80, targetPort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [{ADDRESS}]}}]
"
    )
}
