//! `portcullis run` in a cluster: everything that talks with the API server, next to the control
//! loop.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use portcullis_control::applier::{Provisioning, State};
use portcullis_control::events::Announcer;
use portcullis_control::infra::Generator;
use portcullis_control::key_ring::KeyRingWatch;
use portcullis_control::kube::{Client, api_server_addresses, connect_watched, follow_api_server};
use portcullis_control::lease::{Elector, Timing};
use portcullis_control::mesh::{Mesh, MeshState};
use portcullis_control::source::{KubeSource, LastGood, Reaching, SourceOptions};
use portcullis_control::status::{StatusQueue, StatusWriter};
use portcullis_control::succession::Succession;
use portcullis_gateway::infra::{Agents, Parameters, Pods, ServiceType};
use portcullis_gateway::mesh::{DEFAULT_MESH_NAME, Instance, MeshSettings};
use portcullis_gateway::{AgentPlace, AgentRole};
use portcullis_model::{AddressRange, KeyRing, ObjectName};
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::state::StateDir;
use crate::tenure::Tenure;

/// Time that the API server has at the start before the last good configuration is served.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Label of the pods that are counted as agents; the chart sets it.
const AGENTS: &str = "app.kubernetes.io/name=portcullis";
pub(crate) const LEASE: &str = "portcullis";

#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig file for the API server [default: KUBECONFIG, ~/.kube/config, or the pod's
    /// service account]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_KUBECONFIG", conflicts_with = "config_dir")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the agents and their Lease [default: the pod's, or that of the kubeconfig]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_NAMESPACE")]
    namespace: Option<String>,
    /// This agent among all [default: the host's name]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_NODE_NAME")]
    node_name: Option<String>,
    /// Zone of this agent's node [default: the Node's label topology.kubernetes.io/zone]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_ZONE")]
    zone: Option<String>,
    /// The DaemonSet of this agent: when it is gone or leaves the node out, the agent takes
    /// everything with it [default: leave it for the next agent]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_DAEMON_SET")]
    daemon_set: Option<String>,
    #[command(flatten)]
    pub state: StateDir,
    /// Directory in which Secrets outlive the process, for HTTPS to be served after a restart
    /// without API server; has to be a tmpfs [default: nowhere]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_SECRETS_DIR")]
    secrets_dir: Option<PathBuf>,
    /// Name of the XMesh that is ours: created if absent
    #[arg(long, value_name = "NAME", default_value = DEFAULT_MESH_NAME, env = "PORTCULLIS_MESH_NAME")]
    mesh_name: String,
    /// Type of the Services that are generated for Gateways
    #[arg(long, value_enum, default_value_t, env = "PORTCULLIS_SERVICE_TYPE")]
    service_type: ServiceTypeChoice,
    /// Addresses that load balancers may give to Gateways, one or a range: no others that are
    /// published for their Services are made local; repeat for several [default: none]
    #[arg(long, value_name = "RANGE", env = "PORTCULLIS_LOAD_BALANCER_ADDRESSES", value_delimiter = ',')]
    pub load_balancer_addresses: Vec<AddressRange>,
    /// Namespaces whose EndpointSlices may have addresses of nodes, Services and Gateways, loopback
    /// and link-local ones; repeat for several [default: none]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_ENDPOINT_NAMESPACES", value_delimiter = ',')]
    pub endpoint_namespaces: Vec<String>,
    /// This pod serves one Gateway, and nothing else; it writes nothing [default: all that are
    /// served on nodes]
    #[arg(long, value_name = "NAMESPACE/NAME", env = "PORTCULLIS_GATEWAY", value_parser = object_name)]
    pub gateway: Option<ObjectName>,
    /// The agents' own image, for pods of Gateways in mode Dedicated [default: there are none]
    #[arg(long, value_name = "IMAGE", env = "PORTCULLIS_IMAGE")]
    image: Option<String>,
    /// Fields of those pods' spec, as JSON: nodeSelector, tolerations, imagePullSecrets, …
    /// [default: none]
    #[arg(long, value_name = "JSON", env = "PORTCULLIS_DEDICATED_POD", value_parser = json_object)]
    dedicated_pod: Option<Map<String, Value>>,
    /// Port on which those pods show their metrics to all that reach it; one of a listener stays
    /// the listener's [default: none]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), env = "PORTCULLIS_DEDICATED_METRICS_PORT")]
    dedicated_metrics_port: Option<u16>,
    /// The ClusterRoleBinding by which those pods may read their configuration
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_DEDICATED_BINDING")]
    dedicated_binding: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ServiceTypeChoice {
    #[default]
    #[value(name = "ClusterIP")]
    ClusterIp,
    #[value(name = "LoadBalancer")]
    LoadBalancer,
}

