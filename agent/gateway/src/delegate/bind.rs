//! Binding: one transaction per (parent, child) pair, in series, the oldest child first (then by name). What fails leaves the
//! ephemeral route as it is and blocks nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_model::{HostPattern, ObjectName, RouteOrigin, RuleId};

use super::combine::{self, Clash, ClashKind};
use super::consent::{agree, unresolved};
use super::draft::{Draft, DraftMatch, drafts};
use super::refusal::{Cause, Refusal, Sides};
use super::weigh::weigh;
use super::{ChildReport, Ephemeral, Family, Surroundings};
use crate::route::{ChildReference, Delegation, ParsedRoute, ParsedRule, Problem, grpc, http};
use crate::{Kind, ObjectKey, Reason};

/// Children that one rule takes; the youngest beyond it are refused.
pub const MOST_CHILDREN_OF_A_RULE: usize = 256;
/// Rules that the children of one parent may amount to, alternatives counted.
pub const MOST_COMPILED_RULES: usize = 8192;

/// By the CRD, of an HTTPRoute: matches of a rule, rules, matches of all rules.
const MATCHES_OF_A_RULE: usize = 64;
const RULES_OF_A_ROUTE: usize = 16;
const MATCHES_OF_A_ROUTE: usize = 128;

/// Flattens a parent and those of `candidates` that it and they agree on. Candidates are all routes of the parent's kind that
/// name it in `parentRefs` or that it names; further ones do no harm.
pub fn bind(
    parent: &Arc<ParsedRoute>,
    candidates: &[Arc<ParsedRoute>],
    surroundings: &dyn Surroundings,
) -> Family {
    let mut children: Vec<_> = candidates.iter().filter(|child| child.key.kind == parent.key.kind).collect();
    children.sort_by(|a, b| a.origin.cmp(&b.origin));
    children.dedup_by(|a, b| a.key == b.key);
    let mut binding = Binding::new(parent);
    for child in &children {
        binding.attempt(child, surroundings);
    }
    let by_name: BTreeMap<_, _> = children.iter().map(|child| (&child.key.name, child)).collect();
    let asked = |name: &ObjectName| binding.reports.iter().any(|report| report.child.name == *name);
    let unresolved = unresolved(
        parent,
        |listed| {
            let name = ObjectName::new(listed.namespace.clone(), listed.name.clone()?);
            by_name.contains_key(&name).then(|| asked(&name))
        },
        surroundings,
    );
    binding.finish(unresolved)
}

struct Binding<'p> {
    parent: &'p Arc<ParsedRoute>,
    drafts: Vec<Draft>,
    /// By rule of the parent, what its children contributed.
    bound: Vec<Vec<Item>>,
    /// By rule of the parent.
    children_of_rule: Vec<usize>,
    guards: Vec<Item>,
    reports: Vec<ChildReport>,
    compiled: usize,
}

/// A rule of the ephemeral route: as written, and as parsed.
pub(super) struct Item {
    pub(super) hostnames: Arc<[HostPattern]>,
    pub(super) draft: Draft,
    pub(super) rule: ParsedRule,
    /// The weight of the reference that named the child.
    pub(super) share: Option<u32>,
    /// Rules that were joined with this one.
    pub(super) further: Vec<Arc<RuleId>>,
}

impl<'p> Binding<'p> {
    fn new(parent: &'p Arc<ParsedRoute>) -> Self {
        let count = parent.rules.len();
        Self {
            parent,
            drafts: drafts(&parent.source),
            bound: std::iter::repeat_with(Vec::new).take(count).collect(),
            children_of_rule: vec![0; count],
            guards: Vec::new(),
            reports: Vec::new(),
            compiled: 0,
        }
    }

