//! One parent and one child: everything of a binding that other children have no part in. It is
//! kept for as long as neither of both, nor what they agree on, is another: one child's change
//! costs one child's work.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::shared::HttpRouteFilter;
use portcullis_model::{HostPattern, ObjectName, RuleId};

use super::assemble::Item;
use super::combine::{self, CombineError, CombineErrorKind};
use super::consent::{Agreement, agree, reference_of};
use super::fields::{self, Fields, RouteFilters};
use super::limits::{Excess, Limits, combinations};
use super::sides::Sides;
use super::{ChildReport, Surroundings};
use crate::route::{
    Draft, DraftMatch, Extension, ParsedMirror, ParsedRoute, ParsedRule, drafts, parse_draft, pattern,
};
use crate::{Fault, Reason};

/// By the CRD, of a rule of an HTTPRoute.
const MATCHES_OF_A_RULE: usize = 64;

const SHADOWED: &str = "none of its rules takes a request, since rules before it have the same matches";

/// In one message.
const MOST_HINTS: usize = 4;

/// A parent as its children meet it.
pub(super) struct Parent<'p> {
    pub(super) route: &'p Arc<ParsedRoute>,
    pub(super) drafts: Vec<Draft>,
    /// Those that its rules refer to.
    route_filters: RouteFilters,
}

/// A child and a parent, and what came of their combination.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) child: Arc<ParsedRoute>,
    agreement: Agreement,
    /// Those that the rules of both refer to.
    pub(super) route_filters: RouteFilters,
    /// Of the surroundings that the agreement depends on.
    version: u64,
    /// Of matches; 0 if there is nothing to combine.
    combinations: usize,
    excess: Option<Excess>,
    /// `None` if the child is refused.
    contribution: Option<Contribution>,
    /// `None` if they have nothing to do with each other.
    pub(super) report: Option<Arc<ChildReport>>,
}

/// The items that a child adds to the ephemeral route.
#[derive(Debug, Default)]
pub(super) struct Contribution {
    hostnames: Vec<HostPattern>,
    /// By rule of the parent.
    rules: Vec<(usize, Vec<Arc<Item>>)>,
    hints: Vec<String>,
}

// === impl Pair ===

impl Pair {
    /// The combinations that the child asks for where it and the parent agree, whether or not their
    /// hostnames have anything in common.
    pub(super) fn asked_combinations(
        parent: &Parent<'_>,
        child: &Arc<ParsedRoute>,
        before: Option<&Arc<Self>>,
        surroundings: &dyn Surroundings,
    ) -> usize {
        let sides = Sides { parent: parent.route, child };
        let version = parent.version(child, surroundings);
        match before.filter(|before| before.version == version) {
            Some(same) => combinations(sides, &same.agreement.rules),
            None => combinations(sides, &agree(sides, surroundings).rules),
        }
    }

    /// The one before, if it would come out the same.
    pub(super) fn new(
        parent: &Parent<'_>,
        child: &Arc<ParsedRoute>,
        before: Option<&Arc<Self>>,
        surroundings: &dyn Surroundings,
        limits: &Limits,
    ) -> Arc<Self> {
        let version = parent.version(child, surroundings);
        let before =
            before.filter(|it| limits.excess(child, &it.agreement.rules, it.combinations) == it.excess);
        if let Some(same) = before.filter(|before| before.version == version) {
            return same.clone();
        }
        let agreement = agree(Sides { parent: parent.route, child }, surroundings);
        let route_filters = parent.route_filters_with(child, surroundings);
        // The same agreement counts as the same pair, so that no status has to be planned again; it
        // is only looked at once more next time.
        match before {
            Some(same) if same.agreement == agreement && same.route_filters == route_filters => same.clone(),
            _ => Arc::new(Self::reconciled(parent, child, agreement, route_filters, version, limits)),
        }
    }

