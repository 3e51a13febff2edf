//! Gateways as parents and children: what `attachTo` asks for, and whether the Gateway asked agrees
//! (GEP-1713 and its first revision). Where the CRDs lack the first revision's fields, annotations
//! say the same: `portcullis.dev/attach-to: [namespace/]name` and
//! `portcullis.dev/allowed-children: Same | All | Selector:<labels>`.

use portcullis_api::types::gateways::{Gateway, GatewayInfrastructure};
use portcullis_api::types::shared::{LabelSelector, ObjectReference};
use portcullis_api::{GATEWAY_GROUP, Kind, SelectorError};
use portcullis_model::{ObjectName, ParentKind};

use crate::default_scope::DefaultScope;
use crate::selector::{NamespaceRule, Namespaces};
use crate::{Fault, Reason};

pub const ATTACH_TO: &str = "portcullis.dev/attach-to";
pub const ALLOWED_CHILDREN: &str = "portcullis.dev/allowed-children";

/// The object that a Gateway asks to be attached to.
pub(crate) enum AttachTo {
    /// It has addresses of its own.
    Nothing,
    Gateway(ObjectName),
    /// Something that nothing can be attached to.
    Unsupported(Fault),
}

/// The Gateways that may attach to a Gateway.
pub(crate) enum AllowedChildren {
    /// It did not opt in.
    None,
    From(NamespaceRule),
}

pub(crate) fn parent_of_gateway(gateway: &Gateway) -> AttachTo {
    let own = gateway.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(reference) =
        infrastructure(gateway).and_then(|infrastructure| infrastructure.attach_to.as_ref())
    {
        return if is_gateway(reference) {
            AttachTo::Gateway(name_of(reference, own))
        } else {
            AttachTo::Unsupported(not_a_gateway(reference))
        };
    }
    let Some(text) = annotation(gateway, ATTACH_TO) else { return AttachTo::Nothing };
    let (namespace, name) = text.split_once('/').unwrap_or((own, text));
    AttachTo::Gateway(ObjectName::new(namespace.trim(), name.trim()))
}

/// # Errors
/// When the annotation is none of its three forms.
pub(crate) fn allowed_children(gateway: &Gateway) -> Result<AllowedChildren, SelectorError> {
    if let Some(allowed) =
        infrastructure(gateway).and_then(|infrastructure| infrastructure.allowed_children.as_ref())
    {
        let rule = NamespaceRule::new(allowed.namespaces.as_ref(), NamespaceRule::Same);
        return Ok(AllowedChildren::From(rule));
    }
    annotation(gateway, ALLOWED_CHILDREN)
        .map_or(Ok(AllowedChildren::None), |text| rule_of_annotation(text).map(AllowedChildren::From))
}

/// "By default a Gateway MUST NOT allow ListenerSets to be attached."
pub(crate) fn allowed_sets(gateway: &Gateway) -> NamespaceRule {
    let allowed = gateway.spec.allowed_listeners.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    NamespaceRule::new(allowed, NamespaceRule::None)
}

/// The fault for which a Gateway may not attach to its parent. `parent` is `None` if there is none
/// of ours.
pub(crate) fn refuse_gateway(
    child: &Gateway,
    parent: Option<&Gateway>,
    namespaces: Namespaces<'_>,
) -> Option<Fault> {
    let from = child.metadata.namespace.as_deref().unwrap_or_default();
    let same = |parent: &Gateway| parent.metadata.namespace == child.metadata.namespace;
    let Some(parent) = parent else { return Some(not_there()) };
    if same(parent) && parent.metadata.name == child.metadata.name {
        return Some(invalid("the Gateway is attached to itself; attachTo has to name another one"));
    }
    let to = parent.metadata.namespace.as_deref().unwrap_or_default();
    let admitted = match allowed_children(parent) {
        Ok(AllowedChildren::From(rule)) => rule.admits(to, from, namespaces),
        Ok(AllowedChildren::None) | Err(_) => false,
    };
    // Owners whom the parent does not admit learn nothing about it, not even that it exists.
    if !admitted {
        return Some(if same(parent) { not_allowed(NOT_OPTED_IN) } else { not_there() });
    }
    if is_child(parent) {
        return Some(not_allowed("is itself attached to another Gateway; there is only one tier"));
    }
    if parent.spec.gateway_class_name != child.spec.gateway_class_name {
        return Some(invalid(
            "the Gateway attached to is of another gatewayClassName; parent and child must have the same",
        ));
    }
    overreach(child)
}

const NOT_OPTED_IN: &str =
    "does not allow Gateways of this namespace to attach (spec.infrastructure.allowedChildren)";

