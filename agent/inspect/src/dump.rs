//! A snapshot as plain values in a stable order, for operators, golden files and the admin
//! endpoint.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use portcullis_model::{
    Action, AddressRange, Admission, BackendName, BackendTarget, ClientAddress, ClientCertificates,
    ClientList, Encryption, Entry, Filter, FrontendKey, KeptSessions, L4Action, L4Backend, L4Rule, L4Target,
    Limits, Listener, ListenerFilter, Port, Retry, RouteMatch, RouteTable, Rule, ServerNames, Serves,
    SessionPersistence, SessionTerms, Snapshot, TimeLimit, Timeouts, TlsOptions, TlsTermination,
    TrafficPolicy, ValueMatch, WeightedBackend,
};
use serde_json::{Map, Value, json};

use crate::served::ServedListener;
use crate::text::{budget_text, listed_texts, log_text, open_text, policy_texts, proxies_text};
use crate::withheld::withhold_written;

/// The snapshot of an agent that runs, with the part of it that serves each frontend of a TCP or
/// UDP listener: the kernel, or user space and why; and the earliest places at which terms of
/// listeners hold; and by backend, the endpoints that are asked only if there is no other, and why.
/// Values that filters write into header fields are left out: more clients reach an agent than its
/// manifests.
pub fn dump_served(
    snapshot: &Snapshot,
    served_by: &BTreeMap<String, String>,
    listeners: &[ServedListener],
    out: &BTreeMap<String, BTreeMap<String, &'static str>>,
) -> Value {
    let mut dump = dump_snapshot(snapshot);
    withhold_written(&mut dump);
    if !served_by.is_empty() {
        dump["servedBy"] = json!(served_by);
    }
    let enforced_by: Vec<_> = listeners.iter().filter_map(dump_places).collect();
    if !enforced_by.is_empty() {
        dump["enforcedBy"] = json!(enforced_by);
    }
    if !out.is_empty() {
        dump["endpointsOut"] = json!(out);
    }
    dump
}

/// `None` for a listener without terms.
fn dump_places(served: &ServedListener) -> Option<Value> {
    let terms = [("clients", &served.clients), ("budgets", &served.budgets)].into_iter();
    let terms = terms.filter_map(|(what, part)| Some((what.to_owned(), json!(part.as_ref()?.to_string()))));
    let terms: Map<_, _> = terms.collect();
    let mut value = object([
        ("listener", json!(served.name())),
        ("port", json!(served.port)),
        ("addresses", json!(served.addresses)),
    ]);
    (!terms.is_empty()).then(|| {
        value.extend(terms);
        Value::Object(value)
    })
}

