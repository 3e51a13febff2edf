//! Binding: one transaction per (parent, child) pair, in series, the oldest child first (then by
//! name). What fails leaves the ephemeral route as it is and blocks no other child.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_model::HostPattern;

use super::assemble::{self, Item};
use super::consent::{Candidate, unresolved};
use super::pair::{Contribution, Pair, Parent};
use super::sides::Sides;
use super::weigh::weigh;
use super::{Family, Surroundings};
use crate::Fault;
use crate::route::{ChildReference, Delegation, ParsedRoute, ParsedRule, RuleFilters};

/// Children that one rule takes; the youngest beyond it are refused.
pub const MOST_CHILDREN_OF_A_RULE: usize = 256;
/// Rules that the children of one parent may amount to, alternatives counted.
pub const MOST_COMPILED_RULES: usize = 8192;

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
    let parent = Parent::new(parent);
    let pairs = pairs(&parent, candidates, surroundings, before.map(|before| &**before));
    let unresolved = unresolved_children(parent.route, &pairs, surroundings);
    let is_same = |before: &&Arc<Family>| before.unresolved == unresolved && same(&before.pairs, &pairs);
    match before.filter(is_same) {
        Some(same) => same.clone(),
        None => Arc::new(Binding::new(&parent).family(pairs, unresolved, before.map(|before| &**before))),
    }
}

/// In the order of binding.
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
    let pair = |child| Pair::new(parent, child, known.get(&Arc::as_ptr(child)).copied(), surroundings);
    children.into_iter().map(pair).collect()
}

fn unresolved_children(
    parent: &ParsedRoute,
    pairs: &[Arc<Pair>],
    surroundings: &dyn Surroundings,
) -> Vec<Fault> {
    let found = |listed: &ChildReference| {
        let is_named = |pair: &&Arc<Pair>| {
            let name = &pair.child.key.name;
            name.namespace == listed.namespace && Some(&name.name) == listed.name.as_ref()
        };
        match pairs.iter().find(is_named).map(|pair| &pair.report) {
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

/// The series of transactions.
struct Binding<'p> {
    parent: &'p Parent<'p>,
    /// By rule of the parent, what its children contributed.
    bound: Vec<Vec<Arc<Item>>>,
    /// By rule of the parent.
    children_of_rule: Vec<usize>,
    guards: Vec<Arc<Item>>,
    compiled: usize,
}

impl<'p> Binding<'p> {
    fn new(parent: &'p Parent<'p>) -> Self {
        let count = parent.route.rules.len();
        Self {
            parent,
            bound: std::iter::repeat_with(Vec::new).take(count).collect(),
            children_of_rule: vec![0; count],
            guards: Vec::new(),
            compiled: 0,
        }
    }

    fn family(mut self, pairs: Vec<Arc<Pair>>, unresolved: Vec<Fault>, before: Option<&Family>) -> Family {
        let children = pairs.iter().filter_map(|pair| self.add(pair)).collect();
        let childless = self.childless();
        let own = before.map_or_else(|| own_items(self.parent), |before| before.own.clone());
        let items = self.items(&own);
        let route = self.parent.route;
        Family {
            parent: route.clone(),
            ephemeral: assemble::parts(route, items, before.map(|before| before.ephemeral.as_slice())),
            guards: assemble::guards(route, self.guards, before.map(|before| before.guards.as_slice())),
            children,
            unresolved,
            childless,
            pairs,
            own,
        }
    }

    /// One transaction: the pair's own part is done; what is left are the limits that all children
    /// share.
    fn add(&mut self, pair: &Arc<Pair>) -> Option<Arc<super::ChildReport>> {
        match self.limit(pair) {
            Some(refusal) => {
                let refused = pair.refused(self.parent, &refusal);
                self.guard(&refused.contribution);
                refused.report
            }
            None => {
                self.compiled += pair.contribution.compiled();
                for (rule, items) in &pair.contribution.rules {
                    self.children_of_rule[*rule] += 1;
                    self.bound[*rule].extend(items.iter().cloned());
                }
                self.guard(&pair.contribution);
                pair.report.clone()
            }
        }
    }

    fn guard(&mut self, contribution: &Contribution) {
        let room = MOST_COMPILED_RULES.saturating_sub(self.guards.len());
        self.guards.extend(contribution.guards.iter().take(room).cloned());
    }

    fn limit(&self, pair: &Pair) -> Option<Fault> {
        let sides = Sides { parent: self.parent.route, child: &pair.child };
        let rules = &pair.contribution.rules;
        if rules.iter().any(|(rule, _)| self.children_of_rule[*rule] >= MOST_CHILDREN_OF_A_RULE) {
            let what = format!("a rule has {MOST_CHILDREN_OF_A_RULE} older child routes already");
            return Some(sides.too_many(&what));
        }
        let exceeded = self.compiled + pair.contribution.compiled() > MOST_COMPILED_RULES;
        let what = || format!("all children together have more than {MOST_COMPILED_RULES} rules");
        (exceeded && !rules.is_empty()).then(|| sides.too_many(&what()))
    }

    fn childless(&self) -> Vec<usize> {
        let rules = self.parent.route.rules.iter().zip(&self.bound).enumerate();
        let childless = rules.filter(|(_, (rule, bound))| rule.delegation.is_some() && bound.is_empty());
        childless.map(|(index, _)| index).collect()
    }

    /// The rules of the ephemeral route, in the order of the parent's.
    fn items(&mut self, own: &[Arc<Item>]) -> Vec<Arc<Item>> {
        let mut items = Vec::new();
        for (index, (rule, own)) in self.parent.route.rules.iter().zip(own).enumerate() {
            let bound = std::mem::take(&mut self.bound[index]);
            match (&rule.delegation, bound.is_empty()) {
                (Some(Delegation::Listed(_)), false) => items.extend(weigh(bound)),
                (Some(_), false) => items.extend(bound),
                (_, true) | (None, _) => items.push(own.clone()),
            }
        }
        items
    }
}

/// The items that the parent's rules amount to without children.
fn own_items(parent: &Parent<'_>) -> Vec<Arc<Item>> {
    let hostnames: Arc<[HostPattern]> = parent.route.hostnames.as_slice().into();
    let own = |(rule, draft): (&ParsedRule, &_)| match &rule.delegation {
        Some(_) => childless(rule, draft, &hostnames),
        None => Item::new(&hostnames, super::draft::Draft::clone(draft), rule.clone()),
    };
    parent.route.rules.iter().zip(&parent.drafts).map(own).map(Arc::new).collect()
}

/// "A delegating rule without any bound child is like a rule without backends": its traffic is
/// answered 500.
fn childless(rule: &ParsedRule, draft: &super::draft::Draft, hostnames: &Arc<[HostPattern]>) -> Item {
    let rule = ParsedRule { filters: RuleFilters::default(), ..rule.clone() };
    Item::new(hostnames, draft.without_backends(), rule)
}
