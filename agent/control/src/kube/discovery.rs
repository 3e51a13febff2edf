//! The kinds that the API server serves, and their versions. A kind without CRD is no error: it is
//! asked for again.

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use portcullis_api::Kind;

use super::code;

/// The preferred version among those served whose schema we read; `None`: not served (yet).
///
/// # Errors
/// When the API server does not answer, or not as expected.
pub(crate) async fn served(client: &Client, kind: Kind) -> kube::Result<Option<ApiResource>> {
    for version in kind.versions() {
        let found = resource(client, kind.group(), version, kind.as_str()).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Tells whether a kind that is not [`served`] is in a version whose schema we do not read.
///
/// # Errors
/// As [`served`].
pub(crate) async fn is_served_otherwise(client: &Client, kind: Kind) -> kube::Result<bool> {
    let groups = client.list_api_groups().await?.groups;
    let versions = groups.into_iter().filter(|group| group.name == kind.group()).flat_map(|it| it.versions);
    for version in versions.filter(|it| !kind.versions().contains(&it.version.as_str())) {
        if resource(client, kind.group(), &version.version, kind.as_str()).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One kind of one version.
///
/// # Errors
/// As [`served`].
pub(crate) async fn resource(
    client: &Client,
    group: &str,
    version: &str,
    kind: &str,
) -> kube::Result<Option<ApiResource>> {
    let list = if group.is_empty() {
        client.list_core_api_resources(version).await
    } else {
        client.list_api_group_resources(&format!("{group}/{version}")).await
    };
    let resources = match list {
        Err(error) if code(&error) == Some(404) => return Ok(None),
        list => list?.resources,
    };
    let found = resources.iter().find(|resource| resource.kind == kind && !resource.name.contains('/'));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    Ok(found.map(|resource| ApiResource::from_gvk_with_plural(&gvk, &resource.name)))
}