    fn attempt(&mut self, child: &ParsedRoute, surroundings: &dyn Surroundings) {
        let sides = Sides { parent: self.parent, child };
        let mut agreement = agree(sides, surroundings);
        if agreement.attempts.is_empty() {
            return;
        }
        let rules: Vec<_> = agreement.rules.into_iter().collect();
        let mut hostnames = Vec::new();
        if !rules.is_empty() {
            match self.transaction(sides, &rules) {
                Ok(combined) => hostnames = combined,
                Err(refusal) => {
                    self.guard(sides, &rules, &refusal);
                    for attempt in &mut agreement.attempts {
                        // What both sides did not agree on anyway keeps its own reason.
                        attempt.result =
                            std::mem::replace(&mut attempt.result, Ok(0)).and(Err(refusal.clone()));
                    }
                }
            }
        }
        self.reports.push(ChildReport {
            child: child.key.clone(),
            generation: child.generation,
            hostnames,
            attempts: agreement.attempts,
            partly_invalid: child.partly_invalid(),
        });
    }

    /// All rules that the child attaches to, or nothing.
    fn transaction(&mut self, sides: Sides<'_>, rules: &[usize]) -> Result<Vec<HostPattern>, Refusal> {
        check_tiers(sides)?;
        if let Some(problem) = sides.child.refusal() {
            return Err(sides.child_refused(&problem));
        }
        let hostnames = common_hostnames(sides).ok_or_else(|| sides.no_hostname())?;
        self.check_children(sides, rules)?;
        let shared: Arc<[HostPattern]> = hostnames.as_slice().into();
        let mut items = Vec::new();
        for rule in rules {
            items.push((*rule, self.reconcile(sides, *rule, &shared)?));
        }
        let compiled: usize = items.iter().flat_map(|(_, items)| items).map(Item::compiled).sum();
        if self.compiled + compiled > MOST_COMPILED_RULES {
            return Err(
                sides.too_many(&format!("all children together have more than {MOST_COMPILED_RULES} rules"))
            );
        }
        self.compiled += compiled;
        for (rule, items) in items {
            self.children_of_rule[rule] += 1;
            self.bound[rule].extend(items);
        }
        self.guard_invalid_rules(sides, rules, &shared);
        Ok(hostnames)
    }

    fn check_children(&self, sides: Sides<'_>, rules: &[usize]) -> Result<(), Refusal> {
        let full = rules.iter().find(|rule| self.children_of_rule[**rule] >= MOST_CHILDREN_OF_A_RULE);
        full.map_or(Ok(()), |_| {
            Err(sides.too_many(&format!("a rule has {MOST_CHILDREN_OF_A_RULE} older child routes already")))
        })
    }

    /// One rule of the parent with each rule of the child. A child's rule that is invalid by itself is left out, as it would
    /// be in a route of its own.
    fn reconcile(
        &self,
        sides: Sides<'_>,
        index: usize,
        hostnames: &Arc<[HostPattern]>,
    ) -> Result<Vec<Item>, Refusal> {
        let (rule, ours) = (&self.parent.rules[index], &self.drafts[index]);
        if is_unacceptable(rule) {
            return Err(sides.parent_rule_invalid(rule));
        }
        let mut items = Vec::new();
        for (theirs, child) in valid_rules(sides.child) {
            let draft = combined(sides, ours, &theirs).map_err(|clash| sides.clash(rule, child, &clash))?;
            let parsed = parse(sides.child.key.kind, &draft, included(rule, child));
            let problem = parsed.problems.iter().find(|problem| problem.is_unacceptable());
            if let Some(problem) = problem {
                return Err(sides.clash(rule, child, &not_standalone(problem, ours, &theirs)));
            }
            let item = Item::new(hostnames, draft, parsed);
            items.extend(split(Item { share: share(rule, &sides.child.key), ..item }));
        }
        Ok(items)
    }

