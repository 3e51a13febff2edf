//! Statuses of classes, Gateways and ListenerSets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portcullis_api::types::gatewayclasses::GatewayClass;
use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::shared::ClassStatus;
use portcullis_model::{FrontendKey, ListenerId, ObjectName, ParentKind, PortKey};

use super::View;
use crate::listener::{Declared, Listener, ListenerKey, ParentKey};
use crate::parent::{Addresses, AllowedChildren};
use crate::policy::frontend_tls::is_insecure;
use crate::status::{
    ChildView, DefaultGateway, FrontendValidationMode, GatewayView, ListenerView, Names, Overlap, SetView,
    Status, child_status, class_status, gateway_status, set_status,
};
use crate::translator::default_gateways::MOST;
use crate::translator::frontends::{Lost, Withheld, asks_for_host_ports};
use crate::translator::gateways::MergedGateway;
use crate::translator::hierarchy::Attachment;
use crate::{ConditionType, Fault, Reason, infra, parent};

impl<'s> View<'s> {
    pub(super) fn class_status(self, class: &GatewayClass) -> ClassStatus {
        let parameters = infra::of_class(class, self.objects).err();
        class_status(class, parameters.as_ref(), &parent::installed_release(self.objects))
    }

    pub(super) fn gateway_status(self, name: &ObjectName) -> Option<Status> {
        let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let declared = self.listeners.get(&key)?;
        let refusal = match &self.hierarchy.get(&key)?.attachment {
            Attachment::Independent => return self.independent_status(name, &key, declared),
            Attachment::Refused(fault) => Some(fault),
            Attachment::Child(_) | Attachment::Foreign => None,
        };
        let parent = self.gateway_of(&key);
        let addresses = parent.map(|(name, parent)| self.published(name, parent));
        let view = ChildView {
            generation: declared.generation,
            refusal,
            parent_refusal: parent.and_then(|(_, parent)| parent_refusal(parent)),
            parent_unprovisioned: parent
                .and_then(|(name, _)| self.parent_unprovisioned(name))
                .map(|fault| fault.because(Reason::Pending)),
            parent: addresses.as_ref(),
            own: self.listener_views(&key, declared),
            client_certificate: &declared.client_certificate,
            frontend_validation: self.frontend_validation(name),
            default: self.default_gateway(name),
            ignored: self.ignored_fields(name),
            affected: self.affecting_parent(&key),
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
        let unserved = self.observations.unserved_on(name, |port| own_ports.contains(&port));
        let view = GatewayView {
            generation: declared.generation,
            addresses: &self.published(name, merged),
            refusal: merged.refusal.as_ref(),
            invalid_below: &merged.summary.invalid_below,
            lost: self
                .frontends
                .lost_by(name)
                .and_then(|lost| lost_ports(lost, &own_ports))
                .or_else(|| withheld_ports(self.frontends.withheld_from(name)?, &own_ports)),
            unserved: unserved.collect(),
            own,
            client_certificate: &declared.client_certificate,
            frontend_validation: self.frontend_validation(name),
            default: self.default_gateway(name),
            ignored: self.ignored_fields(name),
            unprovisioned: self.observations.unprovisioned(name),
            attached_sets: if accepting { merged.summary.attached_sets } else { 0 },
            attached_gateways: opted_in.then_some(if accepting {
                merged.summary.attached_gateways
            } else {
                0
            }),
            affected: self.affecting_parent(key),
        };
        Some(Status::Gateway(gateway_status(&view)))
    }

    /// The addresses for clients: "a specified address was unusable (e.g. already in use)" is none
    /// (GatewayStatus). With host ports these are those of nodes, too, if it has the
    /// right to one.
    fn published(self, name: &ObjectName, merged: &MergedGateway) -> Addresses {
        let withheld = self.frontends.withheld_from(name);
        let is_given = |port: PortKey| withheld.is_none_or(|withheld| !withheld.contains_key(&port));
        let is_on_nodes = asks_for_host_ports(self.settings, merged) && self.ports.of(name).any(is_given);
        let nodes = if is_on_nodes { self.observations.node_addresses() } else { &[] };
        merged.addresses.clone().without(|address| self.is_lost(name, address)).and_at(nodes)
    }

    /// True if all of a Gateway's ports are others' at an address.
    fn is_lost(self, gateway: &ObjectName, address: &IpAddr) -> bool {
        let Some(lost) = self.frontends.lost_by(gateway) else { return false };
        let mut ports = self.ports.of(gateway).peekable();
        ports.peek().is_some()
            && ports.all(|port| lost.get(&port).is_some_and(|addresses| addresses.contains(address)))
    }

    fn frontend_validation(self, gateway: &ObjectName) -> FrontendValidationMode {
        match self.objects.gateways.get(gateway) {
            Some(gateway) if is_insecure(gateway) => FrontendValidationMode::Insecure,
            _ => FrontendValidationMode::Secure,
        }
    }

    fn default_gateway(self, gateway: &ObjectName) -> DefaultGateway {
        if !self.defaults.is_asking(gateway) {
            return DefaultGateway::NotAskedFor;
        }
        if self.defaults.contains(gateway) {
            return DefaultGateway::Granted;
        }
        let message = format!(
            "{MOST} older Gateways are default ones, and there may be no more: routes have to name it"
        );
        DefaultGateway::Refused(Fault::new(ConditionType::DefaultGateway, Reason::LimitExceeded, message))
    }

    fn ignored_fields(self, gateway: &ObjectName) -> Vec<String> {
        let gateway = self.objects.gateways.get(gateway);
        gateway.map(|gateway| parent::ignored_fields(gateway)).unwrap_or_default()
    }

    pub(super) fn listener_set_status(self, name: &ObjectName) -> Option<Status> {
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
            affected: self.affecting_parent(&key),
        };
        Some(Status::ListenerSet(set_status(&view)))
    }

