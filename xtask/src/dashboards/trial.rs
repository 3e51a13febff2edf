//! `cargo xtask dashboards --try`: every query of the dashboards and alerts on a real Prometheus
//! that scrapes a real agent under load, and the size of scrapes at 10,000 routes. What is asked of
//! Prometheus, and what may be empty, is in `tests/dashboards`.

use std::fmt::Write;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_testbed as testbed;
use portcullis_testbed::{build, command, go, workspace};
use testbed::{Agent, Authority, Backend, Connection, Launch, TlsClient};

use super::PLACE;

const MODULE: &str = "tests/dashboards";
const ALERTS: &str = "deploy/helm/portcullis/rules/alerts.yaml";
const PAGE: &str = "docs/metrics.md";
const PURPOSE: &str = "dashboards";

/// With the addresses and ports below.
const EDGE: &str = include_str!("edge.yaml");
const HTTP: &str = "127.0.0.93:8000";
const HTTPS: &str = "127.0.0.93:8443";
const TCP: &str = "127.0.0.93:9000";
const BACKEND: &str = "127.0.0.94:8080";
const HOST: &str = "shop.example.com";
/// Answered, by a route that another one includes, not reached, without a route.
const PATHS: &[&str] = &["/plain", "/store/cart", "/gone", "/nowhere"];

const ROUTES: usize = 10_000;
const ROUTES_OF_A_SERVICE: usize = 10;

/// Tries everything with this agent, or with one that is built first.
pub(super) fn run(binary: Option<&PathBuf>, datapath: testbed::Datapath) -> Result<()> {
    let prometheus = go::built(MODULE, ".", "dashboards")?;
    let binary = binary.cloned().map_or_else(build::debug, Ok)?;
    testbed::remove_leftovers(PURPOSE)?;
    let _backend = Backend::start("web", BACKEND.parse()?)?;
    let authority = Authority::new()?;
    let secret = authority.issue(&[HOST])?.secret("infra", "shop-tls");
    let small = World::start(&binary, datapath, &format!("{EDGE}---\n{secret}"))?;
    let client = TlsClient::new(&authority)?;
    let load = |round| request(&client).and_then(|()| small.change(round));
    under_load(load, || command::run(&mut small.ask(&prometheus)))?;
    small.stop()?;
    let large = World::start(&binary, datapath, &many_routes()?)?;
    request_all()?;
    command::run(large.ask(&prometheus).args(["-size", "-scrapes", "21"]))?;
    large.stop()
}

/// An agent with its files, which go when it goes.
struct World {
    agent: Agent,
    files: tempfile::TempDir,
}

impl World {
    fn start(binary: &Path, datapath: testbed::Datapath, manifests: &str) -> Result<Self> {
        let files = tempfile::Builder::new().prefix("portcullis-dashboards-").tempdir()?;
        let config = files.path().join("config");
        fs::create_dir_all(&config)?;
        fs::write(config.join("all.yaml"), manifests)?;
        let launch = Launch {
            binary: binary.to_owned(),
            config,
            scratch: files.path().join("agent"),
            pins: testbed::pin_directory(PURPOSE),
            datapath,
            interface: "none".to_owned(),
            arguments: vec!["--beside-others".into()],
            through: Vec::new(),
        };
        Ok(Self { agent: launch.start()?, files })
    }

    fn ask(&self, prometheus: &Path) -> Command {
        let root = workspace::root();
        let mut ask = Command::new(prometheus);
        ask.arg("-socket").arg(self.files.path().join("agent/admin.sock"));
        ask.arg("-dashboards").arg(root.join(PLACE)).arg("-alerts").arg(root.join(ALERTS));
        ask.arg("-page").arg(root.join(PAGE));
        ask
    }

    /// Another route than before.
    fn change(&self, round: usize) -> Result<()> {
        let route = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: change, namespace: infra}}\n\
             spec: {{parentRefs: [{{name: edge, sectionName: http}}], rules: [{{matches: [{{path: {{value: /{round}}}}}]}}]}}\n"
        );
        // Renamed into place: the agent sees the old file or the new one.
        let partial = self.agent.config().join(".change.partial");
        fs::write(&partial, route)?;
        Ok(fs::rename(&partial, self.agent.config().join("change.yaml"))?)
    }

    fn stop(self) -> Result<()> {
        self.agent.terminate().context("stopping the agent")?;
        Ok(self.files.close()?)
    }
}

/// Does one thing again and again until the other one is done.
fn under_load(load: impl Fn(usize) -> Result<()> + Sync, then: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                load(round)?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        let outcome = then();
        done.store(true, Ordering::Relaxed);
        let loaded = loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
        outcome.and(loaded)
    })
}

/// Every kind of request once, each by a new connection.
fn request(client: &TlsClient) -> Result<()> {
    for path in PATHS {
        connect(HTTP)?.get(path)?;
        client.connect(HTTPS.parse()?, HOST)?.get(path)?;
    }
    connect(TCP)?.get("/")?;
    ensure!(client.connect(HTTPS.parse()?, "unknown.example.com").is_err(), "an unknown name is served");
    Ok(())
}

/// One request to each of the many routes.
fn request_all() -> Result<()> {
    let mut connection = connect(HTTP)?;
    for route in 0..ROUTES {
        let answer = connection.get(&format!("/{route}"))?;
        ensure!(answer.status == 200, "route {route} was answered with {}", answer.status);
    }
    Ok(())
}

fn connect(address: &str) -> Result<Connection<TcpStream>> {
    let address: SocketAddr = address.parse()?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(Connection::new(stream, HOST))
}

/// The class, the namespace and the Gateway of [`EDGE`], with routes and Services of their own.
fn many_routes() -> Result<String> {
    let mut text = String::from(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: portcullis}\n\
         spec: {controllerName: portcullis.dev/gateway}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: infra}\n\
         ---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: infra}\n\
         spec: {gatewayClassName: portcullis, addresses: [{type: IPAddress, value: 127.0.0.93}],\n  \
         listeners: [{name: http, port: 8000, protocol: HTTP}]}\n",
    );
    for route in 0..ROUTES {
        let service = route / ROUTES_OF_A_SERVICE;
        write!(
            text,
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: route-{route}, namespace: infra}}\n\
             spec: {{parentRefs: [{{name: edge}}], rules: [{{matches: [{{path: {{value: /{route}}}}}], \
             backendRefs: [{{name: service-{service}, port: 8080}}]}}]}}\n"
        )?;
    }
    for service in 0..ROUTES.div_ceil(ROUTES_OF_A_SERVICE) {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: service-{service}, namespace: infra}}\n\
             spec: {{ports: [{{name: http, port: 8080}}]}}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: service-{service}-1, namespace: infra, labels: {{kubernetes.io/service-name: service-{service}}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [127.0.0.94]}}]\n"
        )?;
    }
    Ok(text)
}
