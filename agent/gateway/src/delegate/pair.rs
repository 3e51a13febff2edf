//! One parent and one child: everything of a binding that other children have no part in. It is
//! kept for as long as neither of both, nor what they agree on, is another: one child's change
//! costs one child's work.

use std::sync::Arc;

use portcullis_model::{HostPattern, RuleId};

use super::assemble::Item;
use super::combine::{self, CombineError, CombineErrorKind};
use super::consent::{Agreement, agree};
use super::draft::{Draft, DraftMatch, drafts};
use super::sides::Sides;
use super::{ChildReport, Surroundings};
use crate::route::{ChildReference, Delegation, ParsedRoute, ParsedRule, grpc, http};
use crate::{Fault, Kind, ObjectKey, Reason};

/// By the CRD, of a rule of an HTTPRoute.
const MATCHES_OF_A_RULE: usize = 64;

/// A parent as its children meet it.
pub(super) struct Parent<'p> {
    pub(super) route: &'p Arc<ParsedRoute>,
    pub(super) drafts: Vec<Draft>,
}

/// A child and a parent, and what came of their combination.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) child: Arc<ParsedRoute>,
    agreement: Agreement,
    /// Of the surroundings that the agreement depends on.
    version: u64,
    pub(super) contribution: Contribution,
    /// `None` if they have nothing to do with each other.
    pub(super) report: Option<Arc<ChildReport>>,
}

/// The items that a child adds to the ephemeral route.
#[derive(Debug, Default)]
pub(super) struct Contribution {
    hostnames: Vec<HostPattern>,
    /// By rule of the parent; empty if it is not bound.
    pub(super) rules: Vec<(usize, Vec<Arc<Item>>)>,
    /// Answer for traffic of the child that cannot be served.
    pub(super) guards: Vec<Arc<Item>>,
}

// === impl Pair ===

impl Pair {
    /// The one before, if it would come out the same.
    pub(super) fn new(
        parent: &Parent<'_>,
        child: &Arc<ParsedRoute>,
        before: Option<&Arc<Self>>,
        surroundings: &dyn Surroundings,
    ) -> Arc<Self> {
        let version = surroundings.version(&child.key.name.namespace);
        if let Some(same) = before.filter(|before| before.version == version) {
            return same.clone();
        }
        let agreement = agree(Sides { parent: parent.route, child }, surroundings);
        // The same agreement counts as the same pair, so that no status has to be planned again; it
        // is only looked at once more next time.
        match before {
            Some(same) if same.agreement == agreement => same.clone(),
            _ => Arc::new(Self::reconciled(parent, child, agreement, version)),
        }
    }

    fn reconciled(parent: &Parent<'_>, child: &Arc<ParsedRoute>, agreement: Agreement, version: u64) -> Self {
        let sides = Sides { parent: parent.route, child };
        let (contribution, refusal) = match parent.transaction(sides, &agreement) {
            Ok(contribution) => (contribution, None),
            Err(refusal) => (parent.guarded(sides, &agreement, &refusal), Some(refusal)),
        };
        let report = report(child, &agreement, &contribution.hostnames, refusal.as_ref());
        Self { child: child.clone(), agreement, version, contribution, report }
    }

    /// The same, but refused for a cause that lies with others.
    pub(super) fn refused(&self, parent: &Parent<'_>, refusal: &Fault) -> Self {
        let sides = Sides { parent: parent.route, child: &self.child };
        Self {
            child: self.child.clone(),
            agreement: self.agreement.clone(),
            version: self.version,
            contribution: parent.guarded(sides, &self.agreement, refusal),
            report: report(&self.child, &self.agreement, &[], Some(refusal)),
        }
    }
}

impl Contribution {
    /// Alternatives counted.
    pub(super) fn compiled(&self) -> usize {
        self.rules.iter().flat_map(|(_, items)| items).map(|item| item.compiled()).sum()
    }
}

