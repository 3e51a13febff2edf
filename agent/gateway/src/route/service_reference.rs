//! References to services: of backendRefs, and of filters that make use of a service.

use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_model::ObjectName;

/// The reference of a filter, with its defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    pub(super) group: Box<str>,
    pub(super) kind: Box<str>,
    pub(super) owner: Arc<str>,
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) port: Option<u16>,
}

/// A reference as it is looked up, whatever it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Referred<'r> {
    pub(crate) group: &'r str,
    pub(crate) kind: &'r str,
    /// The namespace of the object that wrote it: its permissions count.
    pub(crate) owner: &'r Arc<str>,
    pub(crate) namespace: &'r Arc<str>,
    pub(crate) name: &'r Arc<str>,
    pub(crate) port: Option<u16>,
}

// === impl ServiceReference ===

impl ServiceReference {
    pub(crate) fn referred(&self) -> Referred<'_> {
        let Self { group, kind, owner, namespace, name, port } = self;
        Referred { group, kind, owner, namespace, name, port: *port }
    }

    /// Takes it for one that was written in another namespace.
    pub(super) fn move_to(&mut self, owner: &Arc<str>, written_namespace: Option<&str>) {
        self.owner = owner.clone();
        if written_namespace.is_none() {
            self.namespace = owner.clone();
        }
    }
}

// === impl Referred ===

impl Referred<'_> {
    /// `None` if it is of another kind.
    pub(crate) fn service(&self) -> Option<ObjectName> {
        let is_service = Kind::of(self.group, self.kind) == Some(Kind::Service);
        is_service.then(|| ObjectName::new(self.namespace.clone(), self.name.clone()))
    }
}
