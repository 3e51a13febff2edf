//! Stage: every Gateway with addresses of its own as a whole, with the listeners of its children
//! merged into it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_api::types::gateways::{Gateway, GatewayStatusAddresses};
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{ObjectName, ParentKind, PortKey};

use super::changes::ChangedObjects;
use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::listeners::{ChangedListeners, Listeners, changed_classes, gateways_of};
use super::owners::{ChangedOwners, Owner, Owners};
use super::relation::Relation;
use crate::claims::Claims;
use crate::feedback::Observations;
use crate::infra::{self, AssignedAddresses, Parameters};
use crate::listener::{
    Acceptance, Declared, Hosts, Listener, ListenerKey, Merge, NamespacedHosts, ParentKey, Refusal,
};
use crate::parent::{self, Addresses, AllowedChildren};
use crate::policy::Policies;
use crate::policy::authorities::{HOLDERS, Holders};
use crate::policy::frontend_tls::{self, Clients};
use crate::selector::{NamespaceRule, Namespaces};
use crate::special_address::is_special;
use crate::{Fault, Reason, Settings};

const API_SERVERS: &str = "it is the API server's";
const SUSPECT: &str = "the agent has had no answer from its API server since it was made local: it is tried again from time \
    to time; make sure that the address is the load balancer's to give";

#[derive(Debug, Default)]
pub(super) struct Gateways {
    merged: BTreeMap<ObjectName, MergedGateway>,
    listeners: BTreeMap<ParentKey, MergedListeners>,
    /// By address, the Gateways that may be served on it, here or elsewhere.
    by_address: Relation<IpAddr, ObjectName>,
    /// The last addresses of Gateways that were ours and exist still.
    left: BTreeMap<ObjectName, Vec<GatewayStatusAddresses>>,
}

#[derive(Debug, Default)]
pub(super) struct MergedGateway {
    pub(super) addresses: Addresses,
    /// Those that are the Gateway's alone.
    own: BTreeSet<IpAddr>,
    /// The way it is provided, if it is accepted.
    pub(super) parameters: Parameters,
    /// The fault for which it is not accepted.
    pub(super) refusal: Option<Fault>,
    pub(super) summary: Summary,
}

/// Counts of the children's listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// Those of attached Gateways that are not valid: `shop/web listener http`.
    pub(super) invalid_below: Vec<String>,
    pub(super) attached_sets: usize,
    pub(super) attached_gateways: usize,
}

/// One object's listeners in the merged list.
#[derive(Debug, Default)]
struct MergedListeners {
    /// One per listener.
    acceptances: Vec<Acceptance>,
    /// Of listeners whose clients are asked for certificates.
    clients: BTreeMap<Arc<str>, Clients>,
    /// Listeners with names that another listener of the port has, too.
    overlapping: Vec<Arc<str>>,
    /// Listeners that take names out of an earlier one's of another namespace.
    taking: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedGateways {
    /// Those that were merged again, or are gone.
    pub(super) merged: BTreeSet<ObjectName>,
    /// Those with other addresses, or another answer to whether they are accepted.
    pub(super) whole: BTreeSet<ObjectName>,
    /// The addresses that Gateways have now and had not, or the other way round.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Those that are served with other limits, or another access log.
    pub(super) limits: BTreeSet<ObjectName>,
    /// The objects to whose listeners routes may have other claims.
    pub(super) claims: BTreeSet<ParentKey>,
    /// The objects some of whose listeners are accepted, refused or in conflict now and were not,
    /// or whose clients are asked for other certificates.
    pub(super) acceptances: BTreeSet<ParentKey>,
    /// The objects with other overlaps, or other names taken from others.
    pub(super) overlaps: BTreeSet<ParentKey>,
}

/// The earlier stages, as far as they are read here.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) owners: &'s Owners,
    pub(super) holders: Holders<'s>,
    pub(super) objects: &'s Objects,
    pub(super) settings: &'s Settings,
    pub(super) observations: &'s Observations,
}