fn report(
    child: &ParsedRoute,
    agreement: &Agreement,
    hostnames: &[HostPattern],
    refusal: Option<&Fault>,
) -> Option<Arc<ChildReport>> {
    if agreement.attempts.is_empty() {
        return None;
    }
    let mut attempts = agreement.attempts.clone();
    // What both sides did not agree on anyway keeps its own reason.
    let agreed = attempts.iter_mut().filter(|attempt| attempt.result.is_ok());
    if let Some(refusal) = refusal {
        agreed.for_each(|attempt| attempt.result = Err(refusal.clone()));
    }
    Some(Arc::new(ChildReport {
        child: child.key.clone(),
        generation: child.generation,
        hostnames: hostnames.to_vec(),
        attempts,
        partly_invalid: child.partly_invalid(),
    }))
}

// === impl Parent ===

impl<'p> Parent<'p> {
    pub(super) fn new(route: &'p Arc<ParsedRoute>) -> Self {
        Self { route, drafts: drafts(&route.source) }
    }

    /// All rules that the child attaches to, or nothing.
    fn transaction(&self, sides: Sides<'_>, agreement: &Agreement) -> Result<Contribution, Fault> {
        if agreement.rules.is_empty() {
            return Ok(Contribution::default());
        }
        check_tiers(sides)?;
        if let Some(problem) = sides.child.refusal() {
            return Err(sides.child_refused(problem));
        }
        let hostnames = common_hostnames(sides).ok_or_else(|| sides.no_hostname())?;
        let shared: Arc<[HostPattern]> = hostnames.as_slice().into();
        let theirs = drafts(&sides.child.source);
        let reconciled = |rule: &usize| Ok((*rule, self.reconcile(sides, *rule, &theirs, &shared)?));
        let rules = agreement.rules.iter().map(reconciled).collect::<Result<_, _>>()?;
        Ok(Contribution {
            hostnames,
            rules,
            guards: self.for_invalid_rules(sides, agreement, &theirs, &shared),
        })
    }

    /// One rule of the parent with each rule of the child. A child's rule that is invalid by itself
    /// is left out, as it would be in a route of its own.
    fn reconcile(
        &self,
        sides: Sides<'_>,
        index: usize,
        theirs: &[Draft],
        hostnames: &Arc<[HostPattern]>,
    ) -> Result<Vec<Arc<Item>>, Fault> {
        let (rule, ours) = (&self.route.rules[index], &self.drafts[index]);
        if is_unacceptable(rule) {
            return Err(sides.parent_rule_invalid(rule));
        }
        let mut items = Vec::new();
        let valid = theirs.iter().zip(&sides.child.rules).filter(|(_, rule)| !is_unacceptable(rule));
        for (theirs, child) in valid {
            let draft = combined(sides, ours, theirs).map_err(|error| sides.conflict(rule, child, &error))?;
            let parsed = parse(sides.child.key.kind, &draft, included(rule, child));
            let problem = parsed.problems.iter().find(|problem| problem.is_unacceptable());
            if let Some(problem) = problem {
                return Err(sides.conflict(rule, child, &not_standalone(problem, ours, theirs)));
            }
            let item = Item::new(hostnames, draft, parsed);
            items.extend(split(Item { share: share(rule, &sides.child.key), ..item }));
        }
        Ok(items.into_iter().map(Arc::new).collect())
    }
}

fn check_tiers(sides: Sides<'_>) -> Result<(), Fault> {
    let third = sides.child.is_parent() || sides.parent.parent_routes().next().is_some();
    if third { Err(sides.third_tier()) } else { Ok(()) }
}

/// Names that match on both sides; listeners narrow them further when the ephemeral route attaches.
fn common_hostnames(sides: Sides<'_>) -> Option<Vec<HostPattern>> {
    let mut common = Vec::new();
    for ours in &sides.parent.hostnames {
        for theirs in &sides.child.hostnames {
            common.extend(ours.intersect(theirs).filter(|both| !common.contains(both)));
        }
    }
    (!common.is_empty()).then_some(common)
}

