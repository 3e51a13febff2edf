//! The network, the agent on it with `examples/quickstart`, and the backends.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{self as testbed, Agent, Authority, Backend, Datapath, Launch, quickstart};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::client::{Request, VIP};
use crate::namespace::{self, Namespace};

/// The node's interface towards the client.
pub const CLIENT_INTERFACE: &str = "front";

const SHOP: &str = "10.2.0.2";
const BLOG: &str = "10.2.0.3";
const BACKEND_PORT: u16 = 8080;

/// Fields are dropped in this order: what runs, then where it runs, then its files.
pub struct Scenario {
    pub shop: Backend,
    pub blog: Backend,
    pub client: Namespace,
    node: Namespace,
    backends: Namespace,
    pub authority: Authority,
    files: TempDir,
    test: String,
}

impl Scenario {
    /// A network and the quickstart's configuration; no agent yet. The name must be the test's own.
    pub fn new(test: &str) -> Result<Self> {
        let scenario = Self::without_configuration(test)?;
        let addresses = [(quickstart::VIP, VIP), (quickstart::SHOP, SHOP), (quickstart::BLOG, BLOG)];
        quickstart::write(&scenario.config(), &scenario.authority, &addresses)?;
        Ok(scenario)
    }

    /// A network, backends and an empty directory.
    pub fn without_configuration(test: &str) -> Result<Self> {
        namespace::remove_leftovers(test)?;
        testbed::remove_leftovers(&purpose(test))?;
        let [client, node, backends] = network(test)?;
        let start = |name, address: &str| {
            let address = SocketAddr::new(address.parse()?, BACKEND_PORT);
            backends.enter(|| Backend::start(name, address))
        };
        let (shop, blog) = (start("shop", SHOP)?, start("blog", BLOG)?);
        let files = tempfile::Builder::new().prefix("portcullis-netns-").tempdir()?;
        let authority = Authority::new()?;
        fs::create_dir(files.path().join("config"))?;
        fs::write(files.path().join("ca.pem"), authority.pem())?;
        Ok(Self { shop, blog, client, node, backends, authority, files, test: test.to_owned() })
    }

    pub fn start_agent(&self) -> Result<Agent> {
        self.launch()?.start()
    }

    /// The agent to be started, with another datapath than usual.
    pub fn launch_with(&self, datapath: Datapath) -> Result<Launch> {
        Ok(Launch { datapath, ..self.launch()? })
    }

    /// One more backend, on an address of its own in 10.2.0.0/24.
    pub fn backend(&self, name: &str, address: &str) -> Result<Backend> {
        self.backends.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
        let address = SocketAddr::new(address.parse()?, BACKEND_PORT);
        self.backends.enter(|| Backend::start(name, address))
    }

    /// A server of the node itself.
    pub fn server_on_node(&self, name: &str, address: &str) -> Result<Backend> {
        let address = address.parse()?;
        self.node.enter(|| Backend::start(name, address))
    }

    /// A socket of the node for datagrams, beside which others may be bound (`SO_REUSEPORT`); it
    /// waits for a minute.
    pub fn datagrams_on_node(&self, address: &str) -> Result<UdpSocket> {
        datagrams(&self.node, address.parse()?)
    }

    /// The same, where backends are.
    pub fn datagrams_at_backends(&self, address: &str) -> Result<UdpSocket> {
        datagrams(&self.backends, address.parse()?)
    }

