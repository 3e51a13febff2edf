//! `portcullis run`: puts source, translator, data plane, statuses and admin endpoints together,
//! and takes signals.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portcullis_control::applier::Applier;
use portcullis_control::key_ring::follow_file;
use portcullis_control::names::{Dns, Names};
use portcullis_control::source::built_in::{BUILT_IN, default_addresses};
use portcullis_control::source::{DirSource, Source};
use portcullis_control::status::{FileStatuses, StatusSink};
use portcullis_gateway::{EndpointRule, Settings, Translator};
use portcullis_node::{Lock, Process};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin::server::{self, Sockets};
use crate::admin::sources::Admin;
use crate::cleanup;
use crate::cli::RunArgs;
use crate::cluster::Cluster;
use crate::hand_over::predecessor::Predecessor;
use crate::hand_over::successor::{Offer, Successor};
use crate::health_checks;
use crate::ignored_options::ignored_options;
use crate::panics;
use crate::plane::{Plane, forwarding_addresses, node_addresses};
use crate::process;
use crate::supervisor;
use crate::telemetry;
use crate::tenure::Tenure;

/// Control work is light and must never wait for itself: admin requests are answered while a large
/// directory loads.
const CONTROL_THREADS: usize = 2;

/// Time in which an agent that was given the listening sockets serves.
const SERVING_TIME: Duration = Duration::from_secs(60);