    fn reconciled(
        parent: &Parent<'_>,
        child: &Arc<ParsedRoute>,
        agreement: Agreement,
        route_filters: RouteFilters,
        version: u64,
        limits: &Limits,
    ) -> Self {
        let sides = Sides { parent: parent.route, child };
        let hostnames = parent.admit(sides, &agreement);
        let combinations = if hostnames.is_ok() { combinations(sides, &agreement.rules) } else { 0 };
        let excess = limits.excess(child, &agreement.rules, combinations);
        let contribution = hostnames.and_then(|hostnames| match excess {
            Some(excess) => Err(excess.fault(sides)),
            None => parent.transaction(sides, &agreement, &route_filters, hostnames),
        });
        let (contribution, refusal) = match contribution {
            Ok(contribution) => (Some(contribution), None),
            Err(refusal) => (None, Some(refusal)),
        };
        let report = report(child, &agreement, contribution.as_ref(), refusal.as_ref());
        let child = child.clone();
        Self { child, agreement, route_filters, version, combinations, excess, contribution, report }
    }

    /// By rule of the parent; empty if it is not bound.
    pub(super) fn rules(&self) -> &[(usize, Vec<Arc<Item>>)] {
        self.contribution.as_ref().map_or(&[], |contribution| &contribution.rules)
    }

    /// Takes its share of the limits.
    pub(super) fn count(&self, limits: &mut Limits) {
        match (&self.contribution, self.excess) {
            (Some(_), _) => limits.add_bound(&self.child, &self.agreement.rules, self.combinations),
            (None, None) => limits.add_in_vain(&self.child, self.combinations),
            (None, Some(_)) => {}
        }
    }

    /// The report with what answers in place of the child, and that it takes no request; `None` if
    /// neither is to be said. `childless` are the parent's rules without children.
    pub(super) fn completed(
        &self,
        report: &ChildReport,
        parent: &ParsedRoute,
        childless: &[usize],
        shadowed: &BTreeSet<&ObjectName>,
    ) -> Option<ChildReport> {
        let is_shadowed = shadowed.contains(&report.child.name);
        let sides = Sides { parent, child: &self.child };
        let is_refused = report.attempts.iter().any(|attempt| attempt.result.is_err());
        let is_stranger = self.agreement.rules.is_empty() && !sides.same_namespace();
        let instead = (is_refused && !is_stranger).then(|| sides.instead(&self.agreement.rules, childless));
        (instead.is_some() || is_shadowed).then(|| {
            let mut completed = ChildReport { instead, ..report.clone() };
            completed.hints.extend(is_shadowed.then(|| SHADOWED.to_owned()));
            completed
        })
    }
}

fn report(
    child: &ParsedRoute,
    agreement: &Agreement,
    contribution: Option<&Contribution>,
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
        hostnames: contribution.map(|it| it.hostnames.clone()).unwrap_or_default(),
        attempts,
        partly_invalid: child.partly_invalid(),
        instead: None,
        hints: contribution.map(|it| it.hints.clone()).unwrap_or_default(),
    }))
}

// === impl Parent ===

impl<'p> Parent<'p> {
    pub(super) fn new(route: &'p Arc<ParsedRoute>, surroundings: &dyn Surroundings) -> Self {
        let drafts = drafts(&route.source);
        let names = fields::of_parent(&route.key.name.namespace, &drafts);
        let route_filters = names.into_iter().map(|name| looked_up(name, surroundings)).collect();
        Self { route, drafts, route_filters }
    }

    fn version(&self, child: &ParsedRoute, surroundings: &dyn Surroundings) -> u64 {
        surroundings.version(&self.route.key.name.namespace, &child.key.name.namespace)
    }

    fn route_filters_with(&self, child: &ParsedRoute, surroundings: &dyn Surroundings) -> RouteFilters {
        let theirs = fields::of_child(child).map(|name| looked_up(name.clone(), surroundings));
        self.route_filters.clone().into_iter().chain(theirs).collect()
    }

    /// The hostnames of both, if nothing is in the way that shows without combining them.
    fn admit(&self, sides: Sides<'_>, agreement: &Agreement) -> Result<Vec<HostPattern>, Fault> {
        if agreement.rules.is_empty() {
            return Ok(Vec::new());
        }
        check_tiers(sides)?;
        if let Some(fault) = sides.child.refusal() {
            return Err(sides.child_refused(fault));
        }
        if sides.child.rules.is_empty() {
            return Err(sides.no_rules());
        }
        let hostnames = common_hostnames(sides).ok_or_else(|| sides.no_hostname())?;
        let rules = agreement.rules.iter().filter_map(|rule| self.route.rules.get(*rule));
        match rules.into_iter().find(|rule| is_unacceptable(rule)) {
            Some(invalid) => Err(sides.parent_rule_invalid(invalid)),
            None => Ok(hostnames),
        }
    }