// === impl MergedGateway ===

impl MergedGateway {
    /// The pods that it is to have of its own; `None` if that is an autoscaler's to say.
    pub(super) fn pods(&self) -> Option<NonZeroU32> {
        self.parameters.replicas.and_then(|replicas| u32::try_from(replicas).ok()).and_then(NonZeroU32::new)
    }
}

// === impl Gateways ===

impl Gateways {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&MergedGateway> {
        self.merged.get(name)
    }

    pub(super) fn get_key_value(&self, name: &ObjectName) -> Option<(&ObjectName, &MergedGateway)> {
        self.merged.get_key_value(name)
    }

    /// The addresses that a Gateway had when it was served last; none of one that is.
    pub(super) fn left(&self, name: &ObjectName) -> &[GatewayStatusAddresses] {
        self.left.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// True if an address is a Gateway's.
    pub(super) fn have(&self, address: &IpAddr) -> bool {
        self.by_address.of(address).next().is_some()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.merged.keys()
    }

    pub(super) fn acceptances(&self, parent: &ParentKey) -> &[Acceptance] {
        self.listeners.get(parent).map(|it| it.acceptances.as_slice()).unwrap_or_default()
    }

    /// `None` if clients are not asked for certificates.
    pub(super) fn clients(&self, (parent, name): &ListenerKey) -> Option<&Clients> {
        self.listeners.get(parent)?.clients.get(name)
    }

    pub(super) fn overlapping(&self, parent: &ParentKey) -> &[Arc<str>] {
        self.listeners.get(parent).map(|it| it.overlapping.as_slice()).unwrap_or_default()
    }

    pub(super) fn taking(&self, parent: &ParentKey) -> &[Arc<str>] {
        self.listeners.get(parent).map(|it| it.taking.as_slice()).unwrap_or_default()
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        judged: &ChangedListeners,
        attached: &ChangedHierarchy,
        owned: &ChangedOwners,
        mut readdressed: BTreeSet<ObjectName>,
        sources: Sources<'_>,
    ) -> ChangedGateways {
        if !owned.is_empty() {
            let concerned = sources.observations.assigned_where(|address| owned.concerns(address));
            readdressed.extend(concerned.cloned());
        }
        for key in &attached.moved {
            self.listeners.remove(key);
        }
        let mut now_changed = ChangedGateways::default();
        if changed.any_of(Kind::Namespace) {
            // Rare, as are Gateways whose owners select namespaces by their labels.
            let selecting = self.merged.iter().filter(|(_, it)| !it.parameters.claims.is_anything());
            readdressed.extend(selecting.map(|(name, _)| name.clone()));
        }
        for name in affected(changed, judged, attached, readdressed, sources) {
            let gateway = sources.objects.gateways.get(&name);
            match gateway.filter(|_| sources.hierarchy.is_independent(&name)) {
                Some(gateway) => {
                    self.left.remove(&name);
                    self.merge(&name, gateway, sources, &mut now_changed);
                }
                None => {
                    if let Some(merged) = self.merged.remove(&name) {
                        self.replace_own(&name, &merged.own, &BTreeSet::new(), &mut now_changed);
                        self.left.insert(name.clone(), merged.addresses.status());
                    }
                    if gateway.is_none() {
                        self.left.remove(&name);
                    }
                }
            }
            now_changed.merged.insert(name);
        }
        now_changed
    }

    fn merge(
        &mut self,
        name: &ObjectName,
        gateway: &Gateway,
        sources: Sources<'_>,
        changed: &mut ChangedGateways,
    ) {
        self.update_whole(name, gateway, sources, changed);
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let mut merge = Merge::default();
        let everything = Share { claims: &Claims::default(), brought: 0 };
        self.judge(&mut merge, gateway, &own, everything, sources, changed);
        let mut summary = Summary::default();
        let claims = self.merged.get(name).map(|merged| merged.parameters.claims.clone()).unwrap_or_default();
        let mut brought: BTreeMap<&str, usize> = BTreeMap::new();
        for child in sources.hierarchy.children(name) {
            let is_own = child.name.namespace == name.namespace;
            let claims = if is_own { &Claims::default() } else { &claims };
            let brought = brought.entry(&child.name.namespace).or_default();
            let judged =
                self.judge(&mut merge, gateway, child, Share { claims, brought: *brought }, sources, changed);
            *brought += judged.distinct;
            summary.count(child, judged);
        }
        let members = std::iter::once(&own).chain(sources.hierarchy.children(name));
        self.mark_overlaps(members.clone(), sources.listeners, changed);
        self.mark_taking(members, &claims, sources.listeners, changed);
        if let Some(merged) = self.merged.get_mut(name) {
            merged.summary = summary;
        }
    }

    /// Addresses and whatever else concerns the Gateway as a whole.
    fn update_whole(
        &mut self,
        name: &ObjectName,
        gateway: &Gateway,
        sources: Sources<'_>,
        changed: &mut ChangedGateways,
    ) {
        let Sources { observations, owners, settings, .. } = sources;
        let assigned = observations.assigned(name);
        let foreign = |address: &IpAddr| match assigned.is_some_and(|it| it.cluster.contains(address)) {
            // The API server allocates them; but what was kept may be another cluster's.
            true => owners.is_api_servers(address).then(|| API_SERVERS.to_owned()),
            false => foreign(address, sources),
        };
        let addresses =
            Addresses::of(gateway, assigned, settings, foreign).reached_at(observations.node_addresses());
        let parameters = Parameters::of(gateway, sources.objects, &settings.generated);
        let refusal = refusal(gateway, &addresses, parameters.as_ref().err());
        let parameters = parameters.unwrap_or_default();
        let own = own_addresses(&addresses, assigned);
        let before = self.merged.get(name).map(|merged| merged.own.clone()).unwrap_or_default();
        self.replace_own(name, &before, &own, changed);
        let merged = self.merged.entry(name.clone()).or_default();
        merged.own = own;
        if merged.parameters.served(name) != parameters.served(name) {
            changed.limits.insert(name.clone());
        }
        if merged.parameters.claims != parameters.claims {
            let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
            changed.claims.extend(std::iter::once(&own).chain(sources.hierarchy.children(name)).cloned());
        }
        if (&merged.addresses, &merged.refusal) != (&addresses, &refusal) {
            changed.whole.insert(name.clone());
        }
        (merged.addresses, merged.refusal, merged.parameters) = (addresses, refusal, parameters);
    }

    fn replace_own(
        &mut self,
        gateway: &ObjectName,
        before: &BTreeSet<IpAddr>,
        now: &BTreeSet<IpAddr>,
        changed: &mut ChangedGateways,
    ) {
        changed.addresses.extend(before.symmetric_difference(now));
        self.by_address.update(gateway, before, now);
    }

    /// Adds an object's listeners to the merged list.
    fn judge(
        &mut self,
        merge: &mut Merge,
        gateway: &Gateway,
        key: &ParentKey,
        share: Share<'_>,
        sources: Sources<'_>,
        changed: &mut ChangedGateways,
    ) -> Judged {
        let Some(declared) = sources.listeners.get(key) else { return Judged::default() };
        let definer = (key.kind == ParentKind::Gateway).then(|| sources.objects.gateways.get(&key.name));
        let definer = definer.flatten().map(|definer| &**definer).filter(|definer| {
            definer.metadata.name != gateway.metadata.name
                || definer.metadata.namespace != gateway.metadata.namespace
        });
        let reader = &*key.name.namespace;
        let clients = declared.listeners.iter().map(|listener| {
            let policies = Policies::of(gateway, definer, listener.port.number);
            match listener.protocol.ends_tls() {
                true => (listener.name.clone(), Clients::of(&policies, reader, sources.holders)),
                false => (listener.name.clone(), Clients::default()),
            }
        });
        let clients: BTreeMap<_, _> = clients.filter(|(_, clients)| *clients != Clients::default()).collect();
        let acceptances = merge.add(reader, &declared.listeners, |listener| {
            let outside = || outside_of(share, key, listener, &declared.listeners, sources.objects);
            let refusal = listener.refusal.clone().or_else(outside).map(Refusal::OfListener);
            refusal.or_else(|| clients.get(&listener.name)?.refusal.clone().map(Refusal::OfClients))
        });
        let invalid = declared.listeners.iter().zip(&acceptances).filter(|(_, it)| !it.is_accepted());
        let invalid = invalid.map(|(listener, _)| &listener.name).chain(&declared.duplicates);
        let judged = Judged {
            any: acceptances.iter().any(Acceptance::is_accepted),
            distinct: acceptances.iter().filter(|it| it.is_distinct()).count(),
            invalid: invalid.cloned().collect(),
        };
        let known = self.listeners.entry(key.clone()).or_default();
        if (&known.acceptances, &known.clients) != (&acceptances, &clients) {
            (known.acceptances, known.clients) = (acceptances, clients);
            changed.acceptances.insert(key.clone());
        }
        judged
    }

    /// Names that a child has although an earlier object of another namespace has them, too, and
    /// more: it takes their requests, and is told so unless the Gateway's owner said whose they
    /// are. An object that comes later changes no status of those before it.
    fn mark_taking<'k>(
        &mut self,
        members: impl Iterator<Item = &'k ParentKey>,
        claims: &Claims,
        listeners: &Listeners,
        changed: &mut ChangedGateways,
    ) {
        let mut ports: BTreeMap<PortKey, NamespacedHosts<'_>> = BTreeMap::new();
        for (key, declared) in members.filter_map(|key| Some((key, listeners.get(key)?))) {
            let from = &*declared.key.name.namespace;
            let takes = |listener: &&Listener| {
                ports.get(&listener.port).is_some_and(|hosts| hosts.cover(&listener.hostname, from))
            };
            let now: Vec<_> = distinct(declared, self.acceptances(key))
                .filter(takes)
                .filter(|_| claims.is_anything())
                .map(|listener| listener.name.clone())
                .collect();
            for listener in distinct(declared, self.acceptances(key)) {
                ports.entry(listener.port).or_default().add(&listener.hostname, from);
            }
            if let Some(known) = self.listeners.get_mut(key).filter(|known| known.taking != now) {
                known.taking = now;
                changed.overlaps.insert(key.clone());
            }
        }
    }

