//! GRPCRoute: its rules, parsed. A gRPC method is the path `/service/method` of an HTTP/2 request,
//! so its conditions become path matches and everything after is HTTPRoute's code.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::{PathMatch, RouteMatch, RuleId, Timeouts};

use super::filter::{RuleFilters, of_grpc};
use super::kind::RouteKind;
use super::matches::{check_length, headers, unknown_type};
use super::reference::{Delegation, ParsedBackendRef, RawBackendRef};
use super::{ParsedRule, pattern};
use crate::api::grpcroutes::{
    GrpcBackendReference, GrpcMethodMatch, GrpcRoute, GrpcRouteMatch, GrpcRouteRule,
};
use crate::api::shared::{GrpcRouteFilter, HttpRouteFilter, ParentReference};
use crate::{Fault, Kind};

const LONGEST_NAME: usize = 1024;

impl RouteKind for GrpcRoute {
    const KIND: Kind = Kind::GrpcRoute;

    type Rule = GrpcRouteRule;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn hostnames(&self) -> &[String] {
        self.spec.hostnames.as_deref().unwrap_or_default()
    }

    fn parent_refs(&self) -> &[ParentReference] {
        self.spec.parent_refs.as_deref().unwrap_or_default()
    }

    fn rules(&self) -> Cow<'_, [GrpcRouteRule]> {
        Cow::Borrowed(self.spec.rules.as_deref().unwrap_or_default())
    }

    fn rule_name(rule: &GrpcRouteRule) -> Option<&str> {
        rule.name.as_deref()
    }

    fn parse_rule(rule: &GrpcRouteRule, id: Arc<RuleId>) -> ParsedRule {
        parse_rule(rule, id)
    }
}

pub(crate) fn parse_rule(rule: &GrpcRouteRule, id: Arc<RuleId>) -> ParsedRule {
    let mut problems = Vec::new();
    let matches = parse_matches(rule.matches.as_deref().unwrap_or_default(), &mut problems);
    let filters = RuleFilters::parse(&http_filters(rule.filters.as_deref()), &mut problems);
    let mut backend_refs = parse_backend_refs(rule, &id, &mut problems);
    let allowed = rule.allowed_routes.as_ref();
    let delegation = Delegation::take(Kind::GrpcRoute, allowed, &mut backend_refs, &mut problems);
    let timeouts = Timeouts::default();
    ParsedRule { id, matches, filters, backend_refs, delegation, timeouts, problems }
}

fn http_filters(filters: Option<&[GrpcRouteFilter]>) -> Vec<HttpRouteFilter> {
    filters.unwrap_or_default().iter().map(of_grpc).collect()
}

/// "If no matches are specified, the implementation MUST match every gRPC request."
fn parse_matches(matches: &[GrpcRouteMatch], problems: &mut Vec<Fault>) -> Vec<Arc<RouteMatch>> {
    if matches.is_empty() {
        return vec![Arc::new(RouteMatch::default())];
    }
    let mut valid = Vec::new();
    for (at, matched) in matches.iter().enumerate() {
        match parse_match(matched) {
            Ok(matched) => valid.push(Arc::new(matched)),
            Err(problem) => problems.push(problem.within(&format!("matches[{at}]"))),
        }
    }
    valid
}

fn parse_match(matched: &GrpcRouteMatch) -> Result<RouteMatch, Fault> {
    let path = matched.method.as_ref().map(method).transpose();
    Ok(RouteMatch {
        path: path.map_err(|problem| problem.within("method"))?.unwrap_or(PathMatch::Prefix("".into())),
        method: None,
        headers: headers(matched.headers.as_deref())?,
        query: Vec::new(),
    })
}

fn method(matched: &GrpcMethodMatch) -> Result<PathMatch, Fault> {
    let service = matched.service.as_deref().filter(|service| !service.is_empty());
    let method = matched.method.as_deref().filter(|method| !method.is_empty());
    match matched.r#type.as_deref().unwrap_or("Exact") {
        "Exact" => exact(service, method),
        "RegularExpression" => expression(service, method),
        other => Err(unknown_type(other, "Exact or RegularExpression")),
    }
}

fn exact(service: Option<&str>, method: Option<&str>) -> Result<PathMatch, Fault> {
    for name in [service, method].into_iter().flatten() {
        check_name(name)?;
    }
    match (service, method) {
        (Some(service), Some(method)) => Ok(PathMatch::Exact(format!("/{service}/{method}").into())),
        (Some(service), None) => Ok(PathMatch::Prefix(format!("/{service}").into())),
        (None, Some(method)) => {
            pattern::text(&format!("/[^/]+/{}", regex::escape(method))).map(PathMatch::Regex)
        }
        (None, None) => Err(nothing_named()),
    }
}

fn expression(service: Option<&str>, method: Option<&str>) -> Result<PathMatch, Fault> {
    if service.is_none() && method.is_none() {
        return Err(nothing_named());
    }
    // Each alone first: `a)|(b` must not reach over the part it stands for.
    for part in [service, method].into_iter().flatten() {
        check_length(part, LONGEST_NAME)?;
        pattern::text(part)?;
    }
    let part = |part: Option<&str>| part.map_or_else(|| "[^/]+".to_owned(), |part| format!("(?:{part})"));
    pattern::text(&format!("/{}/{}", part(service), part(method))).map(PathMatch::Regex)
}

fn check_name(name: &str) -> Result<(), Fault> {
    check_length(name, LONGEST_NAME)?;
    let fine = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
    fine.then_some(()).ok_or_else(|| {
        Fault::unsupported(format!("{name:?} is no gRPC name: use letters, digits, underscores and dots"))
    })
}

fn nothing_named() -> Fault {
    Fault::unsupported("service, method or both must be given")
}

fn parse_backend_refs(rule: &GrpcRouteRule, id: &RuleId, problems: &mut Vec<Fault>) -> Vec<ParsedBackendRef> {
    let mut parsed = Vec::new();
    for (at, reference) in rule.backend_refs.iter().flatten().enumerate() {
        let filters = http_filters(reference.filters.as_deref());
        let mut found = Vec::new();
        parsed.push(ParsedBackendRef::parse(&raw(reference), &filters, &id.route.namespace, &mut found));
        problems.extend(found.into_iter().map(|problem| problem.within(&format!("backendRefs[{at}]"))));
    }
    parsed
}

fn raw(reference: &GrpcBackendReference) -> RawBackendRef<'_> {
    RawBackendRef {
        group: reference.group.as_deref(),
        kind: reference.kind.as_deref(),
        namespace: reference.namespace.as_deref(),
        name: &reference.name,
        port: reference.port,
        weight: reference.weight,
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