/// The whole snapshot, except keys and the generation.
pub fn dump_snapshot(snapshot: &Snapshot) -> Value {
    let mut frontends = Map::new();
    let mut shown: Vec<(&FrontendKey, &Arc<Port>)> = Vec::new();
    for (key, port) in &snapshot.frontends {
        let same = shown.iter().find(|(_, other)| Arc::ptr_eq(port, other));
        let value = same.map_or_else(|| dump_port(port), |(first, _)| json!(format!("same as {first}")));
        frontends.insert(key.to_string(), value);
        shown.push((key, port));
    }
    let without_requests = without_requests(snapshot);
    let backends = snapshot.backends.sorted().into_iter().map(|(name, backend)| {
        let mut value = object([("endpoints", json!(backend.endpoints))]);
        if !without_requests.contains(&backend.name) {
            value.insert("protocol".to_owned(), json!(backend.protocol));
        }
        match &backend.encryption {
            Encryption::None => {}
            Encryption::Tls(tls) => drop(value.insert("tls".to_owned(), json!(tls))),
            Encryption::Unavailable => {
                drop(value.insert("tls".to_owned(), json!("unavailable: nothing is sent")))
            }
        }
        if let Some(version) = &backend.proxy_header {
            value.insert("proxyProtocol".to_owned(), json!(version));
        }
        if let Some(budget) = &backend.retry_budget {
            value.insert("retryBudget".to_owned(), json!(budget));
        }
        if let Some(resilience) = &backend.resilience {
            value.insert("resilience".to_owned(), json!(resilience));
        }
        (name.to_string(), Value::Object(value))
    });
    let backends: Map<_, _> = backends.collect();
    let mut dump = json!({"frontends": frontends, "backends": backends});
    if !snapshot.health_checks.is_empty() {
        let checks = snapshot.health_checks.iter();
        let checks = checks.map(|(port, check)| (port.to_string(), json!(check.gateway.to_string())));
        dump["healthChecks"] = Value::Object(checks.collect());
    }
    if !snapshot.client_certificates.is_empty() {
        let shown = snapshot.client_certificates.iter();
        let shown =
            shown.map(|(gateway, certificate)| (gateway.to_string(), json!(certificate.names.join(", "))));
        dump["clientCertificates"] = Value::Object(shown.collect());
    }
    if !snapshot.key_sets.is_empty() {
        let sets = snapshot.key_sets.iter();
        let sets = sets.map(|set| format!("{set} of {}, good for {:?}", set.host, set.lifetime));
        dump["keySets"] = sets.collect();
    }
    if let Some(agents) = snapshot.agents {
        dump["agents"] = json!(agents);
    }
    if !snapshot.shared_addresses.is_empty() {
        dump["sharedAddresses"] = json!(snapshot.shared_addresses);
    }
    dump
}

fn dump_port(port: &Port) -> Value {
    let listeners: Vec<_> = port.listeners.sorted().into_iter().map(|it| dump_listener(it)).collect();
    let mut value = object([("gateway", json!(port.gateway.name)), ("listeners", json!(listeners))]);
    if port.client_address == ClientAddress::Disputed {
        value.insert("clientAddress".to_owned(), json!("disputed: no connection is taken"));
    }
    let limits = dump_limits(&port.gateway.limits);
    if !limits.is_empty() {
        value.insert("limits".to_owned(), Value::Object(limits));
    }
    if let Some(log) = &port.gateway.access_log {
        value.insert("accessLog".to_owned(), json!(log));
    }
    Value::Object(value)
}

/// Those that are not the default.
fn dump_limits(limits: &Limits) -> Map<String, Value> {
    let usual = all_limits(&Limits::default());
    let all = all_limits(limits).into_iter().zip(usual);
    all.filter(|(now, usual)| now != usual).map(|((name, value), _)| (name.to_owned(), value)).collect()
}

