//! The rules of an ephemeral route, put together to objects. Parts that hold what they held before
//! stay the same value.

use std::sync::Arc;

use portcullis_api::ObjectKey;
use portcullis_model::{HostPattern, ObjectName, RouteOrigin, RuleId};

use super::Ephemeral;
use crate::route::{Draft, ParsedRoute, ParsedRule};

/// By the CRD, of an HTTPRoute: rules, matches of all rules.
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
    /// Rules that were joined with this one.
    pub(super) further: Vec<Arc<RuleId>>,
}

// === impl Item ===

impl Item {
    pub(super) fn new(hostnames: &Arc<[HostPattern]>, draft: Draft, rule: ParsedRule) -> Self {
        Self { hostnames: hostnames.clone(), draft, rule, share: None, further: Vec::new() }
    }

    pub(super) fn compiled(&self) -> usize {
        self.draft.matches.len()
    }
}

/// Parts that can each be written as one object, named in the order of precedence: `web`,
/// `web-e0001`, `web-e0002`. `before` are those of the same parent.
pub(super) fn parts(
    parent: &ParsedRoute,
    items: Vec<Arc<Item>>,
    before: Option<&[Arc<Ephemeral>]>,
) -> Vec<Arc<Ephemeral>> {
    let mut parts = Vec::new();
    for (at, run) in runs(items).into_iter().enumerate() {
        let suffix = if at == 0 { String::new() } else { format!("-e{at:04}") };
        parts.push(part(parent, &suffix, run, before.and_then(|before| before.get(at))));
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
    suffix: &str,
    items: Vec<Arc<Item>>,
    before: Option<&Arc<Ephemeral>>,
) -> Arc<Ephemeral> {
    let same = before.filter(|before| {
        before.items.len() == items.len() && before.items.iter().zip(&items).all(|(a, b)| Arc::ptr_eq(a, b))
    });
    match same {
        Some(same) => same.clone(),
        None => Arc::new(Ephemeral { route: Arc::new(route(parent, suffix, &items)), items }),
    }
}

fn route(parent: &ParsedRoute, suffix: &str, items: &[Arc<Item>]) -> ParsedRoute {
    let key = &parent.key;
    let name = ObjectName::new(key.name.namespace.clone(), format!("{}{suffix}", key.name.name));
    let parent_routes: Vec<_> = parent.parent_routes().map(|(index, _)| index).collect();
    let parent_refs = parent.parent_refs.iter().enumerate();
    ParsedRoute {
        key: ObjectKey::new(key.kind, name.clone()),
        generation: parent.generation,
        origin: RouteOrigin { created: parent.origin.created, name: Arc::new(name) },
        source: parent.source.clone(),
        hostnames: items.first().map(|item| item.hostnames.to_vec()).unwrap_or_default(),
        parent_refs: parent_refs
            .filter(|(index, _)| !parent_routes.contains(index))
            .map(|(_, reference)| reference.clone())
            .collect(),
        names_namespace: Vec::new(),
        rules: items.iter().map(|item| item.rule.clone()).collect(),
        faults: Vec::new(),
        ignored: Vec::new(),
    }
}
