//! A rule as its owner wrote it, for either route kind: what delegation combines, and what it
//! prints. HTTPRoute's types serve for both kinds, since GRPCRoute's are a subset but for the
//! method match.

use crate::Object;
use crate::api::grpcroutes::{GrpcBackendReference, GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule};
use crate::api::httproutes::{
    HttpBackendReference, HttpPathMatch, HttpRouteMatch, HttpRouteRetry, HttpRouteRule, HttpRouteTimeouts,
};
use crate::api::shared::{GrpcRouteFilter, HttpRouteFilter, NamedMatch, SessionPersistence};
use crate::route::filter::of_grpc;

/// One rule; who may attach to it is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Draft {
    pub(super) name: Option<String>,
    /// Never empty: no matches is one match without conditions.
    pub(super) matches: Vec<DraftMatch>,
    pub(super) filters: Vec<HttpRouteFilter>,
    pub(super) backend_refs: Vec<HttpBackendReference>,
    pub(super) timeouts: Option<HttpRouteTimeouts>,
    pub(super) retry: Option<HttpRouteRetry>,
    pub(super) session: Option<SessionPersistence>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DraftMatch {
    pub(super) path: Option<HttpPathMatch>,
    /// GRPCRoute's condition on service and method.
    pub(super) grpc: Option<GrpcMethodMatch>,
    pub(super) method: Option<String>,
    pub(super) headers: Vec<NamedMatch>,
    pub(super) query: Vec<NamedMatch>,
}

/// The rules of a route, as drafts.
pub(super) fn drafts(source: &Object) -> Vec<Draft> {
    match source {
        Object::HttpRoute(route) => {
            let route = route.unpack();
            let rules = route.spec.rules.as_deref().unwrap_or_default();
            // The CRD's default, as parsing has it: one rule that matches everything.
            if rules.is_empty() {
                vec![Draft { matches: vec![DraftMatch::default()], ..Draft::default() }]
            } else {
                rules.iter().map(Draft::of_http).collect()
            }
        }
        Object::GrpcRoute(route) => route.unpack().spec.rules.iter().flatten().map(Draft::of_grpc).collect(),
        // "Parent and child routes" are HTTPRoutes, or GRPCRoutes (GEP-1058).
        _ => Vec::new(),
    }
}

// === impl Draft ===

impl Draft {
    fn of_http(rule: &HttpRouteRule) -> Self {
        Self {
            name: rule.name.clone(),
            matches: or_everything(rule.matches.iter().flatten().map(DraftMatch::of_http).collect()),
            filters: rule.filters.clone().unwrap_or_default(),
            backend_refs: rule.backend_refs.clone().unwrap_or_default(),
            timeouts: rule.timeouts.clone(),
            retry: rule.retry.clone(),
            session: rule.session_persistence.clone(),
        }
    }

    fn of_grpc(rule: &GrpcRouteRule) -> Self {
        Self {
            name: rule.name.clone(),
            matches: or_everything(rule.matches.iter().flatten().map(DraftMatch::of_grpc).collect()),
            filters: rule.filters.iter().flatten().map(of_grpc).collect(),
            backend_refs: rule.backend_refs.iter().flatten().map(backend_of_grpc).collect(),
            session: rule.session_persistence.clone(),
            ..Self::default()
        }
    }

    pub(super) fn to_http(&self) -> HttpRouteRule {
        HttpRouteRule {
            name: self.name.clone(),
            matches: Some(self.matches.iter().map(DraftMatch::to_http).collect()),
            filters: unless_empty(self.filters.clone()),
            backend_refs: unless_empty(self.backend_refs.clone()),
            timeouts: self.timeouts.clone(),
            retry: self.retry.clone(),
            session_persistence: self.session.clone(),
            allowed_routes: None,
        }
    }

    pub(super) fn to_grpc(&self) -> GrpcRouteRule {
        GrpcRouteRule {
            name: self.name.clone(),
            matches: Some(self.matches.iter().map(DraftMatch::to_grpc).collect()),
            filters: unless_empty(self.filters.iter().map(filter_to_grpc).collect()),
            backend_refs: unless_empty(self.backend_refs.iter().map(backend_to_grpc).collect()),
            session_persistence: self.session.clone(),
            allowed_routes: None,
        }
    }

    /// A draft that owns the same traffic and serves none of it.
    pub(super) fn without_backends(&self) -> Self {
        Self { name: self.name.clone(), matches: self.matches.clone(), ..Self::default() }
    }
}

fn or_everything(matches: Vec<DraftMatch>) -> Vec<DraftMatch> {
    if matches.is_empty() { vec![DraftMatch::default()] } else { matches }
}

fn unless_empty<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}

// === impl DraftMatch ===

impl DraftMatch {
    fn of_http(matched: &HttpRouteMatch) -> Self {
        Self {
            path: matched.path.clone(),
            grpc: None,
            method: matched.method.clone(),
            headers: matched.headers.clone().unwrap_or_default(),
            query: matched.query_params.clone().unwrap_or_default(),
        }
    }

    fn of_grpc(matched: &GrpcRouteMatch) -> Self {
        Self {
            grpc: matched.method.clone(),
            headers: matched.headers.clone().unwrap_or_default(),
            ..Self::default()
        }
    }

    fn to_http(&self) -> HttpRouteMatch {
        HttpRouteMatch {
            path: self.path.clone(),
            method: self.method.clone(),
            headers: unless_empty(self.headers.clone()),
            query_params: unless_empty(self.query.clone()),
        }
    }

    fn to_grpc(&self) -> GrpcRouteMatch {
        GrpcRouteMatch { method: self.grpc.clone(), headers: unless_empty(self.headers.clone()) }
    }
}

// === GRPCRoute's spelling ===

fn backend_of_grpc(reference: &GrpcBackendReference) -> HttpBackendReference {
    HttpBackendReference {
        filters: reference.filters.as_ref().map(|filters| filters.iter().map(of_grpc).collect()),
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        weight: reference.weight,
    }
}

fn backend_to_grpc(reference: &HttpBackendReference) -> GrpcBackendReference {
    GrpcBackendReference {
        filters: reference.filters.as_ref().map(|filters| filters.iter().map(filter_to_grpc).collect()),
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        weight: reference.weight,
    }
}

fn filter_to_grpc(filter: &HttpRouteFilter) -> GrpcRouteFilter {
    GrpcRouteFilter {
        r#type: filter.r#type.clone(),
        extension_ref: filter.extension_ref.clone(),
        request_header_modifier: filter.request_header_modifier.clone(),
        request_mirror: filter.request_mirror.clone(),
        response_header_modifier: filter.response_header_modifier.clone(),
    }
}
