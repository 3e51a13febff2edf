//! Gateway API semantics, pure: Kubernetes objects in, a [`portcullis_model::Snapshot`] for the data plane and a plan of
//! statuses out. No async, no I/O, no clock.

pub mod api;
mod grant;
mod objects;
mod reason;
pub mod route;
mod selector;
mod settings;

pub use grant::{Granted, Grants};
pub use objects::{
    Change, GATEWAY_GROUP, Kind, Object, ObjectError, ObjectKey, Objects, created, generation,
};
pub use reason::{ConditionStatus, ConditionType, Reason, condition};
pub use selector::{NamespaceRule, Namespaces, SelectorError};
pub use settings::{CONTROLLER_NAME, Settings};