    /// All rules that the child attaches to, or nothing.
    fn transaction(
        &self,
        sides: Sides<'_>,
        agreement: &Agreement,
        route_filters: &RouteFilters,
        hostnames: Vec<HostPattern>,
    ) -> Result<Contribution, Fault> {
        let fields = Fields { namespace: &self.route.key.name.namespace, route_filters };
        let shared: Arc<[HostPattern]> = hostnames.as_slice().into();
        let theirs = drafts(&sides.child.source);
        pattern::begin_pair();
        let mut rules = Vec::with_capacity(agreement.rules.len());
        for rule in &agreement.rules {
            let reconciled = self.reconcile(sides, *rule, &theirs, fields, &shared);
            // Checked first: what cannot be compiled any more looks like a conflict.
            if let Some(refusal) = pattern::used_up() {
                return Err(sides.too_many(&refusal.message));
            }
            rules.push((*rule, reconciled?));
        }
        Ok(Contribution { hostnames, rules, hints: self.hints(sides, agreement, &theirs) })
    }

    /// Combinations that are valid and may not be what the child's owner means.
    fn hints(&self, sides: Sides<'_>, agreement: &Agreement, theirs: &[Draft]) -> Vec<String> {
        let mut hints = Vec::new();
        let ours = agreement.rules.iter().filter_map(|rule| self.drafts.get(*rule));
        for ours in ours.flat_map(|draft| &draft.matches) {
            for (draft, rule) in theirs.iter().zip(&sides.child.rules) {
                for hint in draft.matches.iter().filter_map(|theirs| sides.hint(rule, ours, theirs)) {
                    if hints.len() == MOST_HINTS {
                        return hints;
                    }
                    if !hints.contains(&hint) {
                        hints.push(hint);
                    }
                }
            }
        }
        hints
    }

    /// One rule of the parent with each rule of the child. A child's rule that is invalid by itself
    /// fails its requests, as it would in a route of its own.
    fn reconcile(
        &self,
        sides: Sides<'_>,
        index: usize,
        theirs: &[Draft],
        fields: Fields<'_>,
        hostnames: &Arc<[HostPattern]>,
    ) -> Result<Vec<Arc<Item>>, Fault> {
        let (rule, ours) = (&self.route.rules[index], &self.drafts[index]);
        let reference = reference_of(rule, sides.child);
        let filters = reference.and_then(|(at, _)| ours.backend_refs.get(at)?.filters.as_deref());
        let filters = filters.unwrap_or_default();
        let share = reference.map(|(_, listed)| listed.weight);
        let mut items = Vec::new();
        for (theirs, child) in theirs.iter().zip(&sides.child.rules) {
            if let Some(fault) = child.faults.iter().find(|fault| fault.is_unacceptable()) {
                let failing = failing(sides.child.key.kind, ours, theirs, included(rule, child), fault);
                items.extend(
                    failing.into_iter().flat_map(|(draft, rule)| split(Item::new(hostnames, draft, rule))),
                );
                continue;
            }
            let draft = combined(sides, ours, theirs, filters, fields)
                .map_err(|error| sides.conflict(rule, child, &error))?;
            let parsed = parse_draft(sides.child.key.kind, &draft, included(rule, child));
            let Some(mut parsed) = parsed else { continue };
            own_mirrors(&mut parsed, rule, reference.map(|(_, listed)| &*listed.mirrors));
            let fault = parsed.faults.iter().find(|fault| fault.is_unacceptable());
            if let Some(fault) = fault {
                return Err(sides.conflict(rule, child, &not_standalone(fault, ours, theirs)));
            }
            let item = Item::new(hostnames, draft, parsed);
            items.extend(split(Item { share, ..item }));
        }
        Ok(items.into_iter().map(Arc::new).collect())
    }
}