    /// "Controllers MUST detect the presence of overlapping hostnames" (`OverlappingTLSConfig`):
    /// clients may reuse a connection to an HTTPS listener for what is another's, and one of TLS
    /// does not get all that its name says. One that lacks a certificate keeps overlapping others:
    /// what is wrong with it is not to be seen in their statuses.
    fn mark_overlaps<'k>(
        &mut self,
        members: impl Iterator<Item = &'k ParentKey> + Clone,
        listeners: &Listeners,
        changed: &mut ChangedGateways,
    ) {
        let mut ports: BTreeMap<PortKey, Hosts<'_>> = BTreeMap::new();
        for (key, declared) in members.clone().filter_map(|key| Some((key, listeners.get(key)?))) {
            let named = distinct(declared, self.acceptances(key));
            named.filter(|listener| listener.protocol.has_server_names()).for_each(|listener| {
                ports.entry(listener.port).or_default().add(&listener.hostname);
            });
        }
        for (key, declared) in members.filter_map(|key| Some((key, listeners.get(key)?))) {
            let named = distinct(declared, self.acceptances(key));
            let named = named.filter(|listener| listener.protocol.has_server_names());
            let overlaps = named.filter(|listener| {
                ports.get(&listener.port).is_some_and(|hosts| hosts.overlap_another(&listener.hostname))
            });
            let now: Vec<_> = overlaps.map(|listener| listener.name.clone()).collect();
            let Some(known) = self.listeners.get_mut(key).filter(|known| known.overlapping != now) else {
                continue;
            };
            known.overlapping = now;
            changed.overlaps.insert(key.clone());
        }
    }
}

