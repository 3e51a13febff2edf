//! Matches and actions of rules, and terms of listeners, in a line of text.

use std::num::NonZeroU32;

use portcullis_model::{
    Action, AddressRange, BackendTarget, Budget, ClientCertificates, ClientList, ClientRules, DirectResponse,
    GatewayView, L4Action, L4Rule, L4Target, Level, ListedClients, ListenerLimits, LogField, LogLines,
    LogPatch, LogTerms, OpenLimit, OtherPeers, PolicyState, Protection, ProxyProtocol, Retry, RouteMatch,
    Rule, SessionCarrier, SessionPersistence, Split, TrafficPolicy, TrustedProxies, ValueMatch, View,
    Weighted,
};

/// `GET PathPrefix /a, header x=1, query q~^a$`
pub(crate) fn match_text(matches: &RouteMatch) -> String {
    let method = matches.method.as_ref().map(|method| format!("{method} ")).unwrap_or_default();
    let mut text = format!("{method}{}", matches.path);
    for (name, value) in &matches.headers {
        text += &format!(", header {name}{}", value_text(value));
    }
    for (name, value) in &matches.query {
        text += &format!(", query {name}{}", value_text(value));
    }
    text
}

pub(crate) fn value_text(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(exact) => format!("={exact}"),
        ValueMatch::Regex(pattern) => format!("~{}", pattern.written),
    }
}

/// `shop/cart:80 (90 of 100), …`
pub(crate) fn action_text(rule: &Rule) -> String {
    match &rule.action {
        Action::Respond(response) => response_text(response),
        Action::Redirect(redirect) => format!("redirect {}", redirect.status.as_str()),
        Action::Fail(failure) => failure.to_string(),
        Action::Forward(split) => shares(split, |backend| match &backend.target {
            BackendTarget::Known(name) => name.to_string(),
            BackendTarget::Respond(response) => response_text(response),
            BackendTarget::Invalid(failure) => failure.to_string(),
        }),
    }
}

/// `up to 2 more attempts, after 25ms at least, for 500 or 503 or a connection that fails`
/// `by cookie s, for 5m: first of all to the endpoint that answered before`
pub(crate) fn session_text(session: &SessionPersistence) -> String {
    let ways = session.kept.terms().map(|(only, terms)| {
        let carrier = match &terms.carrier {
            SessionCarrier::Cookie(cookie) => format!("cookie {}", cookie.name),
            SessionCarrier::Header(name) => format!("header {name}"),
        };
        let limit = terms.absolute_timeout.map(|limit| format!(", for {limit:?}")).unwrap_or_default();
        let whose = only.map(|backend| format!(", at {backend} only")).unwrap_or_default();
        format!("by {carrier}{limit}{whose}")
    });
    let ways = ways.collect::<Vec<_>>().join("; ");
    let drained = session.drained.iter().filter_map(|backend| match &backend.target {
        BackendTarget::Known(name) => Some(format!("; {name} has weight 0 and keeps its sessions")),
        BackendTarget::Respond(_) | BackendTarget::Invalid(_) => None,
    });
    format!("{ways}: to the endpoint that answered first{}", drained.collect::<String>())
}

pub(crate) fn retry_text(retry: &Retry) -> String {
    let codes: String = retry.codes().iter().map(|code| format!("{} or ", code.as_str())).collect();
    match retry.attempts() {
        0 => "none".to_owned(),
        attempts => format!(
            "up to {attempts} more attempts, after {:?} at least, for {codes}a connection that fails",
            retry.backoff()
        ),
    }
}

/// `503 with 12 bytes of text/plain`
pub(crate) fn response_text(response: &DirectResponse) -> String {
    let status = response.status.as_str();
    match response.content_type.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes())) {
        Some(content_type) => format!("{status} with {} bytes of {content_type}", response.body.len()),
        None => format!("{status} with {} bytes", response.body.len()),
    }
}

