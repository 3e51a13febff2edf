//! A client, a node with an agent and a backend, each in a network namespace.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use portcullis_testbed::{Agent, Authority, Backend, Datapath, Launch, pin_directory, remove_leftovers};

use crate::namespace::{Namespace, connect};
use crate::process::PROXY_CPU;

/// The place at which hellos are refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Kernel,
    UserSpace,
}

/// The tenant's name, and one whose listener has a budget.
pub(super) const SERVED: &str = "served.example.com";
pub(super) const LIMITED: &str = "limited.example.com";

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const BACKEND: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2));
const PORT: u16 = 443;
const BACKEND_PORT: u16 = 8080;
const PURPOSE: &str = "bench-sni-flood";

/// Fields are dropped in this order: what runs, then where it runs.
pub(super) struct World {
    pub(super) form: Form,
    pub(super) agent: Agent,
    _served: Backend,
    client: Namespace,
    _node: Namespace,
    _backend: Namespace,
    pub(super) authority: Authority,
}

impl World {
    pub(super) fn create(form: Form, binary: &Path, scratch: &Path) -> Result<Self> {
        let create =
            |role| Namespace::create(&format!("pcb-flood-{}-{}-{role}", std::process::id(), form.word()));
        let (client, node, backend) = (create("client")?, create("node")?, create("backend")?);
        connect((&client, "eth0", "10.1.0.2/24"), (&node, "front", "10.1.0.1/24"))?;
        connect((&backend, "eth0", "10.2.0.2/24"), (&node, "back", "10.2.0.1/24"))?;
        client.ip(&["route", "add", "default", "via", "10.1.0.1"])?;
        let served = backend.enter(|| Backend::start("served", SocketAddr::new(BACKEND, BACKEND_PORT)))?;
        let authority = Authority::new()?;
        let scratch = scratch.join(form.word());
        let config = scratch.join("config");
        fs::create_dir_all(&config)?;
        fs::write(config.join("gateway.yaml"), manifests(&authority)?)?;
        let purpose = format!("{PURPOSE}-{}", form.word());
        remove_leftovers(&purpose)?;
        let mut arguments = vec!["--cores", "1", "--log", "warn"];
        if form == Form::Kernel {
            arguments.extend(["--name-interface", "front", "--unknown-names", "1"]);
        }
        let launch = Launch {
            binary: binary.to_owned(),
            config,
            pins: pin_directory(&purpose),
            datapath: Datapath::Ebpf,
            interface: "none".to_owned(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            through: [node.prefix(), ["taskset", "--cpu-list", PROXY_CPU].map(Into::into).to_vec()].concat(),
            scratch,
        };
        let agent = launch.start()?;
        Ok(Self { form, agent, _served: served, client, _node: node, _backend: backend, authority })
    }

    /// Runs a function in the client's namespace.
    pub(super) fn as_client<T: Send>(&self, function: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.client.enter(function)
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(VIP, PORT)
    }
}

fn manifests(authority: &Authority) -> Result<String> {
    let mut text = format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: portcullis
  addresses: [{{type: IPAddress, value: {VIP}}}]
  listeners:
  - {{name: served, port: {PORT}, protocol: HTTPS, hostname: {SERVED}, tls: {{certificateRefs: [{{name: served}}]}}}}
  - {{name: limited, port: {PORT}, protocol: HTTPS, hostname: {LIMITED}, tls: {{certificateRefs: [{{name: limited}}]}}}}
---
apiVersion: portcullis.dev/v1alpha1
kind: ListenerPolicy
metadata: {{name: limited}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: edge, sectionName: limited}}]
  connections: {{perSecond: 1}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: app}}
spec: {{parentRefs: [{{name: edge}}], rules: [{{backendRefs: [{{name: app, port: {BACKEND_PORT}}}]}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: app}}
spec: {{ports: [{{port: {BACKEND_PORT}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {{name: app-1, labels: {{kubernetes.io/service-name: app}}}}
ports: [{{port: {BACKEND_PORT}}}]
endpoints: [{{addresses: [{BACKEND}]}}]
"
    );
    for (name, host) in [("served", SERVED), ("limited", LIMITED)] {
        text += &authority.issue(&[host])?.secret("default", name);
    }
    Ok(text)
}

impl Form {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel",
            Self::UserSpace => "user space",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::UserSpace => "user",
        }
    }
}
