//! CustomResourceDefinitions, as far as they speak about themselves: their schemas are the API
//! server's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CustomResourceDefinition {
    pub metadata: ObjectMeta,
}