/// `shop/db:5432`, or `refused: the rule has no backendRefs`
pub(crate) fn l4_action_text(rule: &L4Rule) -> String {
    let refused = |reason: &str| format!("refused: {reason}");
    match &rule.action {
        L4Action::Refuse(reason) => refused(reason),
        L4Action::Forward(split) => shares(split, |backend| match &backend.target {
            L4Target::Known(name) => name.to_string(),
            L4Target::Refuse(reason) => refused(reason),
        }),
    }
}

/// `100 connections/s, 200 at once, of Gateway infra/web`
pub(crate) fn budget_text(budget: &Budget) -> String {
    format!("{} connections/s, {} at once, of {}", budget.per_second, budget.burst, budget.owner)
}

/// `of 10.0.0.0/8; none of 10.1.0.0/16`, and the same of further levels.
pub(crate) fn clients_text(clients: &ClientRules) -> String {
    clients.levels().iter().map(clients_of_level).collect::<Vec<_>>().join("; ")
}

/// `of 10.0.0.0/8; others are refused`
pub(crate) fn refusal_text(clients: &ClientRules) -> String {
    let has_allowed = clients.levels().iter().any(|level| !level.allow.is_empty());
    let refused = if has_allowed { "others" } else { "they" };
    format!("{}; {refused} are refused", clients_text(clients))
}

/// The clients of one level.
pub(crate) fn clients_of_level(level: &ClientList) -> String {
    /// Ranges that are named.
    const SHOWN: usize = 4;
    let list = |words: &str, ranges: &[AddressRange]| {
        let names: Vec<_> = ranges.iter().take(SHOWN).map(ToString::to_string).collect();
        let more = match ranges.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!ranges.is_empty()).then(|| format!("{words} {}{more}", names.join(", ")))
    };
    let texts = [list("of", &level.allow), list("none of", &level.deny)];
    texts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A line for each level.
pub(crate) fn policy_texts(policy: &TrafficPolicy) -> Vec<String> {
    let text = |level: &Level| {
        let Protection {
            state,
            clients,
            most_body_bytes,
            rate_limits,
            credentials,
            external_auth,
            compression,
            grpc_web,
            tracing,
            defaults,
            ..
        } = &*level.protection;
        let closed = (*state == PolicyState::Closed)
            .then(|| "not valid, no request passes: see its status".to_owned());
        let clients = clients.as_ref().map(|clients| format!("clients {}", clients_text(clients)));
        let bodies = most_body_bytes.map(|most| format!("bodies up to {most} bytes"));
        let limits = rate_limits.iter().map(ToString::to_string);
        let credentials = credentials.iter().map(ToString::to_string);
        let external_auth = external_auth.iter().map(ToString::to_string);
        let compression = compression.as_ref().map(|compression| format!("compression {compression}"));
        let grpc_web = grpc_web.map(|grpc_web| format!("gRPC-Web {grpc_web}"));
        let tracing = tracing.map(|share| format!("traces of {share} requests, where there is a collector"));
        let protecting = [closed, clients, bodies].into_iter().flatten();
        let protecting = protecting.chain(limits).chain(credentials).chain(external_auth);
        let defaults = defaults.as_ref().map(|defaults| format!("where rules say nothing, {defaults}"));
        let texts: Vec<_> =
            protecting.chain(compression).chain(grpc_web).chain(tracing).chain(defaults).collect();
        format!("{level}: {}", texts.join("; "))
    };
    policy.levels.iter().map(text).collect()
}

/// The part of limits of scope Cluster that is the agent's.
pub(crate) fn share_text(agents: Option<NonZeroU32>) -> String {
    match agents.map(NonZeroU32::get) {
        None => "of limits of all agents together, all: no other agent is known of".to_owned(),
        Some(1) => "of limits of all agents together, all: no other is ready".to_owned(),
        Some(agents) => format!("of limits of all agents together, one part in {agents}: so many are ready"),
    }
}

/// `None` if they are not asked for any.
pub(crate) fn certificates_text(clients: &ClientCertificates) -> Option<String> {
    match clients {
        ClientCertificates::NotAsked => None,
        ClientCertificates::Any => {
            Some("are asked for a certificate (tls.frontend of its Gateway); any will do, or none".to_owned())
        }
        ClientCertificates::Required(sets) => {
            let whose = match &**sets {
                [] | [_] => "tls.frontend of its Gateway",
                [_, _, ..] => "tls.frontend of its Gateway, and of the one that this is attached to",
            };
            Some(format!("need a certificate ({whose}); without one TLS is refused"))
        }
    }
}