/// The control loop's ends in a cluster, and the tasks beside it.
pub(crate) struct Cluster {
    pub source: Reaching<KubeSource>,
    /// The addresses by which the API server is reached, as known at the start.
    pub api_server: BTreeSet<IpAddr>,
    pub statuses: Arc<StatusQueue>,
    pub membership: Membership,
    /// The keys that all agents have.
    pub keys: watch::Receiver<Option<Arc<KeyRing>>>,
    pub writers: Writers,
}

/// The state of the agent's part in the cluster, for readiness and metrics.
#[derive(Clone)]
pub(crate) struct Membership {
    /// Everything was read from the API server, and applied.
    pub current: watch::Receiver<bool>,
    pub leading: watch::Receiver<bool>,
    pub mesh: watch::Receiver<MeshState>,
    /// This is a pod of one Gateway: there is nothing to be ready for but that.
    pub has_one_gateway: bool,
    /// Gateways that cannot have what is generated for them.
    pub provisioning: watch::Receiver<Provisioning>,
    /// Known while this one leads.
    pub agents: watch::Receiver<Option<Agents>>,
    pub ready_agents: watch::Receiver<Option<NonZeroU32>>,
}

/// The tasks that write to the API server; a pod of one Gateway has none. Dropping them stops
/// writing at once.
#[derive(Default)]
pub(crate) struct Writers {
    tasks: JoinSet<()>,
    /// Those that only read once this agent does not lead any more.
    followers: JoinSet<()>,
    announcer: Option<Announcer>,
    election: Option<(tokio::task::JoinHandle<()>, oneshot::Sender<()>)>,
    succession: Option<Succession>,
}

impl ClusterArgs {
    pub(crate) fn parameters(&self, pods: Pods) -> Parameters {
        let service_type = match self.service_type {
            ServiceTypeChoice::ClusterIp => ServiceType::ClusterIp,
            ServiceTypeChoice::LoadBalancer => ServiceType::LoadBalancer,
        };
        let spec = self.dedicated_pod.clone().unwrap_or_default();
        let pods = self.image.clone().map(|image| Pods {
            image,
            spec,
            endpoint_namespaces: self.endpoint_namespaces.clone(),
            load_balancers: self.load_balancer_addresses.clone(),
            metrics_port: self.dedicated_metrics_port,
            ..pods
        });
        Parameters { service_type, pods, ..Parameters::default() }
    }

    /// True if Gateways may have pods of their own.
    pub(crate) fn has_dedicated_pods(&self) -> bool {
        self.image.is_some()
    }

    pub(crate) fn role(&self) -> AgentRole {
        self.gateway.clone().map_or(AgentRole::Node, AgentRole::Dedicated)
    }

    /// As [`RunArgs::installation`](crate::cli::RunArgs::installation).
    pub(crate) fn installation(&self, controller_name: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or("default");
        match &self.daemon_set {
            Some(daemon_set) => format!("DaemonSet {namespace}/{daemon_set}"),
            None => format!("controller {controller_name} in namespace {namespace}"),
        }
    }

    fn last_good(&self) -> LastGood {
        let configuration = LastGood::new(self.state.last_good());
        match &self.secrets_dir {
            Some(directory) => configuration.with_secrets(directory),
            None => configuration,
        }
    }

    /// The zone is the Node's own to say, unless it is given.
    pub(crate) fn place(&self) -> AgentPlace {
        AgentPlace {
            node: self.node_name.as_deref().map(Into::into),
            zone: self.zone.as_deref().map(Into::into),
        }
    }

    /// `None` outside of a cluster, or if it is not given.
    pub(crate) fn node_name(&self) -> Option<&str> {
        self.node_name.as_deref()
    }

    fn identity(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.node_name.clone().unwrap_or_else(host)
    }
}

impl Cluster {
    /// Does not wait for the API server. It takes part in the election from the moment on at which
    /// it serves: another agent of this node may lead.
    pub(crate) async fn start(
        args: &ClusterArgs,
        controller_name: &str,
        drain_timeout: Duration,
        tenure: watch::Receiver<Tenure>,
    ) -> Result<Self> {
        let kubeconfig = args.kubeconfig.as_deref();
        let connected = connect_watched(kubeconfig).await;
        let (client, contact) =
            connected.context("cannot use a cluster, from which objects come without --config-dir")?;
        let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let queue = StatusQueue::new(controller_name);
        let options = SourceOptions {
            only: args.gateway.clone(),
            last_good: Some(args.last_good()),
            wait: API_SERVER_TIMEOUT,
            another_serves: another_serves(tenure.clone()),
        };
        let source = KubeSource::new(client.clone(), queue.clone(), options);
        // A pod of one Gateway has no right to the agents' keys.
        let mut keys = watch::Sender::default().subscribe();
        let (membership, writers) = match args.gateway {
            Some(_) => (Membership::reader(&queue), Writers::default()),
            None => {
                let (membership, mut writers) =
                    start_writers(args, client.clone(), &namespace, &queue, tenure);
                let watched = KeyRingWatch::new(client, &namespace, membership.leading.clone());
                keys = watched.ring();
                writers.followers.spawn(watched.run());
                (membership, writers)
            }
        };
        let api_server = api_server_addresses(kubeconfig).await;
        let followed = follow_api_server(args.kubeconfig.clone(), api_server.clone());
        let source = Reaching::new(source, contact, followed, drain_timeout);
        Ok(Self { source, api_server, statuses: queue, membership, keys, writers })
    }
}

