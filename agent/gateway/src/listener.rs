//! Listeners: what an object declares, judged on its own; how the listeners of a Gateway and its
//! children get along; and which routes attach to them. Nothing here knows what is served or
//! reported.

mod attach;
mod certificate;
mod declare;
mod hosts;
mod merge;

pub use certificate::{CertificateError, read as read_certificate};
pub use declare::ParentKey;

pub(crate) use attach::{RouteAttachment, admits, attach, hostnames_at, parent_key};
pub(crate) use declare::{Certificates, ClientCertificate, Declared, Held, Listener, ListenerKey};
pub(crate) use hosts::{Hosts, NamespacedHosts};
pub(crate) use merge::{Acceptance, Merge, Refusal};
