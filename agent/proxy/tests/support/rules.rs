//! Rules as tests write them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use portcullis_model::{
    Action, BackendName, BackendTarget, Entry, Failure, Filter, HeaderEdit, HostPattern, ObjectName,
    PathMatch, PathRewrite, PathTable, PortKey, Precedence, Redirect, Retry, Rewrite, RouteMatch,
    RouteOrigin, RouteTable, Rule, RuleId, SessionPersistence, Split, TimeLimit, Timeouts, TrafficPolicy,
    ValueMatch, WeightedBackend,
};

#[derive(Clone)]
pub struct RuleSpec {
    /// Of the route.
    pub namespace: &'static str,
    pub host: &'static str,
    pub matches: RouteMatch,
    pub filters: Vec<Filter>,
    pub action: Action,
    pub timeouts: Timeouts,
    pub retry: Option<Retry>,
    pub session: Option<SessionPersistence>,
    pub policy: Option<Arc<TrafficPolicy>>,
}

/// A rule for everything, to the backend `echo`.
pub fn rule() -> RuleSpec {
    RuleSpec {
        namespace: "test",
        host: "*",
        matches: RouteMatch::default(),
        filters: Vec::new(),
        action: Action::Forward(split(vec![(1, known("echo"), Vec::new())])),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        policy: None,
    }
}

// === impl RuleSpec ===

impl RuleSpec {
    pub fn of(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    pub fn host(self, host: &'static str) -> Self {
        Self { host, ..self }
    }

    pub fn prefix(mut self, path: &str) -> Self {
        self.matches.path = PathMatch::prefix(path);
        self
    }

    pub fn exact(mut self, path: &str) -> Self {
        self.matches.path = PathMatch::Exact(path.into());
        self
    }

    pub fn method(mut self, method: &str) -> Self {
        self.matches.method = Some(method.parse().unwrap());
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.matches.headers.push((name.parse().unwrap(), ValueMatch::Exact(value.into())));
        self
    }

    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.matches.query.push((name.into(), ValueMatch::Exact(value.into())));
        self
    }

    pub fn filter(mut self, filter: Filter) -> Self {
        self.filters.push(filter);
        self
    }

    pub fn rewrite(self, hostname: Option<&str>, path: Option<PathRewrite>) -> Self {
        self.filter(Filter::Rewrite(Rewrite { hostname: hostname.map(|name| name.parse().unwrap()), path }))
    }

    pub fn to(self, name: &str) -> Self {
        Self { action: Action::Forward(split(vec![(1, known(name), Vec::new())])), ..self }
    }

    /// To several backends, by weight; those with weight 0 keep their sessions.
    pub fn split(mut self, backends: &[(&str, u32)]) -> Self {
        let all = backends.iter().map(|(name, weight)| (*weight, known(name), Vec::new()));
        let (taking, drained): (Vec<_>, Vec<_>) = all.partition(|(weight, ..)| *weight > 0);
        if let Some(session) = &mut self.session {
            let drained = drained.into_iter();
            session.drained = drained
                .map(|(weight, target, filters)| WeightedBackend { weight, target, filters })
                .collect();
        }
        Self { action: Action::Forward(split(taking)), ..self }
    }

    pub fn session(self, session: SessionPersistence) -> Self {
        Self { session: Some(session), ..self }
    }

    pub fn policy(self, policy: Option<Arc<TrafficPolicy>>) -> Self {
        Self { policy, ..self }
    }

    pub fn backend_filter(self, filter: Filter) -> Self {
        Self { action: Action::Forward(split(vec![(1, known("echo"), vec![filter])])), ..self }
    }

    pub fn invalid_backend(self) -> Self {
        let failure = Failure { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "no such Service".into() };
        Self { action: Action::Forward(split(vec![(1, BackendTarget::Invalid(failure), vec![])])), ..self }
    }

    pub fn fail(self, status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap();
        Self { action: Action::Fail(Failure { status, reason: "test".into() }), ..self }
    }

    pub fn redirect(self, change: impl FnOnce(&mut Redirect)) -> Self {
        let status = StatusCode::FOUND;
        let mut redirect = Redirect { scheme: None, hostname: None, path: None, port: None, status };
        change(&mut redirect);
        Self { action: Action::Redirect(Box::new(redirect)), ..self }
    }

    pub fn request_timeout(mut self, milliseconds: u64) -> Self {
        self.timeouts.request = TimeLimit::Of(Duration::from_millis(milliseconds));
        self
    }

    /// As `request: 0s`.
    pub fn any_time(mut self) -> Self {
        self.timeouts.request = TimeLimit::Lifted;
        self
    }

    /// Retries after a short pause.
    pub fn retry(mut self, attempts: u32, codes: &[u16]) -> Self {
        let codes = codes.iter().map(|code| StatusCode::from_u16(*code).unwrap()).collect();
        let backoff = Duration::from_millis(10);
        self.retry = Some(Retry { attempts: Some(attempts), codes: Some(codes), backoff: Some(backoff) });
        self
    }

    pub fn backend_timeout(mut self, milliseconds: u64) -> Self {
        self.timeouts.backend_request = TimeLimit::Of(Duration::from_millis(milliseconds));
        self
    }
}

pub fn edit(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderEdit {
    let field = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), value.parse().unwrap())
    };
    HeaderEdit {
        set: set.iter().map(field).collect(),
        add: add.iter().map(field).collect(),
        remove: remove.iter().map(|name| name.parse().unwrap()).collect(),
    }
}

/// Of the namespace `test`, unless the name says another one.
pub fn backend_name(name: &str) -> BackendName {
    let (namespace, service) = name.split_once('/').unwrap_or(("test", name));
    BackendName::new(namespace, service, PortKey::tcp(80))
}

pub fn route_table(rules: &[RuleSpec]) -> RouteTable {
    let mut by_host = BTreeMap::<HostPattern, Vec<Entry>>::new();
    for (index, spec) in rules.iter().enumerate() {
        let host = HostPattern::parse(spec.host).unwrap_or(HostPattern::Any);
        by_host.entry(host).or_default().push(entry(spec, index));
    }
    let mut table = RouteTable::default();
    for (host, entries) in by_host {
        table.insert(&host, Arc::new(PathTable::new(entries)));
    }
    table
}

fn entry(spec: &RuleSpec, index: usize) -> Entry {
    let route = Arc::new(ObjectName::new(spec.namespace, "route"));
    let origin = RouteOrigin { created: 0, name: route.clone() };
    let id = RuleId { kind: "HTTPRoute", route, index, name: None, parent: None };
    let rule = Rule {
        id: id.into(),
        filters: spec.filters.clone(),
        action: spec.action.clone(),
        timeouts: spec.timeouts,
        retry: spec.retry.clone().map(Box::new),
        session: spec.session.clone().map(Box::new),
        policy: spec.policy.clone(),
    };
    Entry {
        precedence: Precedence::of(&spec.matches, &origin, index, 0),
        matches: Arc::new(spec.matches.clone()),
        rule: Arc::new(rule),
    }
}

fn known(name: &str) -> BackendTarget {
    BackendTarget::Known(backend_name(name))
}

fn split(backends: Vec<(u32, BackendTarget, Vec<Filter>)>) -> Split<WeightedBackend> {
    let backends =
        backends.into_iter().map(|(weight, target, filters)| WeightedBackend { weight, target, filters });
    Split::new(backends.collect()).unwrap()
}
