//! A rule as its owner wrote it, for all kinds of routes that delegation combines, and that it
//! prints. HTTPRoute's types serve for all of them, since GRPCRoute's are a subset but for the
//! method match. How a kind's rules become drafts, and drafts its rules, is in the kind's file.

use std::collections::BTreeSet;

use portcullis_api::types::grpcroutes::GrpcMethodMatch;
use portcullis_api::types::httproutes::{HttpBackendReference, HttpPathMatch};
use portcullis_api::types::shared::{
    HttpRouteFilter, HttpRouteRetry, HttpRouteTimeouts, NamedMatch, SessionPersistence,
};
use serde_json::json;

/// One rule; who may attach to it is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    pub(crate) name: Option<String>,
    /// Never empty: no matches is one match without conditions.
    pub(crate) matches: Vec<DraftMatch>,
    pub(crate) filters: Vec<HttpRouteFilter>,
    pub(crate) backend_refs: Vec<HttpBackendReference>,
    pub(crate) timeouts: Option<HttpRouteTimeouts>,
    pub(crate) retry: Option<HttpRouteRetry>,
    pub(crate) session: Option<SessionPersistence>,
    pub(crate) inherited: Inherited,
}

/// The filters of a combined rule that are the parent's and refer to a service: the first so many
/// of their kind. Such a reference is relative to the parent's namespace, and needs the parent's
/// permission.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Inherited {
    pub(crate) of_rule: usize,
    pub(crate) of_backends: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DraftMatch {
    pub(crate) path: Option<HttpPathMatch>,
    /// GRPCRoute's condition on service and method.
    pub(crate) grpc: Option<GrpcMethodMatch>,
    pub(crate) method: Option<String>,
    pub(crate) headers: Vec<NamedMatch>,
    pub(crate) query: Vec<NamedMatch>,
}

// === impl Draft ===

impl Draft {
    /// A draft that owns the same traffic and serves none of it.
    pub(crate) fn without_backends(&self) -> Self {
        Self { name: self.name.clone(), matches: self.matches.clone(), ..Self::default() }
    }
}

// === impl DraftMatch ===

impl DraftMatch {
    /// A text that is the same for matches with the same conditions, in whatever order. Names of
    /// headers have no case.
    pub(crate) fn canonical(&self) -> String {
        let sorted = |conditions: &[NamedMatch], name: fn(&str) -> String| {
            let conditions = conditions.iter().map(|it| {
                (name(&it.name), it.r#type.clone().unwrap_or_else(|| "Exact".to_owned()), it.value.clone())
            });
            conditions.collect::<BTreeSet<_>>()
        };
        let path = self.path.as_ref().map(|path| {
            (path.r#type.as_deref().unwrap_or("PathPrefix"), path.value.as_deref().unwrap_or("/"))
        });
        let headers = sorted(&self.headers, str::to_ascii_lowercase);
        let query = sorted(&self.query, str::to_owned);
        let path = path.unwrap_or(("PathPrefix", "/"));
        json!([path, self.grpc, self.method, headers, query]).to_string()
    }

    /// The matches of a draft: those written, or one without conditions.
    pub(super) fn all(written: impl Iterator<Item = Self>) -> Vec<Self> {
        let matches: Vec<_> = written.collect();
        if matches.is_empty() { vec![Self::default()] } else { matches }
    }
}

/// A list as it is written: left out if it is empty.
pub(super) fn unless_empty<T>(items: Vec<T>) -> Option<Vec<T>> {
    (!items.is_empty()).then_some(items)
}
