//! Binding: one transaction per (parent, child) pair, in series, the oldest child first (then by
//! name). What fails leaves the ephemeral route as it is and blocks no other child.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_model::{HostPattern, ObjectName};

use super::assemble::{self, Item};
use super::consent::{Candidate, unresolved};
use super::limits::{self, Limits};
use super::pair::{Pair, Parent, failing};
use super::weigh::weigh;
use super::{Family, Surroundings};
use crate::Fault;
use crate::route::{
    ChildReference, Delegation, Draft, DraftMatch, ParsedRoute, ParsedRule, RuleFilters, compiling_once,
};

/// Flattens a parent and those of `candidates` that it and they agree on. Candidates are all routes
/// of the parent's kind that name it in `parentRefs` or that it names; further ones do no harm.
/// What can be taken over from the family `before` is; the result is the same without it. It is
/// `before` itself if nothing is different.
pub fn bind(
    parent: &Arc<ParsedRoute>,
    candidates: &[Arc<ParsedRoute>],
    surroundings: &dyn Surroundings,
    before: Option<&Arc<Family>>,
) -> Arc<Family> {
    let before = before.filter(|before| Arc::ptr_eq(&before.parent, parent));
    let parent = Parent::new(parent, surroundings);
    let pairs = compiling_once(|| pairs(&parent, candidates, surroundings, before.map(|before| &**before)));
    let unresolved = unresolved_children(parent.route, &pairs, surroundings);
    match before {
        Some(before) if before.unresolved == unresolved && same(&before.pairs, &pairs) => before.clone(),
        _ => Arc::new(family(&parent, pairs, unresolved, before.map(|before| &**before))),
    }
}

/// In the order of binding: one transaction each, within the limits that all children share. These
/// are judged in an order of their own.
fn pairs(
    parent: &Parent<'_>,
    candidates: &[Arc<ParsedRoute>],
    surroundings: &dyn Surroundings,
    before: Option<&Family>,
) -> Vec<Arc<Pair>> {
    let mut children: Vec<_> =
        candidates.iter().filter(|child| child.key.kind == parent.route.key.kind).collect();
    children.sort_by(|a, b| a.origin.cmp(&b.origin));
    children.dedup_by(|a, b| a.key == b.key);
    let before = before.map_or(&[][..], |before| &before.pairs);
    let known: BTreeMap<_, _> = before.iter().map(|pair| (Arc::as_ptr(&pair.child), pair)).collect();
    let children: Vec<_> =
        children.into_iter().map(|child| (child, known.get(&Arc::as_ptr(child)).copied())).collect();
    let asked = children.iter().map(|(child, known)| {
        (&*child.key.name.namespace, Pair::asked_combinations(parent, child, *known, surroundings))
    });
    let mut limits = Limits::default();
    let mut pairs = BTreeMap::new();
    for at in limits::order(asked) {
        let (child, known) = children[at];
        let pair = Pair::new(parent, child, known, surroundings, &limits);
        pair.count(&mut limits);
        pairs.insert(at, pair);
    }
    pairs.into_values().collect()
}

fn unresolved_children(
    parent: &ParsedRoute,
    pairs: &[Arc<Pair>],
    surroundings: &dyn Surroundings,
) -> Vec<Fault> {
    let found = |listed: &ChildReference| {
        let named = pairs.iter().find(|pair| {
            let name = &pair.child.key.name;
            let is_meant = match &listed.name {
                Some(named) => name.name == *named,
                None => pair.report.is_some(),
            };
            name.namespace == listed.namespace && is_meant
        });
        match named.map(|pair| &pair.report) {
            None => Candidate::Missing,
            Some(None) => Candidate::Unrelated,
            Some(Some(_)) => Candidate::Related,
        }
    };
    unresolved(parent, found, surroundings)
}

fn same<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn family(
    parent: &Parent<'_>,
    pairs: Vec<Arc<Pair>>,
    unresolved: Vec<Fault>,
    before: Option<&Family>,
) -> Family {
    let own = before.map_or_else(|| compiling_once(|| own_items(parent)), |before| before.own.clone());
    let (items, childless) = items(parent, &pairs, &own);
    let known = before.map_or(&[][..], |before| &before.children);
    let known: BTreeMap<_, _> = known.iter().map(|report| (&report.child, report)).collect();
    let route = parent.route;
    let shadowed = shadowed(&items);
    let children = pairs.iter().filter_map(|pair| {
        let report = pair.report.as_ref()?;
        let Some(completed) = pair.completed(report, route, &childless, &shadowed) else {
            return Some(report.clone());
        };
        match known.get(&report.child) {
            Some(same) if ***same == completed => Some(Arc::clone(same)),
            _ => Some(Arc::new(completed)),
        }
    });
    let children = children.collect();
    Family {
        parent: route.clone(),
        ephemeral: assemble::parts(route, items, before.map(|before| before.ephemeral.as_slice())),
        children,
        unresolved,
        childless,
        pairs,
        own,
    }
}

