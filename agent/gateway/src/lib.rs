//! Gateway API semantics, pure: Kubernetes objects in, a [`portcullis_model::Snapshot`] for the
//! data plane and a plan of statuses out. No async, no I/O, no clock.

pub mod delegate;
mod fault;
mod features;
mod feedback;
mod grant;
pub mod infra;
mod listener;
pub mod mesh;
mod parent;
mod policy;
mod reason;
pub mod route;
mod selector;
mod settings;
mod status;
mod translator;

pub use fault::Fault;
pub use features::SUPPORTED_FEATURES;
pub use feedback::Feedback;
pub use grant::{Granted, Grants};
pub use listener::ParentKey;
pub use parent::{ALLOWED_CHILDREN, ATTACH_TO};
pub use policy::Policies;
pub use portcullis_api::{
    Change, CustomResourceDefinition, GATEWAY_GROUP, Kind, Object, ObjectError, ObjectKey, Objects, Packed,
    SelectorError, created, generation, types as api,
};
pub use reason::{ConditionStatus, ConditionType, Polarity, Reason, condition};
pub use selector::{NamespaceRule, Namespaces};
pub use settings::{AgentRole, CONTROLLER_NAME, Settings};
pub use status::Status;
pub use status::dump::dump_status;
pub use translator::{Outcome, Translator, translate};
