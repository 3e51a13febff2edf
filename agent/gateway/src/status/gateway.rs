//! Gateway status: of one that stands on its own, and of one that is attached to another.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portcullis_api::generation;
use portcullis_api::types::gateways::{Gateway, GatewayStatus, GatewayStatusAddresses};

use super::listener::{not_served, unserved};
use super::{ListenerView, provisioned};
use crate::conditions::{Affected, Conditions};
use crate::listener::ClientCertificate;
use crate::parent::Addresses;
use crate::{ConditionStatus, ConditionType, Fault, Reason, condition};

pub(crate) struct GatewayView<'a> {
    pub(crate) generation: i64,
    pub(crate) addresses: &'a Addresses,
    /// The fault for which the Gateway as a whole is not accepted.
    pub(crate) refusal: Option<&'a Fault>,
    pub(crate) own: OwnListeners<'a>,
    pub(crate) client_certificate: &'a ClientCertificate,
    pub(crate) frontend_validation: FrontendValidationMode,
    pub(crate) default: DefaultGateway,
    /// Fields of its spec that are without effect.
    pub(crate) ignored: Vec<String>,
    /// Listeners of attached Gateways that are not valid.
    pub(crate) invalid_below: &'a [String],
    /// The fault for which the Gateway does not have all ports of its own listeners.
    pub(crate) lost: Option<Fault>,
    /// Frontends of its own listeners that the data plane does not serve, one line for each.
    pub(crate) unserved: Vec<String>,
    /// The fault for which the Gateway did not get what is generated for it.
    pub(crate) unprovisioned: Option<&'a Fault>,
    pub(crate) attached_sets: usize,
    pub(crate) attached_gateways: Option<usize>,
    /// The ListenerPolicies that apply to all listeners.
    pub(crate) affected: Vec<Affected>,
}

pub(crate) struct ChildView<'a> {
    pub(crate) generation: i64,
    /// The fault for which the parent does not take the child.
    pub(crate) refusal: Option<&'a Fault>,
    /// The fault for which the parent as a whole is not accepted, in words that its children may
    /// read.
    pub(crate) parent_refusal: Option<Fault>,
    /// Missing parts of what is generated for the parent, in words that its children may read.
    pub(crate) parent_unprovisioned: Option<Fault>,
    pub(crate) parent: Option<&'a Addresses>,
    pub(crate) own: OwnListeners<'a>,
    pub(crate) client_certificate: &'a ClientCertificate,
    pub(crate) frontend_validation: FrontendValidationMode,
    pub(crate) default: DefaultGateway,
    /// Fields of its spec that are without effect.
    pub(crate) ignored: Vec<String>,
    /// The ListenerPolicies that apply to all listeners.
    pub(crate) affected: Vec<Affected>,
}

/// `tls.frontend` of all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontendValidationMode {
    Secure,
    /// On some port clients are let in whose certificates are not valid.
    Insecure,
}

/// The answer to `defaultScope` (GEP-3793).
pub(crate) enum DefaultGateway {
    /// "It MUST NOT set the DefaultGateway condition in its status."
    NotAskedFor,
    Granted,
    Refused(Fault),
}

pub(crate) type OwnListeners<'a> = Vec<ListenerView<'a>>;

/// "Gateway's Accepted and Programmed top-level conditions remain unchanged and reflect the status
/// of the local configuration" (GEP-1713): no child makes them true or false. Of attached Gateways
/// "Accepted should be set based on the entire set of merged listeners" (first revision): an
/// invalid listener there is a reason, not the status.
pub(crate) fn gateway_status(view: &GatewayView<'_>) -> GatewayStatus {
    let mut conditions = Conditions::new(view.generation);
    let invalid = invalid(&view.own, below(view.invalid_below));
    // A Gateway without listeners of its own has none that could be wrong.
    let none_valid = !view.own.is_empty() && !any_accepted(&view.own);
    let refusal = view.refusal.or(invalid.as_ref().filter(|_| none_valid));
    accept(&mut conditions, refusal, invalid.as_ref(), &view.ignored);
    let not_accepted = refusal.map(|_| not_accepted());
    let unprogrammed = not_accepted
        .or_else(|| view.addresses.unusable.clone())
        .or_else(|| view.lost.clone())
        .or_else(|| not_served(Reason::AddressNotUsable, &view.unserved))
        .or_else(|| lost_ports(&view.own));
    let unprogrammed = provisioned(unprogrammed, view.unprovisioned);
    conditions.check(ConditionType::Programmed, unprogrammed.as_ref());
    resolve(&mut conditions, view.client_certificate, &view.own);
    insecurity(&mut conditions, view.frontend_validation);
    by_default(&mut conditions, &view.default);
    conditions.affected(&view.affected);
    let addresses = if view.refusal.is_none() { view.addresses.status() } else { Vec::new() };
    GatewayStatus {
        addresses: Some(addresses),
        attached_gateways: view.attached_gateways.map(count),
        attached_listener_sets: Some(count(view.attached_sets)),
        conditions: Some(conditions.list),
        listeners: Some(view.own.iter().map(|listener| listener.status(view.generation)).collect()),
    }
}