    /// Runs a function where backends are. Sockets made there stay there.
    pub fn at_backends<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.backends.enter(function)
    }

    /// Gives the node routes to networks, each with a next hop at the backends that knows no way
    /// on: it says so by ICMP.
    pub fn end_routes(&self, routes: &[(&str, &str)]) -> Result<()> {
        self.node.ip(&["address", "add", "fd02::1/64", "dev", "back", "nodad"])?;
        self.backends.ip(&["address", "add", "fd02::2/64", "dev", "eth0", "nodad"])?;
        self.backends.enter(|| {
            // With the limit it would say so twice, and then hardly ever.
            for (setting, value) in
                [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1"), ("ipv4/icmp_ratelimit", "0")]
            {
                fs::write(Path::new("/proc/sys/net").join(setting), value)?;
            }
            Ok(())
        })?;
        for (network, next) in routes {
            self.node.ip(&["route", "add", network, "via", next])?;
            self.backends.ip(&["route", "add", "unreachable", network])?;
        }
        Ok(())
    }

    /// Runs `ip` on the node.
    pub fn ip_on_node(&self, arguments: &[&str]) -> Result<()> {
        self.node.ip(arguments)
    }

    /// A command that runs on the node.
    pub fn command_on_node(&self, program: &str) -> Command {
        self.node.command(program)
    }

    /// A command that runs where backends are.
    pub fn command_at_backends(&self, program: &str) -> Command {
        self.backends.command(program)
    }

    /// Runs a function on the node. Sockets made there stay there.
    pub fn on_node<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.node.enter(function)
    }

    /// True if a VIP is an address of the node.
    pub fn is_local(&self, vip: &str) -> Result<bool> {
        self.node.enter(|| Ok(TcpListener::bind((vip, 0)).is_ok()))
    }

    /// Output of the agent's command line, run outside of the network; problems that it finds are
    /// no failure.
    pub fn portcullis(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(binary()?).args(arguments).output()?;
        ensure!(
            matches!(output.status.code(), Some(0 | 1)),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    pub fn config(&self) -> PathBuf {
        self.files.path().join("config")
    }

    /// A place for a file of the test's own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// A client's request to the VIP.
    pub fn request<'a>(&'a self, url: &'a str) -> Request<'a> {
        Request::new(&self.client, url, self.files.path().join("ca.pem"))
    }

    fn launch(&self) -> Result<Launch> {
        Ok(Launch {
            binary: binary()?,
            config: self.config(),
            scratch: self.files.path().join("agent"),
            pins: testbed::pin_directory(&purpose(&self.test)),
            datapath: Datapath::Ebpf,
            interface: CLIENT_INTERFACE.to_owned(),
            // Of Gateways that ask for none.
            arguments: vec![
                "--address".into(),
                VIP.into(),
                // Agents with different scratch directories hand over to each other.
                "--state-dir".into(),
                self.file("state").into(),
            ],
            through: self.node.prefix(),
        })
    }
}

/// The agent's program: `PORTCULLIS_BINARY`, or what cargo built next to this test.
fn binary() -> Result<PathBuf> {
    if let Some(binary) = env::var_os("PORTCULLIS_BINARY") {
        return Ok(binary.into());
    }
    let test = env::current_exe()?;
    let binary = test.parent().and_then(Path::parent).context("a test without directory")?.join("portcullis");
    if !binary.is_file() {
        bail!("no agent at {}: run `cargo build --package portcullis` first", binary.display());
    }
    Ok(binary)
}

fn purpose(test: &str) -> String {
    format!("netns-{test}")
}

/// Client, node, backends.
fn network(test: &str) -> Result<[Namespace; 3]> {
    let [client, node, backends] = [
        Namespace::create(test, "client")?,
        Namespace::create(test, "node")?,
        Namespace::create(test, "backends")?,
    ];
    connect((&client, "eth0", "10.1.0.2/24"), (&node, CLIENT_INTERFACE, "10.1.0.1/24"))?;
    connect((&backends, "eth0", "10.2.0.2/24"), (&node, "back", "10.2.0.1/24"))?;
    backends.ip(&["address", "add", "10.2.0.3/24", "dev", "eth0"])?;
    client.ip(&["route", "add", &format!("{VIP}/32"), "via", "10.1.0.1"])?;
    Ok([client, node, backends])
}

fn datagrams(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket> {
    namespace.enter(|| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        socket.set_reuse_port(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    })
}

/// A veth pair: namespace, interface, address of both ends.
fn connect(left: (&Namespace, &str, &str), right: (&Namespace, &str, &str)) -> Result<()> {
    let peer = ["peer", "name", right.1, "netns", right.0.name()];
    left.0.ip(&[["link", "add", left.1, "type", "veth"].as_slice(), &peer].concat())?;
    for (namespace, interface, address) in [left, right] {
        namespace.ip(&["address", "add", address, "dev", interface])?;
        namespace.ip(&["link", "set", interface, "up"])?;
    }
    Ok(())
}