/// `10.0.0.0/8 by PROXY protocol; others are clients themselves`
pub(crate) fn proxies_text(proxies: &ProxyProtocol) -> String {
    let ranges =
        |level: &Vec<AddressRange>| level.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let levels: Vec<_> = proxies.levels.iter().map(ranges).collect();
    let others = match proxies.others {
        OtherPeers::Accept => "are clients themselves",
        OtherPeers::Refuse => "are refused",
    };
    format!("{} name clients by PROXY protocol; others {others}", levels.join(" and of "))
}

/// `5000 connections open, of Gateway infra/web`
pub(crate) fn open_text(limit: &OpenLimit) -> String {
    format!("{} connections open, of {}", limit.most, limit.owner)
}

/// `headerBytes 4096, idleTimeout 5s`
pub(crate) fn limits_text(limits: &ListenerLimits) -> String {
    let texts: Vec<_> = limits.texts().map(|(name, value)| format!("{name} {value}")).collect();
    texts.join(", ")
}

/// `on, minimumStatus 400 for the Gateway; on besides`. Another owner takes no line away.
pub(crate) fn log_text(terms: &LogTerms) -> String {
    let text = |patch: &LogPatch| {
        let lines = match patch.lines {
            LogLines::None => "off".to_owned(),
            LogLines::Some => "on".to_owned(),
        };
        let format = patch.format.map(|format| format!("format {format:?}"));
        let status = patch.minimum_status.map(|status| format!("minimumStatus {}", status.as_str()));
        let omit = patch.omit.map(|fields| {
            let names: Vec<_> = fields.iter().map(LogField::name).collect();
            format!("omit {}", if names.is_empty() { "nothing".to_owned() } else { names.join(" ") })
        });
        let texts: Vec<_> = std::iter::once(lines).chain(format).chain(status).chain(omit).collect();
        texts.join(", ")
    };
    let of_gateway = terms.of_gateway.as_ref().map(|patch| format!("{} for the Gateway", text(patch)));
    let of_listener = terms.of_listener.as_ref().map(|patch| match patch.lines {
        LogLines::None => "nothing besides".to_owned(),
        LogLines::Some => format!("{} besides", text(patch)),
    });
    of_gateway.into_iter().chain(of_listener).collect::<Vec<_>>().join("; ")
}

/// A line for each owner who has a say: `X-Forwarded-For of 10.0.0.0/8 is believed; clients none of
/// 192.0.2.0/24`
pub(crate) fn listed_texts(listed: &ListedClients) -> Vec<String> {
    let text = |view: &View, of: &str| {
        let believed = match &view.proxies {
            TrustedProxies::Hops(0) => "no X-Forwarded-For is believed".to_owned(),
            TrustedProxies::Hops(hops) => format!("X-Forwarded-For is believed, with trusted hops: {hops}"),
            TrustedProxies::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                format!("X-Forwarded-For of {} is believed", ranges.join(", "))
            }
        };
        let clients = view.clients.as_ref().map(|clients| format!("; clients {}", clients_text(clients)));
        format!("{of}{believed}{}", clients.unwrap_or_default())
    };
    let of_gateway = match &listed.of_gateway {
        GatewayView::Shared => None,
        GatewayView::AsStarted => Some("for policies of the Gateway: as the agent is started".to_owned()),
        GatewayView::Own(view) => Some(text(view, "for policies of the Gateway: ")),
    };
    std::iter::once(text(&listed.of_listener, "")).chain(of_gateway).collect()
}

fn shares<B: Weighted>(split: &Split<B>, name: impl Fn(&B) -> String) -> String {
    let total = split.total();
    let backends = split.backends().iter().map(|backend| match split.backends() {
        [_] => name(backend),
        _ => format!("{} ({} of {total})", name(backend), backend.weight()),
    });
    backends.collect::<Vec<_>>().join(", ")
}