/// "A child resource MUST not set any spec.infrastructure fields beyond attachTo, and cannot set
/// spec.address."
fn overreach(child: &Gateway) -> Option<Fault> {
    let infrastructure = infrastructure(child);
    let set = |is_set: fn(&GatewayInfrastructure) -> bool| infrastructure.is_some_and(is_set);
    let fields = [
        ("spec.addresses", child.spec.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty())),
        ("spec.infrastructure.allowedChildren", set(|i| i.allowed_children.is_some())),
        ("spec.infrastructure.annotations", set(|i| i.annotations.is_some())),
        ("spec.infrastructure.labels", set(|i| i.labels.is_some())),
        ("spec.infrastructure.parametersRef", set(|i| i.parameters_ref.is_some())),
        ("annotation portcullis.dev/allowed-children", annotation(child, ALLOWED_CHILDREN).is_some()),
    ];
    let set: Vec<_> = fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect();
    if set.is_empty() {
        return None;
    }
    Some(invalid(format!("a Gateway that is attached to another must not set {}", set.join(", "))))
}

/// Fields that are read and without effect.
pub(crate) fn ignored_fields(gateway: &Gateway) -> Vec<String> {
    let mut ignored = Vec::new();
    if let Err(unknown) = DefaultScope::parse(gateway.spec.default_scope.as_deref()) {
        ignored.push(format!("spec.defaultScope: {unknown}"));
    }
    let sets = gateway.spec.allowed_listeners.as_ref();
    let children = infrastructure(gateway).and_then(|it| it.allowed_children.as_ref());
    for (field, allowed) in
        [("spec.allowedListeners", sets), ("spec.infrastructure.allowedChildren", children)]
    {
        let fault = allowed.and_then(|allowed| NamespaceRule::malformation(allowed.namespaces.as_ref()?));
        ignored.extend(fault.map(|fault| format!("{field}.namespaces: {fault}, so nothing is admitted")));
    }
    ignored
}

/// The key by which children are merged: "ordered by creation time (oldest first)", then
/// "alphabetically by {namespace}/{name}". At most one object of each kind has a name; Gateways
/// come first.
pub(crate) fn precedence(created: i64, kind: ParentKind, name: &ObjectName) -> (i64, String, ParentKind) {
    (created, name.to_string(), kind)
}

fn rule_of_annotation(text: &str) -> Result<NamespaceRule, SelectorError> {
    match text.trim().split_once(':') {
        Some(("Selector", labels)) => LabelSelector::parse(labels).map(NamespaceRule::Selector),
        None if text.trim() == "All" => Ok(NamespaceRule::All),
        None if text.trim() == "Same" => Ok(NamespaceRule::Same),
        _ => Err(SelectorError::new(text)),
    }
}

/// True if a Gateway asks to be attached to something.
pub(super) fn is_child(gateway: &Gateway) -> bool {
    !matches!(parent_of_gateway(gateway), AttachTo::Nothing)
}

fn infrastructure(gateway: &Gateway) -> Option<&GatewayInfrastructure> {
    gateway.spec.infrastructure.as_ref()
}

fn annotation<'g>(gateway: &'g Gateway, name: &str) -> Option<&'g str> {
    gateway.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

pub(super) fn is_gateway(reference: &ObjectReference) -> bool {
    let group = reference.group.as_deref().unwrap_or(GATEWAY_GROUP);
    let kind = reference.kind.as_deref().unwrap_or(Kind::Gateway.as_str());
    Kind::of(group, kind) == Some(Kind::Gateway)
}

pub(super) fn name_of(reference: &ObjectReference, own_namespace: &str) -> ObjectName {
    ObjectName::new(reference.namespace.as_deref().unwrap_or(own_namespace), reference.name.as_str())
}

fn not_a_gateway(reference: &ObjectReference) -> Fault {
    let group = reference.group.as_deref().unwrap_or(GATEWAY_GROUP);
    let kind = reference.kind.as_deref().unwrap_or("Gateway");
    invalid(format!(
        "spec.infrastructure.attachTo names a {kind:?} of group {group:?}: name a Gateway of group {GATEWAY_GROUP}; \
         nothing else can be attached to"
    ))
}

fn invalid(message: impl Into<String>) -> Fault {
    Fault::not_accepted(Reason::Invalid, message)
}

pub(super) fn not_allowed(why: &str) -> Fault {
    Fault::not_accepted(Reason::NotAllowed, format!("the Gateway referred to {why}"))
}

fn not_there() -> Fault {
    not_allowed(
        "does not exist, or does not allow Gateways of this namespace to attach (spec.infrastructure.allowedChildren)",
    )
}
