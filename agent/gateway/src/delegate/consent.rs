//! The consent of parents and children: which rules a child may bind to. Both sides have to agree:
//! the parent by a rule's `allowedRoutes` or by naming the child in `backendRefs`, the child by
//! naming the parent in `parentRefs`. A child that the parent names needs no parentRef within a
//! namespace; from another namespace a ReferenceGrant agrees for it, unless it names parent routes
//! of its own choice.

use std::collections::BTreeSet;

use portcullis_api::types::shared::{AllowedRoutes, ParentReference};

use super::sides::Sides;
use super::{Attempt, Surroundings};
use crate::route::{ChildReference, Delegation, ParsedRoute, ParsedRule};
use crate::selector::NamespaceRule;
use crate::{ConditionType, Fault, Reason};

/// The attempts of a child to bind to a parent, and the rules that both agree to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Agreement {
    pub(super) attempts: Vec<Attempt>,
    /// Indices of the parent's rules.
    pub(super) rules: BTreeSet<usize>,
}

pub(super) fn agree(sides: Sides<'_>, surroundings: &dyn Surroundings) -> Agreement {
    let mut agreement = Agreement { attempts: Vec::new(), rules: BTreeSet::new() };
    for (index, reference) in sides.child.parent_routes().filter(|(_, to)| names(to, sides.parent)) {
        let found = rules_for(sides, reference, surroundings);
        agreement.add(Some(index), as_written(sides.child, index, reference), found);
    }
    if agreement.attempts.is_empty() {
        let adopting = adopting_rules(sides, surroundings);
        if !adopting.is_empty() {
            agreement.add(None, reference_to(sides), Ok(adopting));
        }
    }
    agreement
}

impl Agreement {
    fn add(&mut self, index: Option<usize>, reference: ParentReference, found: Result<Vec<usize>, Fault>) {
        let result = found.map(|rules| {
            self.rules.extend(&rules);
            rules.len()
        });
        self.attempts.push(Attempt { index, reference, result });
    }
}

fn names(reference: &ParentReference, parent: &ParsedRoute) -> bool {
    reference.name == *parent.key.name.name
        && reference.namespace.as_deref() == Some(&*parent.key.name.namespace)
}

fn rules_for(
    sides: Sides<'_>,
    reference: &ParentReference,
    surroundings: &dyn Surroundings,
) -> Result<Vec<usize>, Fault> {
    let section = reference.section_name.as_deref().filter(|section| !section.is_empty());
    let rules = sides.parent.rules.iter().enumerate();
    // A stranger learns nothing, not even which rules there are.
    let is_admitted = || sides.parent.rules.iter().any(|rule| allows(sides, rule, surroundings));
    if !sides.same_namespace() && !is_admitted() {
        return Err(not_admitted(sides.child, reference));
    }
    let named: Vec<_> = rules
        .filter(|(_, rule)| section.is_none_or(|section| rule.id.name.as_deref() == Some(section)))
        .collect();
    if let (Some(section), true) = (section, named.is_empty()) {
        return Err(sides.no_such_rule(section));
    }
    let allowing: Vec<_> = named
        .into_iter()
        .filter(|(_, rule)| allows(sides, rule, surroundings))
        .map(|(index, _)| index)
        .collect();
    if allowing.is_empty() { Err(sides.not_allowed()) } else { Ok(allowing) }
}

/// True if a rule agrees to a child that names the parent.
fn allows(sides: Sides<'_>, rule: &ParsedRule, surroundings: &dyn Surroundings) -> bool {
    match &rule.delegation {
        None => false,
        Some(Delegation::Allowed(allowed)) => admits(sides, allowed, surroundings),
        Some(Delegation::Listed(children)) => children.iter().any(|listed| is_child(listed, sides.child)),
    }
}