/// The addresses that no other may have. One that a proxy has, or a node, may be published by any
/// writer of the Service's status.
fn own_addresses(addresses: &Addresses, assigned: Option<&AssignedAddresses>) -> BTreeSet<IpAddr> {
    let is_judged = |address: &&IpAddr| {
        assigned.is_none_or(|it| it.published.contains(address) || it.cluster.contains(address))
    };
    addresses.usable.iter().filter(is_judged).copied().collect()
}

/// The reason why an address that was published for a Gateway's Service is not made local. Right to
/// write a status is no right to an address: on every node it would take what it belongs to away.
fn foreign(address: &IpAddr, sources: Sources<'_>) -> Option<String> {
    let Sources { owners, settings, observations, .. } = sources;
    // Traffic to these arrives by other means, and they are local to none but their node.
    if owners.is_node(address) {
        return None;
    }
    let owner = owners.of(address).map(|owner| match owner {
        Owner::ApiServer => API_SERVERS,
        Owner::Service(_) => "it is another Service's",
        Owner::Node => "it is a node's",
        Owner::Bridge | Owner::Pods => "it is in the range of a node's pods",
    });
    if let Some(owner) = owner {
        return Some(owner.to_owned());
    }
    if is_special(address) {
        return Some("no address of its kind can be a load balancer's".to_owned());
    }
    if !settings.load_balancers.iter().any(|range| range.contains(address)) {
        return Some(format!(
            "the agents' operator has not allowed it for load balancers: that is done with --load-balancer-addresses \
             {address}, or a range that has it"
        ));
    }
    observations.is_suspect(address).then(|| SUSPECT.to_owned())
}