/// Mirrors of the parent's are what they are in a rule of its own: in the combined one they come
/// first, and look as if the child had written them.
fn own_mirrors(combined: &mut ParsedRule, parent: &ParsedRule, of_reference: Option<&[ParsedMirror]>) {
    let of_reference = of_reference.unwrap_or_default();
    let of_rule = parent.filters.mirrors.iter();
    let with_reference = combined.filters.redirect.is_some();
    let of_rule = of_rule.chain(of_reference.iter().filter(|_| with_reference));
    combined.filters.mirrors.iter_mut().zip(of_rule).for_each(|(mirror, own)| mirror.clone_from(own));
    for backend in &mut combined.backend_refs {
        let mirrors = backend.filters.mirrors.iter_mut();
        mirrors.zip(of_reference).for_each(|(mirror, own)| mirror.clone_from(own));
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
    rule.faults.iter().any(Fault::is_unacceptable)
}

fn combined(
    sides: Sides<'_>,
    ours: &Draft,
    theirs: &Draft,
    filters: &[HttpRouteFilter],
    fields: Fields<'_>,
) -> Result<Draft, CombineError> {
    let foreign = (!sides.same_namespace()).then_some(&*sides.child.key.name.namespace);
    let matches = combine::matches(ours, theirs)?;
    Ok(Draft { matches, ..combine::rest(ours, theirs, filters, foreign, fields)? })
}

/// One that edits no fields counts as none: it is combined without a look into it.
fn looked_up(name: ObjectName, surroundings: &dyn Surroundings) -> (ObjectName, Option<Extension>) {
    let found = surroundings.route_filter(&name);
    let editing =
        found.filter(|it| matches!(it, Extension::RequestHeaders(_) | Extension::ResponseHeaders(_)));
    let editing = editing.cloned();
    (name, editing)
}

/// The rule for requests that an invalid rule of a child takes: an error, which prints as a rule
/// without backends. `None` if it takes none: what is invalid of its matches, or impossible
/// together with the parent's, is left out and never becomes another match.
pub(super) fn failing(
    kind: Kind,
    ours: &Draft,
    theirs: &Draft,
    id: Arc<RuleId>,
    fault: &Fault,
) -> Option<(Draft, ParsedRule)> {
    let parsed = |matches: Vec<DraftMatch>| {
        let draft = Draft { matches, ..Draft::default() };
        parse_draft(kind, &draft, id.clone()).map(|rule| (draft, rule))
    };
    let is_valid = |matched: &DraftMatch| {
        parsed(vec![matched.clone()]).is_some_and(|(_, rule)| !rule.matches.is_empty())
    };
    let mut matches = Vec::new();
    for theirs in theirs.matches.iter().filter(|theirs| is_valid(theirs)) {
        matches
            .extend(ours.matches.iter().filter_map(|ours| combine::both(ours, theirs).ok()).filter(is_valid));
    }
    let (draft, mut rule) = parsed(matches).filter(|(draft, _)| !draft.matches.is_empty())?;
    rule.faults.push(fault.clone());
    Some((draft, rule))
}

fn included(parent: &ParsedRule, child: &ParsedRule) -> Arc<RuleId> {
    Arc::new(RuleId { parent: Some(parent.id.clone()), ..child.id.as_ref().clone() })
}

/// Each side was valid, both together are not. The fault's own words are shown only where they
/// hold no value of a side.
fn not_standalone(fault: &Fault, ours: &Draft, theirs: &Draft) -> CombineError {
    let error = |place, why, element: fn(&Draft) -> String| {
        let (parent, child) = (element(ours), element(theirs));
        CombineError { place, why, parent, child, kind: CombineErrorKind::Undefined }
    };
    if fault.reason == Reason::IncompatibleFilters {
        return error("filters", fault.message.clone(), filters_shown);
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

/// A rule of an HTTPRoute has a limited number of matches; more become several rules, which mean
/// the same.
fn split(item: Item) -> Vec<Item> {
    if item.draft.matches.len() <= MATCHES_OF_A_RULE {
        return vec![item];
    }
    let (written, compiled) = (&item.draft.matches, &item.rule.matches);
    let chunks = written.chunks(MATCHES_OF_A_RULE).zip(compiled.chunks(MATCHES_OF_A_RULE));
    let mut parts = Vec::new();
    for (written, compiled) in chunks {
        let draft = Draft { matches: written.to_vec(), ..item.draft.clone() };
        let rule = ParsedRule { matches: compiled.to_vec(), ..item.rule.clone() };
        parts.push(Item { share: item.share, ..Item::new(&item.hostnames, draft, rule) });
    }
    parts
}