/// True until this agent is to serve whatever it knows.
fn another_serves(mut tenure: watch::Receiver<Tenure>) -> watch::Receiver<bool> {
    let (sender, another_serves) = watch::channel(*tenure.borrow() == Tenure::Awaited);
    tokio::spawn(async move {
        _ = tenure.wait_for(|tenure| *tenure != Tenure::Awaited).await;
        sender.send_replace(false);
    });
    another_serves
}

fn start_writers(
    args: &ClusterArgs,
    client: Client,
    namespace: &str,
    queue: &Arc<StatusQueue>,
    mut tenure: watch::Receiver<Tenure>,
) -> (Membership, Writers) {
    let elector = Elector::new(client.clone(), namespace, LEASE, &args.identity(), Timing::default());
    let leading = elector.leading();
    let succession = args.daemon_set.as_ref();
    let succession =
        succession.map(|name| Succession::new(client.clone(), namespace, name, &args.identity()));
    let mut tasks = JoinSet::new();
    tasks.spawn(StatusWriter::new(client.clone(), Arc::clone(queue), leading.clone()).run());
    let binding = args.dedicated_binding.clone();
    let generator = Generator::new(client.clone(), Arc::clone(queue), leading.clone(), namespace, binding);
    let (provisioning, agents) = (generator.provisioning(), generator.agents());
    let elector = elector.counting(agents.clone());
    tasks.spawn(generator.run());
    let announcer = Announcer::new(client.clone(), queue, &args.identity());
    let mesh = mesh(args, client, namespace, leading.clone());
    let membership = Membership {
        current: queue.current(),
        leading,
        mesh: mesh.state(),
        has_one_gateway: false,
        provisioning,
        agents,
        ready_agents: elector.ready_agents(),
    };
    tasks.spawn(mesh.run());
    let (resign, resigned) = oneshot::channel();
    let election = tokio::spawn(async move {
        let mut resigned = std::pin::pin!(async { drop(resigned.await) });
        tokio::select! {
            () = &mut resigned => return,
            _ = tenure.wait_for(|tenure| *tenure == Tenure::Held) => {}
        }
        elector.run(resigned).await;
    });
    (
        membership,
        Writers {
            tasks,
            followers: JoinSet::new(),
            announcer: Some(announcer),
            election: Some((election, resign)),
            succession,
        },
    )
}

fn mesh(args: &ClusterArgs, client: Client, namespace: &str, leading: watch::Receiver<bool>) -> Mesh {
    let settings = MeshSettings { name: args.mesh_name.clone(), ..MeshSettings::default() };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let instance = Instance { version, namespace: namespace.to_owned(), agents: None };
    Mesh::new(client, settings, instance, AGENTS, leading)
}

impl Membership {
    /// Of an agent that never writes.
    fn reader(queue: &StatusQueue) -> Self {
        let never = watch::Sender::<bool>::default();
        Self {
            current: queue.current(),
            leading: never.subscribe(),
            mesh: watch::Sender::default().subscribe(),
            has_one_gateway: true,
            provisioning: watch::Sender::default().subscribe(),
            agents: watch::Sender::default().subscribe(),
            ready_agents: watch::Sender::default().subscribe(),
        }
    }
}

fn object_name(text: &str) -> Result<ObjectName, &'static str> {
    let (namespace, name) = text.split_once('/').ok_or("write NAMESPACE/NAME")?;
    Ok(ObjectName::new(namespace, name))
}

fn json_object(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_str(text)
}

impl Writers {
    /// Starts to announce the frontends that this node cannot serve.
    pub(crate) fn announce(&mut self, state: watch::Receiver<State>) {
        if let Some(announcer) = self.announcer.take() {
            self.tasks.spawn(announcer.run(state));
        }
    }

    /// Stops writing and gives the Lease up, so that another agent writes at once. A second time
    /// does nothing.
    pub(crate) async fn resign(&mut self) {
        self.tasks.shutdown().await;
        if let Some((election, resign)) = self.election.take() {
            let _ = resign.send(());
            let _ = election.await;
        }
    }

    /// Returns `true` if the agents were uninstalled, here or everywhere. Then no agent takes over
    /// what this one leaves on the node.
    pub(crate) async fn are_uninstalled(&self) -> bool {
        match &self.succession {
            Some(succession) => succession.is_over().await,
            None => false,
        }
    }
}
