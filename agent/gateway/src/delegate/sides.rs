//! Faults between a parent and a child, in the words of both sides. The fault is the child's: its
//! owner reads it in full, and the parent's owner its public message, which names the child: it
//! showed itself by naming its parent. Across namespaces each learns what to change of their own,
//! and nothing that the other wrote: "the notification might include confidential information from
//! one of the namespaces, that should not be exposed" (GEP-1058). Without consent it is not
//! reported at the parent at all: otherwise any child could spoil its status.

use std::collections::BTreeSet;

use super::combine::{self, CombineError, Suspicion, shown};
use crate::route::{DraftMatch, ParsedRoute, ParsedRule, failure};
use crate::{ConditionType, Fault, Reason};

/// A parent and a child.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    pub(super) parent: &'a ParsedRoute,
    pub(super) child: &'a ParsedRoute,
}

// === impl Sides ===

impl Sides<'_> {
    pub(super) fn same_namespace(self) -> bool {
        self.parent.key.name.namespace == self.child.key.name.namespace
    }

    pub(super) fn no_such_rule(self, section: &str) -> Fault {
        let to_child = format!("the parent route has no rule named {section}");
        Fault::new(ConditionType::Attached, Reason::NoMatchingParent, to_child)
    }

    pub(super) fn not_allowed(self) -> Fault {
        let kind = self.child.key.kind;
        let to_child = format!(
            "no rule of the parent route that this parentRef names allows {kind}s of this namespace (allowedRoutes of the rule)"
        );
        Fault::new(ConditionType::Attached, Reason::NotAllowedByParent, to_child)
    }

    pub(super) fn third_tier(self) -> Fault {
        let parent_is_child = self.parent.parent_routes().next().is_some();
        let to_child = if parent_is_child {
            "the parent route is a child of a route itself; only two tiers are supported"
        } else {
            "a route with rules for child routes cannot be a child itself; only two tiers are supported: remove allowedRoutes \
             and references to routes, or the parentRef"
        };
        let to_parent = if parent_is_child {
            "this route is a child of a route and cannot take child routes; only two tiers are supported: remove the parentRef \
             to a route, or allowedRoutes and references to routes"
                .to_owned()
        } else {
            format!("{} takes child routes itself; only two tiers are supported", self.child.key)
        };
        Fault::new(ConditionType::NotSupported, Reason::NotSupported, to_child).with_public_message(to_parent)
    }

    pub(super) fn child_refused(self, fault: Fault) -> Fault {
        fault.under(ConditionType::Attached).with_public_message(format!("{} is not valid", self.child.key))
    }

    /// A GRPCRoute can be without: it takes no requests.
    pub(super) fn no_rules(self) -> Fault {
        let to_child = "the route has no rules that could attach: add one";
        Fault::new(ConditionType::Attached, Reason::Invalid, to_child)
            .with_public_message(format!("{} has no rules", self.child.key))
    }

    pub(super) fn parent_rule_invalid(self, rule: &ParsedRule) -> Fault {
        let to_child = "the parent route's rule is not valid; its owner has to correct it";
        Fault::new(ConditionType::Attached, Reason::Invalid, to_child)
            .with_public_message(format!("{} is not valid and takes no child routes", rule.label()))
    }

    pub(super) fn no_hostname(self) -> Fault {
        let list = |route: &ParsedRoute| {
            route.hostnames.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let (ours, theirs) = (list(self.parent), list(self.child));
        let (to_child, to_parent) = if self.same_namespace() {
            let both = format!("hostnames {theirs} of {} and {ours} of {}", self.child.key, self.parent.key);
            (format!("{both} have no name in common"), format!("{both} have no name in common"))
        } else {
            (
                format!("none of the hostnames {theirs} matches the parent route's hostnames"),
                format!("none of the hostnames {ours} matches those of {}", self.child.key),
            )
        };
        Fault::new(ConditionType::Conflicted, Reason::HostnameMismatch, to_child)
            .with_public_message(to_parent)
    }

    pub(super) fn too_many(self, what: &str) -> Fault {
        let to_child = format!("the parent route cannot take more: {what}");
        Fault::new(ConditionType::Attached, Reason::LimitExceeded, to_child)
            .with_public_message(format!("{} cannot be bound: {what}", self.child.key))
    }

    /// A note to the child's owner on a combination that is seldom meant.
    pub(super) fn hint(self, rule: &ParsedRule, ours: &DraftMatch, theirs: &DraftMatch) -> Option<String> {
        let suspicion = combine::suspicion(ours, theirs)?;
        let both = combine::both(ours, theirs).ok()?.path?;
        let together =
            if self.same_namespace() { format!(" and is {}", shown(&both)) } else { String::new() };
        let own = format!("path {} in {}", shown(theirs.path.as_ref()?), rule.label());
        Some(match suspicion {
            Suspicion::SlashOnly => format!(
                "{own} is relative to the parent route's{together}, with a slash at its end: to match it without, too, \
                 use PathPrefix /"
            ),
            Suspicion::ParentRepeated => format!(
                "{own} begins with the parent route's path but is relative to it{together}: leave out what the parent \
                 matches already"
            ),
        })
    }

    /// The answer to requests that a refused child asks for, by the rules of the parent that agreed
    /// to it. Across namespaces a child learns the rule, and not which case of it is at hand: that
    /// depends on other children.
    pub(super) fn instead(self, agreed: &BTreeSet<usize>, childless: &[usize]) -> String {
        let failure = failure(self.parent.key.kind).as_u16();
        let others = "requests go to other rules that match them, and are answered 404 if none does";
        if !self.same_namespace() || agreed.is_empty() {
            return format!(
                "until it attaches, {others}; a rule of the parent route without any child route answers {failure}"
            );
        }
        let (failing, passing): (Vec<_>, Vec<_>) = agreed.iter().partition(|rule| childless.contains(rule));
        let labels = |rules: &[&usize]| {
            let labels = rules.iter().filter_map(|rule| self.parent.rules.get(**rule)).map(ParsedRule::label);
            labels.collect::<Vec<_>>().join(", ")
        };
        let fails = format!("{} of {} answers {failure}", labels(&failing), self.parent.key);
        match (failing.as_slice(), passing.as_slice()) {
            ([], _) => format!("until it attaches, {others}"),
            (_, []) => format!("until a child route attaches, {fails}"),
            (_, passing) => {
                format!("until a child route attaches, {fails}; for {}, {others}", labels(passing))
            }
        }
    }

    /// Elements and source routes of both sides within a namespace; across namespaces each side's
    /// own.
    pub(super) fn conflict(self, parent: &ParsedRule, child: &ParsedRule, error: &CombineError) -> Fault {
        let CombineError { place, why, .. } = error;
        let ours = format!("{} in {} of {}", error.parent, parent.label(), self.parent.key);
        let theirs = format!("{} in {} of {}", error.child, child.label(), self.child.key);
        let (to_child, to_parent) = if self.same_namespace() {
            let both = format!("{why}: {ours}, and {theirs}");
            (both.clone(), both)
        } else {
            (
                format!("{why}: {theirs}, and {place} of the parent route's rule"),
                format!("{why}: {ours}, and {place} of {}", self.child.key),
            )
        };
        Fault::new(ConditionType::Conflicted, Reason::Conflicted, to_child).with_public_message(to_parent)
    }
}
