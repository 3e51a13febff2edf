//! HTTPRoute: its rules, parsed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::{RouteMatch, RuleId, Timeouts};

use super::filter::RuleFilters;
use super::kind::RouteKind;
use super::reference::{Delegation, ParsedBackendRef, RawBackendRef};
use super::{ParsedRule, duration, matches};
use crate::api::httproutes::{
    HttpBackendReference, HttpRoute, HttpRouteMatch, HttpRouteRule, HttpRouteTimeouts,
};
use crate::api::shared::ParentReference;
use crate::{Fault, Kind};

impl RouteKind for HttpRoute {
    const KIND: Kind = Kind::HttpRoute;

    type Rule = HttpRouteRule;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn hostnames(&self) -> &[String] {
        self.spec.hostnames.as_deref().unwrap_or_default()
    }

    fn parent_refs(&self) -> &[ParentReference] {
        self.spec.parent_refs.as_deref().unwrap_or_default()
    }

    /// By default one rule that matches everything.
    fn rules(&self) -> Cow<'_, [HttpRouteRule]> {
        match self.spec.rules.as_deref() {
            None | Some([]) => Cow::Owned(vec![HttpRouteRule::default()]),
            Some(rules) => Cow::Borrowed(rules),
        }
    }

    fn rule_name(rule: &HttpRouteRule) -> Option<&str> {
        rule.name.as_deref()
    }

    fn parse_rule(rule: &HttpRouteRule, id: Arc<RuleId>) -> ParsedRule {
        parse_rule(rule, id)
    }
}

pub(crate) fn parse_rule(rule: &HttpRouteRule, id: Arc<RuleId>) -> ParsedRule {
    let mut problems = Vec::new();
    let matches = parse_matches(rule.matches.as_deref().unwrap_or_default(), &mut problems);
    let filters = RuleFilters::parse(rule.filters.as_deref().unwrap_or_default(), &mut problems);
    let mut backend_refs = parse_backend_refs(rule, &id, &mut problems);
    let allowed = rule.allowed_routes.as_ref();
    let delegation = Delegation::take(Kind::HttpRoute, allowed, &mut backend_refs, &mut problems);
    problems.extend(redirect_with_backends(rule, &filters));
    problems.extend(prefix_to_replace(rule, &filters, &backend_refs));
    let timeouts = rule.timeouts.as_ref().map_or_else(|| Ok(Timeouts::default()), parse_timeouts);
    let timeouts = timeouts.unwrap_or_else(|problem| {
        problems.push(problem);
        Timeouts::default()
    });
    ParsedRule { id, matches, filters, backend_refs, delegation, timeouts, problems }
}

fn parse_matches(matches: &[HttpRouteMatch], problems: &mut Vec<Fault>) -> Vec<Arc<RouteMatch>> {
    if matches.is_empty() {
        return vec![Arc::new(RouteMatch::default())];
    }
    let mut valid = Vec::new();
    for (at, matched) in matches.iter().enumerate() {
        match matches::http(matched) {
            Ok(matched) => valid.push(Arc::new(matched)),
            Err(problem) => problems.push(problem.within(&format!("matches[{at}]"))),
        }
    }
    valid
}

fn parse_backend_refs(rule: &HttpRouteRule, id: &RuleId, problems: &mut Vec<Fault>) -> Vec<ParsedBackendRef> {
    let namespace = &id.route.namespace;
    let mut parsed = Vec::new();
    for (at, reference) in rule.backend_refs.iter().flatten().enumerate() {
        let filters = reference.filters.as_deref().unwrap_or_default();
        let mut found = Vec::new();
        parsed.push(ParsedBackendRef::parse(&raw(reference), filters, namespace, &mut found));
        problems.extend(found.into_iter().map(|problem| problem.within(&format!("backendRefs[{at}]"))));
    }
    parsed
}

fn raw(reference: &HttpBackendReference) -> RawBackendRef<'_> {
    RawBackendRef {
        group: reference.group.as_deref(),
        kind: reference.kind.as_deref(),
        namespace: reference.namespace.as_deref(),
        name: &reference.name,
        port: reference.port,
        weight: reference.weight,
    }
}

// === validity of a rule as a whole (the CRD's validation rules) ===

fn redirect_with_backends(rule: &HttpRouteRule, filters: &RuleFilters) -> Option<Fault> {
    let backends = rule.backend_refs.as_ref().is_some_and(|references| !references.is_empty());
    (filters.redirect.is_some() && backends)
        .then(|| Fault::incompatible("a RequestRedirect filter cannot be used together with backendRefs"))
}

fn prefix_to_replace(
    rule: &HttpRouteRule,
    filters: &RuleFilters,
    backend_refs: &[ParsedBackendRef],
) -> Option<Fault> {
    let replaces =
        filters.replace_prefix() || backend_refs.iter().any(|reference| reference.filters.replace_prefix());
    let one_prefix = match rule.matches.as_deref().unwrap_or_default() {
        [] => true,
        [only] => {
            only.path.as_ref().and_then(|path| path.r#type.as_deref()).unwrap_or("PathPrefix") == "PathPrefix"
        }
        _ => false,
    };
    (replaces && !one_prefix).then(|| {
        Fault::incompatible("ReplacePrefixMatch needs exactly one match in the rule, and of type PathPrefix")
    })
}

// === timeouts ===

fn parse_timeouts(timeouts: &HttpRouteTimeouts) -> Result<Timeouts, Fault> {
    let request = timeout(timeouts.request.as_deref(), "request")?;
    let backend_request = timeout(timeouts.backend_request.as_deref(), "backendRequest")?;
    match (request, backend_request) {
        (Some(whole), Some(attempt)) if attempt > whole => {
            Err(Fault::unsupported("timeouts: backendRequest cannot be longer than request"))
        }
        _ => Ok(Timeouts { request, backend_request }),
    }
}

/// "Setting a timeout to the zero duration (e.g. "0s") SHOULD disable the timeout completely."
fn timeout(text: Option<&str>, field: &str) -> Result<Option<Duration>, Fault> {
    let parsed = text.map(duration::parse_duration).transpose();
    let parsed = parsed.map_err(|error| Fault::unsupported(format!("timeouts.{field}: {error}")))?;
    Ok(parsed.filter(|duration| !duration.is_zero()))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