    pub(super) fn orphaned_set_status(self, name: &ObjectName) -> Option<Status> {
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
            affected: Vec::new(),
        })))
    }

    /// True if no controller can be the Gateway's. A class that exists may be another's.
    pub(super) fn is_without_class(self, gateway: &Gateway) -> bool {
        let class = ObjectName::new("", gateway.spec.gateway_class_name.as_str());
        !self.objects.gateway_classes.contains_key(&class)
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
            let filter_fault = self.filters.fault(&(key.clone(), listener.name.clone())).cloned();
            views.push(ListenerView {
                listener,
                acceptance,
                clients: self.gateways.clients(&(key.clone(), listener.name.clone())),
                filter_fault,
                attached_routes: self.attached_routes(&(key.clone(), listener.name.clone())),
                hindrance: gateway.and_then(|(name, merged)| self.hindrance(name, merged, listener.port)),
                unserved: gateway.map(|(name, _)| self.unserved(name, key, listener)).unwrap_or_default(),
                overlap: if overlaps { Overlap::Some } else { Overlap::None },
                names: if takes { Names::OthersToo } else { Names::Own },
                affected: self.affecting_listener(&(key.clone(), listener.name.clone())),
            });
        }
        views
    }

    fn attached_routes(self, listener: &ListenerKey) -> usize {
        let routes = self.routes.at_listener(listener);
        routes.map_or(0, |routes| routes.accepted_without(self.conflicts.at(listener).keys()))
    }

    /// The frontends at which the data plane does not serve a listener, one line for each.
    pub(super) fn unserved(
        self,
        gateway: &ObjectName,
        holder: &ParentKey,
        listener: &Listener,
    ) -> Vec<String> {
        let of_port = self.observations.unserved_on(gateway, |port| port == listener.port);
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: holder.kind,
            parent: holder.name.clone(),
            name: listener.name.clone(),
        };
        let mismatch = self.ports.mismatch(&id).map(str::to_owned);
        of_port.chain(self.observations.unserved_at(&id)).chain(mismatch).collect()
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
    pub(super) fn hindrance(
        self,
        name: &ObjectName,
        gateway: &MergedGateway,
        port: PortKey,
    ) -> Option<Fault> {
        if gateway.refusal.is_some() {
            return Some(Fault::not_programmed(Reason::Invalid, "the Gateway is not accepted"));
        }
        if gateway.addresses.usable.is_empty() {
            return Some(Fault::not_programmed(Reason::Pending, "the Gateway has no address"));
        }
        if self.traffic.are_unread() {
            let message = "the agents cannot read TrafficPolicies, and one may be about the listener, so that no request \
                passes: give the agents the rights of the chart's ClusterRole";
            return Some(Fault::not_programmed(Reason::Pending, message));
        }
        if self.admissions.are_unread() {
            let message = "the agents cannot read ListenerPolicies, and one may be about the listener; no client is let in: \
                give the agents the rights of the chart's ClusterRole";
            return Some(Fault::not_programmed(Reason::Pending, message));
        }
        if self.ports.is_disputed(name, port) {
            let message = format!(
                "no connection is taken at port {}: the Gateway's ListenerPolicies do not have the same proxyProtocol for \
                 all listeners that it defines there",
                port.number
            );
            return Some(Fault::not_programmed(Reason::Invalid, message));
        }
        let lost = self.frontends.lost_by(name)?.get(&port)?;
        Some(Fault::not_programmed(Reason::PortUnavailable, in_use(port, lost.iter())))
    }
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