/// "Accepted and Programmed should consider the overall merged Gateway status, but only the child's
/// own listeners."
pub(crate) fn child_status(view: &ChildView<'_>) -> GatewayStatus {
    let mut conditions = Conditions::new(view.generation);
    let not_attached = view.refusal.or(view.parent_refusal.as_ref());
    let invalid = invalid(&view.own, None);
    let missing = view.own.is_empty().then(no_listeners);
    let invalid_all = invalid.as_ref().filter(|_| !any_accepted(&view.own));
    let refusal = not_attached.or(missing.as_ref()).or(invalid_all);
    accept(&mut conditions, refusal, invalid.as_ref(), &view.ignored);
    let parent = view.parent.filter(|_| not_attached.is_none());
    let unprogrammed =
        refusal.map(|_| not_accepted()).or_else(|| unaddressed(parent)).or_else(|| lost_ports(&view.own));
    let unprogrammed = provisioned(unprogrammed, view.parent_unprovisioned.as_ref());
    conditions.check(ConditionType::Programmed, unprogrammed.as_ref());
    resolve(&mut conditions, view.client_certificate, &view.own);
    insecurity(&mut conditions, view.frontend_validation);
    by_default(&mut conditions, &view.default);
    conditions.affected(&view.affected);
    let listeners = view.own.iter().map(|listener| listener.status(view.generation)).collect();
    GatewayStatus {
        addresses: Some(parent.map(Addresses::status).unwrap_or_default()),
        attached_gateways: None,
        attached_listener_sets: Some(0),
        conditions: Some(conditions.list),
        listeners: Some(if view.refusal.is_some() { Vec::new() } else { listeners }),
    }
}

/// The status of a Gateway whose class is gone: as the CRD's defaults say it of one that no
/// controller has seen. It keeps its addresses: a class that comes back asks for them again.
pub(crate) fn classless_status(gateway: &Gateway, addresses: &[GatewayStatusAddresses]) -> GatewayStatus {
    let message = format!(
        "GatewayClass {} does not exist any more, and nothing is served: create it, or choose another",
        gateway.spec.gateway_class_name
    );
    let generation = generation(&gateway.metadata);
    let unknown = [ConditionType::Accepted, ConditionType::Programmed].map(|r#type| {
        let not_so = condition(r#type, r#type.bad_status(), Reason::Pending, message.as_str(), generation);
        Condition { status: "Unknown".to_owned(), ..not_so }
    });
    GatewayStatus {
        addresses: Some(addresses.to_vec()),
        attached_gateways: None,
        attached_listener_sets: Some(0),
        conditions: Some(unknown.into()),
        listeners: Some(Vec::new()),
    }
}

/// "If, and only if, they have done so", opted into merging, Gateways may leave listeners empty;
/// one that is attached cannot.
fn no_listeners() -> Fault {
    let message = "the Gateway has no listeners, and none can be attached to one that is itself attached: add listeners";
    Fault::not_accepted(Reason::ListenersNotValid, message)
}

