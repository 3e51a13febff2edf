//! A client, a node and a backend, each in a network namespace, and the way in which the node
//! forwards.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process;

use anyhow::{Context, Result, bail};
use portcullis_testbed::{self as testbed, Agent, Datapath, Launch};

use super::address;
use crate::namespace::{Namespace, connect};

/// A way to forward.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The agent's kernel programs.
    Kernel,
    /// Nothing but a route: clients know the backend.
    Routed,
    /// Destination NAT and masquerading.
    Nftables,
    /// The agent without its kernel programs that forward.
    UserSpace,
}

const VIP: &str = "10.9.0.1";
const BACKEND: &str = "10.2.0.2";
const PORT: u16 = 7001;

pub(super) struct World {
    pub(super) form: Form,
    pub(super) agent: Option<Agent>,
    client: Namespace,
    node: Namespace,
    backend: Namespace,
}

impl World {
    pub(super) fn create(form: Form, binary: &Path, scratch: &Path) -> Result<Self> {
        let create =
            |role| Namespace::create(&format!("pcb-forward-{}-{}-{role}", process::id(), form.word()));
        let (client, node, backend) = (create("client")?, create("node")?, create("backend")?);
        connect((&client, "eth0", "10.1.0.2/24"), (&node, "front", "10.1.0.1/24"))?;
        connect((&backend, "eth0", "10.2.0.2/24"), (&node, "back", "10.2.0.1/24"))?;
        client.ip(&["route", "add", "default", "via", "10.1.0.1"])?;
        backend.ip(&["route", "add", "default", "via", "10.2.0.1"])?;
        node.enter(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?))?;
        let mut world = Self { form, agent: None, client, node, backend };
        match form {
            Form::Routed => {}
            Form::Nftables => world.translate()?,
            Form::Kernel => world.agent = Some(world.start(binary, scratch, "auto")?),
            Form::UserSpace => world.agent = Some(world.start(binary, scratch, "off")?),
        }
        Ok(world)
    }

    /// Runs a function in the client's namespace.
    pub(super) fn as_client<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.client.enter(function)
    }

    pub(super) fn backend(&self) -> Result<(TcpListener, UdpSocket)> {
        let at = address(BACKEND, PORT)?;
        self.backend.enter(move || Ok((TcpListener::bind(at)?, UdpSocket::bind(at)?)))
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        address(if self.form == Form::Routed { BACKEND } else { VIP }, PORT)
    }

    fn translate(&self) -> Result<()> {
        let rules = format!(
            "table ip bench {{
                chain in {{ type nat hook prerouting priority -100; ip daddr {VIP} dnat to {BACKEND}; }}
                chain out {{ type nat hook postrouting priority 100; ip daddr {BACKEND} masquerade; }}
            }}"
        );
        let output = self.node.command("nft").arg(rules).output().context("cannot run `nft`")?;
        if !output.status.success() {
            bail!("nft: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn start(&self, binary: &Path, scratch: &Path, forwarding: &str) -> Result<Agent> {
        let scratch = scratch.join(self.form.word());
        let config = scratch.join("config");
        fs::create_dir_all(&config)?;
        fs::write(config.join("gateway.yaml"), gateway())?;
        let launch = Launch {
            binary: binary.to_owned(),
            config,
            pins: testbed::pin_directory(&format!("bench-forward-{}", self.form.word())),
            datapath: Datapath::Ebpf,
            interface: "none".to_owned(),
            arguments: ["--forwarding", forwarding, "--cores", "1"].map(Into::into).to_vec(),
            through: self.node.prefix(),
            scratch,
        };
        launch.start()
    }
}

fn gateway() -> String {
    let mut text = format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: portcullis
  addresses: [{{type: IPAddress, value: {VIP}}}]
  listeners:
    - {{name: tcp, port: {PORT}, protocol: TCP}}
    - {{name: udp, port: {PORT}, protocol: UDP}}
---
apiVersion: v1
kind: Service
metadata: {{name: app}}
spec: {{ports: [{{name: tcp, port: {PORT}}}, {{name: udp, port: {PORT}, protocol: UDP}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: app-1, labels: {{kubernetes.io/service-name: app}}}}
ports: [{{name: tcp, port: {PORT}}}, {{name: udp, port: {PORT}, protocol: UDP}}]
endpoints: [{{addresses: [{BACKEND}]}}]
"
    );
    for (kind, name) in [("TCPRoute", "tcp"), ("UDPRoute", "udp")] {
        text += &format!(
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}}}
spec: {{parentRefs: [{{name: edge, sectionName: {name}}}], rules: [{{backendRefs: [{{name: app, port: {PORT}}}]}}]}}
"
        );
    }
    text
}

impl Form {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "Portcullis, in the kernel",
            Self::Routed => "routed, without translation",
            Self::Nftables => "nftables, DNAT and masquerade",
            Self::UserSpace => "Portcullis, user space",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Routed => "routed",
            Self::Nftables => "nft",
            Self::UserSpace => "user",
        }
    }
}
