//! Removes what agents write to the API server, for when there are no agents any more: what was
//! generated for Gateways, the Mesh resource, the Lease and the agents' keys. Whatever was not made
//! by us stays.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams, Preconditions};
use kube::core::DynamicObject;
use portcullis_api::types::xmeshes::XMesh;
use portcullis_gateway::infra::{self, GeneratedKind, Operation};
use portcullis_gateway::mesh::MeshSettings;

use crate::infra::{read, resource};
use crate::key_ring::KEYS;
use crate::kube::delete::{delete, exactly};
use crate::kube::{FIELD_MANAGER, code};

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
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &installation.namespace);
    if delete(&secrets, KEYS, Preconditions::default()).await? {
        removed.push(format!("Secret {}/{KEYS}", installation.namespace));
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

/// Nothing of another controller's or that an operator made, and nothing where the kind is not
/// served.
async fn remove_mesh(client: &Client, mesh: &MeshSettings, removed: &mut Vec<String>) -> kube::Result<()> {
    let api: Api<XMesh> = Api::all(client.clone());
    let Some(there) = api.get_opt(&mesh.name).await? else { return Ok(()) };
    if there.spec.controller_name == mesh.controller_name
        && is_made_by_us(&there)
        && delete(&api, &mesh.name, exactly(there.metadata.uid.unwrap_or_default())).await?
    {
        removed.push(format!("XMesh {}", mesh.name));
    }
    Ok(())
}

/// Tells whether the `spec` is as we made it: the API server keeps account of who set its fields.
/// Writing its status makes nothing ours.
fn is_made_by_us(mesh: &XMesh) -> bool {
    let entries = mesh.metadata.managed_fields.iter().flatten();
    entries.filter(|entry| entry.subresource.is_none()).any(|entry| {
        let sets_spec = entry.fields_v1.as_ref().is_some_and(|fields| fields.0.get("f:spec").is_some());
        sets_spec && entry.manager.as_deref() == Some(FIELD_MANAGER)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::fake::ApiServer;

    /// Uninstalls where there is nothing but an XMesh whose `spec` this manager set. Returns the
    /// objects that were deleted.
    async fn deleted(manager: &str) -> Vec<String> {
        let entry = |manager: &str, subresource: Option<&str>, field: &str| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource, "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {field: {"f:controllerName": {}}}})
        };
        let settings = MeshSettings::default();
        let fields = [entry(manager, None, "f:spec"), entry(FIELD_MANAGER, Some("status"), "f:status")];
        let mesh = json!({"metadata": {"name": settings.name, "uid": "u", "managedFields": fields},
            "spec": {"controllerName": settings.controller_name}});
        let mut server = ApiServer::start().await;
        let client = server.client().await;
        let uninstalling = tokio::spawn(async move {
            let installation = Installation {
                controller_name: "c".to_owned(),
                mesh: settings,
                namespace: "n".to_owned(),
                lease: "l".to_owned(),
            };
            uninstall(&client, &installation).await.unwrap()
        });
        let mut deleted = Vec::new();
        while deleted.last().is_none_or(|path: &String| !path.contains("/secrets/")) {
            let asked = server.asked().await;
            match (&*asked.method, asked.path.contains("/xmeshes/")) {
                ("GET", true) => asked.answer(200, mesh.clone()),
                ("GET", false) => asked.answer(200, json!({"metadata": {}, "items": []})),
                _ => {
                    deleted.push(asked.path.clone());
                    asked.answer(200, json!({"kind": "Status", "status": "Success"}));
                }
            }
        }
        assert_eq!(uninstalling.await.unwrap().len(), deleted.len());
        deleted
    }

    #[tokio::test]
    async fn a_mesh_that_an_operator_made_stays() {
        assert_eq!(deleted(FIELD_MANAGER).await.len(), 3, "the XMesh, the Lease and the keys");
        let [lease, keys] = &deleted("kubectl-create").await[..] else {
            panic!("more than the Lease and the keys")
        };
        assert!(lease.contains("/leases/l") && keys.contains("/secrets/portcullis-keys"), "{lease} {keys}");
    }
}
