//! The limits that the children of a parent share, judged before anything is combined: what a
//! child asks for is known from the numbers of matches. Refused children cost nothing that is kept;
//! the work on them is limited by namespace, so that no namespace uses up what others may need.
//! Must not know what combining comes to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::sides::Sides;
use crate::Fault;
use crate::route::{ParsedRoute, ParsedRule};

/// Children that one rule takes; the youngest beyond it are refused.
pub const MOST_CHILDREN_OF_A_RULE: usize = 256;
/// Combinations of a match of the parent's and one of a child's, for all children that are bound to
/// a parent.
pub const MOST_COMBINATIONS: usize = 8192;
/// The same, for the children of one namespace that turned out to be in conflict with the parent.
/// That many take less than a second.
pub const MOST_COMBINATIONS_IN_VAIN: usize = 8 * MOST_COMBINATIONS;

/// The shares that older children took.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// By rule of the parent.
    children: BTreeMap<usize, usize>,
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

/// The number of combinations that a child asks for.
pub(super) fn combinations(sides: Sides<'_>, rules: &BTreeSet<usize>) -> usize {
    let matches =
        |rules: &mut dyn Iterator<Item = &ParsedRule>| rules.map(|rule| rule.matches.len()).sum::<usize>();
    let ours = matches(&mut rules.iter().filter_map(|rule| sides.parent.rules.get(*rule)));
    ours.saturating_mul(matches(&mut sides.child.rules.iter()))
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
        let is_full =
            |rule| self.children.get(rule).is_some_and(|children| *children >= MOST_CHILDREN_OF_A_RULE);
        let in_vain = self.in_vain.get(&child.key.name.namespace).copied().unwrap_or_default();
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

    pub(super) fn add_bound(&mut self, rules: &BTreeSet<usize>, combinations: usize) {
        self.bound += combinations;
        for rule in rules {
            *self.children.entry(*rule).or_default() += 1;
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
                format!("a rule has {MOST_CHILDREN_OF_A_RULE} older child routes already")
            }
            Self::Combinations => format!(
                "all children together have more than {MOST_COMBINATIONS} combinations of their matches and the \
                 parent route's"
            ),
            Self::CombinationsInVain => format!(
                "the child routes of its namespace that are in conflict have {MOST_COMBINATIONS_IN_VAIN} combinations \
                 of matches already; correct or delete them"
            ),
        })
    }
}
