//! `portcullis cleanup`: takes away what agents leave behind on purpose, on a node that will have
//! no agent any more, or in a cluster from which the agents were uninstalled.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use portcullis_control::kube::connect_for_command;
use portcullis_control::uninstall::{Installation, uninstall};
use portcullis_gateway::mesh::{DEFAULT_MESH_NAME, MeshSettings};
use portcullis_node::{Beside, Cleaned, Lock};

use crate::cluster::LEASE;
use crate::output;
use crate::state::StateDir;

#[derive(Args)]
pub(crate) struct CleanupArgs {
    /// Not this node: the objects in the API server that agents made (generated Services, the
    /// XMesh, the Lease)
    #[arg(long)]
    cluster: bool,
    /// Directory in which kernel programs and maps are pinned
    #[arg(long, value_name = "DIR", default_value = portcullis_node::DEFAULT_PIN_DIR, env = "PORTCULLIS_PIN_DIR")]
    pin_dir: std::path::PathBuf,
    #[command(flatten)]
    state: StateDir,
    /// The kubeconfig file for the API server [default: KUBECONFIG, ~/.kube/config, or the pod's
    /// service account]
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_KUBECONFIG")]
    kubeconfig: Option<std::path::PathBuf>,
    /// Namespace of the agents and their Lease [default: the pod's, or that of the kubeconfig]
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_NAMESPACE")]
    namespace: Option<String>,
    /// Name of the XMesh that was ours
    #[arg(long, value_name = "NAME", default_value = DEFAULT_MESH_NAME, env = "PORTCULLIS_MESH_NAME")]
    mesh_name: String,
    /// Objects of this controllerName are removed
    #[arg(long, value_name = "NAME", default_value = portcullis_gateway::CONTROLLER_NAME, env = "PORTCULLIS_CONTROLLER_NAME")]
    controller_name: String,
}

pub(crate) fn run(args: &CleanupArgs) -> Result<ExitCode> {
    if args.cluster {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let removed = runtime.block_on(clean_cluster(args))?;
        removed.iter().for_each(|what| output::text(&format!("removed {what}\n")));
        return Ok(ExitCode::SUCCESS);
    }
    // An agent goes on to serve with its kernel programs, VIPs and rules, and would not miss them.
    let _alone = Lock::take(Beside::Nothing).context("nothing is removed beside a running agent")?;
    let mut cleaned = portcullis_node::clean(&args.pin_dir);
    forget(&mut cleaned, &args.state, None);
    cleaned.removed.iter().for_each(|what| output::text(&format!("removed {what}\n")));
    cleaned.problems.iter().for_each(|problem| output::error(&format!("portcullis: {problem}")));
    Ok(if cleaned.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same, of an agent that ends and will have no successor.
pub(crate) fn leave(pin_dir: &Path, state: &StateDir, statuses: Option<&Path>) {
    let mut cleaned = portcullis_node::clean(pin_dir);
    forget(&mut cleaned, state, statuses);
    tracing::info!(removed = cleaned.removed.join(", "), "uninstalled");
    cleaned.problems.iter().for_each(|problem| tracing::warn!("this stays on the node: {problem}"));
}

fn forget(cleaned: &mut Cleaned, state: &StateDir, statuses: Option<&Path>) {
    match state.remove(statuses) {
        Ok(removed) => cleaned.removed.extend(removed),
        Err(error) => cleaned.problems.push(format!("{error:#}")),
    }
}

async fn clean_cluster(args: &CleanupArgs) -> Result<Vec<String>> {
    let client = connect_for_command(args.kubeconfig.as_deref()).await.context("cannot use a cluster")?;
    let installation = Installation {
        controller_name: args.controller_name.clone(),
        mesh: MeshSettings { name: args.mesh_name.clone(), ..MeshSettings::default() },
        namespace: args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned()),
        lease: LEASE.to_owned(),
    };
    uninstall(&client, &installation).await.context("cannot remove what agents made; run it again")
}
