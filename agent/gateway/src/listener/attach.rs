//! Routes to listeners. A route attaches to all relevant listeners of its direct parent object, be
//! that a Gateway or a ListenerSet, and to no others; each parentRef is judged independently
//! (GEP-1713, "Summary of Attachments").

use std::collections::BTreeSet;

use portcullis_api::Kind;
use portcullis_api::types::shared::ParentReference;
use portcullis_model::HostPattern;

use super::declare::{Declared, Listener, ParentKey};
use crate::claims::Claims;
use crate::route::ParsedRoute;
use crate::selector::Namespaces;
use crate::{Fault, Reason};

/// The outcome of one parentRef of a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RouteAttachment {
    /// By index in the parent's listeners: the route's hostnames that the listener has names of.
    pub(crate) listeners: Vec<(usize, BTreeSet<HostPattern>)>,
    /// The fault for which this parent does not accept the route.
    pub(crate) refusal: Option<Fault>,
}

/// The parent, if a parentRef is to a kind whose listeners routes attach to.
pub(crate) fn parent_key(reference: &ParentReference) -> Option<ParentKey> {
    use portcullis_model::{ObjectName, ParentKind};
    let (group, kind) = (reference.group.as_deref()?, reference.kind.as_deref()?);
    let kind = match Kind::of(group, kind)? {
        Kind::Gateway => ParentKind::Gateway,
        Kind::ListenerSet => ParentKind::ListenerSet,
        _ => return None,
    };
    Some(ParentKey { kind, name: ObjectName::new(reference.namespace.as_deref()?, reference.name.as_str()) })
}

pub(crate) fn attach(
    route: &ParsedRoute,
    reference: &ParentReference,
    parent: &Declared,
    claims: &Claims,
    namespaces: Namespaces<'_>,
) -> RouteAttachment {
    let candidates = Candidates { route, parent, claims, namespaces };
    match candidates.find(reference) {
        Ok(listeners) => RouteAttachment { listeners, refusal: None },
        Err(refusal) => RouteAttachment::refused(refusal),
    }
}

/// True if one of the parent's listeners is for routes of the kind and namespace.
pub(crate) fn admits(route: &ParsedRoute, parent: &Declared, namespaces: Namespaces<'_>) -> bool {
    let candidates = Candidates { route, parent, claims: &Claims::default(), namespaces };
    parent.listeners.iter().any(|listener| candidates.is_allowed(listener))
}

impl RouteAttachment {
    pub(crate) fn refused(refusal: Fault) -> Self {
        Self { listeners: Vec::new(), refusal: Some(refusal) }
    }
}

struct Candidates<'a> {
    route: &'a ParsedRoute,
    parent: &'a Declared,
    claims: &'a Claims,
    namespaces: Namespaces<'a>,
}

impl Candidates<'_> {
    /// The reasons are ordered by how far the route got.
    fn find(&self, reference: &ParentReference) -> Result<Vec<(usize, BTreeSet<HostPattern>)>, Fault> {
        let parent = self.parent.key.kind();
        let listeners = self.parent.listeners.iter().enumerate();
        let relevant: Vec<_> = listeners.filter(|(_, listener)| is_relevant(reference, listener)).collect();
        if relevant.is_empty() {
            return Err(Fault::not_accepted(Reason::NoMatchingParent, nowhere(reference, parent)));
        }
        let allowed: Vec<_> = relevant.iter().filter(|(_, listener)| self.is_allowed(listener)).collect();
        if allowed.is_empty() {
            let is_carried =
                relevant.iter().any(|(_, listener)| listener.kinds.contains(&self.route.key.kind));
            let message = if is_carried { self.not_allowed(parent) } else { self.not_carried(parent) };
            return Err(Fault::not_accepted(Reason::NotAllowedByListeners, message));
        }
        let attached: Vec<_> = allowed
            .into_iter()
            .map(|(at, listener)| (*at, hostnames_at(listener, self.route)))
            .filter(|(_, hostnames)| !hostnames.is_empty())
            .collect();
        if attached.is_empty() {
            let message =
                format!("no hostname of the route matches one of the {parent}'s listeners it may attach to");
            return Err(Fault::not_accepted(Reason::NoMatchingListenerHostname, message));
        }
        let mut outside = None;
        let claimed = attached.into_iter().filter(|(at, hostnames)| {
            let refusal = hostnames.iter().find_map(|hostname| self.outside(*at, hostname));
            let is_within = refusal.is_none();
            outside = outside.take().or(refusal);
            is_within
        });
        let claimed: Vec<_> = claimed.collect();
        match outside.filter(|_| claimed.is_empty()) {
            Some(reason) => Err(Fault::not_accepted(Reason::NotAllowedByListeners, reason)),
            None => Ok(claimed),
        }
    }

    /// The reason why the route may not have a hostname at a listener: what it would be served
    /// under there counts, not what it asks for.
    fn outside(&self, listener: usize, hostname: &HostPattern) -> Option<String> {
        let listener = self.parent.listeners.get(listener)?;
        let served = listener.hostname.intersect(hostname)?;
        self.claims.refusal(&self.route.key.name.namespace, &served, listener.port.number, self.namespaces)
    }

    fn is_allowed(&self, listener: &Listener) -> bool {
        let (own, from) = (&self.parent.key.name.namespace, &self.route.key.name.namespace);
        listener.kinds.contains(&self.route.key.kind)
            && listener.namespaces.admits(own, from, self.namespaces)
    }

    fn not_carried(&self, parent: Kind) -> String {
        let kind = self.route.key.kind;
        format!("the {parent}'s listeners take no {kind}s (protocol and allowedRoutes.kinds of the listener)")
    }

    fn not_allowed(&self, parent: Kind) -> String {
        let kind = self.route.key.kind;
        format!(
            "the {parent}'s listeners do not allow {kind}s of this namespace (allowedRoutes of the listener)"
        )
    }
}

/// The hostnames of a route that a listener has names of: "there must be at least one intersecting
/// hostname for the HTTPRoute to be attached", others "MUST be ignored". They stay as the route has
/// them: "implementations SHOULD evaluate precedence using the original hostnames configured on the
/// Route, not the calculated Listener/Route hostname intersection". The listener gets no requests
/// but those for its own names.
pub(crate) fn hostnames_at(listener: &Listener, route: &ParsedRoute) -> BTreeSet<HostPattern> {
    let meets = |hostname: &&HostPattern| listener.hostname.intersect(hostname).is_some();
    route.hostnames.iter().filter(meets).cloned().collect()
}

fn is_relevant(reference: &ParentReference, listener: &Listener) -> bool {
    reference.section_name.as_deref().is_none_or(|name| name == &*listener.name)
        && reference.port.is_none_or(|port| port == i32::from(listener.port.number))
}

fn nowhere(reference: &ParentReference, parent: Kind) -> String {
    match (&reference.section_name, reference.port) {
        (Some(name), None) => format!("the {parent} itself has no listener named {name}"),
        (None, Some(port)) => format!("the {parent} itself has no listener on port {port}"),
        (Some(name), Some(port)) => {
            format!("the {parent} itself has no listener named {name} on port {port}")
        }
        (None, None) => format!("the {parent} itself has no listeners"),
    }
}
