//! Stage: the ports at which load balancers ask nodes whether they serve a Gateway
//! (`healthCheckNodePort`). The API server gives one to each Service with `externalTrafficPolicy:
//! Local`, and kube-proxy, which would answer there, leaves ours alone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use portcullis_model::{HealthCheck, ObjectName};

use super::frontends::{ChangedFrontends, Sources};
use super::snapshot::NextSnapshot;
use crate::AgentRole;
use crate::infra::{Mode, name_of};

#[derive(Debug, Default)]
pub(super) struct HealthChecks {
    ports: BTreeMap<ObjectName, (u16, HealthCheck)>,
}

impl HealthChecks {
    pub(super) fn update(
        &mut self,
        frontends: &ChangedFrontends,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) {
        let mut is_another = false;
        for name in &frontends.claimants {
            let now = sources.health_check(name);
            is_another |= now.as_ref() != self.ports.get(name);
            match now {
                Some(now) => drop(self.ports.insert(name.clone(), now)),
                None => drop(self.ports.remove(name)),
            }
        }
        if !is_another {
            return;
        }
        let mut checks = BTreeMap::new();
        for (port, check) in self.ports.values() {
            // The API server gives no port twice; what was kept of two times may have it twice.
            checks.entry(*port).or_insert_with(|| check.clone());
        }
        if next.get().health_checks != checks {
            next.edit().health_checks = checks;
        }
    }
}

impl Sources<'_> {
    fn health_check(self, name: &ObjectName) -> Option<(u16, HealthCheck)> {
        let merged = self.gateways.get(name).filter(|merged| merged.refusal.is_none())?;
        if (&self.settings.role, merged.parameters.mode) != (&AgentRole::Node, Mode::Node) {
            return None;
        }
        let service = self.service_of(name)?;
        let check = HealthCheck { gateway: name.clone(), service: name_of(&service.metadata) };
        Some((port(service)?, check))
    }
}

fn port(service: &Service) -> Option<u16> {
    let spec = service.spec.as_ref()?;
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let port = spec.health_check_node_port.filter(|port| *port != 0 && is_local)?;
    u16::try_from(port).ok()
}
