//! The state of all stages at once, as the last ones read it: statuses, generated objects and needs
//! follow from it. Here stands what an object's status should say, and what no status can say; it
//! does not know what was published before.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use portcullis_api::types::gatewayclasses::GatewayClass;
use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::shared::{ClassStatus, ParentReference, RouteParentStatus, RouteStatus};
use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey, Objects, generation};
use portcullis_model::{FrontendKey, ListenerId, ObjectName, ParentKind, PortKey};
use serde_json::json;

use super::attachments::Parents;
use super::backends::Backends;
use super::conflicts::KindConflicts;
use super::frontends::{Frontends, Lost, Withheld};
use super::gateways::{Gateways, MergedGateway};
use super::hierarchy::{Attachment, Hierarchy};
use super::listeners::Listeners;
use super::parsed::{ParsedRoutes, parent_route, parents_of};
use super::policies::Policies;
use super::ports::Ports;
use super::routes::{RouteState, Routes};
use crate::conditions::make_partial;
use crate::delegate::{foreign_parent_conditions, missing_parent_conditions};
use crate::feedback::Observations;
use crate::listener::{Declared, Listener, ListenerKey, ParentKey, parent_key};
use crate::parent::{self, AllowedChildren};
use crate::policy::backend_tls;
use crate::status::summary::parent_name;
use crate::status::{
    ChildView, GatewayView, ListenerView, Names, Overlap, ParentVerdict, SetView, Status, child_status,
    class_status, classless_status, gateway_status, policy_status, route_status, set_status,
};
use crate::{Fault, Grants, Reason, Settings, infra};

/// All that statuses, generated objects and needs follow from.
#[derive(Clone, Copy)]
pub(super) struct View<'s> {
    pub(super) settings: &'s Settings,
    pub(super) objects: &'s Objects,
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) gateways: &'s Gateways,
    pub(super) policies: &'s Policies,
    pub(super) parsed: &'s ParsedRoutes,
    pub(super) routes: &'s Routes,
    pub(super) conflicts: &'s KindConflicts,
    pub(super) ports: &'s Ports,
    pub(super) frontends: &'s Frontends,
    pub(super) backends: &'s Backends,
    pub(super) observations: &'s Observations,
}

/// By the CRD, of a route's status.
const MOST_PARENTS: usize = 32;

/// The kind of object that a parentRef of a route names.
enum Named {
    SameKind,
    OtherRoute,
    Other,
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

    fn orphaned_set_status(self, name: &ObjectName) -> Option<Status> {
        let set = ParentKey { kind: ParentKind::ListenerSet, name: name.clone() };
        let parent = self.hierarchy.get(&set)?.parent.as_ref()?;
        let message = match self.objects.gateways.get(parent) {
            None => format!("there is no Gateway {parent}: create it, or delete the set"),
            Some(gateway) if self.is_without_class(gateway) => {
                "the Gateway attached to has no GatewayClass any more".to_owned()
            }
            Some(_) => return None,
        };
        Some(Status::ListenerSet(set_status(&SetView {
            generation: self.listeners.get(&set)?.generation,
            refusal: Some(&Fault::not_accepted(Reason::ParentNotAccepted, message)),
            parent_refusal: None,
            parent_unprovisioned: None,
            listeners: Vec::new(),
        })))
    }

    /// True if no controller can be the Gateway's. A class that exists may be another's.
    fn is_without_class(self, gateway: &Gateway) -> bool {
        let class = ObjectName::new("", gateway.spec.gateway_class_name.as_str());
        !self.objects.gateway_classes.contains_key(&class)
    }

    /// Faults of an object that no status can report.
    pub(super) fn problems_of(self, key: &ObjectKey) -> Vec<String> {
        match key.kind {
            Kind::Gateway => self.gateway_problems(&key.name),
            Kind::ListenerSet => {
                let set = ParentKey { kind: ParentKind::ListenerSet, name: key.name.clone() };
                let missing = self.missing_gateway(&set).into_iter();
                let missing = missing.map(|gateway| format!("parentRef: there is no Gateway {gateway}"));
                missing.chain(self.duplicates(&set)).collect()
            }
            Kind::EndpointSlice => self.slice_problems(&key.name),
            kind if kind.is_route() => self.route_problems(key),
            _ => Vec::new(),
        }
    }

