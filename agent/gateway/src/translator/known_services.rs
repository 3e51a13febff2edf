//! Services as references find them: with the grants to refer to them, and the policies by which
//! they are spoken to in TLS.

use k8s_openapi::api::core::v1::Service;
use portcullis_api::{Kind, Objects};
use portcullis_model::ObjectName;

use super::policies::Policies;
use crate::policy::backend_tls::TlsPolicy;
use crate::route::{BackendUse, Services};
use crate::{Grants, infra};

#[derive(Clone, Copy)]
pub(super) struct KnownServices<'s> {
    pub(super) objects: &'s Objects,
    pub(super) policies: &'s Policies,
}

/// The backends that came into use by one more policy, and those that went out of use by one.
#[derive(Debug, Default)]
pub(super) struct ChangedUses {
    pub(super) used: Vec<BackendUse>,
    pub(super) unused: Vec<BackendUse>,
}

// === impl KnownServices ===

impl Services for KnownServices<'_> {
    fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.objects.services.get(name).map(|service| &**service)
    }

    fn served_gateway(&self, service: &Service) -> Option<ObjectName> {
        infra::served_at(service)
    }

    fn permits(&self, kind: Kind, namespace: &str, service: &ObjectName) -> bool {
        Grants::new(self.objects).permits(kind, namespace, Kind::Service, &service.namespace, &service.name)
    }

    fn tls_policy(&self, service: &ObjectName, port: Option<&str>) -> TlsPolicy<'_> {
        self.policies.tls_to(service, port)
    }
}