fn is_unacceptable(rule: &ParsedRule) -> bool {
    rule.problems.iter().any(Fault::is_unacceptable)
}

fn combined(sides: Sides<'_>, ours: &Draft, theirs: &Draft) -> Result<Draft, CombineError> {
    let foreign = (!sides.same_namespace()).then_some(&*sides.child.key.name.namespace);
    let matches = combine::matches(ours, theirs)?;
    Ok(Draft { matches, ..combine::rest(ours, theirs, foreign)? })
}

fn included(parent: &ParsedRule, child: &ParsedRule) -> Arc<RuleId> {
    Arc::new(RuleId { parent: Some(parent.id.clone()), ..child.id.as_ref().clone() })
}

fn of_whole(parent: &ParsedRule, child: &ParsedRoute) -> Arc<RuleId> {
    Arc::new(RuleId {
        kind: child.key.kind.as_str(),
        route: child.origin.name.clone(),
        index: 0,
        name: None,
        parent: Some(parent.id.clone()),
    })
}

fn parse(kind: Kind, draft: &Draft, id: Arc<RuleId>) -> ParsedRule {
    match kind {
        Kind::GrpcRoute => grpc::parse_rule(&draft.to_grpc(), id),
        _ => http::parse_rule(&draft.to_http(), id),
    }
}

/// Each side was valid, both together are not. The problem's own words are shown only where they
/// hold no value of a side.
fn not_standalone(problem: &Fault, ours: &Draft, theirs: &Draft) -> CombineError {
    let error = |place, why, element: fn(&Draft) -> String| {
        let (parent, child) = (element(ours), element(theirs));
        CombineError { place, why, parent, child, kind: CombineErrorKind::Undefined }
    };
    if problem.reason == Reason::IncompatibleFilters {
        return error("filters", problem.message.clone(), filters_shown);
    }
    error("path", "both together are too long or have a part that is not allowed".to_owned(), paths_shown)
}