/// The rules of the ephemeral route, in the order of the parent's; and those of the parent's that
/// are for children and have none.
fn items(
    parent: &Parent<'_>,
    pairs: &[Arc<Pair>],
    own: &[Option<Arc<Item>>],
) -> (Vec<Arc<Item>>, Vec<usize>) {
    let mut bound: Vec<Vec<Arc<Item>>> = own.iter().map(|_| Vec::new()).collect();
    for (rule, items) in pairs.iter().flat_map(|pair| pair.rules()) {
        bound[*rule].extend(items.iter().cloned());
    }
    let (mut items, mut childless) = (Vec::new(), Vec::new());
    for (index, (rule, bound)) in parent.route.rules.iter().zip(bound).enumerate() {
        match (&rule.delegation, bound.is_empty()) {
            (Some(Delegation::Listed(_)), false) => items.extend(weigh(bound)),
            (Some(_), false) => items.extend(bound),
            (Some(_), true) => {
                childless.push(index);
                items.extend(own[index].clone());
            }
            (None, _) => items.extend(own[index].clone()),
        }
    }
    (items, childless)
}

/// Children that are bound and take no request: for each of their matches and hostnames there is a
/// rule before theirs with the same conditions. A name that is more specific has requests of its
/// own.
fn shadowed(items: &[Arc<Item>]) -> BTreeSet<&ObjectName> {
    let mut seen = BTreeMap::<_, HashSet<_>>::new();
    let (mut taking, mut bound) = (BTreeSet::new(), BTreeSet::new());
    for item in items {
        let mut takes = false;
        for matched in &item.draft.matches {
            let taken = seen.entry(matched.canonical()).or_default();
            let known = taken.len();
            taken.extend(&*item.hostnames);
            takes |= taken.len() > known;
        }
        let sources = std::iter::once(&item.rule.id).chain(&item.rule.joined);
        for source in sources.filter(|source| source.parent.is_some()) {
            bound.insert(&*source.route);
            if takes {
                taking.insert(&*source.route);
            }
        }
    }
    bound.difference(&taking).copied().collect()
}

/// The items that the parent's rules amount to without children. One that is invalid fails its
/// requests; it prints as a rule without backends, which is valid in every route.
fn own_items(parent: &Parent<'_>) -> Vec<Option<Arc<Item>>> {
    let hostnames: Arc<[HostPattern]> = parent.route.hostnames.as_slice().into();
    let mut items = Vec::new();
    for (rule, draft) in parent.route.rules.iter().zip(&parent.drafts) {
        let fault = rule.faults.iter().find(|fault| fault.is_unacceptable());
        let item = match (fault, &rule.delegation) {
            (Some(fault), _) => invalid(parent.route.key.kind, rule, draft, fault)
                .map(|(draft, rule)| Item::new(&hostnames, draft, rule)),
            (None, Some(_)) => Some(childless(rule, draft, &hostnames)),
            (None, None) => Some(Item::new(&hostnames, draft.clone(), rule.clone())),
        };
        items.push(item.map(Arc::new));
    }
    items
}

fn invalid(kind: Kind, rule: &ParsedRule, draft: &Draft, fault: &Fault) -> Option<(Draft, ParsedRule)> {
    let everything = Draft { matches: vec![DraftMatch::default()], ..Draft::default() };
    let (failing, rule) = failing(kind, &everything, draft, rule.id.clone(), fault)?;
    Some((Draft { name: draft.name.clone(), ..failing }, rule))
}

/// "A delegating rule without any bound child is like a rule without backends": its traffic is
/// answered 500.
fn childless(rule: &ParsedRule, draft: &Draft, hostnames: &Arc<[HostPattern]>) -> Item {
    let rule = ParsedRule { filters: RuleFilters::default(), ..rule.clone() };
    Item::new(hostnames, draft.without_backends(), rule)
}