fn affected(
    changed: &ChangedObjects,
    judged: &ChangedListeners,
    attached: &ChangedHierarchy,
    readdressed: BTreeSet<ObjectName>,
    sources: Sources<'_>,
) -> BTreeSet<ObjectName> {
    let mut affected = readdressed;
    affected.extend(attached.gateways.iter().cloned());
    affected.extend(judged.for_merge.iter().filter_map(|key| sources.hierarchy.gateway_of(key)).cloned());
    let classes = changed_classes(changed, sources.objects);
    affected.extend(gateways_of(classes.iter(), sources.objects).cloned());
    // Rare, so there is no list of who refers to what.
    for parameters in changed.of(Kind::GatewayParameters) {
        let gateways = sources.objects.gateways.iter();
        let referring = gateways.filter(|(_, gateway)| infra::refers(gateway, parameters));
        affected.extend(referring.map(|(name, _)| name.clone()));
    }
    affected.extend(validating(changed, sources));
    affected
}

/// The Gateways that have listeners whose clients are verified by what changed. Few do that, and
/// what they refer to changes rarely, so there is no list.
fn validating(changed: &ChangedObjects, sources: Sources<'_>) -> Vec<ObjectName> {
    let granting = changed.granting_namespaces();
    let concerns = |holder: &ObjectKey| {
        granting.contains(&holder.name.namespace) || changed.of(holder.kind).any(|name| *name == holder.name)
    };
    let may_concern = HOLDERS.into_iter().any(|kind| changed.any_of(kind));
    if !may_concern && granting.is_empty() {
        return Vec::new();
    }
    let gateways = sources.objects.gateways.iter();
    let concerned = gateways.filter(|(_, gateway)| frontend_tls::holders(gateway).any(|it| concerns(&it)));
    let keys = concerned.map(|(name, _)| ParentKey { kind: ParentKind::Gateway, name: name.clone() });
    keys.filter_map(|key| sources.hierarchy.gateway_of(&key).cloned()).collect()
}