fn admits(sides: Sides<'_>, allowed: &AllowedRoutes, surroundings: &dyn Surroundings) -> bool {
    let own = sides.child.key.kind;
    let kinds = allowed.kinds.as_deref().unwrap_or_default();
    let kind_allowed = kinds.is_empty()
        || kinds.iter().any(|allowed| {
            allowed.group.as_deref().unwrap_or(own.group()) == own.group() && allowed.kind == own.as_str()
        });
    let rule = NamespaceRule::new(allowed.namespaces.as_ref(), NamespaceRule::Same);
    let (parent, child) = (&sides.parent.key.name.namespace, &sides.child.key.name.namespace);
    kind_allowed && surroundings.admits(&rule, parent, child)
}

/// Weight 0 means "no traffic": such a child is not attached.
fn is_child(listed: &ChildReference, child: &ParsedRoute) -> bool {
    let name = &child.key.name;
    listed.weight > 0
        && listed.namespace == name.namespace
        && listed.name.as_ref().is_none_or(|named| *named == name.name)
}

/// The reference that a child is attached by, and its index in the rule's `backendRefs`: by name
/// before `*`, then the first.
pub(super) fn reference_of<'r>(
    rule: &'r ParsedRule,
    child: &ParsedRoute,
) -> Option<(usize, &'r ChildReference)> {
    let Some(Delegation::Listed(children)) = &rule.delegation else { return None };
    let named = children.iter().enumerate().filter(|(_, listed)| is_child(listed, child));
    named.min_by_key(|(_, listed)| listed.name.is_none())
}

/// The rules that name a child which does not name the parent.
fn adopting_rules(sides: Sides<'_>, surroundings: &dyn Surroundings) -> Vec<usize> {
    // A child that chose parent routes is no other parent's, and no route is its own child.
    if sides.child.parent_routes().next().is_some() || sides.child.key == sides.parent.key {
        return Vec::new();
    }
    let mut adopting = Vec::new();
    for (index, rule) in sides.parent.rules.iter().enumerate() {
        let Some(Delegation::Listed(children)) = &rule.delegation else { continue };
        let mut named = children.iter().filter(|listed| is_child(listed, sides.child));
        if named.any(|listed| agrees_to(sides, listed, surroundings)) {
            adopting.push(index);
        }
    }
    adopting
}

fn agrees_to(sides: Sides<'_>, listed: &ChildReference, surroundings: &dyn Surroundings) -> bool {
    // `*` means children, not every route there: those with parents of their own or children of
    // their own have another job.
    let has_another_job = !sides.child.parent_refs.is_empty() || sides.child.is_parent();
    if listed.name.is_none() && has_another_job {
        return false;
    }
    sides.same_namespace() || {
        let parent = &sides.parent.key;
        surroundings.permits(parent.kind, &parent.name.namespace, &sides.child.key.name)
    }
}

/// The refusal of a child by a parent of another namespace that does not admit it, does not have
/// the rule, or does not exist: which of these is not said.
pub(super) fn not_admitted(child: &ParsedRoute, reference: &ParentReference) -> Fault {
    let kind = child.key.kind;
    let section = reference.section_name.as_deref().filter(|section| !section.is_empty());
    let message = format!(
        "there is no {kind} {}/{} with a rule{} that allows {kind}s of this namespace: its owner has to add one \
         (allowedRoutes, or backendRefs to this route)",
        reference.namespace.as_deref().unwrap_or_default(),
        reference.name,
        section.map(|section| format!(" {section}")).unwrap_or_default()
    );
    Fault::new(ConditionType::Attached, Reason::NotAllowedByParent, message)
}

/// The target of a reference to a child.
pub(super) enum Candidate {
    Missing,
    /// It has nothing to do with the parent: it names other parents.
    Unrelated,
    /// It is bound, or refused for a reason of its own.
    Related,
}