    /// A broken child never lets its traffic fall to another rule. Where its extent is not defined, the rule of the parent
    /// answers for it, in last place.
    fn guard(&mut self, sides: Sides<'_>, rules: &[usize], refusal: &Refusal) {
        let Some(hostnames) = common_hostnames(sides) else { return };
        let hostnames: Arc<[HostPattern]> = hostnames.into();
        let why = format!("{} is not bound: {}", sides.child.key, refusal.to_child);
        let theirs = drafts(&sides.child.source);
        for rule in rules.iter().filter(|rule| !is_unacceptable(&self.parent.rules[**rule])) {
            let ours = &self.drafts[*rule];
            let narrow = (refusal.reason != Reason::LimitExceeded).then(|| extent(ours, &theirs)).flatten();
            let matches = narrow.unwrap_or_else(|| ours.matches.clone());
            if matches.is_empty() || self.guards.len() >= MOST_COMPILED_RULES {
                continue;
            }
            let id = of_whole(&self.parent.rules[*rule], sides.child);
            self.guards.push(guard(sides.child.key.kind, matches, id, &hostnames, &why));
        }
    }

    /// What is valid of a child's invalid rule fails its traffic, as it would in a route of its own.
    fn guard_invalid_rules(&mut self, sides: Sides<'_>, rules: &[usize], hostnames: &Arc<[HostPattern]>) {
        if !sides.child.rules.iter().any(is_unacceptable) {
            return;
        }
        let theirs = drafts(&sides.child.source);
        let invalid = theirs.iter().zip(&sides.child.rules).filter(|(_, rule)| is_unacceptable(rule));
        for (draft, child) in invalid {
            for rule in rules {
                let parent = &self.parent.rules[*rule];
                let matches = possible(&self.drafts[*rule], draft).matches;
                if !matches.is_empty() {
                    let why = child.problems.first().map_or("", |problem| &problem.message);
                    let id = included(parent, child);
                    self.guards.push(guard(sides.child.key.kind, matches, id, hostnames, why));
                }
            }
        }
    }

    // === assembling ===

    fn finish(mut self, unresolved: Vec<Problem>) -> Family {
        let own: Arc<[HostPattern]> = self.parent.hostnames.as_slice().into();
        let mut items = Vec::new();
        for (index, (rule, draft)) in self.parent.rules.iter().zip(&self.drafts).enumerate() {
            let bound = std::mem::take(&mut self.bound[index]);
            match (&rule.delegation, bound.is_empty()) {
                (Some(Delegation::Listed(_)), false) => items.extend(weigh(bound)),
                (Some(_), false) => items.extend(bound),
                (Some(_), true) => items.push(self.childless(rule, draft, &own)),
                (None, _) => {
                    items.push(Item::new(&own, draft.clone(), rule.clone()));
                }
            }
        }
        let ephemeral = runs(items, MATCHES_OF_A_ROUTE).into_iter().enumerate();
        let ephemeral = ephemeral.map(|(part, run)| self.ephemeral(&part_name(part), run)).collect();
        let guards = runs(std::mem::take(&mut self.guards), usize::MAX).into_iter();
        // Behind every part in name order, and so in last place among equals.
        let guards = guards.map(|run| self.ephemeral("-guard", run).route).collect();
        Family { parent: self.parent.clone(), ephemeral, guards, children: self.reports, unresolved }
    }

    /// "A delegating rule without any bound child is like a rule without backends": its traffic is answered 500.
    fn childless(&self, rule: &ParsedRule, draft: &Draft, own: &Arc<[HostPattern]>) -> Item {
        let draft = draft.without_backends();
        let mut parsed = rule.clone();
        parsed.filters = crate::route::RuleFilters::default();
        Item::new(own, draft, parsed)
    }

    fn ephemeral(&self, suffix: &str, items: Vec<Item>) -> Ephemeral {
        let parent = &self.parent.key;
        let name = ObjectName::new(parent.name.namespace.clone(), format!("{}{suffix}", parent.name.name));
        let hostnames = items.first().map(|item| item.hostnames.to_vec()).unwrap_or_default();
        let further = items.iter().map(|item| item.further.clone()).collect();
        let (drafts, rules) = items.into_iter().map(|item| (item.draft, item.rule)).unzip();
        let parent_routes: Vec<_> = self.parent.parent_routes().map(|(index, _)| index).collect();
        let parent_refs = self.parent.parent_refs.iter().enumerate();
        let route = ParsedRoute {
            key: ObjectKey::new(parent.kind, name.clone()),
            generation: self.parent.generation,
            origin: RouteOrigin { created: self.parent.origin.created, name: Arc::new(name) },
            source: self.parent.source.clone(),
            hostnames,
            parent_refs: parent_refs
                .filter(|(index, _)| !parent_routes.contains(index))
                .map(|(_, reference)| reference.clone())
                .collect(),
            rules,
            problems: Vec::new(),
        };
        Ephemeral { route: Arc::new(route), drafts, further }
    }
}

