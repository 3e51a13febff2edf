//! The listener, rule and backend that take a request or a connection, and why not the others. The
//! answer is that of the tables the data plane searches.

mod candidates;
mod connection;
pub(crate) mod request;

use std::net::IpAddr;
use std::sync::Arc;

use portcullis_model::{
    Action, Admission, BackendName, BackendTarget, Believer, Defaults, FrontendKey, HostMap, Limits,
    Listener, ListenerLimits, Port, PortListeners, RateScope, RequestHead, RouteTable, Rule, Selected,
    Serves, Snapshot, Timeouts, TrafficPolicy,
};
use serde::{Deserialize, Serialize};

use crate::plain::escaped;
use crate::routes::number;
use crate::served::ServedListener;
use crate::table::{Look, subject_line};
use crate::text;
use crate::withheld::withhold_written;
use candidates::{Candidates, Miss};
use request::{Claims, EarlyAnswer, FieldSizes, Question, QuestionError, Reading, Request, Scheme};

/// The fate of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub outcome: Outcome,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// `listener`, `rule`, `backend`, …; empty for a remark.
    pub subject: String,
    pub text: String,
    /// The node of the tree to which the request has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<TreePath>,
    /// A node to which it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_at: Option<TreePath>,
    /// The reason for either, alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A node of the tree, by the names of all above it; those below it are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TreePath {
    pub gateway: String,
    /// `443`, or `53/udp`.
    pub port: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#match: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Nothing answers: no listener, or no connection to one.
    Unanswered,
    /// There is a response, be it an error.
    Answered,
}

// === impl Explanation ===

impl Explanation {
    /// A line of text for each, its subject first.
    pub fn text(&self, look: Look) -> String {
        let line = |line: &Line| match line.subject.as_str() {
            "" if self.outcome == Outcome::Unanswered => format!("{}\n", escaped(&line.text)),
            subject => subject_line(subject, &line.text, 10, look),
        };
        self.lines.iter().map(line).collect()
    }
}

/// The answer to a question. `reading` is the data plane's; `served` is what an agent that
/// runs says of its listeners.
///
/// # Errors
/// When the question is no request.
pub fn explain(
    snapshot: &Snapshot,
    question: &Question,
    reading: Reading,
    served: &[ServedListener],
) -> Result<Explanation, QuestionError> {
    let request = Request::parse(question, reading)?;
    let ports = ports(snapshot, &request);
    if ports.is_empty() {
        let line = Line { text: no_listener(snapshot, &request), ..Line::default() };
        return Ok(Explanation { outcome: Outcome::Unanswered, lines: vec![line] });
    }
    let (mut lines, mut outcome) = (Vec::new(), Outcome::Unanswered);
    for (frontends, port) in ports {
        let at = TreePath {
            gateway: port.gateway.name.to_string(),
            port: number(port.key),
            ..TreePath::default()
        };
        let mut answer =
            Answer { lines: &mut lines, at, snapshot, request: &request, all: question.all, served };
        outcome = outcome.max(answer.port(&frontends, port));
    }
    Ok(Explanation { outcome, lines })
}

/// The ports that the request can arrive at, each with its addresses: of every Gateway if the URL
/// names a host, of one if it is an address.
fn ports<'s>(snapshot: &'s Snapshot, request: &Request) -> Vec<(Vec<FrontendKey>, &'s Port)> {
    let frontends: Vec<_> = snapshot.frontends.iter().filter(|(key, _)| request.is_for_port(key)).collect();
    let mut ports: Vec<(Vec<FrontendKey>, &Arc<Port>)> = Vec::new();
    for (frontend, port) in at_address(&frontends, request.address()) {
        match ports.iter_mut().find(|(_, known)| Arc::ptr_eq(known, port)) {
            Some((frontends, _)) => frontends.push(*frontend),
            None => ports.push((vec![*frontend], port)),
        }
    }
    ports.into_iter().map(|(frontends, port)| (frontends, &**port)).collect()
}

