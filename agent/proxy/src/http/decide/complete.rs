//! From the rule that takes a request to the decision: filters applied as far as they decide about
//! target and destination, and templates filled in.

use std::borrow::Cow;

use http::HeaderValue;
use portcullis_model::{
    BackendName, DirectResponse, ExternalAuth, Filter, Found, Redirect, Rule, Scheme, Substituted,
    WeightedBackend,
};

use super::{Decision, Given, Next, OwnAnswer, Routed, RoutedHead, Step, Wanted, cross_origin, steps};
use crate::core::head::Head;
use crate::core::reason::Reason;
use crate::http::cors::CrossOrigin;
use crate::http::plan::{ForwardPlan, HostToSend, PolicyChecks};
use crate::http::session::SessionPlan;
use crate::http::templates::FilledTemplates;
use crate::http::{headers, path};

impl<'s, H: Head> Routed<'_, 's, H> {
    /// Sends the request on to a backend.
    pub(super) fn plan(
        &self,
        found: Found<'s>,
        backend: &'s WeightedBackend,
        name: &'s BackendName,
        session: Option<SessionPlan<'s>>,
    ) -> Result<Decision<'s>, Reason> {
        let request = self.request;
        let rule = &**found.rule;
        let wanted = self.wanted(rule);
        let (mut is_guarded, mut substitutes, mut fills) = (!wanted.is_empty(), false, false);
        let mut path = match &request.target.path {
            Cow::Borrowed(_) => None,
            Cow::Owned(normal) => Some(normal.clone()),
        };
        let (mut host, mut cross_origin) = (None, None);
        for filter in rule.filters.iter().chain(&backend.filters) {
            match filter {
                Filter::Rewrite(rewrite) => {
                    if let Some(change) = &rewrite.path {
                        path = Some(change.apply(&request.target.path, found.prefix).into_owned());
                    }
                    host = rewrite.hostname.as_ref().or(host);
                }
                Filter::Cors(filter) => {
                    cross_origin = Some(Box::new(CrossOrigin::of(filter, request.head.fields())));
                }
                Filter::ExternalAuth(_) => is_guarded = true,
                Filter::Substitution(_) => substitutes = true,
                Filter::RequestTemplates(_) | Filter::ResponseTemplates(_) => fills = true,
                Filter::RequestHeaders(_) | Filter::ResponseHeaders(_) | Filter::Mirror(_) => {}
            }
        }
        if substitutes {
            path = self.substituted(rule, backend, path)?;
        }
        let filled = if fills { self.filled(rule, Some(backend))? } else { None };
        let (named, field) = request.named_and_field();
        let host = match (host, &field) {
            (Some(rewritten), _) => HostToSend::Rewritten(headers::copy_value(rewritten)),
            (None, Some(_)) => HostToSend::Unchanged,
            (None, None) => HostToSend::Authority,
        };
        let authority = named.or(field).unwrap_or(HeaderValue::from_static(""));
        let plan = ForwardPlan {
            rule,
            backend,
            name,
            defaults: self.listener.policy.as_ref().and_then(|policy| policy.defaults.as_deref()),
            authority,
            path,
            host,
            fields: request.target.fields,
            cross_origin,
            session: session.map(Box::new),
            granted: Vec::new(),
            checks: (!wanted.is_empty()).then(|| Box::new(PolicyChecks::Pending)),
            begun: None,
            filled,
        };
        if is_guarded {
            let steps = steps(wanted, rule.filters.iter().chain(&backend.filters), plan.filled.as_deref());
            return Ok(request.guarded(steps, Next::Forward(plan)));
        }
        Ok(Decision::Forward(plan))
    }

    pub(super) fn redirect(&self, found: Found<'s>, redirect: &'s Redirect) -> Result<Decision<'s>, Reason> {
        let (rule, request) = (&**found.rule, self.request);
        let filled = self.filled(rule, None)?;
        let steps = guards(self.wanted(rule), rule, None, filled.as_deref());
        let own = OwnAnswer::Redirect {
            rule,
            status: redirect.status,
            location: self.location(redirect, found.prefix),
            cross_origin: cross_origin(&rule.filters, request.head),
            filled,
        };
        Ok(request.answered(steps, own))
    }

    /// Answers as a RouteFilter says: of the backend, or else of the rule.
    pub(super) fn respond(
        &self,
        rule: &'s Rule,
        backend: Option<&'s WeightedBackend>,
        response: &'s DirectResponse,
    ) -> Result<Decision<'s>, Reason> {
        let (head, filled) = (self.request.head, self.filled(rule, backend)?);
        let steps = guards(self.wanted(rule), rule, backend, filled.as_deref());
        let of_backend = backend.and_then(|backend| cross_origin(&backend.filters, head));
        let cross_origin = of_backend.or_else(|| cross_origin(&rule.filters, head));
        let given = Given { rule, backend, response, cross_origin, filled };
        Ok(self.request.answered(steps, OwnAnswer::Response(Box::new(given))))
    }

    /// The checks that policies want of a request, by listener and by rule. Made when its rule is
    /// known: preflight requests of browsers never have credentials.
    fn wanted(&self, rule: &'s Rule) -> Wanted<'s> {
        if self.listener.policy.is_none() && rule.policy.is_none() {
            return Wanted::default();
        }
        let policies = self.listener.policy.iter().chain(&rule.policy);
        let mut services: Vec<&ExternalAuth> = Vec::new();
        for service in policies.clone().flat_map(|policy| &policy.external_auth) {
            // The same question right after itself: what has been changed since is the answer's
            // own.
            if services.last() != Some(&&**service) {
                services.push(service);
            }
        }
        let credentials = policies.filter_map(|policy| policy.authentication.as_deref()).collect();
        Wanted { credentials, services }
    }

    /// The path after all substitutions, each of what the one before it left. What they make has to
    /// be a path as those of clients have to be.
    fn substituted(
        &self,
        rule: &Rule,
        backend: &WeightedBackend,
        mut path: Option<String>,
    ) -> Result<Option<String>, Reason> {
        let longest = self.circumstances.limits.target_bytes as usize;
        for filter in rule.filters.iter().chain(&backend.filters) {
            let Filter::Substitution(substitution) = filter else { continue };
            let before = path.as_deref().unwrap_or(&self.request.target.path);
            match substitution.apply(before, longest) {
                Substituted::Unchanged => {}
                Substituted::TooLong => return Err(Reason::TargetTooLong),
                Substituted::To(made) => {
                    let normal = path::normalise_made(&made).map_err(|problem| {
                        tracing::debug!(rule = %rule.id, made, problem = problem.name(), "the rewrite makes no path");
                        Reason::MadePath
                    })?;
                    path = Some(normal.into_owned());
                }
            }
        }
        Ok(path)
    }

    /// `None` if there are no templates to be filled in.
    fn filled(
        &self,
        rule: &Rule,
        backend: Option<&WeightedBackend>,
    ) -> Result<Option<Box<FilledTemplates>>, Reason> {
        let filters = all_filters(rule, backend);
        let is_template =
            |filter: &Filter| matches!(filter, Filter::RequestTemplates(_) | Filter::ResponseTemplates(_));
        if !filters.clone().any(is_template) {
            return Ok(None);
        }
        let Self { circumstances, request, listener } = self;
        let connection = (circumstances.connected, circumstances.scheme);
        let asked = (request.head, request.target);
        FilledTemplates::of(filters, asked, connection, (listener, &rule.id), circumstances.limits).map(Some)
    }

    /// The `Location` of a redirect.
    fn location(&self, redirect: &Redirect, prefix: &str) -> String {
        let request = self.request;
        let scheme = redirect.scheme.unwrap_or(self.circumstances.scheme);
        let host = redirect.hostname.as_deref().unwrap_or(&request.target.host);
        let path = &request.target.path;
        let path = redirect.path.as_ref().map_or(Cow::Borrowed(&**path), |change| change.apply(path, prefix));
        // "If no port is specified, the redirect port MUST be derived": from an explicit scheme its
        // well-known port, else the listener's. A scheme's well-known port is left out of
        // `Location`.
        let port = redirect.port.or(redirect.scheme.map(Scheme::default_port));
        let port = port.unwrap_or(self.circumstances.port);
        let port = if port == scheme.default_port() { String::new() } else { format!(":{port}") };
        let query = request.head.query().map_or_else(String::new, |query| format!("?{query}"));
        format!("{scheme}://{host}{port}{path}{query}")
    }
}

fn all_filters<'s>(
    rule: &'s Rule,
    backend: Option<&'s WeightedBackend>,
) -> impl Iterator<Item = &'s Filter> + Clone {
    rule.filters.iter().chain(backend.into_iter().flat_map(|backend| &backend.filters))
}

/// The way past credentials and auth services, for an answer that comes from no backend; empty if
/// none are wanted.
fn guards<'s>(
    wanted: Wanted<'s>,
    rule: &'s Rule,
    backend: Option<&'s WeightedBackend>,
    filled: Option<&FilledTemplates>,
) -> Vec<Step<'s>> {
    let filters = all_filters(rule, backend);
    let asks = filters.clone().any(|filter| matches!(filter, Filter::ExternalAuth(_)));
    if wanted.is_empty() && !asks {
        return Vec::new();
    }
    steps(wanted, filters, filled)
}

impl<H: Head> RoutedHead<'_, H> {
    fn answered<'s>(&self, steps: Vec<Step<'s>>, own: OwnAnswer<'s>) -> Decision<'s> {
        if steps.is_empty() { Decision::Own(own) } else { self.guarded(steps, Next::Own(own)) }
    }
}
