//! Gateway API semantics, pure: Kubernetes objects in, a [`portcullis_model::Snapshot`] for the
//! data plane and a plan of statuses out. No async, no I/O, no clock.

mod agent_place;
mod claims;
mod conditions;
mod default_scope;
pub mod delegate;
mod duration;
mod external;
mod external_rule;
mod fault;
mod features;
mod feedback;
mod field_names;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grant;
pub mod infra;
mod listener;
pub mod mesh;
mod options;
mod parent;
mod policy;
mod protocol;
mod reason;
mod retry;
pub mod route;
mod selector;
mod settings;
mod special_address;
mod status;
mod timeouts;
mod translator;

pub use agent_place::AgentPlace;
pub use claims::Claims;
pub use default_scope::DefaultScope;
pub use external_rule::ExternalRule;
pub use fault::Fault;
pub use features::SUPPORTED_FEATURES;
pub use feedback::{ApiServer, Feedback, NameAnswer};
pub use grant::{Granted, Grants};
pub use listener::{CertificateError, ParentKey, read_certificate};
pub use parent::{ALLOWED_CHILDREN, ATTACH_TO};
pub use policy::Policies;
pub use reason::{ConditionStatus, ConditionType, Polarity, Reason, condition};
pub use selector::{NamespaceRule, Namespaces};
pub use settings::{AgentRole, CONTROLLER_NAME, EndpointRule, Settings};
pub use status::Status;
pub use status::dump::dump_status;
pub use status::summary::{ConditionSummary, parent_name};
pub use translator::{ChangedNeeds, Outcome, Translator, translate};