    // === classes, Gateways, ListenerSets ===

    fn class_status(self, class: &GatewayClass) -> ClassStatus {
        let parameters = infra::of_class(class, self.objects).err();
        class_status(class, parameters.as_ref(), &parent::installed_release(self.objects))
    }

    fn gateway_status(self, name: &ObjectName) -> Option<Status> {
        let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let declared = self.listeners.get(&key)?;
        let refusal = match &self.hierarchy.get(&key)?.attachment {
            Attachment::Independent => return self.independent_status(name, &key, declared),
            Attachment::Refused(fault) => Some(fault),
            Attachment::Child(_) | Attachment::Foreign => None,
        };
        let parent = self.gateway_of(&key);
        let view = ChildView {
            generation: declared.generation,
            refusal,
            parent_refusal: parent.and_then(|(_, parent)| parent_refusal(parent)),
            parent_unprovisioned: parent
                .and_then(|(name, _)| self.parent_unprovisioned(name))
                .map(|fault| fault.because(Reason::Pending)),
            parent: parent.map(|(_, parent)| &parent.addresses),
            own: self.listener_views(&key, declared),
            client_certificate: &declared.client_certificate,
            ignored: self.ignored_fields(name),
        };
        Some(Status::Gateway(child_status(&view)))
    }

    fn independent_status(self, name: &ObjectName, key: &ParentKey, declared: &Declared) -> Option<Status> {
        let merged = self.gateways.get(name)?;
        let accepting = parent_refusal(merged).is_none();
        let allowed = parent::allowed_children(self.objects.gateways.get(name)?);
        let opted_in = matches!(allowed, Ok(AllowedChildren::From(_)));
        let own = self.listener_views(key, declared);
        let accepted = own.iter().filter(|view| view.acceptance.is_accepted());
        let own_ports: BTreeSet<_> = accepted.map(|view| view.listener.port).collect();
        let unserved = self.observations.unserved_frontends(name);
        let unserved = unserved.filter(|(frontend, _)| own_ports.contains(&frontend.port_key()));
        let view = GatewayView {
            generation: declared.generation,
            addresses: &merged.addresses,
            refusal: merged.refusal.as_ref(),
            invalid_below: &merged.summary.invalid_below,
            lost: self
                .frontends
                .lost_by(name)
                .and_then(|lost| lost_ports(lost, &own_ports))
                .or_else(|| withheld_ports(self.frontends.withheld_from(name)?, &own_ports)),
            unserved: unserved.map(|(_, line)| line).collect(),
            own,
            client_certificate: &declared.client_certificate,
            ignored: self.ignored_fields(name),
            unprovisioned: self.observations.unprovisioned(name),
            attached_sets: if accepting { merged.summary.attached_sets } else { 0 },
            attached_gateways: opted_in.then_some(if accepting {
                merged.summary.attached_gateways
            } else {
                0
            }),
        };
        Some(Status::Gateway(gateway_status(&view)))
    }

    fn ignored_fields(self, gateway: &ObjectName) -> Vec<String> {
        let gateway = self.objects.gateways.get(gateway);
        gateway.map(|gateway| parent::ignored_fields(gateway)).unwrap_or_default()
    }

    fn listener_set_status(self, name: &ObjectName) -> Option<Status> {
        let key = ParentKey { kind: ParentKind::ListenerSet, name: name.clone() };
        let declared = self.listeners.get(&key)?;
        let refusal = match &self.hierarchy.get(&key)?.attachment {
            Attachment::Foreign => return None,
            Attachment::Refused(fault) => Some(fault),
            Attachment::Independent | Attachment::Child(_) => None,
        };
        let parent = self.gateway_of(&key);
        let view = SetView {
            generation: declared.generation,
            refusal,
            parent_refusal: parent.and_then(|(_, parent)| parent_refusal(parent)),
            parent_unprovisioned: parent.and_then(|(name, _)| self.parent_unprovisioned(name)),
            listeners: self.listener_views(&key, declared),
        };
        Some(Status::ListenerSet(set_status(&view)))
    }

