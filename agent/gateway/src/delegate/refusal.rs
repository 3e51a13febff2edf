//! Why a child is not bound, told twice: to the child's owner and to the parent's. Across namespaces each learns what to
//! change of his own, and nothing of the other's: "the notification might include confidential information from one of the
//! namespaces, that should not be exposed" (GEP-1058).

use super::combine::Clash;
use crate::Reason;
use crate::route::{ParsedRoute, ParsedRule, Problem};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub cause: Cause,
    pub reason: Reason,
    pub to_child: String,
    pub to_parent: String,
}

/// Decides which conditions tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One of both sides did not agree. The parent is not told: otherwise anybody could spoil its status.
    Consent,
    /// `NotSupported`: more than two tiers.
    Unsupported,
    /// `Conflicted`: both together are no valid route.
    Conflict,
    /// The child, the parent's rule, or the number of children is at fault.
    Invalid,
}

/// Parent and child, for the words of a message.
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

    /// How the parent's owner is told of the child.
    pub(super) fn the_child(self) -> String {
        if self.same_namespace() {
            self.child.key.to_string()
        } else {
            "a child route of another namespace".to_owned()
        }
    }

    pub(super) fn no_such_rule(self, section: &str) -> Refusal {
        let to_child = format!("the parent route has no rule named {section}");
        Refusal {
            cause: Cause::Consent,
            reason: Reason::NoMatchingParent,
            to_child,
            to_parent: String::new(),
        }
    }

    pub(super) fn not_allowed(self) -> Refusal {
        let kind = self.child.key.kind;
        let to_child = format!(
            "no rule of the parent route that this parentRef names allows {kind}s of this namespace (allowedRoutes of the rule)"
        );
        Refusal {
            cause: Cause::Consent,
            reason: Reason::NotAllowedByParent,
            to_child,
            to_parent: String::new(),
        }
    }

    pub(super) fn third_tier(self) -> Refusal {
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
            format!("{} takes child routes itself; only two tiers are supported", self.the_child())
        };
        Refusal {
            cause: Cause::Unsupported,
            reason: Reason::NotSupported,
            to_child: to_child.to_owned(),
            to_parent,
        }
    }

    pub(super) fn child_refused(self, problem: &Problem) -> Refusal {
        let to_parent = format!("{} is not valid", self.the_child());
        Refusal {
            cause: Cause::Invalid,
            reason: problem.reason,
            to_child: problem.message.clone(),
            to_parent,
        }
    }

    pub(super) fn parent_rule_invalid(self, rule: &ParsedRule) -> Refusal {
        Refusal {
            cause: Cause::Invalid,
            reason: Reason::Invalid,
            to_child: "the parent route's rule is not valid; its owner has to correct it".to_owned(),
            to_parent: format!("{} is not valid and takes no child routes", rule.label()),
        }
    }

    pub(super) fn no_hostname(self) -> Refusal {
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
                format!("none of the hostnames {ours} matches those of {}", self.the_child()),
            )
        };
        Refusal { cause: Cause::Conflict, reason: Reason::HostnameMismatch, to_child, to_parent }
    }

    pub(super) fn too_many(self, what: &str) -> Refusal {
        Refusal {
            cause: Cause::Invalid,
            reason: Reason::LimitExceeded,
            to_child: format!("the parent route cannot take more: {what}"),
            to_parent: format!("{} cannot be bound: {what}", self.the_child()),
        }
    }

    /// Elements and source routes of both sides within a namespace; across namespaces each side's own.
    pub(super) fn clash(self, parent: &ParsedRule, child: &ParsedRule, clash: &Clash) -> Refusal {
        let Clash { place, why, .. } = clash;
        let ours = format!("{} in {} of {}", clash.parent, parent.label(), self.parent.key);
        let theirs = format!("{} in {} of {}", clash.child, child.label(), self.child.key);
        let (to_child, to_parent) = if self.same_namespace() {
            let both = format!("{why}: {ours}, and {theirs}");
            (both.clone(), both)
        } else {
            (
                format!("{why}: {theirs}, and {place} of the parent route's rule"),
                format!("{why}: {ours}, and {place} of {}", self.the_child()),
            )
        };
        Refusal { cause: Cause::Conflict, reason: Reason::Conflicted, to_child, to_parent }
    }
}