/// The listeners of an object that have their port and hostname for themselves.
fn distinct<'d>(declared: &'d Declared, acceptances: &[Acceptance]) -> impl Iterator<Item = &'d Listener> {
    let listeners = declared.listeners.iter().zip(acceptances);
    listeners.filter(|(_, acceptance)| acceptance.is_distinct()).map(|(listener, _)| listener)
}

/// The share of a Gateway's listeners that an object may have.
#[derive(Clone, Copy)]
struct Share<'c> {
    claims: &'c Claims,
    /// The number of listeners that older children of its namespace have.
    brought: usize,
}

/// The validity of an object's listeners.
#[derive(Default)]
struct Judged {
    /// True if one is valid.
    any: bool,
    /// The number of those that have their port and hostname for themselves.
    distinct: usize,
    /// Those that are not.
    invalid: Vec<Arc<str>>,
}

impl Summary {
    fn count(&mut self, child: &ParentKey, judged: Judged) {
        match child.kind {
            ParentKind::ListenerSet => self.attached_sets += usize::from(judged.any),
            ParentKind::Gateway => {
                self.attached_gateways += usize::from(judged.any);
                let lines = judged.invalid.iter().map(|name| format!("{} listener {name}", child.name));
                self.invalid_below.extend(lines);
            }
        }
    }
}

/// The fault for which the Gateway as a whole is not accepted.
fn refusal(gateway: &Gateway, addresses: &Addresses, parameters: Option<&Fault>) -> Option<Fault> {
    let fault = parameters.or(addresses.unsupported.as_ref()).cloned();
    fault.or_else(|| cannot_have_listeners(gateway))
}

/// "If, and only if, they have done so, the same Gateway is also permitted to leave listeners
/// empty." A malformed opt-in is none.
fn cannot_have_listeners(gateway: &Gateway) -> Option<Fault> {
    let none = gateway.spec.listeners.as_ref().is_none_or(Vec::is_empty);
    let no_children = matches!(parent::allowed_children(gateway), Ok(AllowedChildren::None) | Err(_))
        && parent::allowed_sets(gateway) == NamespaceRule::None;
    let message = "the Gateway has no listeners, and allows none to be attached: add listeners, or set spec.allowedListeners";
    (none && no_children).then(|| Fault::not_accepted(Reason::ListenersNotValid, message))
}

/// The fault of a child's listener that the Gateway's owner has not given to its namespace.
fn outside_of(
    Share { claims, brought }: Share<'_>,
    child: &ParentKey,
    listener: &Listener,
    all: &[Listener],
    objects: &Objects,
) -> Option<Fault> {
    let (from, namespaces) = (&*child.name.namespace, Namespaces::new(objects));
    let is_within = |most| all.iter().take(most).any(|it| it.name == listener.name);
    let too_many = || {
        let most = claims.most_listeners(from, namespaces).filter(|most| !is_within(*most))?;
        Some(format!(
            "the Gateway lets objects of namespace {from} bring {most} listener(s) each (claims of its \
             GatewayParameters)"
        ))
    };
    let too_many_in_all = || {
        let most = claims.most_in_total(from, namespaces)?;
        (!is_within(most.saturating_sub(brought))).then(|| {
            format!(
                "the Gateway lets the objects of namespace {from} bring {most} listener(s) in all, older ones \
                 first (claims of its GatewayParameters)"
            )
        })
    };
    let refusal = claims.refusal(from, &listener.hostname, listener.port.number, namespaces);
    refusal
        .or_else(too_many)
        .or_else(too_many_in_all)
        .map(|reason| Fault::not_accepted(Reason::NotAllowed, reason))
}
