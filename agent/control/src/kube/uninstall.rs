//! Removes what agents write to the API server, for when there are no agents any more: what was generated for Gateways, the
//! Mesh resource and the Lease. Whatever was not made by us stays.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use portcullis_gateway::api::xmeshes::XMesh;
use portcullis_gateway::infra::{self, Operation};
use portcullis_gateway::mesh::MeshSettings;

use super::code;

/// What is to be removed.
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
    remove_services(client, &installation.controller_name, &mut removed).await?;
    remove_mesh(client, &installation.mesh, &mut removed).await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &installation.namespace);
    if is_deleted(leases.delete(&installation.lease, &DeleteParams::default()).await)? {
        removed.push(format!("Lease {}/{}", installation.namespace, installation.lease));
    }
    Ok(removed)
}

async fn remove_services(client: &Client, controller: &str, removed: &mut Vec<String>) -> kube::Result<()> {
    let generated = ListParams::default().labels(&format!("{}={}", infra::MANAGED_BY_LABEL, infra::MANAGER));
    let services = Api::<Service>::all(client.clone()).list(&generated).await?;
    for operation in infra::diff(&[], &services.items, controller) {
        let Operation::Delete { name, uid } = operation else { continue };
        let api: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
        if is_deleted(api.delete(&name.name, &exactly(uid)).await)? {
            removed.push(format!("Service {name}"));
        }
    }
    Ok(())
}

/// Nothing of another controller's, and nothing where the kind is not served.
async fn remove_mesh(client: &Client, mesh: &MeshSettings, removed: &mut Vec<String>) -> kube::Result<()> {
    let api: Api<XMesh> = Api::all(client.clone());
    let Some(there) = api.get_opt(&mesh.name).await? else { return Ok(()) };
    if there.spec.controller_name == mesh.controller_name
        && is_deleted(api.delete(&mesh.name, &exactly(there.metadata.uid.unwrap_or_default())).await)?
    {
        removed.push(format!("XMesh {}", mesh.name));
    }
    Ok(())
}

fn exactly(uid: String) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Gone already, or replaced by another object of the name, is as good.
fn is_deleted<T>(result: kube::Result<T>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}
