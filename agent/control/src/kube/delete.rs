//! Deletes the very object that was looked at, not whatever has its name by now.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Preconditions};
use serde::de::DeserializeOwned;

use super::code;

/// Returns whether it was deleted: gone already, or another by now, is as good.
///
/// # Errors
/// When the API server refuses or does not answer.
pub(crate) async fn delete<K>(api: &Api<K>, name: &str, seen: Preconditions) -> kube::Result<bool>
where
    K: Clone + Debug + DeserializeOwned,
{
    let parameters = DeleteParams { preconditions: Some(seen), ..DeleteParams::background() };
    match api.delete(name, &parameters).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whatever became of it since, but no other of the name.
pub(crate) fn exactly(uid: String) -> Preconditions {
    Preconditions { uid: Some(uid), resource_version: None }
}
