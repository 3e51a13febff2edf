//! The limits that the children of a parent share, judged before anything is combined: what a
//! child asks for is known from the numbers of matches. Refused children cost nothing that is kept;
//! the work on them is limited by namespace, so that no namespace uses up what others may need.
//! Nor does it with children that are bound: what is left is shared out between namespaces, not
//! given to the oldest. Must not know what combining comes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{PathMatch, RouteMatch, ValueMatch};

use super::sides::Sides;
use crate::Fault;
use crate::route::{ParsedRoute, ParsedRule};

/// Children of one namespace that one rule takes; the youngest beyond it are refused.
pub const MOST_CHILDREN_OF_A_RULE: usize = 256;
/// Combinations of a match of the parent's and one of a child's, for all children that are bound to
/// a parent.
pub const MOST_COMBINATIONS: usize = 8192;
/// The same, for the children of one namespace that turned out to be in conflict with the parent.
/// That many take less than a second.
pub const MOST_COMBINATIONS_IN_VAIN: usize = 8 * MOST_COMBINATIONS;

/// Bytes of conditions up to which a match counts for one.
const BYTES_OF_A_MATCH: usize = 512;

/// The shares that older children took.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// By rule of the parent and namespace.
    children: BTreeMap<(usize, Arc<str>), usize>,
    bound: usize,
    /// By namespace.
    in_vain: BTreeMap<Arc<str>, usize>,
}

/// The limit that a child would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    ChildrenOfARule,
    Combinations,
    CombinationsInVain,
}

/// The order in which children are judged, as indices of `asked`: the namespaces of all children
/// in the order of binding, and the combinations that each asks for. Whatever a namespace asks for
/// in all, its first combinations come before other namespaces' later ones: where there is not
/// enough for all, those that ask for the least get it, and the rest is shared evenly ("max-min
/// fairness").
pub(super) fn order<'n>(asked: impl Iterator<Item = (&'n str, usize)>) -> Vec<usize> {
    let mut totals = BTreeMap::<_, usize>::new();
    let mut order = Vec::new();
    for (at, (namespace, combinations)) in asked.enumerate() {
        let total = totals.entry(namespace).or_default();
        *total = total.saturating_add(combinations);
        order.push((*total, at));
    }
    order.sort_unstable();
    order.into_iter().map(|(_, at)| at).collect()
}

/// The combinations that a child asks for. A match with long conditions counts for as many as take
/// the same memory.
pub(super) fn combinations(sides: Sides<'_>, rules: &BTreeSet<usize>) -> usize {
    let ours = Matches::of(rules.iter().filter_map(|rule| sides.parent.rules.get(*rule)));
    let theirs = Matches::of(sides.child.rules.iter());
    let further = ours.further * theirs.count + ours.count * theirs.further;
    ours.count * theirs.count + further
}

/// The matches of one side.
#[derive(Default)]
struct Matches {
    count: usize,
    /// Times that their conditions fill [`BYTES_OF_A_MATCH`].
    further: usize,
}

// === impl Matches ===

impl Matches {
    fn of<'r>(rules: impl Iterator<Item = &'r ParsedRule>) -> Self {
        let mut matches = Self::default();
        for matched in rules.flat_map(|rule| &rule.matches) {
            matches.count += 1;
            matches.further += bytes(matched) / BYTES_OF_A_MATCH;
        }
        matches
    }
}

/// The memory that a match's conditions take, roughly.
fn bytes(matched: &RouteMatch) -> usize {
    const CONDITION: usize = 64;
    let path = match &matched.path {
        PathMatch::Exact(path) | PathMatch::Prefix(path) => path.len(),
        PathMatch::Regex(pattern) => pattern.written.len(),
    };
    let condition = |name: &str, value: &ValueMatch| {
        let value = match value {
            ValueMatch::Exact(value) => value.len(),
            ValueMatch::Regex(pattern) => pattern.written.len(),
        };
        CONDITION + name.len() + value
    };
    let headers = matched.headers.iter().map(|(name, value)| condition(name.as_str(), value));
    let query = matched.query.iter().map(|(name, value)| condition(name, value));
    path + headers.chain(query).sum::<usize>()
}

// === impl Limits ===

impl Limits {
    /// A child that asks for nothing exceeds nothing.
    pub(super) fn excess(
        &self,
        child: &ParsedRoute,
        rules: &BTreeSet<usize>,
        combinations: usize,
    ) -> Option<Excess> {
        let namespace = &child.key.name.namespace;
        let is_full = |rule: &usize| {
            let children = self.children.get(&(*rule, namespace.clone())).copied();
            children.unwrap_or_default() >= MOST_CHILDREN_OF_A_RULE
        };
        let in_vain = self.in_vain.get(namespace).copied().unwrap_or_default();
        match combinations {
            0 => None,
            _ if rules.iter().any(is_full) => Some(Excess::ChildrenOfARule),
            _ if combinations > MOST_COMBINATIONS.saturating_sub(self.bound) => Some(Excess::Combinations),
            _ if combinations > MOST_COMBINATIONS_IN_VAIN.saturating_sub(in_vain) => {
                Some(Excess::CombinationsInVain)
            }
            _ => None,
        }
    }

    pub(super) fn add_bound(&mut self, child: &ParsedRoute, rules: &BTreeSet<usize>, combinations: usize) {
        self.bound += combinations;
        for rule in rules {
            *self.children.entry((*rule, child.key.name.namespace.clone())).or_default() += 1;
        }
    }

    pub(super) fn add_in_vain(&mut self, child: &ParsedRoute, combinations: usize) {
        *self.in_vain.entry(child.key.name.namespace.clone()).or_default() += combinations;
    }
}

// === impl Excess ===

impl Excess {
    pub(super) fn fault(self, sides: Sides<'_>) -> Fault {
        sides.too_many(&match self {
            Self::ChildrenOfARule => {
                format!("a rule has {MOST_CHILDREN_OF_A_RULE} older child routes of its namespace already")
            }
            Self::Combinations => format!(
                "all children together have more than {MOST_COMBINATIONS} combinations of their matches and the \
                 parent route's, and its namespace has its share"
            ),
            Self::CombinationsInVain => format!(
                "the child routes of its namespace that are in conflict have {MOST_COMBINATIONS_IN_VAIN} combinations \
                 of matches already; correct or delete them"
            ),
        })
    }
}