fn filters_shown(draft: &Draft) -> String {
    let types: Vec<_> = draft.filters.iter().map(|filter| filter.r#type.as_str()).collect();
    let backends: Vec<_> = draft.backend_refs.iter().map(|to| to.name.as_str()).collect();
    match (types.as_slice(), backends.as_slice()) {
        ([], []) => "matches".to_owned(),
        ([], backends) => format!("backendRefs {}", backends.join(", ")),
        (types, _) => format!("filters {}", types.join(", ")),
    }
}

fn paths_shown(draft: &Draft) -> String {
    let paths = draft.matches.iter().filter_map(|matched| matched.path.as_ref()?.value.as_deref());
    format!("path {}", paths.collect::<Vec<_>>().join(", "))
}

/// The weight of the first reference that names the child.
fn share(rule: &ParsedRule, child: &ObjectKey) -> Option<u32> {
    let Some(Delegation::Listed(children)) = &rule.delegation else { return None };
    let names = |listed: &&ChildReference| {
        listed.namespace == child.name.namespace
            && listed.name.as_ref().is_none_or(|name| *name == child.name.name)
    };
    children.iter().find(names).map(|listed| listed.weight)
}

/// A rule of an HTTPRoute has a limited number of matches; more become several rules, which mean
/// the same.
fn split(item: Item) -> Vec<Item> {
    if item.draft.matches.len() <= MATCHES_OF_A_RULE {
        return vec![item];
    }
    let (written, compiled) = (&item.draft.matches, &item.rule.matches);
    let chunks = written.chunks(MATCHES_OF_A_RULE).zip(compiled.chunks(MATCHES_OF_A_RULE));
    let part = |(written, compiled): (&[DraftMatch], &[_])| Item {
        draft: Draft { matches: written.to_vec(), ..item.draft.clone() },
        rule: ParsedRule { matches: compiled.to_vec(), ..item.rule.clone() },
        ..Item::new(&item.hostnames, Draft::default(), item.rule.clone())
    };
    chunks.map(|chunk| Item { share: item.share, ..part(chunk) }).collect()
}

// === guards ===

impl Parent<'_> {
    /// A broken child never lets its traffic fall to another rule. Where its extent is not defined,
    /// the rule of the parent answers for it, in last place.
    fn guarded(&self, sides: Sides<'_>, agreement: &Agreement, refusal: &Fault) -> Contribution {
        let Some(hostnames) = common_hostnames(sides) else { return Contribution::default() };
        let hostnames: Arc<[HostPattern]> = hostnames.into();
        let why = format!("{} is not bound: {}", sides.child.key, refusal.message);
        let theirs = drafts(&sides.child.source);
        let guard_for = |rule: &usize| {
            let (rule, ours) = (&self.route.rules[*rule], &self.drafts[*rule]);
            let narrow = (refusal.reason != Reason::LimitExceeded).then(|| extent(ours, &theirs)).flatten();
            let matches = narrow.unwrap_or_else(|| ours.matches.clone());
            let id = of_whole(rule, sides.child);
            (!is_unacceptable(rule)).then(|| guard(sides.child.key.kind, matches, id, &hostnames, &why))?
        };
        let guards = agreement.rules.iter().filter_map(guard_for).collect();
        Contribution { guards, ..Contribution::default() }
    }

    /// Guards for a child's invalid rules: what is valid of one fails its traffic, as it would in a
    /// route of its own.
    fn for_invalid_rules(
        &self,
        sides: Sides<'_>,
        agreement: &Agreement,
        theirs: &[Draft],
        hostnames: &Arc<[HostPattern]>,
    ) -> Vec<Arc<Item>> {
        let invalid = theirs.iter().zip(&sides.child.rules).filter(|(_, rule)| is_unacceptable(rule));
        let pairs = invalid.flat_map(|both| agreement.rules.iter().map(move |rule| (both, *rule)));
        let guard_for = |((draft, child), rule): ((&Draft, &ParsedRule), usize)| {
            let matches = possible(&self.drafts[rule], draft).matches;
            let why = child.problems.first().map_or("", |problem| &problem.message);
            guard(sides.child.key.kind, matches, included(&self.route.rules[rule], child), hostnames, why)
        };
        pairs.filter_map(guard_for).collect()
    }
}

/// `None` if nothing is left that could match.
fn guard(
    kind: Kind,
    matches: Vec<DraftMatch>,
    id: Arc<RuleId>,
    hostnames: &Arc<[HostPattern]>,
    why: &str,
) -> Option<Arc<Item>> {
    if matches.is_empty() {
        return None;
    }
    let draft = Draft { matches, ..Draft::default() };
    let mut rule = parse(kind, &draft, id);
    rule.problems.insert(0, Fault::unsupported(why));
    Some(Arc::new(Item::new(hostnames, draft, rule)))
}

/// The matches that the rules of a child would have below a rule of the parent; `None` if for some
/// of it that is not defined.
fn extent(ours: &Draft, theirs: &[Draft]) -> Option<Vec<DraftMatch>> {
    let mut matches = Vec::new();
    for draft in theirs {
        let possible = possible(ours, draft);
        if possible.undefined {
            return None;
        }
        matches.extend(possible.matches);
    }
    Some(matches)
}

struct Possible {
    matches: Vec<DraftMatch>,
    undefined: bool,
}

fn possible(ours: &Draft, theirs: &Draft) -> Possible {
    let mut possible = Possible { matches: Vec::new(), undefined: false };
    for parent in &ours.matches {
        for child in &theirs.matches {
            match combine::both(parent, child) {
                Ok(matched) => possible.matches.push(matched),
                Err(error) => possible.undefined |= error.kind == CombineErrorKind::Undefined,
            }
        }
    }
    possible
}