/// Time for a rollout to delete the pod of an agent from which another one took over. One that is
/// undone just then deletes the other one instead, once this one is ready again.
const SUPERSEDED: Duration = Duration::from_secs(120);

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    telemetry::start(&args.log, args.log_format)?;
    panics::watch();
    process::have_all_descriptors();
    args.config_dir.as_deref().map_or(Ok(()), check_directory)?;
    tracing::info!("Portcullis {} starts", env!("CARGO_PKG_VERSION"));
    // Held until the process ends. Before these three nothing on the node is touched.
    let (lock, mut predecessor) = claim(args)?;
    let sockets = server::listen(args, predecessor.as_mut())?;
    let statuses = status_files(&args.statuses(), predecessor.as_ref().map_or(&[], |it| &it.locks))?;
    let plane = Plane::start(args, predecessor)?;
    let mut locks = plane.node.locks()?;
    locks.extend(statuses.as_ref().map(FileStatuses::lock).transpose()?);
    let installation = args.installation();
    let offer = Offer { directory: args.hand_over(), installation, lock, locks, serving_time: SERVING_TIME };
    tracing::info!("datapath: {}", plane.node.description());
    for line in ignored_options(args, &plane.node) {
        tracing::warn!("{line}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    let claimed = Claimed { plane, sockets, offer };
    let heir = runtime.block_on(serve(args, claimed, statuses))?;
    // Whatever still writes to the node ends with it.
    drop(runtime);
    if heir == Heir::None {
        cleanup::leave(&args.pin_dir, &args.cluster.state, args.status_dir.as_deref());
    }
    Ok(ExitCode::SUCCESS)
}

/// The right to serve this network namespace: this agent's, or another one's that has it now.
fn claim(args: &RunArgs) -> Result<(Lock, Option<Predecessor>)> {
    let Some(directory) = args.hand_over().filter(|_| args.take_over) else {
        return Ok((Lock::take(args.beside())?, None));
    };
    if let Some((predecessor, lock)) = Predecessor::greet(&directory, &args.installation())? {
        tracing::info!("another agent serves: this one takes over when it is ready");
        return Ok((lock, Some(predecessor)));
    }
    let nothing = || format!("no agent hands over in {} (--state-dir)", directory.display());
    Ok((Lock::take(args.beside()).with_context(nothing)?, None))
}

/// The things that an agent has on its node.
struct Claimed {
    plane: Plane,
    sockets: Sockets,
    offer: Offer,
}

/// The agent to which one that ends leaves the node.
#[derive(PartialEq, Eq)]
enum Heir {
    Agent,
    /// The agents were uninstalled, here or everywhere.
    None,
}

/// The cause of an agent's end.
enum End {
    Stopped,
    /// As the one before, while another one served.
    Unneeded,
    /// With the signals that may have come since.
    Succeeded(Successor, Signals),
}

async fn serve(args: &RunArgs, claimed: Claimed, statuses: Option<FileStatuses>) -> Result<Heir> {
    match &args.config_dir {
        Some(directory) => serve_directory(args, directory, claimed, statuses).await,
        None => serve_cluster(args, claimed, statuses).await,
    }
}

async fn serve_directory(
    args: &RunArgs,
    directory: &Path,
    claimed: Claimed,
    statuses: Option<FileStatuses>,
) -> Result<Heir> {
    let source = DirSource::new(directory, args.limits.max_file_size()).with_built_in(BUILT_IN);
    let reread = source.reread();
    let plane = claimed.plane.clone();
    let fault = statuses.as_ref().map(FileStatuses::fault);
    let applier = Applier::new(source, Translator::new(settings(args)), plane.clone(), statuses);
    let applier = applier.reached_at(node_addresses()).looking_up(names(args));
    let _keys = plane.follow_keys(follow_file(args.cluster.state.keys()));
    let admin = Admin::new(applier.state(), plane, args.statuses(), fault, None);
    let hang_up = || {
        tracing::info!("SIGHUP: reading everything again");
        reread.now();
    };
    attend(admin, claimed, applier, hang_up, async {}).await?;
    Ok(Heir::Agent)
}

/// Statuses go to the API server if this agent leads, and always to files: those hold what this
/// agent itself decided.
async fn serve_cluster(args: &RunArgs, claimed: Claimed, files: Option<FileStatuses>) -> Result<Heir> {
    let plane = claimed.plane.clone();
    let Cluster { source, api_server, statuses, membership, keys, mut writers } =
        Cluster::start(&args.cluster, &args.controller_name, args.drain_timeout(), plane.tenure()).await?;
    let fault = files.as_ref().map(FileStatuses::fault);
    let sink = (statuses, files);
    let translator = Translator::new(Settings { api_server, ..settings(args) });
    let applier = Applier::new(source, translator, plane.clone(), sink);
    let applier =
        applier.observing(membership.provisioning.clone()).speaking_while(membership.leading.clone());
    let applier = applier.among(membership.agents.clone()).looking_up(names(args));
    let applier = applier.sharing_among(membership.ready_agents.clone());
    let applier = applier.forwarding_from(forwarding_addresses()?);
    writers.announce(applier.state());
    let _keys = plane.follow_keys(keys);
    let admin = Admin::new(applier.state(), plane, args.statuses(), fault, Some(membership));
    let hang_up = || tracing::info!("SIGHUP: nothing to do, the API server tells of every change");
    let result = attend(admin, claimed, applier, hang_up, writers.resign()).await;
    writers.resign().await;
    match result? {
        End::Stopped if writers.are_uninstalled().await => Ok(Heir::None),
        End::Stopped | End::Unneeded => Ok(Heir::Agent),
        End::Succeeded(successor, signals) => {
            wait_to_be_ended(successor, signals).await;
            Ok(Heir::Agent)
        }
    }
}

/// Applies until a signal comes or another agent takes over, then drains. It resigns at once: the
/// agent that writes next must not wait for our clients.
async fn attend<S, W>(
    admin: Admin,
    claimed: Claimed,
    mut applier: Applier<S, Translator, Plane, W>,
    hang_up: impl Fn(),
    resign: impl Future<Output = ()>,
) -> Result<End>
where
    S: Source + 'static,
    W: StatusSink + 'static,
{
    let Claimed { plane, sockets, offer } = claimed;
    let state = admin.state.clone();
    let mut endpoints = server::serve(admin, sockets);
    let mut chores = plane.chores();
    chores.spawn(health_checks::answer(state, plane.clone()));
    chores.spawn(announce(plane.clone()));
    let mut hangup = signal(SignalKind::hangup()).context("cannot take SIGHUP")?;
    let mut applying = tokio::spawn(async move { applier.run().await });
    let mut signals = Signals::new()?;
    let mut successor = Box::pin(offer.accept(plane.clone()));
    let mut end = loop {
        tokio::select! {
            signal = signals.next() => {
                tracing::info!("{signal}: draining");
                supervisor::stopping();
                break match *plane.tenure().borrow() {
                    Tenure::Awaited => End::Unneeded,
                    Tenure::Due | Tenure::Held | Tenure::Over => End::Stopped,
                };
            }
            successor = &mut successor => {
                tracing::info!("another agent has taken over: draining");
                // Before it hears that this one is done: it then says that it is ready.
                successor.process().into_iter().for_each(supervisor::succeeded_by);
                break End::Succeeded(successor, signals);
            }
            _ = hangup.recv() => hang_up(),
            ended = &mut applying => bail!("the control loop ended, which is a bug: {ended:?}"),
        }
    };
    let drain = async {
        applying.abort();
        let _ = applying.await;
        chores.shutdown().await;
        // One that is about to take over need not wait any longer.
        drop(successor);
        if let End::Succeeded(successor, _) = &mut end {
            endpoints.close_port().await;
            if successor.needs_admin_socket {
                endpoints.close_socket().await;
            }
            plane.leave().await;
            successor.release().await;
        }
        plane.drain().await;
        endpoints.close().await;
    };
    tokio::join!(resign, drain);
    tracing::info!("stopped");
    Ok(end)
}

async fn announce(plane: Plane) {
    plane.serves().await;
    supervisor::ready();
}

/// The node's kubelet starts a container again that ends by itself, and the new agent would take
/// over in its turn. So it has some time to end this one first, and after that this one is the one
/// that was meant to stay.
async fn wait_to_be_ended(mut successor: Successor, mut signals: Signals) {
    tokio::select! {
        _ = signals.next() => {}
        () = successor.ended() => tracing::warn!("the agent that took over has ended"),
        () = tokio::time::sleep(SUPERSEDED) => {
            tracing::warn!("this agent was not ended though another one took over: it is to serve again");
        }
    }
}

/// SIGTERM, and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot take SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot take SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Cancel-safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn check_directory(directory: &Path) -> Result<()> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => bail!("--config-dir {} is no directory", directory.display()),
        Err(error) => bail!("--config-dir {}: {error}", directory.display()),
    }
}