fn any_accepted(own: &[ListenerView<'_>]) -> bool {
    own.iter().any(|listener| listener.acceptance.is_accepted())
}

fn unaddressed(parent: Option<&Addresses>) -> Option<Fault> {
    let message = "the parent Gateway has no address to serve the listeners on";
    parent.is_none_or(Addresses::are_none).then(|| Fault::not_programmed(Reason::AddressNotAssigned, message))
}

/// No listener is served: these lose a port, their Gateway an address with that port.
fn lost_ports(own: &[ListenerView<'_>]) -> Option<Fault> {
    Some(unserved(own)?.because(Reason::AddressNotUsable))
}

/// `ListenersNotValid` "can be the reason when Accepted is True or False, depending on whether the
/// listener being invalid causes the entire Gateway to not be accepted".
fn accept(conditions: &mut Conditions, refusal: Option<&Fault>, invalid: Option<&Fault>, ignored: &[String]) {
    let partial = invalid.cloned().into_iter().chain(Fault::ignored(ignored));
    match (refusal, Fault::summary(partial)) {
        (None, Some(partial)) => conditions.partial(ConditionType::Accepted, &partial),
        (refusal, _) => conditions.check(ConditionType::Accepted, refusal),
    }
}

/// "All the object references for the Gateway that are not part of a specific Listener
/// configuration, and also provides a positive-polarity summary of Listener's ResolvedRefs
/// condition"; without any of the first, there is no such condition.
fn resolve(conditions: &mut Conditions, client_certificate: &ClientCertificate, own: &[ListenerView<'_>]) {
    match client_certificate {
        ClientCertificate::None => {}
        ClientCertificate::Resolved(_) => {
            conditions.check(ConditionType::ResolvedRefs, unresolved_listeners(own).as_ref());
        }
        ClientCertificate::Unresolved(fault, _) => conditions.check(ConditionType::ResolvedRefs, Some(fault)),
    }
}

fn unresolved_listeners(own: &[ListenerView<'_>]) -> Option<Fault> {
    let unresolved = own.iter().filter(|view| view.unresolved().is_some());
    let names: Vec<_> = unresolved.map(|view| &*view.listener.name).collect();
    let message = format!("listeners with references that are not resolved: {}", names.join(", "));
    (!names.is_empty())
        .then(|| Fault::new(ConditionType::ResolvedRefs, Reason::ListenersNotResolved, message))
}

/// "This condition is removed as soon as FrontendValidationModeType is changed back to
/// `AllowValidOnly`."
fn insecurity(conditions: &mut Conditions, mode: FrontendValidationMode) {
    if mode == FrontendValidationMode::Insecure {
        let message =
            "tls.frontend has mode AllowInsecureFallback: clients without a valid certificate are let in";
        let (r#type, reason) = (ConditionType::InsecureFrontendValidationMode, Reason::ConfigurationChanged);
        conditions.push(r#type, ConditionStatus::True, reason, message);
    }
}

/// "It MUST update its own status with a condition of type DefaultGateway and status true to
/// indicate that it is a default Gateway and what its scope is."
fn by_default(conditions: &mut Conditions, default: &DefaultGateway) {
    match default {
        DefaultGateway::NotAskedFor => {}
        DefaultGateway::Granted => conditions.check(ConditionType::DefaultGateway, None),
        DefaultGateway::Refused(fault) => conditions.check(ConditionType::DefaultGateway, Some(fault)),
    }
}

/// "That Condition SHOULD clearly indicate in the Message which Listeners are conflicted, and which
/// are Accepted." `below` says that a child has an invalid one.
pub(super) fn invalid(own: &[ListenerView<'_>], below: Option<String>) -> Option<Fault> {
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for ListenerView { listener, acceptance, .. } in own {
        match acceptance.conflict().or(acceptance.refusal()) {
            None => valid.push(&*listener.name),
            Some(Fault { reason, .. }) => invalid.push(format!("{} ({reason})", listener.name)),
        }
    }
    let mut parts = Vec::new();
    if !invalid.is_empty() {
        parts.push(format!("not valid: {}", invalid.join(", ")));
    }
    let is_any_invalid = !invalid.is_empty() || below.is_some();
    parts.extend(below);
    if !valid.is_empty() {
        parts.push(format!("accepted: {}", valid.join(", ")));
    }
    is_any_invalid.then(|| Fault::not_accepted(Reason::ListenersNotValid, parts.join("; ")))
}

/// The attached Gateways' own statuses say what is wrong.
fn below(invalid: &[String]) -> Option<String> {
    const NAMED: usize = 8;
    let named = invalid.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = invalid.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!invalid.is_empty()).then(|| format!("of attached Gateways not valid: {named}{more}"))
}

fn not_accepted() -> Fault {
    Fault::not_programmed(Reason::Invalid, "the Gateway is not accepted")
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