fn all_limits(limits: &Limits) -> [(&'static str, Value); 10] {
    let text = |limit: Duration| json!(format!("{limit:?}"));
    [
        ("connections", json!(limits.connections)),
        ("tlsHandshakeTimeout", text(limits.tls_handshake_timeout)),
        ("headerTimeout", text(limits.header_timeout)),
        ("idleTimeout", text(limits.idle_timeout)),
        ("http2IdleTimeout", text(limits.http2_idle_timeout)),
        ("http2Streams", json!(limits.http2_streams)),
        ("targetBytes", json!(limits.target_bytes)),
        ("headerBytes", json!(limits.header_bytes)),
        ("headerFields", json!(limits.header_fields)),
        ("bodyBytes", json!(limits.body_bytes)),
    ]
}

fn dump_listener(listener: &Listener) -> Value {
    let mut value = object([("listener", json!(listener.id)), ("hostname", json!(listener.hostname))]);
    value.extend(match &listener.serves {
        Serves::Http(routes) => dump_routes(routes),
        Serves::Https { tls, routes } => dump_tls(tls).into_iter().chain(dump_routes(routes)).collect(),
        Serves::TlsTerminated { tls, rules } => {
            dump_tls(tls).into_iter().chain(dump_server_names(rules)).collect()
        }
        Serves::TlsPassthrough(rules) => dump_server_names(rules),
        Serves::Tcp(rule) | Serves::Udp(rule) => dump_l4_rule(rule),
        Serves::NoCertificate => object([("certificates", json!([]))]),
    });
    value.extend(dump_admission(&listener.admission));
    if !listener.filters.is_empty() {
        value.insert("filters".to_owned(), json!(listener.filters));
    }
    if let Some(policy) = &listener.policy {
        value.insert("policies".to_owned(), json!(policy_texts(policy)));
    }
    Value::Object(value)
}

/// Nothing, if all clients are let in.
fn dump_admission(admission: &Admission) -> Map<String, Value> {
    let mut value = Map::new();
    if !admission.budgets.is_empty() {
        let budgets: Vec<_> = admission.budgets.iter().map(budget_text).collect();
        value.insert("budgets".to_owned(), json!(budgets));
    }
    if let Some(clients) = &admission.clients {
        let levels = clients.levels().iter().map(|ClientList { allow, deny }| {
            let lists = [("allow", allow), ("deny", deny)].into_iter().filter(|(_, list)| !list.is_empty());
            let texts = |list: &[AddressRange]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            lists.map(|(name, list)| (name.to_owned(), json!(texts(list)))).collect::<Map<_, _>>()
        });
        value.insert("clients".to_owned(), levels.map(Value::Object).collect());
    }
    if let Some(proxies) = &admission.proxies {
        value.insert("proxies".to_owned(), json!(proxies_text(proxies)));
    }
    if !admission.open.is_empty() {
        let open: Vec<_> = admission.open.iter().map(open_text).collect();
        value.insert("open".to_owned(), json!(open));
    }
    if let Some(limits) = &admission.limits {
        let limits: Map<_, _> = limits.texts().map(|(name, text)| (name.to_owned(), json!(text))).collect();
        value.insert("limits".to_owned(), Value::Object(limits));
    }
    if let Some(terms) = &admission.log {
        value.insert("accessLog".to_owned(), json!(log_text(terms)));
    }
    if let Some(listed) = &admission.listed {
        value.insert("requests".to_owned(), json!(listed_texts(listed)));
    }
    value
}

fn dump_tls(tls: &TlsTermination) -> Map<String, Value> {
    let names: Vec<_> = tls.certificates.iter().map(|certificate| certificate.names.join(", ")).collect();
    let mut value = object([("certificates", json!(names))]);
    value.extend(dump_tls_options(&tls.options));
    let clients = match &tls.clients {
        ClientCertificates::NotAsked => return value,
        ClientCertificates::Any => json!("Any"),
        // Their number in each set: names of authorities are long, and keys are longer.
        ClientCertificates::Required(sets) => {
            json!({ "authorities": sets.iter().map(|set| set.len()).collect::<Vec<_>>() })
        }
    };
    value.insert("clientCertificates".to_owned(), clients);
    value
}

/// The options that are not as by default.
fn dump_tls_options(options: &TlsOptions) -> Map<String, Value> {
    let defaults = TlsOptions::default();
    let mut value = Map::new();
    if options.minimum_version != defaults.minimum_version {
        value.insert("minimumVersion".to_owned(), json!(options.minimum_version.name()));
    }
    if !options.cipher_suites.is_empty() {
        let suites: Vec<_> =
            options.cipher_suites.iter().map(|suite| TlsOptions::cipher_suite_name(*suite)).collect();
        value.insert("cipherSuites".to_owned(), json!(suites));
    }
    if options.tickets != defaults.tickets {
        value.insert("sessionTickets".to_owned(), json!(options.tickets));
    }
    if !options.identity.is_empty() {
        let fields: Vec<_> = options.identity.iter().map(|field| field.name()).collect();
        value.insert("forwardClientCertificate".to_owned(), json!(fields));
    }
    value
}

/// Nothing, if there are none.
fn dump_routes(routes: &RouteTable) -> Map<String, Value> {
    if routes.is_empty() { Map::new() } else { object([("routes", dump_table(routes))]) }
}

fn dump_server_names(rules: &ServerNames) -> Map<String, Value> {
    let rules = rules.sorted().into_iter().map(|(name, rule)| (name.to_string(), dump_l4_rule(rule).into()));
    object([("serverNames", Value::Object(rules.collect()))])
}

fn dump_l4_rule(rule: &L4Rule) -> Map<String, Value> {
    let action = match &rule.action {
        L4Action::Forward(split) => ("forward", split.backends().iter().map(dump_l4_backend).collect()),
        L4Action::Refuse(reason) => ("refuse", json!(reason)),
    };
    let id = rule.id.iter().map(|id| ("rule".to_owned(), json!(id.to_string())));
    id.chain(object([action])).collect()
}

fn dump_table(table: &RouteTable) -> Value {
    let hosts = table.hosts().into_iter();
    let hosts =
        hosts.map(|(host, paths)| (host.to_string(), paths.entries().into_iter().map(dump_entry).collect()));
    Value::Object(hosts.collect())
}

fn dump_entry(entry: &Entry) -> Value {
    let mut value = dump_match(&entry.matches);
    value.extend(dump_rule(&entry.rule));
    Value::Object(value)
}

fn dump_match(matches: &RouteMatch) -> Map<String, Value> {
    let mut value = object([("path", json!(matches.path.to_string()))]);
    if let Some(method) = &matches.method {
        value.insert("method".to_owned(), json!(method.as_str()));
    }
    if !matches.headers.is_empty() {
        value.insert("headers".to_owned(), dump_values(&matches.headers));
    }
    if !matches.query.is_empty() {
        value.insert("query".to_owned(), dump_values(&matches.query));
    }
    value
}

fn dump_values<N: ToString>(conditions: &[(N, ValueMatch)]) -> Value {
    let lines = conditions.iter().map(|(name, value)| (name.to_string(), json!(dump_value_match(value))));
    Value::Object(lines.collect())
}

fn dump_value_match(value: &ValueMatch) -> String {
    match value {
        ValueMatch::Exact(exact) => format!("Exact {exact}"),
        ValueMatch::Regex(pattern) => format!("RegularExpression {}", pattern.written),
    }
}

fn dump_rule(rule: &Rule) -> Map<String, Value> {
    let mut value = object([("rule", json!(rule.id.to_string()))]);
    if !rule.filters.is_empty() {
        value.insert("filters".to_owned(), json!(rule.filters));
    }
    if rule.timeouts != Timeouts::default() {
        value.insert("timeouts".to_owned(), dump_timeouts(&rule.timeouts));
    }
    if let Some(retry) = &rule.retry {
        value.insert("retry".to_owned(), dump_retry(retry));
    }
    if let Some(session) = &rule.session {
        value.insert("session".to_owned(), dump_session(session));
    }
    if let Some(policy) = &rule.policy {
        value.insert("policies".to_owned(), json!(policy_texts(policy)));
    }
    let (name, action) = match &rule.action {
        Action::Forward(split) => ("forward", split.backends().iter().map(dump_http_backend).collect()),
        Action::Redirect(redirect) => ("redirect", json!(redirect)),
        Action::Respond(response) => ("respond", json!(response)),
        Action::Fail(failure) => ("fail", json!(failure.to_string())),
    };
    value.insert(name.to_owned(), action);
    value
}

/// Null where a policy of the listener may say.
fn dump_timeouts(timeouts: &Timeouts) -> Value {
    let text = |limit| match limit {
        TimeLimit::Unsaid => Value::Null,
        TimeLimit::Lifted => json!("0s"),
        TimeLimit::Of(limit) => json!(format!("{limit:?}")),
    };
    json!({"request": text(timeouts.request), "backendRequest": text(timeouts.backend_request)})
}

fn dump_session(session: &SessionPersistence) -> Value {
    let mut value = match &session.kept {
        KeptSessions::All(terms) => dump_session_terms(terms),
        KeptSessions::At(backends) => {
            let terms = backends.iter().map(|(backend, terms)| {
                let mut terms = dump_session_terms(terms);
                terms["backend"] = json!(backend.as_str());
                terms
            });
            json!({"at": terms.collect::<Vec<_>>()})
        }
    };
    if !session.drained.is_empty() {
        value["drained"] = session.drained.iter().map(dump_http_backend).collect();
    }
    value
}

fn dump_session_terms(terms: &SessionTerms) -> Value {
    let mut value = json!({"carrier": terms.carrier});
    if let Some(timeout) = terms.absolute_timeout {
        value["absoluteTimeout"] = json!(format!("{timeout:?}"));
    }
    value
}

fn dump_retry(retry: &Retry) -> Value {
    let codes = retry.codes.as_deref().map(|codes| codes.iter().map(StatusCode::as_u16).collect::<Vec<_>>());
    let backoff = retry.backoff.map(|backoff| format!("{backoff:?}"));
    json!({"attempts": retry.attempts, "codes": codes, "backoff": backoff})
}

fn dump_http_backend(backend: &WeightedBackend) -> Map<String, Value> {
    let target = match &backend.target {
        BackendTarget::Known(name) => ("backend", json!(name)),
        BackendTarget::Respond(response) => ("respond", json!(response)),
        BackendTarget::Invalid(failure) => ("invalid", json!(failure.to_string())),
    };
    let mut value = object([target, ("weight", json!(backend.weight))]);
    if !backend.filters.is_empty() {
        value.insert("filters".to_owned(), json!(backend.filters));
    }
    value
}

fn dump_l4_backend(backend: &L4Backend) -> Map<String, Value> {
    let target = match &backend.target {
        L4Target::Known(name) => ("backend", json!(name)),
        L4Target::Refuse(reason) => ("refuse", json!(reason)),
    };
    object([target, ("weight", json!(backend.weight))])
}

/// Backends that get connections or datagrams alone, which speak for themselves.
fn without_requests(snapshot: &Snapshot) -> HashSet<&BackendName> {
    let mut requested: HashSet<_> = snapshot.key_sets.iter().map(|set| &set.backend).collect();
    let mut named = HashSet::new();
    for listener in snapshot.frontends.values().flat_map(|port| port.listeners.iter()) {
        let by_name = listener.serves.server_names().into_iter().flat_map(|rules| rules.values());
        for rule in by_name.chain(listener.serves.only_rule()) {
            let L4Action::Forward(split) = &rule.action else { continue };
            named.extend(split.backends().iter().filter_map(|backend| match &backend.target {
                L4Target::Known(name) => Some(name),
                L4Target::Refuse(_) => None,
            }));
        }
        requested.extend(listener.filters.iter().filter_map(|filter| match filter {
            ListenerFilter::ExternalAuth(auth) => Some(&auth.backend),
            ListenerFilter::Fail(_) => None,
        }));
        requested.extend(asked_by(listener.policy.as_deref()));
        let hosts = listener.serves.routes().into_iter().flat_map(|routes| routes.hosts());
        for entry in hosts.flat_map(|(_, paths)| paths.entries()) {
            requested.extend(asked_by(entry.rule.policy.as_deref()));
            requested.extend(entry.rule.filters.iter().filter_map(asked_or_copied));
            let Action::Forward(split) = &entry.rule.action else { continue };
            let of_backends = split.backends().iter().flat_map(|backend| &backend.filters);
            requested.extend(of_backends.filter_map(asked_or_copied));
            requested.extend(split.backends().iter().filter_map(|backend| match &backend.target {
                BackendTarget::Known(name) => Some(name),
                BackendTarget::Respond(_) | BackendTarget::Invalid(_) => None,
            }));
        }
    }
    named.retain(|name| !requested.contains(name));
    named
}

fn asked_by(policy: Option<&TrafficPolicy>) -> impl Iterator<Item = &BackendName> {
    policy.into_iter().flat_map(|policy| &policy.external_auth).map(|auth| &auth.backend)
}

/// The backend that a filter sends requests to.
fn asked_or_copied(filter: &Filter) -> Option<&BackendName> {
    match filter {
        Filter::ExternalAuth(auth) => Some(&auth.backend),
        other => other.mirror(),
    }
}

fn object<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}
