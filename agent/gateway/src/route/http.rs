//! HTTPRoute: its rules, parsed.

use std::borrow::Cow;
use std::sync::Arc;

use ::http::StatusCode;
use portcullis_api::ObjectType;
use portcullis_api::types::httproutes::{HttpRoute, HttpRouteMatch, HttpRouteRule};
use portcullis_api::types::shared::ParentReference;
use portcullis_model::{BackendProtocol, RuleId};

use super::draft::{Draft, DraftMatch, Inherited, unless_empty};
use super::filter::RuleFilters;
use super::kind::{RouteKind, Traffic};
use super::reference::{Delegation, ParsedBackendRef};
use super::{ParsedRule, matches, session};
use crate::protocol::Protocol;
use crate::{Fault, retry, timeouts};

const MIRRORS_IGNORED: &str = "filters: RequestMirror: what the rule redirects is not sent to any backend";

impl RouteKind for HttpRoute {
    type Rule = HttpRouteRule;

    const PROTOCOLS: &'static [Protocol] = &[Protocol::Http, Protocol::Https];

    const TRAFFIC: Traffic = Traffic::Requests {
        // "500 status codes MUST be returned."
        failure: StatusCode::INTERNAL_SERVER_ERROR,
        backend_protocol: BackendProtocol::Http1,
    };

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
        let mut faults = Vec::new();
        let matches = matches::alternatives(rule.matches.as_deref(), matches::http, &mut faults);
        let filters = RuleFilters::parse(rule.filters.as_deref().unwrap_or_default(), &id, &mut faults);
        let backend_refs = rule.backend_refs.as_deref().unwrap_or_default();
        let mut backend_refs = ParsedBackendRef::parse_all(backend_refs, &id, &mut faults);
        let allowed = rule.allowed_routes.as_ref();
        let delegation = Delegation::take(Self::KIND, allowed, &mut backend_refs, &mut faults);
        faults.extend(redirect_with_backends(rule, &filters));
        faults.extend(cors_twice(&filters, &backend_refs));
        faults.extend(prefix_to_replace(rule, &filters, &backend_refs));
        let timeouts = rule.timeouts.as_ref().and_then(|written| timeouts::parse(written, &mut faults));
        let timeouts = timeouts.unwrap_or_default();
        let retry = rule.retry.as_ref().and_then(|written| retry::parse(written, &mut faults));
        let retry = retry.map(Box::new);
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
            retry,
            session,
            faults,
        }
    }

    fn ignored_fields(rule: &HttpRouteRule) -> Vec<&'static str> {
        let has = |name| rule.filters.iter().flatten().any(|filter| filter.r#type == name);
        let mirrors = (has("RequestRedirect") && has("RequestMirror")).then_some(MIRRORS_IGNORED);
        mirrors.into_iter().collect()
    }

    fn default_gateways(&self) -> Option<&str> {
        self.spec.use_default_gateways.as_deref()
    }

    fn draft(rule: &HttpRouteRule) -> Option<Draft> {
        Some(Draft {
            name: rule.name.clone(),
            matches: DraftMatch::all(rule.matches.iter().flatten().map(draft_match)),
            filters: rule.filters.clone().unwrap_or_default(),
            backend_refs: rule.backend_refs.clone().unwrap_or_default(),
            timeouts: rule.timeouts.clone(),
            retry: rule.retry.clone(),
            session: rule.session_persistence.clone(),
            inherited: Inherited::default(),
        })
    }

    fn written(draft: &Draft) -> Option<HttpRouteRule> {
        Some(HttpRouteRule {
            name: draft.name.clone(),
            matches: Some(draft.matches.iter().map(written_match).collect()),
            filters: unless_empty(draft.filters.clone()),
            backend_refs: unless_empty(draft.backend_refs.clone()),
            timeouts: draft.timeouts.clone(),
            retry: draft.retry.clone(),
            session_persistence: draft.session.clone(),
            allowed_routes: None,
        })
    }
}

fn draft_match(matched: &HttpRouteMatch) -> DraftMatch {
    DraftMatch {
        path: matched.path.clone(),
        grpc: None,
        method: matched.method.clone(),
        headers: matched.headers.clone().unwrap_or_default(),
        query: matched.query_params.clone().unwrap_or_default(),
    }
}

fn written_match(matched: &DraftMatch) -> HttpRouteMatch {
    HttpRouteMatch {
        path: matched.path.clone(),
        method: matched.method.clone(),
        headers: unless_empty(matched.headers.clone()),
        query_params: unless_empty(matched.query.clone()),
    }
}

// === validity of a rule as a whole (the CRD's validation rules) ===

fn redirect_with_backends(rule: &HttpRouteRule, filters: &RuleFilters) -> Option<Fault> {
    let backends = rule.backend_refs.as_ref().is_some_and(|references| !references.is_empty());
    (filters.redirect.is_some() && backends)
        .then(|| Fault::incompatible("a RequestRedirect filter cannot be used together with backendRefs"))
}

/// Both would answer the same preflight requests.
fn cors_twice(filters: &RuleFilters, backend_refs: &[ParsedBackendRef]) -> Option<Fault> {
    let of_backend = backend_refs.iter().any(|reference| reference.filters.answer_preflights());
    (filters.answer_preflights() && of_backend).then(|| {
        Fault::incompatible("a CORS filter may be given to a rule or to its backendRefs, not to both")
    })
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

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
