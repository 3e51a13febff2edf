//! Weights between children that `backendRefs` name: where several have a rule for the same
//! requests, the requests are split, as they would be between backends. Rules that differ in
//! anything but their backends stay apart, and the first takes the traffic.

use std::sync::Arc;

use portcullis_api::types::httproutes::HttpBackendReference;

use super::assemble::Item;

/// Of a rule and of a backendRef, by the CRD.
const MOST_BACKENDS: usize = 16;
const GREATEST_WEIGHT: u64 = 1_000_000;

/// Rules of several children that belong together become one, with each child's share split among
/// its backends.
pub(super) fn weigh(items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
    let mut groups = Vec::<Vec<Arc<Item>>>::new();
    for item in items {
        match groups.iter_mut().find(|group| belongs_to(group, &item)) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups.into_iter().filter_map(join).collect()
}

fn belongs_to(group: &[Arc<Item>], item: &Item) -> bool {
    let Some(first) = group.first() else { return false };
    let (ours, theirs) = (&first.draft, &item.draft);
    let backends: usize = group.iter().map(|item| item.draft.backend_refs.len()).sum();
    group.iter().all(|member| member.rule.id.route != item.rule.id.route)
        && first.hostnames == item.hostnames
        && (&ours.matches, &ours.filters, &ours.timeouts)
            == (&theirs.matches, &theirs.filters, &theirs.timeouts)
        && (&ours.retry, &ours.session) == (&theirs.retry, &theirs.session)
        && backends + theirs.backend_refs.len() <= MOST_BACKENDS
        && total(first) > 0
        && total(item) > 0
}

fn join(group: Vec<Arc<Item>>) -> Option<Arc<Item>> {
    if group.len() < 2 {
        return group.into_iter().next();
    }
    let weights = weights(&group);
    let mut members = group.into_iter();
    let mut joined = Item::clone(&*members.next()?);
    for member in members {
        joined.further.push(member.rule.id.clone());
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
    let common = group.iter().map(|item| total(item)).fold(1, lcm);
    let mut exact = Vec::<u64>::new();
    for item in group {
        let factor = u64::from(item.share.unwrap_or(1)) * (common / total(item).max(1));
        exact.extend(item.draft.backend_refs.iter().map(|to| weight(to).saturating_mul(factor)));
    }
    let greatest = exact.iter().max().copied().unwrap_or_default();
    let divisor = greatest.div_ceil(GREATEST_WEIGHT).max(1);
    let scaled = |exact: u64| if exact == 0 { 0 } else { (exact / divisor).max(1) };
    exact.into_iter().map(|exact| u32::try_from(scaled(exact)).ok()).collect()
}

fn total(item: &Item) -> u64 {
    item.draft.backend_refs.iter().map(weight).sum()
}

fn weight(reference: &HttpBackendReference) -> u64 {
    u64::try_from(reference.weight.unwrap_or(1)).unwrap_or_default()
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b).max(1)
}