impl Item {
    fn new(hostnames: &Arc<[HostPattern]>, draft: Draft, rule: ParsedRule) -> Self {
        Self { hostnames: hostnames.clone(), draft, rule, share: None, further: Vec::new() }
    }

    fn compiled(&self) -> usize {
        self.draft.matches.len()
    }
}

fn check_tiers(sides: Sides<'_>) -> Result<(), Refusal> {
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

fn valid_rules(child: &ParsedRoute) -> impl Iterator<Item = (Draft, &ParsedRule)> {
    drafts(&child.source).into_iter().zip(&child.rules).filter(|(_, rule)| !is_unacceptable(rule))
}

fn is_unacceptable(rule: &ParsedRule) -> bool {
    rule.problems.iter().any(Problem::is_unacceptable)
}

fn combined(sides: Sides<'_>, ours: &Draft, theirs: &Draft) -> Result<Draft, Clash> {
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

/// Each side was valid, both together are not. The problem's own words are shown only where they hold no value of a side.
fn not_standalone(problem: &Problem, ours: &Draft, theirs: &Draft) -> Clash {
    let clash = |place, why, element: fn(&Draft) -> String| {
        let (parent, child) = (element(ours), element(theirs));
        Clash { place, why, parent, child, kind: ClashKind::Undefined }
    };
    if problem.reason == Reason::IncompatibleFilters {
        return clash("filters", problem.message.clone(), filters_shown);
    }
    clash("path", "both together are too long or have a part that is not allowed".to_owned(), paths_shown)
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

/// A rule of an HTTPRoute has a limited number of matches; more become several rules, which mean the same.
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

/// Neighbours with the same hostnames, as many as fit into one route: order decides between equal matches, so it is kept.
fn runs(items: Vec<Item>, most_matches: usize) -> Vec<Vec<Item>> {
    let most_rules = if most_matches == usize::MAX { usize::MAX } else { RULES_OF_A_ROUTE };
    let mut runs = Vec::<Vec<Item>>::new();
    let mut matches = 0;
    for item in items {
        matches += item.compiled();
        let fits = |run: &Vec<Item>| {
            run.len() < most_rules
                && matches <= most_matches
                && run.first().is_some_and(|first| first.hostnames == item.hostnames)
        };
        match runs.last_mut() {
            Some(run) if fits(run) => run.push(item),
            _ => {
                matches = item.compiled();
                runs.push(vec![item]);
            }
        }
    }
    runs
}

/// Names in the order of precedence: `web`, `web-e0001`, `web-e0002`.
fn part_name(part: usize) -> String {
    if part == 0 { String::new() } else { format!("-e{part:04}") }
}

// === guards ===

fn guard(
    kind: Kind,
    matches: Vec<DraftMatch>,
    id: Arc<RuleId>,
    hostnames: &Arc<[HostPattern]>,
    why: &str,
) -> Item {
    let draft = Draft { matches, ..Draft::default() };
    let mut rule = parse(kind, &draft, id);
    rule.problems.insert(0, Problem::unsupported(why));
    Item::new(hostnames, draft, rule)
}

/// What the rules of a child would match below a rule of the parent; `None` if for some of it that is not defined.
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
                Err(clash) => possible.undefined |= clash.kind == ClashKind::Undefined,
            }
        }
    }
    possible
}

// === impl Refusal ===

impl Refusal {
    /// Whether the parent's owner is told.
    pub fn concerns_parent(&self) -> bool {
        self.cause != Cause::Consent
    }
}
