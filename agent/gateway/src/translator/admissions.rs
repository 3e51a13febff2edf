//! Stage: the terms on which clients are let in at listeners, by ListenerPolicies. Those of all
//! levels hold: of the Gateway that a listener is merged into, of the object that defines it, and
//! its own. So a child can ask for more than its parent, never for less. Of several policies on one
//! target the oldest is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{
    Admission, ClientList, ClientRules, GatewayView, ListedClients, LogPatch, LogTerms, ObjectName,
    ParentKind, ProxyProtocol, TrustedProxies, View,
};

use super::changes::ChangedObjects;
use super::gateways::ChangedGateways;
use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::in_force::InForce;
use super::listeners::ChangedListeners;
use crate::feedback::Observations;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::declared::Target;
use crate::policy::listener::{Terms, declared};
use crate::protocol::Protocol;

#[derive(Debug, Default)]
pub(super) struct Admissions {
    policies: InForce<Terms>,
    /// The terms for all listeners of an object, if there are any.
    of_parents: BTreeMap<ParentKey, Composed>,
    /// The terms for listeners that are targets themselves.
    of_listeners: BTreeMap<ListenerKey, Composed>,
    /// True if there may be policies that cannot be read.
    are_unread: bool,
    /// The terms of all others.
    none: Composed,
}

/// The terms of all levels. Where nothing lists clients, both are the same.
#[derive(Clone, Debug, Default, PartialEq)]
struct Composed {
    /// Of listeners of HTTP and HTTPS.
    of_requests: Arc<Admission>,
    /// Of listeners whose bytes are forwarded as they are: no proxy can list a client there.
    of_connections: Arc<Admission>,
}

/// The policies of all levels, the listener's own first, with the object whose owner wrote them.
struct Levels<'t> {
    terms: Vec<(&'t Target, &'t Terms)>,
    gateway: ObjectKey,
}

#[derive(Debug, Default)]
pub(super) struct ChangedAdmissions {
    /// The objects that policies apply to, or did; not all have other terms than before.
    pub(super) parents: BTreeSet<ParentKey>,
    /// Policies of which something else is to be said: they changed, or their targets did.
    pub(super) policies: BTreeSet<ObjectName>,
}

/// The changes of earlier stages.
#[derive(Clone, Copy)]
pub(super) struct Changes<'c> {
    pub(super) objects: &'c ChangedObjects,
    pub(super) listeners: &'c ChangedListeners,
    pub(super) hierarchy: &'c ChangedHierarchy,
    pub(super) gateways: &'c ChangedGateways,
}

// === impl Admissions ===

impl Admissions {
    /// A policy on the very listener that wants what its protocol cannot give closes it. It still
    /// says who the proxies are: listeners of a port have to agree on that.
    pub(super) fn of(&self, listener: &ListenerKey, protocol: Protocol) -> Arc<Admission> {
        let (parent, name) = listener;
        let composed = self.of_listeners.get(listener).or_else(|| self.of_parents.get(parent));
        let Composed { of_requests, of_connections } = composed.unwrap_or(&self.none);
        let own = Target { section: Some(name.clone()), ..whole(parent) };
        let own = self.policies.terms(&own).map(|(_, terms)| terms);
        match protocol {
            Protocol::Http | Protocol::Https => of_requests.clone(),
            _ if own.is_some_and(|terms| terms.unfit(protocol).next().is_some()) => {
                let proxies = of_connections.proxies.clone().filter(|_| protocol != Protocol::Udp);
                Arc::new(Admission { proxies, ..Terms::without_clients() })
            }
            // Datagrams have no header that could name a client, and no connections.
            Protocol::Udp if of_connections.proxies.is_some() || !of_connections.open.is_empty() => {
                Arc::new(Admission { proxies: None, open: Vec::new(), ..(**of_connections).clone() })
            }
            _ => of_connections.clone(),
        }
    }

    pub(super) fn policies(&self) -> &InForce<Terms> {
        &self.policies
    }

    /// True if no client is let in anywhere, because there may be policies that cannot be read.
    pub(super) fn are_unread(&self) -> bool {
        self.are_unread
    }