    fn listener_views<'d>(self, key: &ParentKey, declared: &'d Declared) -> Vec<ListenerView<'d>>
    where
        's: 'd,
    {
        let gateway = self.gateway_of(key);
        let mut views = Vec::with_capacity(declared.listeners.len());
        for (listener, acceptance) in declared.listeners.iter().zip(self.gateways.acceptances(key)) {
            let overlaps = self.gateways.overlapping(key).contains(&listener.name);
            let takes = self.gateways.taking(key).contains(&listener.name);
            views.push(ListenerView {
                listener,
                acceptance,
                attached_routes: self.attached_routes(&(key.clone(), listener.name.clone())),
                hindrance: gateway.and_then(|(name, merged)| self.hindrance(name, merged, listener.port)),
                unserved: gateway.map(|(name, _)| self.unserved(name, key, listener)).unwrap_or_default(),
                overlap: if overlaps { Overlap::Some } else { Overlap::None },
                names: if takes { Names::OthersToo } else { Names::Own },
            });
        }
        views
    }

    fn attached_routes(self, listener: &ListenerKey) -> usize {
        let routes = self.routes.at_listener(listener);
        routes.map_or(0, |routes| routes.accepted_without(self.conflicts.at(listener).keys()))
    }

    /// The frontends at which the data plane does not serve a listener, one line for each.
    fn unserved(self, gateway: &ObjectName, holder: &ParentKey, listener: &Listener) -> Vec<String> {
        let frontends = self.observations.unserved_frontends(gateway);
        let of_port = frontends.filter(|(frontend, _)| frontend.port_key() == listener.port);
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: holder.kind,
            parent: holder.name.clone(),
            name: listener.name.clone(),
        };
        let mismatch = self.ports.mismatch(&id).map(str::to_owned);
        of_port.map(|(_, line)| line).chain(self.observations.unserved_at(&id)).chain(mismatch).collect()
    }

    /// The message for children, whose owners may not see the parent: that it is not
    /// programmed, not why. "Programmed ... only reflects the listeners in that ListenerSet",
    /// except when those of "the parent Gateway ... transition to False" (GEP-1713).
    fn parent_unprovisioned(self, gateway: &ObjectName) -> Option<Fault> {
        let message = "the Gateway attached to is not programmed";
        let unprovisioned = self.observations.unprovisioned(gateway);
        unprovisioned.map(|_| Fault::not_programmed(Reason::ParentNotProgrammed, message))
    }

    /// The fault for which an accepted listener is not served.
    fn hindrance(self, name: &ObjectName, gateway: &MergedGateway, port: PortKey) -> Option<Fault> {
        if gateway.refusal.is_some() {
            return Some(Fault::not_programmed(Reason::Invalid, "the Gateway is not accepted"));
        }
        if gateway.addresses.usable.is_empty() {
            return Some(Fault::not_programmed(Reason::Pending, "the Gateway has no address"));
        }
        let lost = self.frontends.lost_by(name)?.get(&port)?;
        let lost_all = gateway.addresses.usable.iter().all(|address| lost.contains(address));
        lost_all.then(|| Fault::not_programmed(Reason::PortUnavailable, in_use(port, lost.iter())))
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

    fn gateway_problems(self, name: &ObjectName) -> Vec<String> {
        let gateway = self.objects.gateways.get(name);
        let annotation = parent::ALLOWED_CHILDREN;
        let wrong = gateway.and_then(|gateway| parent::allowed_children(gateway).err());
        let wrong = wrong
            .map(|error| format!("annotation {annotation}: write Same, All or Selector:LABELS; {error}"));
        let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        wrong.into_iter().chain(self.duplicates(&key)).collect()
    }

    /// Endpoints that are names: nothing asks for their addresses yet.
    fn slice_problems(self, name: &ObjectName) -> Vec<String> {
        let slice = self.objects.endpoint_slices.get(name);
        let foreign = slice.filter(|slice| !matches!(slice.address_type.as_str(), "IPv4" | "IPv6"));
        let problem = |slice: &EndpointSlice| {
            format!(
                "addressType {} is not supported, and nothing is sent to its endpoints: use IPv4 or IPv6",
                slice.address_type
            )
        };
        foreign.map(|slice| problem(slice)).into_iter().collect()
    }

    fn duplicates(self, key: &ParentKey) -> impl Iterator<Item = String> {
        let names = self.listeners.get(key).into_iter().flat_map(|declared| &declared.duplicates);
        names.map(|name| format!("listener name {name} is used more than once; only the first counts"))
    }

    /// A parent that does not exist has no controller to write a status for it, and a route without
    /// parents has no place for one.
    fn route_problems(self, key: &ObjectKey) -> Vec<String> {
        let is_orphan = self.parsed.get(key).is_some_and(|route| route.parent_refs.is_empty())
            && self.parsed.listers(key).next().is_none();
        if is_orphan {
            return vec![
                "spec.parentRefs: the route names no parent, so nothing serves it: name a Gateway".to_owned(),
            ];
        }
        let Some(route) = self.parsed.get(key) else { return Vec::new() };
        let mut problems = Vec::new();
        for (index, reference) in route.parent_refs.iter().enumerate() {
            let Some(parent) = parent_key(reference) else {
                problems.extend(misnamed_parent(reference));
                continue;
            };
            let exists = match parent.kind {
                ParentKind::Gateway => self.objects.gateways.contains_key(&parent.name),
                ParentKind::ListenerSet => self.objects.listener_sets.contains_key(&parent.name),
            };
            if !exists {
                let own = "; without a namespace the route's own is meant";
                let hint = if route.names_namespace.contains(&index) { "" } else { own };
                problems.push(format!("parentRefs: there is no {} {}{hint}", parent.kind(), parent.name));
            }
        }
        problems.dedup();
        problems.extend(self.parents_left_out(key));
        problems
    }

    // === policies ===

    /// `None` if no route of one of our Gateways refers to what the policy targets: then it is not
    /// ours to speak about.
    fn policy_status(self, name: &ObjectName) -> Option<Status> {
        let policy = self.objects.backend_tls_policies.get(name)?;
        let mut gateways = BTreeSet::new();
        for service in &self.policies.services(name) {
            let routes = self.routes.referring_to(service);
            let permitted = routes.filter(|(route, _)| self.may_refer(route, service));
            let parents = permitted.flat_map(|(_, attached)| attached.iter()).map(|((parent, _), _)| parent);
            gateways.extend(parents.filter_map(|parent| self.hierarchy.gateway_of(parent)));
        }
        let controller = &self.settings.controller_name;
        let fault = self.policy_fault(name)?;
        let status =
            policy_status(generation(&policy.metadata), &fault, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    fn policy_fault(self, name: &ObjectName) -> Option<Fault> {
        let targets = self.policies.targets(name);
        let missing = targets.iter().filter_map(|target| {
            let service = self.objects.services.get(&target.service);
            backend_tls::missing(target, service.map(|service| &**service))
        });
        let missing: Vec<_> = missing.collect();
        let unsupported = (missing.len() < targets.len()).then(backend_tls::unsupported);
        Fault::summary(unsupported.into_iter().chain(missing))
    }

    /// True if the route has permission, or is a parent with a child that has. Strangers must not
    /// put their Gateways into the status of a policy.
    fn may_refer(self, route: &ObjectKey, service: &ObjectName) -> bool {
        let grants = Grants::new(self.objects);
        let may = |route: &ObjectKey| {
            let (from, to) = (&route.name.namespace, &service.namespace);
            grants.permits(route.kind, from, Kind::Service, to, &service.name)
        };
        let family = self.routes.family(route);
        may(route) || family.is_some_and(|family| family.children.iter().any(|report| may(&report.child)))
    }

    // === routes ===

    /// The verdicts on a route, conflicts with other kinds included.
    fn verdicts(self, key: &ObjectKey, state: &RouteState) -> Vec<ParentVerdict> {
        let View { listeners, hierarchy, gateways, objects, policies, .. } = self;
        let parents = Parents { listeners, hierarchy, gateways, objects, policies };
        self.conflicts.verdicts(key, state, parents)
    }

    fn route_status(self, key: &ObjectKey, state: &RouteState) -> RouteStatus {
        let mut status = self.whole_route_status(key, state);
        status.parents.truncate(MOST_PARENTS);
        status
    }

    /// The parents of a route that its status has no room for: it has 32 parentRefs at most, but
    /// parent routes may name it on their own.
    fn parents_left_out(self, key: &ObjectKey) -> Option<String> {
        let state = self.routes.get(key)?;
        if state.parsed.parent_refs.len() + self.parsed.listers(key).count() <= MOST_PARENTS {
            return None;
        }
        let entries = self.whole_route_status(key, state).parents;
        let left_out = entries.iter().skip(MOST_PARENTS).map(|entry| parent_name(&json!(entry.parent_ref)));
        let left_out: Vec<_> = left_out.collect();
        let words = format!(
            "status.parents has room for {MOST_PARENTS} entries, these have none: {}",
            left_out.join(", ")
        );
        (!left_out.is_empty()).then_some(words)
    }

    /// With an entry for every parent.
    fn whole_route_status(self, key: &ObjectKey, state: &RouteState) -> RouteStatus {
        let verdicts = self.verdicts(key, state);
        let controller = &self.settings.controller_name;
        let refused = self.refused_endpoints(state);
        let unresolved = Fault::summary(state.unresolved.as_deref().cloned().into_iter().chain(refused));
        let mut status = route_status(&state.parsed, unresolved.as_ref(), &verdicts, controller);
        if let Some(bound) = state.family.as_ref().filter(|_| state.parsed.is_parent()) {
            for (entry, grandparent) in status.parents.iter_mut().zip(&bound.grandparents) {
                entry.conditions.extend(bound.family.parent_conditions(|child| {
                    grandparent.refusal(&verdicts).is_some() || grandparent.takes(&child.hostnames)
                }));
            }
        }
        status.parents.extend(self.parentless_entries(state));
        status.parents.extend(self.child_entries(key, state));
        if state.parsed.parent_routes().next().is_some() {
            // Another order would tell strangers which parents there are.
            status.parents.sort_by_key(|entry| state.parsed.position_of(&entry.parent_ref));
        }
        status
    }

    /// The endpoints of a route's Services that are no backends.
    fn refused_endpoints(self, state: &RouteState) -> impl Iterator<Item = Fault> {
        state.references.services.iter().filter_map(move |service| {
            let message = format!(
                "endpoints of Service {service} are not used: {}; point its EndpointSlices at pods, or have the \
                 agents' operator allow those of namespace {} with --endpoint-namespaces",
                self.backends.refused_of(service)?,
                service.namespace
            );
            Some(Fault::unresolved(Reason::RefNotPermitted, message))
        })
    }

    fn child_entries(self, key: &ObjectKey, state: &RouteState) -> Vec<RouteParentStatus> {
        let mut parents = parents_of(&state.parsed);
        parents.extend(self.parsed.listers(key).cloned());
        let mut entries = Vec::new();
        for (parent_key, parent) in parents.iter().filter_map(|key| Some((key, self.routes.get(key)?))) {
            let Some(bound) = parent.family.as_ref() else { continue };
            let Some(report) = bound.family.report(key) else { continue };
            // A stranger must not be able to tell whose the parent is, if there is one.
            if !self.is_of_ours(parent) && !report.is_strangers(&state.parsed) {
                continue;
            }
            let grandparents =
                bound.grandparents_of(&state.parsed, &report.hostnames, &self.verdicts(parent_key, parent));
            let unresolved = state.unresolved.as_deref();
            entries.extend(report.entries(&self.settings.controller_name, &grandparents, unresolved));
        }
        if let Some(ignored) = Fault::ignored(&state.parsed.ignored) {
            entries.iter_mut().for_each(|entry| make_partial(&mut entry.conditions, &ignored));
        }
        entries
    }

    /// ParentRefs to routes that do not exist, or are of another kind.
    fn parentless_entries(self, state: &RouteState) -> Vec<RouteParentStatus> {
        let child = &*state.parsed;
        let kind = child.key.kind;
        let mut entries = Vec::new();
        for (index, reference) in child.parent_refs.iter().enumerate() {
            let is_missing =
                parent_route(kind, reference).is_none_or(|parent| self.parsed.get(&parent).is_none());
            let conditions = match Named::by(reference, kind) {
                Named::OtherRoute => foreign_parent_conditions(child, reference),
                Named::SameKind if is_missing => {
                    missing_parent_conditions(child, reference, state.unresolved.as_deref())
                }
                _ => continue,
            };
            let Some(parent_ref) = child.as_written(index) else { continue };
            entries.push(RouteParentStatus {
                controller_name: self.settings.controller_name.clone(),
                parent_ref,
                conditions,
                grandparents: None,
            });
        }
        entries
    }

    /// True if a parent is attached to one of our Gateways: by itself, or as the child that it
    /// cannot be at the same time.
    fn is_of_ours(self, parent: &RouteState) -> bool {
        let above: BTreeSet<_> = parents_of(&parent.parsed);
        let mut above = above.iter().filter_map(|above| self.routes.get(above));
        !parent.verdicts.is_empty() || above.any(|above| !above.verdicts.is_empty())
    }
}

/// The problem of a parentRef that names one of our kinds by a wrong group or name. What other
/// groups have is another controller's.
fn misnamed_parent(reference: &ParentReference) -> Option<String> {
    let (group, kind) = (reference.group.as_deref()?, reference.kind.as_deref()?);
    let is_ours = |kind: &str| ["Gateway", "ListenerSet"].contains(&kind);
    if is_ours(kind) {
        return Some(format!("parentRefs: there is no {kind} of group {group:?}: leave group out"));
    }
    (group == GATEWAY_GROUP && !kind.ends_with("Route")).then(|| {
        format!("parentRefs: nothing can be attached to a {kind:?}: name a Gateway or a ListenerSet")
    })
}

/// The fault of a Gateway some of whose ports are an older one's.
fn lost_ports(lost: &Lost, ports: &BTreeSet<PortKey>) -> Option<Fault> {
    let of_ports = lost.iter().filter(|(port, _)| ports.contains(port));
    let messages: Vec<_> = of_ports.map(|(port, lost)| in_use(*port, lost.iter())).collect();
    (!messages.is_empty()).then(|| Fault::not_programmed(Reason::AddressNotUsable, messages.join("; ")))
}

/// The fault of a Gateway that asks for ports of the nodes without a right to them.
fn withheld_ports(withheld: &Withheld, ports: &BTreeSet<PortKey>) -> Option<Fault> {
    let of_ports = withheld.iter().filter(|(port, _)| ports.contains(port));
    let reasons: Vec<_> = of_ports.map(|(_, reason)| reason.as_str()).collect();
    (!reasons.is_empty()).then(|| Fault::not_programmed(Reason::AddressNotUsable, reasons.join("; ")))
}

fn in_use<'a>(port: PortKey, addresses: impl Iterator<Item = &'a IpAddr>) -> String {
    let frontends = addresses.map(|address| FrontendKey::new(*address, port));
    let addresses: Vec<_> = frontends.map(|it| it.socket_address().to_string()).collect();
    format!("{} is in use by an older Gateway: use another address or port", addresses.join(", "))
}

/// The message for children, whose owners may not see the parent: that it is not accepted, not
/// why.
fn parent_refusal(parent: &MergedGateway) -> Option<Fault> {
    let refusal = parent.refusal.as_ref()?;
    let is_own_matter = refusal.reason == Reason::ListenersNotValid;
    let message = refusal.public_message().unwrap_or("the Gateway attached to is not accepted");
    (!is_own_matter).then(|| Fault::not_accepted(Reason::ParentNotAccepted, message))
}

// === impl Named ===

impl Named {
    fn by(reference: &ParentReference, own: Kind) -> Self {
        let kind = reference.kind.as_deref().filter(|_| reference.group.as_deref() == Some(GATEWAY_GROUP));
        match kind {
            Some(kind) if kind == own.as_str() => Self::SameKind,
            // Those that we do not know, too: the API names all kinds of routes so.
            Some(kind) if kind.ends_with("Route") => Self::OtherRoute,
            _ => Self::Other,
        }
    }
}