fn names(args: &RunArgs) -> Names {
    Names::looked_up_by(Dns { servers: args.name_servers.clone() })
}

fn settings(args: &RunArgs) -> Settings {
    let default_addresses = match &args.config_dir {
        Some(_) => default_addresses(&args.address),
        None => args.address.clone(),
    };
    let endpoints = match &args.config_dir {
        Some(_) => EndpointRule::Any,
        None => EndpointRule::Foreign { allowed: args.cluster.endpoint_namespaces.iter().cloned().collect() },
    };
    let generated = args.cluster.parameters(args.pods());
    Settings {
        controller_name: args.controller_name.clone(),
        default_addresses,
        generated,
        load_balancers: args.cluster.load_balancer_addresses.clone(),
        api_server: BTreeSet::new(),
        endpoints,
        external: args.external.rule(),
        host_ports: args.host_ports.rights(args.admin_port, args.metrics.metrics_address.map(|it| it.port())),
        role: args.cluster.role(),
        place: args.cluster.place(),
    }
}

/// Traffic matters more than status files that cannot be written; but two agents would write each
/// their own to the same.
fn status_files(directory: &Path, locks: &[File]) -> Result<Option<FileStatuses>> {
    match FileStatuses::new(directory.to_owned(), locks) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let holder = Process::named(&Process::with_lock_on(directory));
            let directory = directory.display();
            bail!(
                "another agent{holder} writes its statuses to {directory}: stop it first, or give this one a \
                 --status-dir of its own"
            )
        }
        Err(error) => {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "no status files: choose another place with --status-dir");
            Ok(None)
        }
        Ok(files) => Ok(Some(files)),
    }
}
