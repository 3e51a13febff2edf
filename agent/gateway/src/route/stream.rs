//! Rules of routes that pass connections and datagrams on as they are: the same for TLSRoute,
//! TCPRoute and UDPRoute. They have backends, and nothing else.

use std::sync::Arc;

use portcullis_api::types::httproutes::HttpBackendReference;
use portcullis_api::types::shared::{StreamRouteRule, WeightedBackendReference};
use portcullis_model::{RuleId, Timeouts};

use super::ParsedRule;
use super::filter::RuleFilters;
use super::reference::ParsedBackendRef;
use crate::Fault;

/// A second rule, which older versions of the CRDs allow, could never be chosen.
pub(super) fn parse_rule(rule: &StreamRouteRule, id: Arc<RuleId>) -> ParsedRule {
    let mut faults = Vec::new();
    if id.index > 0 {
        faults.push(Fault::unsupported(format!(
            "a {} has one rule, since nothing tells which of several would be meant: make it a route of its own",
            id.kind
        )));
    }
    let references: Vec<_> = rule.backend_refs.iter().map(without_filters).collect();
    let backend_refs = ParsedBackendRef::parse_all(&references, &id, &mut faults);
    ParsedRule {
        id,
        joined: Vec::new(),
        matches: Vec::new(),
        filters: RuleFilters::default(),
        backend_refs,
        delegation: None,
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        faults,
    }
}

fn without_filters(reference: &WeightedBackendReference) -> HttpBackendReference {
    HttpBackendReference {
        filters: None,
        group: reference.group.clone(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
        namespace: reference.namespace.clone(),
        port: reference.port,
        weight: reference.weight,
    }
}