    pub(super) fn update(
        &mut self,
        changes: Changes<'_>,
        hierarchy: &Hierarchy,
        objects: &Objects,
        observations: &Observations,
    ) -> ChangedAdmissions {
        let mut targeted = BTreeSet::new();
        let mut now_changed = ChangedAdmissions::default();
        for name in changes.objects.of(Kind::ListenerPolicy) {
            let policy = objects.listener_policies.get(name);
            self.policies.replace(name, policy.map(|policy| declared(name, policy)), &mut targeted);
            now_changed.policies.insert(name.clone());
        }
        let mut targeted: BTreeSet<_> = targeted.iter().filter_map(ParentKey::of).collect();
        for parent in targeted.iter().chain(changes.parents(hierarchy).iter()) {
            now_changed.policies.extend(self.policies.policies_on(&parent.object()).cloned());
        }

        let are_unread = observations.is_unread(Kind::ListenerPolicy);
        if std::mem::replace(&mut self.are_unread, are_unread) != are_unread {
            targeted.extend(hierarchy.keys().cloned());
        }
        // Gateways come first: what is attached to them may have the same terms.
        let children = targeted.iter().filter(|parent| parent.kind == ParentKind::Gateway);
        let children: Vec<_> =
            children.flat_map(|parent| hierarchy.children(&parent.name)).cloned().collect();
        for parent in targeted.iter().chain(&children).chain(&changes.hierarchy.moved) {
            self.compose(parent, hierarchy);
        }
        now_changed.parents = targeted;
        now_changed.parents.extend(children);
        now_changed
    }

    fn compose(&mut self, parent: &ParentKey, hierarchy: &Hierarchy) {
        let gateway = hierarchy.gateway_of(parent).cloned();
        let gateway = gateway.map(|name| ParentKey { kind: ParentKind::Gateway, name });
        let mut levels = vec![whole(parent)];
        levels.extend(gateway.iter().filter(|gateway| *gateway != parent).map(whole));
        let now = gateway.as_ref().and_then(|gateway| self.terms(&levels, gateway));
        let of_gateway = gateway.as_ref().and_then(|gateway| self.of_parents.get(gateway)).cloned();
        put(&mut self.of_parents, parent, now, of_gateway.as_ref());

        let before = self.of_listeners.range((parent.clone(), Arc::from(""))..);
        let before = before.map(|(listener, _)| listener).take_while(|(holder, _)| holder == parent);
        let object = parent.object();
        let targets = self.policies.targets_at(&object).filter_map(|target| target.section.clone());
        let now = targets.map(|section| (parent.clone(), section));
        let listeners: BTreeSet<ListenerKey> = before.cloned().chain(now).collect();
        for listener in listeners {
            let own = Target { section: Some(listener.1.clone()), ..whole(parent) };
            let of = gateway.as_ref().filter(|_| self.policies.on(&own).is_some());
            let levels: Vec<_> = std::iter::once(own).chain(levels.iter().cloned()).collect();
            let now = of.and_then(|gateway| self.terms(&levels, gateway));
            put(&mut self.of_listeners, &listener, now, None);
        }
    }

    /// The terms of all levels, from the listener's own on; `None` if there are none.
    fn terms(&self, levels: &[Target], gateway: &ParentKey) -> Option<Composed> {
        let of_level = |target| self.policies.terms(target).map(|(_, terms)| (target, terms));
        let terms = levels.iter().filter_map(of_level).collect();
        let unread = Terms::closed().clients().filter(|_| self.are_unread).cloned();
        let composed = Levels { terms, gateway: gateway.object() }.compose(unread);
        (composed != Composed::default()).then_some(composed)
    }
}

// === impl Levels ===

