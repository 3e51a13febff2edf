//! `portcullis run`: puts source, translator, data plane, statuses and admin endpoints together,
//! and takes signals.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use portcullis_control::applier::Applier;
use portcullis_control::source::built_in::{BUILT_IN, default_addresses};
use portcullis_control::source::{DirSource, Source};
use portcullis_control::status::{FileStatuses, StatusSink};
use portcullis_gateway::{EndpointRule, Settings, Translator};
use portcullis_node::{Lock, Process};
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::endpoints::Admin;
use crate::admin::server::{self, Sockets};
use crate::cleanup;
use crate::cli::RunArgs;
use crate::cluster::Cluster;
use crate::health_checks;
use crate::panics;
use crate::plane::{Plane, forwarding_addresses, node_addresses};
use crate::telemetry;

/// Control work is light and must never wait for itself: admin requests are answered while a large
/// directory loads.
const CONTROL_THREADS: usize = 2;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    telemetry::start(&args.log, args.log_format)?;
    panics::watch();
    args.config_dir.as_deref().map_or(Ok(()), check_directory)?;
    tracing::info!("Portcullis {} starts", env!("CARGO_PKG_VERSION"));
    // Held until the process ends. Before these three nothing on the node is touched.
    let _lock = Lock::take(args.beside())?;
    let sockets = server::listen(&args.admin.path(), args.admin_port, &args.admin_host)?;
    let statuses = status_files(&args.statuses())?;
    let plane = Plane::start(args)?;
    tracing::info!("datapath: {}", plane.node.description());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control runtime")?;
    let successor = runtime.block_on(serve(args, plane, sockets, statuses))?;
    // Whatever still writes to the node ends with it.
    drop(runtime);
    if successor == Successor::None {
        cleanup::leave(&args.pin_dir, &args.cluster.state, args.status_dir.as_deref());
    }
    Ok(ExitCode::SUCCESS)
}

/// The successor of an agent that ends.
#[derive(PartialEq, Eq)]
enum Successor {
    Agent,
    /// The agents were uninstalled, here or everywhere.
    None,
}

async fn serve(
    args: &RunArgs,
    plane: Plane,
    sockets: Sockets,
    statuses: Option<FileStatuses>,
) -> Result<Successor> {
    match &args.config_dir {
        Some(directory) => serve_directory(args, directory, plane, sockets, statuses).await,
        None => serve_cluster(args, plane, sockets, statuses).await,
    }
}

async fn serve_directory(
    args: &RunArgs,
    directory: &Path,
    plane: Plane,
    sockets: Sockets,
    statuses: Option<FileStatuses>,
) -> Result<Successor> {
    let source = DirSource::new(directory, args.limits.max_file_size()).with_built_in(BUILT_IN);
    let reread = source.reread();
    let applier = Applier::new(source, Translator::new(settings(args)), plane.clone(), statuses);
    let applier = applier.reached_at(node_addresses());
    let admin = Admin { state: applier.state(), plane, status_dir: args.statuses(), membership: None };
    let hang_up = || {
        tracing::info!("SIGHUP: reading everything again");
        reread.now();
    };
    attend(admin, sockets, applier, hang_up, async {}).await?;
    Ok(Successor::Agent)
}

/// Statuses go to the API server if this agent leads, and always to files: those hold what this
/// agent itself decided.
async fn serve_cluster(
    args: &RunArgs,
    plane: Plane,
    sockets: Sockets,
    files: Option<FileStatuses>,
) -> Result<Successor> {
    let Cluster { source, api_server, statuses, membership, mut writers } =
        Cluster::start(&args.cluster, &args.controller_name, args.drain_timeout()).await?;
    let sink = (statuses, files);
    let translator = Translator::new(Settings { api_server, ..settings(args) });
    let applier = Applier::new(source, translator, plane.clone(), sink);
    let applier =
        applier.observing(membership.provisioning.clone()).speaking_while(membership.leading.clone());
    let applier = applier.among(membership.agents.clone());
    let applier = applier.forwarding_from(forwarding_addresses()?);
    writers.announce(applier.state());
    let status_dir = args.statuses();
    let admin = Admin { state: applier.state(), plane, status_dir, membership: Some(membership) };
    let hang_up = || tracing::info!("SIGHUP: nothing to do, the API server tells of every change");
    let result = attend(admin, sockets, applier, hang_up, writers.resign()).await;
    writers.resign().await;
    result?;
    Ok(if writers.are_uninstalled().await { Successor::None } else { Successor::Agent })
}

/// Applies until a signal comes, then drains. It resigns at once: the agent that writes next must
/// not wait for our clients.
async fn attend<S, W>(
    admin: Admin,
    sockets: Sockets,
    mut applier: Applier<S, Translator, Plane, W>,
    hang_up: impl Fn(),
    resign: impl Future<Output = ()>,
) -> Result<()>
where
    S: Source + 'static,
    W: StatusSink + 'static,
{
    let (plane, state) = (admin.plane.clone(), admin.state.clone());
    let endpoints = server::serve(admin, sockets)?;
    let mut chores = plane.chores();
    chores.spawn(health_checks::answer(state));
    let mut hangup = signal(SignalKind::hangup()).context("cannot take SIGHUP")?;
    let mut applying = tokio::spawn(async move { applier.run().await });
    let stop = stopped();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            signal = &mut stop => { tracing::info!("{}: draining", signal?); break }
            _ = hangup.recv() => hang_up(),
            ended = &mut applying => bail!("the control loop ended, which is a bug: {ended:?}"),
        }
    }
    let drain = async {
        applying.abort();
        let _ = applying.await;
        chores.shutdown().await;
        endpoints.close().await;
        plane.drain().await;
    };
    tokio::join!(resign, drain);
    tracing::info!("stopped");
    Ok(())
}

/// SIGTERM, or Ctrl-C.
async fn stopped() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot take SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

fn check_directory(directory: &Path) -> Result<()> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => bail!("--config-dir {} is no directory", directory.display()),
        Err(error) => bail!("--config-dir {}: {error}", directory.display()),
    }
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
        host_ports: args.host_ports.rights(args.admin_port),
        role: args.cluster.role(),
    }
}

/// Traffic matters more than status files that cannot be written; but two agents would write each
/// their own to the same.
fn status_files(directory: &Path) -> Result<Option<FileStatuses>> {
    match FileStatuses::new(directory.to_owned()) {
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
