//! The state of all stages at once, as the last ones read it: statuses, generated objects and needs
//! follow from it. Here stands what an object's status should say, and what no status can say; it
//! does not know what was published before.

mod backend_policies;
mod externals;
mod listener_policies;
mod parents;
mod policies;
mod problems;
mod routes;
mod targets;
mod traffic_policies;

use portcullis_api::{Kind, ObjectKey, Objects, generation};
use portcullis_model::{ObjectName, ParentKind};

use super::admissions::Admissions;
use super::backend_policies::BackendPolicies;
use super::backends::Backends;
use super::conflicts::KindConflicts;
use super::default_gateways::DefaultGateways;
use super::external_endpoints::ExternalEndpoints;
use super::externals::Externals;
use super::frontends::Frontends;
use super::gateways::{Gateways, MergedGateway};
use super::hierarchy::Hierarchy;
use super::listener_filters::ListenerFilters;
use super::listeners::Listeners;
use super::parsed::ParsedRoutes;
use super::policies::Policies;
use super::ports::Ports;
use super::route_filters::RouteFilters;
use super::routes::Routes;
use super::shared_names::SharedNames;
use super::tables::Tables;
use super::traffic_policies::TrafficPolicies;
use crate::feedback::Observations;
use crate::listener::ParentKey;
use crate::status::{Status, classless_status, route_filter_status};
use crate::{Settings, infra};

/// All that statuses, generated objects and needs follow from.
#[derive(Clone, Copy)]
pub(super) struct View<'s> {
    pub(super) settings: &'s Settings,
    pub(super) objects: &'s Objects,
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) gateways: &'s Gateways,
    pub(super) admissions: &'s Admissions,
    pub(super) traffic: &'s TrafficPolicies,
    pub(super) policies: &'s Policies,
    pub(super) backend_policies: &'s BackendPolicies,
    pub(super) externals: &'s Externals,
    pub(super) filters: &'s ListenerFilters,
    pub(super) defaults: &'s DefaultGateways,
    pub(super) route_filters: &'s RouteFilters,
    pub(super) parsed: &'s ParsedRoutes,
    pub(super) routes: &'s Routes,
    pub(super) conflicts: &'s KindConflicts,
    pub(super) shared_names: &'s SharedNames,
    pub(super) tables: &'s Tables,
    pub(super) ports: &'s Ports,
    pub(super) frontends: &'s Frontends,
    pub(super) backends: &'s Backends,
    pub(super) external_endpoints: &'s ExternalEndpoints,
    pub(super) observations: &'s Observations,
}

// === impl View ===

impl<'s> View<'s> {
    /// The status that an object should have; `None` if the object is gone or not ours to speak
    /// about.
    pub(super) fn status_of(self, key: &ObjectKey) -> Option<Status> {
        match key.kind {
            Kind::GatewayClass => {
                let class = self.objects.gateway_classes.get(&key.name)?;
                let ours = class.spec.controller_name == self.settings.controller_name;
                ours.then(|| Status::GatewayClass(self.class_status(class)))
            }
            Kind::Gateway => self.gateway_status(&key.name),
            Kind::ListenerSet => self.listener_set_status(&key.name),
            kind if kind.is_route() => {
                let state = self.routes.get(key)?;
                Some(Status::Route(self.route_status(key, state)))
            }
            Kind::BackendTlsPolicy => self.policy_status(&key.name),
            Kind::BackendPolicy => self.backend_policy_status(&key.name),
            Kind::XBackendTrafficPolicy => self.backend_traffic_policy_status(&key.name),
            Kind::XBackend => self.external_status(&key.name),
            Kind::ListenerPolicy => self.listener_policy_status(&key.name),
            Kind::TrafficPolicy => self.traffic_policy_status(&key.name),
            Kind::RouteFilter => {
                let filter = self.objects.route_filters.get(&key.name)?;
                let fault = self.route_filters.get(&key.name)?.as_ref().err();
                Some(Status::RouteFilter(route_filter_status(generation(&filter.metadata), fault)))
            }
            _ => None,
        }
    }

    /// The last status of a Gateway whose class is gone, and of a ListenerSet whose Gateway or its
    /// class is: no other controller would take back what ours reported.
    pub(super) fn orphan_status(self, key: &ObjectKey) -> Option<Status> {
        match key.kind {
            Kind::Gateway => {
                let gateway = self.objects.gateways.get(&key.name)?;
                let addresses = self.gateways.left(&key.name);
                self.is_without_class(gateway).then(|| Status::Gateway(classless_status(gateway, addresses)))
            }
            Kind::ListenerSet => self.orphaned_set_status(&key.name),
            _ => None,
        }
    }

    /// True if a Gateway, or that of a ListenerSet, was an earlier agent's of this controller: what
    /// was generated for it is still there.
    pub(super) fn was_ours(self, key: &ObjectKey) -> bool {
        let gateway = match key.kind {
            Kind::ListenerSet => {
                let set = ParentKey { kind: ParentKind::ListenerSet, name: key.name.clone() };
                self.hierarchy.get(&set).and_then(|state| state.parent.as_ref())
            }
            _ => Some(&key.name),
        };
        let controller = &self.settings.controller_name;
        gateway.is_some_and(|gateway| infra::is_generated_by(controller, gateway, self.objects))
    }

    /// The Gateway that an object's listeners are merged into.
    fn gateway_of(self, key: &ParentKey) -> Option<(&'s ObjectName, &'s MergedGateway)> {
        self.gateways.get_key_value(self.hierarchy.gateway_of(key)?)
    }

    /// The Gateway that an object asks for and that does not exist.
    fn missing_gateway(self, key: &ParentKey) -> Option<&'s ObjectName> {
        let parent = self.hierarchy.get(key)?.parent.as_ref();
        parent.filter(|parent| !self.objects.gateways.contains_key(parent))
    }
}
