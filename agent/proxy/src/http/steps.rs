//! The steps of a request that an operator waits for, as far as they are decided from its head.
//! Nothing of a field's value is told, but of the host; nor is a query.

use http::{Method, Version};
use portcullis_model::{Filter, HeaderEdit, Listener, TrafficPolicy};

use crate::client::clients::Client;
use crate::http::decide::{AskedBy, Decision, Guarded, Next, Step};
use crate::trace::request::RequestTrace;

/// The connection and the listener that the request came to.
pub(super) fn came(
    trace: &RequestTrace,
    client: &Client,
    (method, host, path, version): (&Method, Option<&str>, &str, Version),
    listener: Option<&Listener>,
) {
    trace.step("request", || format!("{method} {}{path} by {version:?}", host.unwrap_or("(no host)")));
    trace.step("connection", || {
        let tls = match (&client.tls, &client.server_name) {
            (None, _) => "without TLS".to_owned(),
            (Some(_), None) => "in TLS without a server name".to_owned(),
            (Some(_), Some(name)) => format!("in TLS for the server name {name}"),
        };
        format!("{tls}, to port {} of Gateway {}", client.local.port(), client.gateway())
    });
    trace.step("listener", || match listener {
        Some(listener) => format!("{}, tenant {}", listener.id, listener.id.parent.namespace),
        None => "none takes it".to_owned(),
    });
    policies(trace, listener.and_then(|listener| listener.policy.as_deref()));
}

/// The rule that takes the request, and what it wants; `matched` is the match that does.
pub(super) fn decided(trace: &RequestTrace, decision: &Decision<'_>, matched: Option<String>) {
    if let Some(rule) = decision.taken_by() {
        trace.step("rule", || match &matched {
            Some(matched) => format!("{}, by its match {matched}", rule.id),
            None => rule.id.to_string(),
        });
        policies(trace, rule.policy.as_deref());
        filters(trace, &rule.filters);
    }
    match decision {
        Decision::Forward(plan) => {
            trace.step("backend", || format!("{}, of weight {}", plan.name, plan.backend.weight));
            filters(trace, &plan.backend.filters);
        }
        Decision::Guarded(guarded) => guards(trace, guarded),
        Decision::Own(_) => {}
    }
}

/// Policies whose terms hold for what has an answer of its own, or passes, as later steps say.
fn policies(trace: &RequestTrace, policy: Option<&TrafficPolicy>) {
    for level in policy.into_iter().flat_map(|policy| &policy.levels) {
        let terms = &level.protection;
        let wants = [
            (terms.clients.is_some(), "clients' addresses"),
            (!terms.rate_limits.is_empty(), "rate limits"),
            (!terms.credentials.is_empty(), "credentials"),
            (terms.external_auth.is_some(), "an auth service"),
            (terms.most_body_bytes.is_some(), "the size of the body"),
        ];
        let wants: Vec<_> =
            wants.into_iter().filter_map(|(is_wanted, name)| is_wanted.then_some(name)).collect();
        if !wants.is_empty() {
            trace.step("policy", || format!("{level} checks {}", wants.join(", ")));
        }
    }
}

fn filters(trace: &RequestTrace, filters: &[Filter]) {
    for filter in filters {
        trace.step("filter", || match filter {
            Filter::RequestHeaders(edit) => format!("fields of the request: {}", names(edit)),
            Filter::ResponseHeaders(edit) => format!("fields of the response: {}", names(edit)),
            Filter::Rewrite(_) => "host or path are rewritten".to_owned(),
            Filter::Cors(_) => "CORS".to_owned(),
            Filter::Mirror(_) => "is mirrored".to_owned(),
            Filter::ExternalAuth(auth) => format!("auth service {}", auth.backend),
            Filter::Substitution(_) => "the path is rewritten by a regular expression".to_owned(),
            Filter::RequestTemplates(_) => "fields of the request, by templates".to_owned(),
            Filter::ResponseTemplates(_) => "fields of the response, by templates".to_owned(),
        });
    }
}

/// Values may be secret.
fn names(HeaderEdit { set, add, remove }: &HeaderEdit) -> String {
    let set = set.iter().map(|(name, _)| format!("sets {name}"));
    let add = add.iter().map(|(name, _)| format!("adds {name}"));
    let remove = remove.iter().map(|name| format!("removes {name}"));
    set.chain(add).chain(remove).collect::<Vec<_>>().join(", ")
}

fn guards(trace: &RequestTrace, guarded: &Guarded<'_>) {
    let guards = guarded.steps.iter().filter_map(|step| match step {
        Step::Edit(_) => None,
        Step::Ask(auth, AskedBy::Policy) => Some(format!("auth service {} of a policy", auth.backend)),
        Step::Ask(auth, AskedBy::Filter) => Some(format!("auth service {}", auth.backend)),
        Step::Authenticate(_) => Some("credentials".to_owned()),
        Step::Fail(_) => Some("a filter that cannot be applied".to_owned()),
    });
    let guards: Vec<_> = guards.collect();
    let next = match guarded.next {
        Next::Route(_) => "before a rule is looked for",
        Next::Forward(_) | Next::Own(_) => "before it goes on",
    };
    if !guards.is_empty() {
        trace.step("checks", || format!("{}, {next}", guards.join(", then ")));
    }
}
