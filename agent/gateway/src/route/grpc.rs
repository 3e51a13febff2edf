//! GRPCRoute: its rules, parsed. A gRPC method is the path `/service/method` of an HTTP/2 request,
//! so its conditions become path matches and everything after is HTTPRoute's code.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;
use portcullis_api::ObjectType;
use portcullis_api::types::grpcroutes::{
    GrpcBackendReference, GrpcMethodMatch, GrpcRoute, GrpcRouteMatch, GrpcRouteRule,
};
use portcullis_api::types::httproutes::HttpBackendReference;
use portcullis_api::types::shared::{GrpcRouteFilter, HttpRouteFilter, ParentReference};
use portcullis_model::{BackendProtocol, PathMatch, RouteMatch, RuleId, Timeouts};

use super::draft::{Draft, DraftMatch, unless_empty};
use super::filter::RuleFilters;
use super::kind::{RouteKind, Traffic};
use super::matches::{alternatives, check_length, headers, unknown_type};
use super::reference::{Delegation, ParsedBackendRef};
use super::{ParsedRule, pattern, session};
use crate::Fault;
use crate::protocol::Protocol;

const LONGEST_NAME: usize = 1024;

impl RouteKind for GrpcRoute {
    type Rule = GrpcRouteRule;

    const PROTOCOLS: &'static [Protocol] = &[Protocol::Http, Protocol::Https];

    const TRAFFIC: Traffic = Traffic::Requests {
        // "`UNAVAILABLE`", which 503 stands for in gRPC's mapping of HTTP statuses.
        failure: StatusCode::SERVICE_UNAVAILABLE,
        backend_protocol: BackendProtocol::H2c,
    };

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

    /// "If no matches are specified, the implementation MUST match every gRPC request."
    fn parse_rule(rule: &GrpcRouteRule, id: Arc<RuleId>) -> ParsedRule {
        let mut faults = Vec::new();
        let matches = alternatives(rule.matches.as_deref(), parse_match, &mut faults);
        let filters: Vec<_> = rule.filters.iter().flatten().map(http_filter).collect();
        let filters = RuleFilters::parse(&filters, &id, &mut faults);
        let backend_refs: Vec<_> = rule.backend_refs.iter().flatten().map(http_backend).collect();
        let mut backend_refs = ParsedBackendRef::parse_all(&backend_refs, &id, &mut faults);
        let allowed = rule.allowed_routes.as_ref();
        let delegation = Delegation::take(Self::KIND, allowed, &mut backend_refs, &mut faults);
        let timeouts = Timeouts::default();
        let session = session::of(rule.session_persistence.as_ref(), &id, &mut faults);
        let joined = Vec::new();
        ParsedRule {
            id,
            joined,
            matches,
            filters,
            backend_refs,
            delegation,
            timeouts,
            retry: None,
            session,
            faults,
        }
    }

    fn default_gateways(&self) -> Option<&str> {
        self.spec.use_default_gateways.as_deref()
    }

    fn draft(rule: &GrpcRouteRule) -> Option<Draft> {
        Some(Draft {
            name: rule.name.clone(),
            matches: DraftMatch::all(rule.matches.iter().flatten().map(draft_match)),
            filters: rule.filters.iter().flatten().map(http_filter).collect(),
            backend_refs: rule.backend_refs.iter().flatten().map(http_backend).collect(),
            session: rule.session_persistence.clone(),
            ..Draft::default()
        })
    }

    fn written(draft: &Draft) -> Option<GrpcRouteRule> {
        Some(GrpcRouteRule {
            name: draft.name.clone(),
            matches: Some(draft.matches.iter().map(written_match).collect()),
            filters: unless_empty(draft.filters.iter().map(written_filter).collect()),
            backend_refs: unless_empty(draft.backend_refs.iter().map(written_backend).collect()),
            session_persistence: draft.session.clone(),
            allowed_routes: None,
        })
    }
}

// === matches ===

fn parse_match(matched: &GrpcRouteMatch) -> Result<RouteMatch, Fault> {
    let path = matched.method.as_ref().map(method).transpose();
    Ok(RouteMatch {
        path: path.map_err(|fault| fault.within("method"))?.unwrap_or(PathMatch::Prefix("".into())),
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
        pattern::check(part)?;
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

// === HTTPRoute's types, of which GRPCRoute's are a subset ===

fn http_filter(filter: &GrpcRouteFilter) -> HttpRouteFilter {
    HttpRouteFilter {
        r#type: filter.r#type.clone(),
        request_header_modifier: filter.request_header_modifier.clone(),
        response_header_modifier: filter.response_header_modifier.clone(),
        request_mirror: filter.request_mirror.clone(),
        extension_ref: filter.extension_ref.clone(),
        ..HttpRouteFilter::default()
    }
}

fn http_backend(reference: &GrpcBackendReference) -> HttpBackendReference {
    HttpBackendReference {
        filters: reference.filters.as_ref().map(|filters| filters.iter().map(http_filter).collect()),
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        weight: reference.weight,
    }
}

fn draft_match(matched: &GrpcRouteMatch) -> DraftMatch {
    DraftMatch {
        grpc: matched.method.clone(),
        headers: matched.headers.clone().unwrap_or_default(),
        ..DraftMatch::default()
    }
}

fn written_match(matched: &DraftMatch) -> GrpcRouteMatch {
    GrpcRouteMatch { method: matched.grpc.clone(), headers: unless_empty(matched.headers.clone()) }
}

fn written_backend(reference: &HttpBackendReference) -> GrpcBackendReference {
    GrpcBackendReference {
        filters: reference.filters.as_ref().map(|filters| filters.iter().map(written_filter).collect()),
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        weight: reference.weight,
    }
}

fn written_filter(filter: &HttpRouteFilter) -> GrpcRouteFilter {
    GrpcRouteFilter {
        r#type: filter.r#type.clone(),
        extension_ref: filter.extension_ref.clone(),
        request_header_modifier: filter.request_header_modifier.clone(),
        request_mirror: filter.request_mirror.clone(),
        response_header_modifier: filter.response_header_modifier.clone(),
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
