//! The rules of an ephemeral route, put together to objects. Parts that hold what they held before
//! stay the same value.

use std::sync::Arc;

use portcullis_model::HostPattern;

use super::Ephemeral;
use crate::route::{Draft, ParsedRoute, ParsedRule};

/// By the CRD, of an HTTPRoute: hostnames, rules, matches of all rules.
const HOSTNAMES_OF_A_ROUTE: usize = 16;
const RULES_OF_A_ROUTE: usize = 16;
const MATCHES_OF_A_ROUTE: usize = 128;

/// A rule of the ephemeral route: as written, and as parsed.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) hostnames: Arc<[HostPattern]>,
    pub(super) draft: Draft,
    pub(super) rule: ParsedRule,
    /// The weight of the reference that named the child.
    pub(super) share: Option<u32>,
}

// === impl Item ===

impl Item {
    pub(super) fn new(hostnames: &Arc<[HostPattern]>, draft: Draft, rule: ParsedRule) -> Self {
        Self { hostnames: hostnames.clone(), draft, rule, share: None }
    }

    pub(super) fn compiled(&self) -> usize {
        self.draft.matches.len()
    }
}

/// Parts that can each be written as one object, in the order of precedence. Together they count as
/// one route, with the parent's age and name. `before` are those of the same parent.
pub(super) fn parts(
    parent: &ParsedRoute,
    items: Vec<Arc<Item>>,
    before: Option<&[Arc<Ephemeral>]>,
) -> Vec<Arc<Ephemeral>> {
    let mut parts = Vec::new();
    let mut first_rule = 0;
    for run in runs(items) {
        let hostnames = run.first().map(|item| item.hostnames.clone()).unwrap_or_default();
        for hostnames in hostnames.chunks(HOSTNAMES_OF_A_ROUTE) {
            let before = before.and_then(|before| before.get(parts.len()));
            parts.push(part(parent, hostnames, first_rule, &run, before));
        }
        first_rule += run.len();
    }
    parts
}

/// Neighbours with the same hostnames, as many as fit into one route: order decides between equal
/// matches, so it is kept.
fn runs(items: Vec<Arc<Item>>) -> Vec<Vec<Arc<Item>>> {
    let mut runs = Vec::<Vec<Arc<Item>>>::new();
    let mut matches = 0_usize;
    for item in items {
        matches += item.compiled();
        match runs.last_mut() {
            Some(run)
                if run.len() < RULES_OF_A_ROUTE
                    && matches <= MATCHES_OF_A_ROUTE
                    && run.first().is_some_and(|first| first.hostnames == item.hostnames) =>
            {
                run.push(item);
            }
            _ => {
                matches = item.compiled();
                runs.push(vec![item]);
            }
        }
    }
    runs
}

fn part(
    parent: &ParsedRoute,
    hostnames: &[HostPattern],
    first_rule: usize,
    items: &[Arc<Item>],
    before: Option<&Arc<Ephemeral>>,
) -> Arc<Ephemeral> {
    let same = before.filter(|before| {
        (before.route.first_rule, before.route.hostnames.as_slice()) == (first_rule, hostnames)
            && before.items.len() == items.len()
            && before.items.iter().zip(items).all(|(a, b)| Arc::ptr_eq(a, b))
    });
    match same {
        Some(same) => same.clone(),
        None => Arc::new(Ephemeral {
            route: Arc::new(route(parent, hostnames, first_rule, items)),
            items: items.to_vec(),
        }),
    }
}

fn route(
    parent: &ParsedRoute,
    hostnames: &[HostPattern],
    first_rule: usize,
    items: &[Arc<Item>],
) -> ParsedRoute {
    let parent_routes: Vec<_> = parent.parent_routes().map(|(index, _)| index).collect();
    let parent_refs = parent.parent_refs.iter().enumerate();
    ParsedRoute {
        key: parent.key.clone(),
        generation: parent.generation,
        origin: parent.origin.clone(),
        source: parent.source.clone(),
        hostnames: hostnames.to_vec(),
        parent_refs: parent_refs
            .filter(|(index, _)| !parent_routes.contains(index))
            .map(|(_, reference)| reference.clone())
            .collect(),
        named: (0..parent.named).filter(|index| !parent_routes.contains(index)).count(),
        default_scope: parent.default_scope,
        names_namespace: Vec::new(),
        rules: items.iter().map(|item| item.rule.clone()).collect(),
        first_rule,
        faults: Vec::new(),
        ignored: Vec::new(),
    }
}