/// Parts of rules for children that lead to none: references, and kinds and selectors of
/// `allowedRoutes` that no route can match. Whether a route of another namespace exists is reported
/// only to owners who may refer to it.
pub(super) fn unresolved(
    parent: &ParsedRoute,
    found: impl Fn(&ChildReference) -> Candidate,
    surroundings: &dyn Surroundings,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    for rule in &parent.rules {
        let of_rule: Vec<_> = match &rule.delegation {
            None => continue,
            Some(Delegation::Allowed(allowed)) => matching_nothing(parent, allowed),
            Some(Delegation::Listed(children)) => {
                let listed = children.iter().filter(|listed| listed.weight > 0);
                listed.filter_map(|listed| missing(parent, listed, found(listed), surroundings)).collect()
            }
        };
        faults.extend(of_rule.into_iter().map(|fault| fault.within(&rule.label())));
    }
    faults
}

fn matching_nothing(parent: &ParsedRoute, allowed: &AllowedRoutes) -> Vec<Fault> {
    let own = parent.key.kind;
    let mut faults = Vec::new();
    for kind in allowed.kinds.iter().flatten() {
        let group = kind.group.as_deref().unwrap_or(own.group());
        if group != own.group() || kind.kind != own.as_str() {
            let message = format!(
                "allowedRoutes.kinds: no {} of group {group:?} can be a child route here, only {own}s can: remove it",
                kind.kind
            );
            faults.push(Fault::unresolved(Reason::InvalidKind, message));
        }
    }
    let problem = allowed.namespaces.as_ref().and_then(NamespaceRule::malformation);
    faults.extend(problem.map(|problem| {
        let message = format!("allowedRoutes.namespaces: {problem}: no child route can attach");
        Fault::unresolved(Reason::Invalid, message)
    }));
    faults
}

fn missing(
    parent: &ParsedRoute,
    listed: &ChildReference,
    found: Candidate,
    surroundings: &dyn Surroundings,
) -> Option<Fault> {
    let kind = parent.key.kind;
    let own = &parent.key.name.namespace;
    let Some(name) = &listed.name else {
        let is_foreign = listed.namespace != *own && !matches!(found, Candidate::Related);
        let message = format!(
            "backendRef *: no {kind} of namespace {0} is a child route: a ReferenceGrant in namespace {0} has to allow {kind}s \
             of namespace {own} to refer to {kind}s, or those have to name this one in their parentRefs",
            listed.namespace
        );
        return is_foreign.then(|| Fault::unresolved(Reason::RefNotPermitted, message));
    };
    let to = portcullis_model::ObjectName::new(listed.namespace.clone(), name.clone());
    let permitted = to.namespace == *own || surroundings.permits(kind, own, &to);
    match (found, permitted) {
        (Candidate::Related, _) => None,
        (_, false) => Some(Fault::unresolved(
            Reason::RefNotPermitted,
            format!(
                "a ReferenceGrant in namespace {} has to allow {kind}s of namespace {own} to refer to {kind} {}, or that route \
                 has to name this one in its parentRefs",
                to.namespace, to.name
            ),
        )),
        (Candidate::Missing, true) => {
            Some(Fault::unresolved(Reason::BackendNotFound, format!("{kind} {to} does not exist")))
        }
        (Candidate::Unrelated, true) => Some(Fault::unresolved(
            Reason::RefNotPermitted,
            format!("{kind} {to} names other parent routes: it has to name this one in its parentRefs"),
        )),
    }
}

// === parent references in statuses ===

/// Completed, but for the namespace: a status repeats the parentRef of the spec.
fn as_written(child: &ParsedRoute, index: usize, completed: &ParentReference) -> ParentReference {
    let namespace = child.written_parent_ref(index).and_then(|written| written.namespace.clone());
    ParentReference { namespace, ..completed.clone() }
}

fn reference_to(sides: Sides<'_>) -> ParentReference {
    let parent = &sides.parent.key;
    ParentReference {
        group: Some(parent.kind.group().to_owned()),
        kind: Some(parent.kind.as_str().to_owned()),
        namespace: Some(parent.name.namespace.to_string()),
        name: parent.name.name.to_string(),
        ..ParentReference::default()
    }
}