impl Levels<'_> {
    /// `unread` is the list of policies that cannot be read.
    fn compose(&self, unread: Option<ClientList>) -> Composed {
        let terms = || self.terms.iter();
        let budgets: Vec<_> = terms().filter_map(|(target, terms)| terms.budget(target)).collect();
        // Whose connection it is, only the owner of the Gateway can say: its ports are others',
        // too.
        let is_misplaced =
            |(target, terms): &(&Target, &Terms)| terms.proxies().is_some() && !self.is_gateways(target);
        let misplaced = Terms::closed().clients().filter(|_| terms().any(is_misplaced)).cloned();
        let unread = unread.or(misplaced);
        let open: Vec<_> = terms().filter_map(|(target, terms)| terms.open(target)).collect();
        let limits = terms().filter_map(|(_, terms)| terms.limits()).cloned();
        let limits = limits.reduce(|one, other| one.and(&other)).map(Box::new);
        let log = self.log();
        let all: Vec<_> =
            terms().filter_map(|(_, terms)| terms.clients()).cloned().chain(unread.clone()).collect();
        let proxies = self.proxies();
        let of_connections = Admission {
            budgets,
            clients: rules(all).map(Arc::new),
            proxies,
            listed: None,
            open,
            limits: None,
            log,
        };
        let of_requests = match self.listed() {
            None if limits.is_none() => None,
            None => Some(Admission { limits, ..of_connections.clone() }),
            Some((listed, others)) => {
                let clients = rules(others.into_iter().chain(unread).collect()).map(Arc::new);
                let listed = Some(Arc::new(listed));
                Some(Admission { clients, listed, limits, ..of_connections.clone() })
            }
        };
        let of_connections = Arc::new(of_connections);
        let of_requests = of_requests.map_or_else(|| of_connections.clone(), Arc::new);
        Composed { of_requests, of_connections }
    }

    /// The narrowest level's word counts, field by field; the Gateway's and that of another owner
    /// of the listener by themselves.
    fn log(&self) -> Option<LogTerms> {
        let logs = self.terms.iter().filter_map(|(target, terms)| Some((target, terms.log()?)));
        let (of_gateway, of_listener): (Vec<_>, Vec<_>) =
            logs.partition(|(target, _)| self.is_gateways(target));
        let [of_gateway, of_listener] = [of_gateway, of_listener]
            .map(|levels| levels.into_iter().map(|(_, patch)| patch).reduce(LogPatch::within));
        let terms = LogTerms { of_gateway, of_listener };
        (terms != LogTerms::default()).then_some(terms)
    }

    fn is_gateways(&self, target: &Target) -> bool {
        target.object == self.gateway
    }

    fn proxies(&self) -> Option<Arc<ProxyProtocol>> {
        let proxies = self.terms.iter().filter(|(target, _)| self.is_gateways(target));
        let proxies: Vec<_> = proxies.filter_map(|(_, terms)| terms.proxies()).collect();
        let others = proxies.iter().map(|it| it.others).max()?;
        let levels = proxies.iter().map(|it| it.from.clone()).collect();
        Some(Arc::new(ProxyProtocol { levels, others }))
    }

    /// The clients that proxies list, and the lists that are about the peers of connections all the
    /// same; `None` if no level says which proxies are believed. The narrowest level's word counts,
    /// and to the Gateway's owner their own: none of their lists is judged by what others believe.
    fn listed(&self) -> Option<(ListedClients, Vec<ClientList>)> {
        let said = || self.terms.iter().filter_map(|(target, terms)| Some((*target, &terms.listed()?.by)));
        let (by, of_listener) = said().next()?;
        let of_gateway = said().find(|(target, _)| self.is_gateways(target)).map(|(_, proxies)| proxies);
        let (mut of_connections, mut gateways, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        for (target, terms) in &self.terms {
            let is_shared = !self.is_gateways(target) || self.is_gateways(by);
            let (believed, lists) = match is_shared {
                true => (Some(of_listener), &mut listeners),
                false => (of_gateway, &mut gateways),
            };
            let is_listed = believed.is_some_and(|proxies| !proxies.are_none()) && !terms.are_closed();
            let place = if is_listed { lists } else { &mut of_connections };
            place.extend(terms.clients().cloned());
            of_connections.extend(terms.listed().and_then(|listed| listed.only.clone()));
        }
        let view = |proxies: &TrustedProxies, lists| View { proxies: proxies.clone(), clients: rules(lists) };
        let of_gateway = match of_gateway {
            _ if self.is_gateways(by) => GatewayView::Shared,
            None => GatewayView::AsStarted,
            Some(proxies) => GatewayView::Own(view(proxies, gateways)),
        };
        Some((ListedClients { of_listener: view(of_listener, listeners), of_gateway }, of_connections))
    }
}

fn rules(lists: Vec<ClientList>) -> Option<ClientRules> {
    (!lists.is_empty()).then(|| ClientRules::new(lists))
}

/// The object as a target.
pub(super) fn whole(parent: &ParentKey) -> Target {
    Target::whole(parent.object())
}

/// Keeps what is there if it is the same, and shares what `other` is if that is.
fn put<K: Ord + Clone>(
    map: &mut BTreeMap<K, Composed>,
    key: &K,
    now: Option<Composed>,
    other: Option<&Composed>,
) {
    let Some(now) = now else {
        map.remove(key);
        return;
    };
    if map.get(key).is_none_or(|before| *before != now) {
        let same = other.filter(|other| **other == now).cloned();
        map.insert(key.clone(), same.unwrap_or(now));
    }
}

// === impl Changes ===

impl Changes<'_> {
    /// The objects that may be another target than before: there or not, ours or not, served or
    /// not.
    fn parents(self, hierarchy: &Hierarchy) -> BTreeSet<ParentKey> {
        let gateway = |name: &ObjectName| ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let set = |name: &ObjectName| ParentKey { kind: ParentKind::ListenerSet, name: name.clone() };
        let mut parents: BTreeSet<_> = self.objects.of(Kind::Gateway).map(gateway).collect();
        parents.extend(self.objects.of(Kind::ListenerSet).map(set));
        parents.extend(self.listeners.parents.iter().chain(&self.hierarchy.moved).cloned());
        parents.extend(self.gateways.acceptances.iter().cloned());
        let above = parents.iter().filter_map(|parent| hierarchy.gateway_of(parent));
        let above: Vec<_> = above.chain(&self.hierarchy.gateways).map(gateway).collect();
        parents.extend(above);
        parents
    }
}
