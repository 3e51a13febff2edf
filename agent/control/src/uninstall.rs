//! Removes what agents write to the API server, for when there are no agents any more: what was
//! generated for Gateways, the Mesh resource and the Lease. Whatever was not made by us stays.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, ListParams, Preconditions};
use kube::core::DynamicObject;
use portcullis_api::types::xmeshes::XMesh;
use portcullis_gateway::infra::{self, GeneratedKind, Operation};
use portcullis_gateway::mesh::MeshSettings;

use crate::infra::{read, resource};
use crate::kube::code;
use crate::kube::delete::{delete, exactly};

/// An installation that is to be removed.
#[derive(Clone, Debug)]
pub struct Installation {
    pub controller_name: String,
    pub mesh: MeshSettings,
    /// Of the agents and their Lease.
    pub namespace: String,
    pub lease: String,
}

/// Returns a line for each object that was removed.
///
/// # Errors
/// When the API server refuses or does not answer; trying again goes on where this stopped.
pub async fn uninstall(client: &Client, installation: &Installation) -> kube::Result<Vec<String>> {
    let mut removed = Vec::new();
    remove_generated(client, &installation.controller_name, &mut removed).await?;
    remove_mesh(client, &installation.mesh, &mut removed).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &installation.namespace);
    if delete(&leases, &installation.lease, Preconditions::default()).await? {
        removed.push(format!("Lease {}/{}", installation.namespace, installation.lease));
    }
    Ok(removed)
}

async fn remove_generated(client: &Client, controller: &str, removed: &mut Vec<String>) -> kube::Result<()> {
    let ours = ListParams::default().labels(&format!("{}={}", infra::MANAGED_BY_LABEL, infra::MANAGER));
    for kind in GeneratedKind::ALL {
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let there = match all.list(&ours).await {
            // Where mode Dedicated is not installed, there is nothing else than Services, nor a
            // right to look.
            Err(error) if kind != GeneratedKind::Service && code(&error) == Some(403) => continue,
            there => there?,
        };
        let there: Vec<_> = there.items.iter().filter_map(|object| read(kind, object)).collect();
        for operation in infra::diff(&[], &there, controller) {
            let Operation::Delete { name, uid, .. } = operation else { continue };
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &name.namespace, &resource(kind));
            if delete(&api, &name.name, exactly(uid)).await? {
                removed.push(format!("{kind} {name}"));
            }
        }
    }
    Ok(())
}

/// Nothing of another controller's, and nothing where the kind is not served.
async fn remove_mesh(client: &Client, mesh: &MeshSettings, removed: &mut Vec<String>) -> kube::Result<()> {
    let api: Api<XMesh> = Api::all(client.clone());
    let Some(there) = api.get_opt(&mesh.name).await? else { return Ok(()) };
    if there.spec.controller_name == mesh.controller_name
        && delete(&api, &mesh.name, exactly(there.metadata.uid.unwrap_or_default())).await?
    {
        removed.push(format!("XMesh {}", mesh.name));
    }
    Ok(())
}