/// The frontends at which an address is served, without one all: those that have it, else those on
/// all addresses of its family.
fn at_address<'f, P>(
    frontends: &[(&'f FrontendKey, P)],
    address: Option<IpAddr>,
) -> impl Iterator<Item = (&'f FrontendKey, P)>
where
    P: Copy,
{
    let is_served = |is_served: fn(IpAddr, IpAddr) -> bool| {
        let served = frontends.iter().filter(|(key, _)| address.is_none_or(|it| is_served(key.address, it)));
        served.copied().collect::<Vec<_>>()
    };
    let exact = is_served(|served, address| served == address);
    let all = is_served(|served, address| served.is_unspecified() && served.is_ipv4() == address.is_ipv4());
    (if exact.is_empty() { all } else { exact }).into_iter()
}

/// An address is a Gateway's on all of its ports, or no Gateway's.
fn no_listener(snapshot: &Snapshot, request: &Request) -> String {
    let frontends: Vec<_> = snapshot.frontends.iter().collect();
    let there = at_address(&frontends, request.address());
    let mut there: Vec<_> =
        there.map(|(key, port)| format!("{key} (Gateway {})", port.gateway.name)).collect();
    there.truncate(20);
    let whose = match request.address() {
        Some(address) if there.is_empty() => format!("no Gateway is served on {address}"),
        _ if there.is_empty() => "there are no listeners at all".to_owned(),
        Some(address) => format!("on {address} there are {}", there.join(", ")),
        None => format!("listeners: {}", there.join(", ")),
    };
    format!("no listener on port {} for {request}; {whose}", request.port)
}

/// Without the values that they write into header fields.
fn filters_text(filters: &impl Serialize) -> String {
    match serde_json::to_value(filters) {
        Ok(mut filters) => {
            withhold_written(&mut filters);
            filters.to_string()
        }
        Err(error) => format!("cannot be shown: {error}"),
    }
}

/// Writes what one Gateway's port does with the request.
struct Answer<'a> {
    lines: &'a mut Vec<Line>,
    /// The node that the request has come to.
    at: TreePath,
    snapshot: &'a Snapshot,
    request: &'a Request,
    all: bool,
    served: &'a [ServedListener],
}

impl Answer<'_> {
    fn port(&mut self, frontends: &[FrontendKey], port: &Port) -> Outcome {
        let addresses = frontends.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (gateway, number, protocol) = (&port.gateway.name, port.key.number, port.listeners.to_string());
        self.node_line("gateway", &format!("{gateway} port {number} ({protocol}) on {addresses}"));
        let scheme = self.request.scheme;
        let ask_with = |other: Scheme| format!("this port speaks {protocol}, ask with {}://", other.as_str());
        let listeners = match (&port.listeners, scheme) {
            (PortListeners::Http(listeners), Scheme::Http) => listeners,
            (PortListeners::Http(_), _) => return self.none(&ask_with(Scheme::Http)),
            (PortListeners::Tls(listeners), Scheme::Https | Scheme::Tls) => {
                let named = listeners.for_sni(self.request.server_name.as_deref());
                if let Some((listener, rules)) = named.and_then(|it| Some((it, it.serves.server_names()?))) {
                    return self.server_name(listeners, listener, rules);
                }
                if scheme == Scheme::Tls {
                    return match named {
                        Some(named) if named.serves == Serves::NoCertificate => self.no_certificate(named),
                        Some(named) => self.none(&format!("{} is for HTTPS, ask with https://", named.id)),
                        None => self.no_server_name(),
                    };
                }
                listeners
            }
            (PortListeners::Tls(_), _) => {
                let is_https = port.listeners.iter().any(|listener| listener.serves.server_names().is_none());
                return self.none(&ask_with(if is_https { Scheme::Https } else { Scheme::Tls }));
            }
            (PortListeners::Tcp(listener), Scheme::Tcp) | (PortListeners::Udp(listener), Scheme::Udp) => {
                return self.only_listener(listener);
            }
            (PortListeners::Tcp(_), _) => return self.none(&ask_with(Scheme::Tcp)),
            (PortListeners::Udp(_), _) => return self.none(&ask_with(Scheme::Udp)),
        };
        if let Some(answer) = self.request.answer_to_method() {
            return self.early(answer);
        }
        let Limits { target_bytes, header_bytes, header_fields, .. } = port.gateway.limits;
        let limits = ListenerLimits {
            target_bytes: Some(target_bytes),
            header_bytes: Some(header_bytes),
            header_fields: Some(header_fields),
            ..ListenerLimits::default()
        };
        if self.refuses_size(&limits, "Gateway") {
            return Outcome::Answered;
        }
        if let Some(answer) = self.request.early_answer() {
            return self.early(answer);
        }
        if self.request.is_rewritten() {
            self.line("request", &self.request.to_string());
        }
        let listener = match self.listener(listeners) {
            Ok(listener) => listener,
            Err(outcome) => return outcome,
        };
        let limits = listener.admission.limits.as_ref();
        if limits.is_some_and(|limits| self.refuses_size(limits, "listener")) {
            return Outcome::Answered;
        }
        self.streams(port, listener);
        self.claims(listener);
        match listener.serves.routes() {
            Some(routes) => {
                let policy = listener.policy.as_deref();
                self.rule(routes, policy.and_then(|policy| policy.defaults.as_deref()));
            }
            None => return self.none(&format!("{} serves no requests", listener.id)),
        }
        Outcome::Answered
    }

    fn early(&mut self, answer: EarlyAnswer) -> Outcome {
        let EarlyAnswer { status, words } = answer;
        self.line("answer", &format!("{status}: {words}: no route is asked"));
        Outcome::Answered
    }

    /// Writes the answer to a request that is larger than it may be, and tells if it is.
    fn refuses_size(&mut self, most: &ListenerLimits, whose: &str) -> bool {
        self.refuses_long_target(most.target_bytes, whose) || self.refuses_fields(most, whose)
    }

    fn refuses_fields(&mut self, most: &ListenerLimits, whose: &str) -> bool {
        let FieldSizes { count, bytes } = self.request.fields();
        let over = |size: usize, most: Option<u32>| most.filter(|most| size > *most as usize);
        let why = match (over(count, most.header_fields), over(bytes, most.header_bytes)) {
            (Some(most), _) => format!("it has {count} header fields, and the {whose} takes {most}"),
            (None, Some(most)) => {
                format!("its header fields have {bytes} bytes, and the {whose} takes {most}")
            }
            (None, None) => return false,
        };
        let status = self.request.answer_to_fields().status;
        self.line("answer", &format!("{status}: {why}: no route is asked"));
        true
    }

    /// Writes the answer to a target that is longer than it may be, and tells if it is.
    fn refuses_long_target(&mut self, most: Option<u32>, whose: &str) -> bool {
        let bytes = self.request.target_bytes();
        let Some(most) = most.filter(|most| bytes > *most as usize) else { return false };
        self.line(
            "answer",
            &format!(
                "414: path and query have {bytes} bytes, and the {whose} takes {most}: no route is asked"
            ),
        );
        true
    }

    /// As the data plane selects it: by host, and with TLS it must be the one that the server name
    /// chose.
    fn listener<'p>(&mut self, listeners: &'p HostMap<Arc<Listener>>) -> Result<&'p Listener, Outcome> {
        let host = self.request.host();
        for (_, listener) in listeners.sorted() {
            self.listener_line(host, listener, listeners.most_specific(host));
        }
        let is_tls = self.request.scheme.is_tls();
        let connections = listeners.for_sni(self.request.server_name.as_deref());
        if is_tls && connections.is_none() {
            return Err(self.no_server_name());
        }
        if let Some(named) = connections.filter(|it| is_tls && it.serves == Serves::NoCertificate) {
            return Err(self.no_certificate(named));
        }
        let selected = listeners.for_request(host, |best| {
            !is_tls || connections.is_some_and(|connections| Arc::ptr_eq(connections, best))
        });
        match selected {
            Selected::Listener(listener) => {
                self.service(listener);
                return Ok(listener);
            }
            Selected::Misdirected(other) => {
                let why = format!("421: the host belongs to {}, the TLS server name does not", other.id);
                self.line("answer", &why);
            }
            Selected::NoListener => {
                self.line("answer", &format!("404: no listener of this port has the hostname {host}"));
            }
        }
        Err(Outcome::Answered)
    }

    fn no_certificate(&mut self, listener: &Listener) -> Outcome {
        self.none(&format!("{} has no certificate that can be used, TLS is refused", listener.id))
    }

    fn no_server_name(&mut self) -> Outcome {
        self.none("no listener has this server name, TLS is refused")
    }

    fn none(&mut self, why: &str) -> Outcome {
        self.line("answer", &format!("none: {why}"));
        Outcome::Unanswered
    }

    fn listener_line(&mut self, host: &str, listener: &Arc<Listener>, best: Option<&Arc<Listener>>) {
        let pattern = &listener.hostname;
        let is_best = best.is_some_and(|best| Arc::ptr_eq(best, listener));
        let (verdict, why) = match (is_best, pattern.matches(host)) {
            (true, _) => ("takes it", format!("hostname {pattern} is the most specific that matches {host}")),
            (false, true) => ("not this one", format!("hostname {pattern} matches, but is less specific")),
            (false, false) if self.all => ("not this one", format!("hostname {pattern} does not match")),
            (false, false) => return,
        };
        let node = TreePath { listener: Some(listener.id.to_string()), ..self.at.clone() };
        let (at, not_at) = if is_best { (Some(node.clone()), None) } else { (None, Some(node.clone())) };
        if is_best {
            self.at = node;
        }
        let text = format!("{}: {verdict}: {why}", listener.id);
        self.lines.push(Line { subject: "listener".to_owned(), text, at, not_at, why: Some(why) });
    }

    /// The part of the node that serves the listener, and the terms on which it lets clients in, if
    /// it has any.
    fn service(&mut self, listener: &Listener) {
        let request = self.request;
        let served = self.served;
        let at = served.iter().filter(|it| it.is(&listener.id, request.port));
        for (what, text) in at.filter(|it| it.is_at(request.address())).flat_map(ServedListener::sentences) {
            self.line(what, &text);
        }
        if let Some(text) = listener.serves.tls().and_then(|tls| text::certificates_text(&tls.clients)) {
            self.line("clients", &text);
        }
        let Admission { budgets, clients, proxies, listed, open, limits, log } = &*listener.admission;
        if let Some(clients) = clients {
            self.line("clients", &text::refusal_text(clients));
        }
        if let Some(proxies) = proxies {
            self.line("proxies", &text::proxies_text(proxies));
        }
        for text in listed.iter().flat_map(|listed| text::listed_texts(listed)) {
            self.line("requests", &text);
        }
        for limit in open {
            self.line("open", &format!("{}; more are refused", text::open_text(limit)));
        }
        if let Some(limits) = limits {
            self.line("limits", &text::limits_text(limits));
        }
        if let Some(terms) = log {
            self.line("log", &text::log_text(terms));
        }
        for budget in budgets {
            self.line("budget", &format!("{}; more are refused", text::budget_text(budget)));
        }
        self.policies(listener.policy.as_deref());
        if !listener.filters.is_empty() {
            let filters = filters_text(&listener.filters);
            self.line("passes", &format!("{filters}, which may change what rules see"));
        }
    }

    /// The streams of a connection without TLS, where they are not what the listener says.
    fn streams(&mut self, port: &Port, listener: &Listener) {
        let own = listener.admission.limits.as_ref().and_then(|limits| limits.http2_streams);
        let streams = port.streams_without_tls().zip(own).filter(|(streams, own)| streams > own);
        if let Some((streams, own)) = streams {
            self.line(
                "streams",
                &format!(
                    "{streams} on a connection, and not {own}: it may be for other listeners of the port, too"
                ),
            );
        }
    }

    /// The fields in which the request says where it comes from, as far as the listener believes
    /// that.
    fn claims(&mut self, listener: &Listener) {
        let listed = listener.admission.listed.as_deref();
        let (claims, why) = match listed.and_then(|listed| listed.proxies(Believer::Listener)) {
            Some(proxies) if proxies.are_none() => {
                (Claims::Hidden, "rules do not see it: the listener believes no proxy")
            }
            Some(_) => (Claims::Seen, "as of a proxy that the listener believes; rules see none of others"),
            None => (
                Claims::Seen,
                "as of a proxy that is believed (--trusted-hops of the agent); rules see none of others",
            ),
        };
        self.request.take(claims);
        let request = self.request;
        for name in request.claims() {
            self.line("field", &format!("{name}: {why}"));
        }
    }

    /// `defaults` are those of the listener's policies.
    fn rule(&mut self, routes: &RouteTable, defaults: Option<&Defaults>) {
        let candidates = match Candidates::of(routes, self.request) {
            Ok(candidates) => candidates,
            Err(EarlyAnswer { status, words }) => {
                let why =
                    "a value is longer than expressions look at, or they take longer than a request has";
                return self.line("answer", &format!("{status}: {words}: {why}"));
            }
        };
        let listener = TreePath { host: None, r#match: None, rule: None, ..self.at.clone() };
        match candidates.winner() {
            Some(winner) => {
                let matched = text::match_text(&winner.entry.matches);
                self.at.host = Some(winner.host.to_string());
                self.at.r#match = Some(matched.clone());
                self.at.rule = Some(winner.entry.rule.id.to_string());
                self.node_line("rule", &format!("{}: host {}, {matched}", winner.entry.rule.id, winner.host));
                self.action(&winner.entry.rule, defaults);
            }
            None => self.line("answer", "404: the listener has no rule that matches"),
        }
        self.others(&candidates, &listener)
    }

    fn policies(&mut self, policy: Option<&TrafficPolicy>) {
        for text in policy.into_iter().flat_map(text::policy_texts) {
            self.line("policy", &text);
        }
        let levels = policy.into_iter().flat_map(|policy| &policy.levels);
        let mut limits = levels.flat_map(|level| &level.protection.rate_limits);
        if limits.any(|limit| limit.scope == RateScope::Cluster) {
            self.line("share", &text::share_text(self.snapshot.agents));
        }
    }

    fn action(&mut self, rule: &Rule, defaults: Option<&Defaults>) {
        self.policies(rule.policy.as_deref());
        if !rule.filters.is_empty() {
            self.line("filters", &filters_text(&rule.filters));
        }
        let Action::Forward(split) = &rule.action else {
            return self.line("answer", &text::action_text(rule));
        };
        let own = Defaults { timeouts: rule.timeouts, retry: rule.retry.as_deref().cloned() };
        let Defaults { timeouts, retry } = defaults.map_or_else(|| own.clone(), |wider| own.over(wider));
        if timeouts != Timeouts::default() {
            self.line("time-outs", &timeouts.to_string());
        }
        if let Some(retry) = &retry {
            self.line("retry", &text::retry_text(retry));
        }
        if let Some(session) = &rule.session {
            self.line("session", &text::session_text(session));
        }
        let total = split.total();
        for backend in split.backends() {
            let (name, target) = match &backend.target {
                BackendTarget::Known(name) => {
                    (Some(name), format!("{name} → {}", self.endpoints(name, "503")))
                }
                BackendTarget::Respond(response) => (None, text::response_text(response)),
                BackendTarget::Invalid(failure) => (None, failure.to_string()),
            };
            self.backend_line(name, &format!("{} of {total}: {target}", backend.weight));
        }
    }

    fn endpoints(&self, name: &BackendName, without: &str) -> String {
        match self.snapshot.backends.get(name.as_str()) {
            Some(backend) if !backend.endpoints.is_empty() => {
                backend.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            _ if name.is_external() => format!("no address that is known and may be sent to: {without}"),
            _ => format!("no ready endpoints: {without}"),
        }
    }

    /// `listener` is the node that they are below.
    fn others(&mut self, candidates: &Candidates<'_>, listener: &TreePath) {
        const SHOWN: usize = 10;
        let near = candidates.others().filter(|(_, miss)| self.all || matches!(miss, Miss::Near(_)));
        let shown = near.take(if self.all { usize::MAX } else { SHOWN });
        let mut told = 0;
        for (other, miss) in shown {
            if self.is_full() {
                break;
            }
            told += 1;
            let (id, matched) = (&other.entry.rule.id, text::match_text(&other.entry.matches));
            let text = format!("{id}: host {}, {matched}: {}", other.host, miss.why());
            let node = TreePath {
                host: Some(other.host.to_string()),
                r#match: Some(matched),
                rule: Some(id.to_string()),
                ..listener.clone()
            };
            let why = Some(miss.why().to_owned());
            self.lines.push(Line { subject: "not".to_owned(), text, at: None, not_at: Some(node), why });
        }
        match (candidates.count().saturating_sub(told), self.all) {
            (0, _) => {}
            (hidden, true) => self.line("", &format!("and {hidden} more candidates")),
            (hidden, false) => {
                self.line("", &format!("{hidden} more candidates are further off (--all lists them)"));
            }
        }
    }

    /// Tenants write as many rules as they like, and one question may be about all of them.
    fn is_full(&self) -> bool {
        const MOST_LINES: usize = 2000;
        const MOST_BYTES: usize = 1 << 20;
        self.lines.len() >= MOST_LINES
            || self.lines.iter().map(|line| line.text.len()).sum::<usize>() >= MOST_BYTES
    }

    fn line(&mut self, what: &str, text: &str) {
        self.line_at(what, text, None);
    }

    /// A line about the node that the request has come to.
    fn node_line(&mut self, what: &str, text: &str) {
        self.line_at(what, text, Some(self.at.clone()));
    }

    /// A line about a backend of the rule that the request has come to, or about what stands in for
    /// one.
    fn backend_line(&mut self, name: Option<&BackendName>, text: &str) {
        self.line_at(
            "backend",
            text,
            Some(TreePath { backend: name.map(ToString::to_string), ..self.at.clone() }),
        );
    }

    fn line_at(&mut self, what: &str, text: &str, at: Option<TreePath>) {
        self.lines.push(Line { subject: what.to_owned(), text: text.to_owned(), at, ..Line::default() });
    }
}
