//! ListenerSets as children: what their `parentRef` asks for, and whether the Gateway asked agrees
//! (GEP-1713).

use portcullis_api::GATEWAY_GROUP;
use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::listenersets::ListenerSet;
use portcullis_model::ObjectName;

use super::gateway::{allowed_sets, is_child, is_gateway, name_of, not_allowed};
use crate::selector::Namespaces;
use crate::{Fault, Reason};

/// The Gateway a ListenerSet names as its parent; `None` if it names something else.
pub(crate) fn parent_of_set(set: &ListenerSet) -> Option<ObjectName> {
    let reference = &set.spec.parent_ref;
    is_gateway(reference).then(|| name_of(reference, set.metadata.namespace.as_deref().unwrap_or_default()))
}

/// The fault of naming something else as the parent. Kinds of other groups may be another
/// controller's parents; about them nothing is said.
pub(crate) fn unsupported_parent(set: &ListenerSet) -> Option<Fault> {
    let reference = &set.spec.parent_ref;
    let group = reference.group.as_deref().unwrap_or(GATEWAY_GROUP);
    let kind = reference.kind.as_deref().unwrap_or("Gateway");
    let is_known = group == GATEWAY_GROUP || group.is_empty() || kind == "Gateway";
    let message = format!(
        "parentRef names a {kind:?} of group {group:?}: name a Gateway of group {GATEWAY_GROUP}; nothing else \
         takes ListenerSets"
    );
    (is_known && !is_gateway(reference)).then(|| Fault::not_accepted(Reason::ParentNotAccepted, message))
}

/// The fault for which a ListenerSet may not attach to its parent.
pub(crate) fn refuse_set(namespace: &str, parent: &Gateway, namespaces: Namespaces<'_>) -> Option<Fault> {
    let to = parent.metadata.namespace.as_deref().unwrap_or_default();
    // Owners whom the Gateway does not admit learn nothing else about it.
    if !allowed_sets(parent).admits(to, namespace, namespaces) {
        return Some(not_allowed("does not allow ListenerSets of this namespace (spec.allowedListeners)"));
    }
    is_child(parent).then(|| {
        not_allowed(
            "is itself attached to another Gateway; only Gateways with addresses of their own take ListenerSets",
        )
    })
}
