//! Weights between children that `backendRefs` name: where several have a rule for the same
//! requests, the requests are split, as they would be between backends. Rules that differ in
//! anything but their backends stay apart, and the first takes the traffic.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use portcullis_api::types::httproutes::HttpBackendReference;
use serde_json::json;

use super::assemble::Item;
use crate::route::{Draft, DraftMatch};

/// Of a rule and of a backendRef, by the CRD.
const MOST_BACKENDS: usize = 16;
const GREATEST_WEIGHT: u128 = 1_000_000;

/// Rules of several children that belong together become one, with each child's share split among
/// its backends. Those that do not fit into the first such rule stay apart, and take no requests.
pub(super) fn weigh(items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
    let mut groups = Vec::<Vec<Arc<Item>>>::new();
    let mut by_conditions = HashMap::new();
    for item in items {
        let first = *by_conditions.entry(conditions(&item)).or_insert(groups.len());
        match groups.get_mut(first).filter(|group| belongs_to(group, &item)) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups.into_iter().filter_map(join).collect()
}

/// All that two rules need to have in common, as text; the order of conditions does not matter.
fn conditions(item: &Item) -> String {
    let Draft { filters, timeouts, retry, session, .. } = &item.draft;
    let matches: BTreeSet<_> = item.draft.matches.iter().map(DraftMatch::canonical).collect();
    let hostnames: Vec<_> = item.hostnames.iter().map(ToString::to_string).collect();
    // The same reference may be permitted to one author and not to another.
    let services = item.rule.filters.services();
    let services: Vec<_> = services.map(|to| (&**to.owner, &**to.namespace)).collect();
    json!([hostnames, matches, filters, timeouts, retry, session, services]).to_string()
}

/// A rule that fails its requests, or has no backends, is nothing to be weighed.
fn belongs_to(group: &[Arc<Item>], item: &Item) -> bool {
    let backends: usize = group.iter().map(|item| item.draft.backend_refs.len()).sum();
    let is_weighed = |item: &Item| item.rule.faults.is_empty() && !item.draft.backend_refs.is_empty();
    // What is written alike may be referred to by the right of another namespace.
    let has_same_rights = |member: &Item| member.rule.filters.mirrors == item.rule.filters.mirrors;
    group.iter().all(|member| {
        member.rule.id.route != item.rule.id.route && is_weighed(member) && has_same_rights(member)
    }) && backends + item.draft.backend_refs.len() <= MOST_BACKENDS
        && is_weighed(item)
}

fn join(group: Vec<Arc<Item>>) -> Option<Arc<Item>> {
    if group.len() < 2 {
        return group.into_iter().next();
    }
    let weights = weights(&group);
    let mut members = group.into_iter();
    let mut joined = Item::clone(&*members.next()?);
    for member in members {
        joined.rule.joined.push(member.rule.id.clone());
        joined.draft.backend_refs.extend(member.draft.backend_refs.iter().cloned());
        joined.rule.backend_refs.extend(member.rule.backend_refs.iter().cloned());
    }
    for (at, weight) in weights.into_iter().flatten().enumerate() {
        joined.draft.backend_refs[at].weight = i32::try_from(weight).ok();
        joined.rule.backend_refs[at].weight = weight;
    }
    Some(Arc::new(joined))
}

/// `share × weight ⁄ sum of weights` of each backend, over a common denominator.
fn weights(group: &[Arc<Item>]) -> Option<Vec<u32>> {
    let common = common_denominator(group.iter().map(|item| total(item).max(1)));
    let mut shares = Vec::<u128>::new();
    for item in group {
        let (share, total) = (u128::from(item.share.unwrap_or(1)), total(item).max(1));
        let backends = item.draft.backend_refs.iter();
        shares.extend(
            backends.map(|to| share * u128::from(weight(to)) * u128::from(common) / u128::from(total)),
        );
    }
    let greatest = shares.iter().max().copied().unwrap_or_default();
    let divisor = greatest.div_ceil(GREATEST_WEIGHT).max(1);
    let scaled = |share: u128| if share == 0 { 0 } else { (share / divisor).max(1) };
    shares.into_iter().map(|share| u32::try_from(scaled(share)).ok()).collect()
}

fn total(item: &Item) -> u64 {
    item.draft.backend_refs.iter().map(weight).sum()
}

fn weight(reference: &HttpBackendReference) -> u64 {
    u64::try_from(reference.weight.unwrap_or(1)).unwrap_or_default()
}

/// The least common multiple, with which shares are whole numbers; the greatest number there is if
/// they have none, with which they are as good as.
fn common_denominator(mut totals: impl Iterator<Item = u64>) -> u64 {
    let least = totals.try_fold(1_u64, |common, total| {
        let (mut x, mut y) = (common, total);
        while y != 0 {
            (x, y) = (y, x % y);
        }
        (common / x).checked_mul(total)
    });
    least.unwrap_or(u64::MAX)
}
