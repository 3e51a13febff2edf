//! BackendPolicy: the way in which Services are spoken to. What it says are defaults that nothing
//! depends on for its protection: a policy that cannot be followed is without effect. Nothing here
//! knows who refers to the Services.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use portcullis_api::Kind;
use portcullis_api::types::backendpolicies::{
    BackendPolicy, BackendPolicyLoadBalancing, BackendPolicyLoadBalancingHash, BackendPolicySpec,
};
use portcullis_model::{
    Backend, BackendProtocol, Balancing, ConnectionTerms, HashKey, L4Protocol, ObjectName, ProxyHeader,
};

use super::resilience::ResilienceTerms;
use crate::duration::parse_duration;
use crate::field_names::tells_clients_apart;
use crate::{Fault, Reason};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A BackendPolicy as it was read.
pub(crate) type Declared = super::declared::Declared<Terms>;

/// The fields of a policy that say something.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    balancing: Option<Balancing>,
    protocol: Option<BackendProtocol>,
    connect: Option<Duration>,
    idle: Option<Duration>,
    vanished: Option<Duration>,
    proxy_header: Option<ProxyHeader>,
    pub(crate) resilience: ResilienceTerms,
}

/// The checks of endpoints that are requests of HTTP, in the protocol of their Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpChecks {
    Some,
    None,
}

pub(crate) fn declared(name: &ObjectName, policy: &BackendPolicy) -> Declared {
    let BackendPolicy { metadata, spec, .. } = policy;
    let kinds = Kind::BackendPolicy.targets();
    Declared::new(metadata, name, &spec.target_refs, kinds, Terms::of(spec), Terms::default)
}

// === impl Terms ===

impl Terms {
    fn of(spec: &BackendPolicySpec) -> Result<Self, Fault> {
        let mut wrong = Vec::new();
        let mut note = |why| wrong.push(why);
        let balancing = spec.load_balancing.as_ref().map(balancing).transpose();
        let protocol = spec.protocol.as_deref().map(protocol).transpose();
        let timeouts = spec.timeouts.as_ref();
        if timeouts.is_some_and(|timeouts| timeouts.connect.is_none() && timeouts.idle.is_none()) {
            note("timeouts is empty: write connect or idle".to_owned());
        }
        let connect = timeouts.and_then(|timeouts| timeouts.connect.as_deref());
        let connect = duration("timeouts.connect", connect, Duration::from_millis(10)..=MINUTE);
        let idle = timeouts.and_then(|timeouts| timeouts.idle.as_deref());
        let idle = duration("timeouts.idle", idle, SECOND..=HOUR);
        let vanished = spec.keep_alive.as_ref().map(|keep_alive| keep_alive.vanished.as_str());
        let vanished = duration("keepAlive.vanished", vanished, 4 * SECOND..=HOUR);
        let proxy_header = spec.proxy_protocol.as_deref().map(proxy_header).transpose();
        let resilience = ResilienceTerms::of(spec, &mut note);
        let terms = Self {
            balancing: balancing.map_err(&mut note).unwrap_or_default(),
            protocol: protocol.map_err(&mut note).unwrap_or_default(),
            connect: connect.map_err(&mut note).unwrap_or_default(),
            idle: idle.map_err(&mut note).unwrap_or_default(),
            vanished: vanished.map_err(&mut note).unwrap_or_default(),
            proxy_header: proxy_header.map_err(&mut note).unwrap_or_default(),
            resilience,
        };
        if wrong.is_empty() {
            return Ok(terms);
        }
        let message = format!("{}; until that is right, the policy is without effect", wrong.join("; "));
        Err(Fault::not_accepted(Reason::Invalid, message))
    }

    /// These, and where they say nothing those of `wider`.
    pub(crate) fn over(self, wider: &Self) -> Self {
        Self {
            balancing: self.balancing.or_else(|| wider.balancing.clone()),
            protocol: self.protocol.or(wider.protocol),
            connect: self.connect.or(wider.connect),
            idle: self.idle.or(wider.idle),
            vanished: self.vanished.or(wider.vanished),
            proxy_header: self.proxy_header.or(wider.proxy_header),
            resilience: self.resilience.over(&wider.resilience),
        }
    }

    /// The fields that have no meaning for sessions of UDP.
    pub(crate) fn without_udp(&self) -> Vec<&'static str> {
        let mut fields = self.resilience.without_udp();
        fields.extend(self.proxy_header.map(|_| "proxyProtocol"));
        fields
    }

    /// The fields that have no meaning for connections and datagrams: what is in them is not read,
    /// and each client's connection has its own.
    pub(crate) fn of_requests(&self, checks: HttpChecks) -> Vec<&'static str> {
        let by_field =
            matches!(self.balancing, Some(Balancing::Hash(HashKey::Header(_) | HashKey::Cookie(_))));
        let is_spoken = checks == HttpChecks::Some;
        let fields = [
            ("loadBalancing.hash", by_field),
            ("protocol", self.protocol.is_some() && !is_spoken),
            ("timeouts.idle", self.idle.is_some()),
        ];
        let fields = fields.into_iter().filter(|(_, is_there)| *is_there).map(|(field, _)| field);
        fields.chain(self.resilience.of_requests()).collect()
    }

    /// The fields that have no meaning for requests.
    pub(crate) fn of_connections(&self) -> Vec<&'static str> {
        self.resilience.of_connections().into_iter().collect()
    }

    /// The backend as these terms want it; what the Service itself says comes after them.
    pub(crate) fn applied(self, backend: Backend, transport: L4Protocol) -> Backend {
        let Self { balancing, protocol, connect, idle, vanished, proxy_header, resilience } = self;
        Backend {
            balancing: balancing.unwrap_or(backend.balancing),
            protocol: protocol.unwrap_or(backend.protocol),
            connections: ConnectionTerms { connect, idle, vanished },
            proxy_header: proxy_header.filter(|_| transport == L4Protocol::Tcp),
            resilience: resilience.resilience(),
            ..backend
        }
    }
}

fn balancing(written: &BackendPolicyLoadBalancing) -> Result<Balancing, String> {
    match (written.r#type.as_str(), &written.hash) {
        ("LeastRequest", None) => Ok(Balancing::LeastRequest),
        ("RoundRobin", None) => Ok(Balancing::RoundRobin),
        ("Hash", Some(hash)) => hash_key(hash).map(Balancing::Hash),
        ("Hash", None) => Err("loadBalancing.hash is missing: write what is hashed".to_owned()),
        ("LeastRequest" | "RoundRobin", Some(_)) => {
            Err(format!("loadBalancing.hash is for type Hash, and type is {}: leave one out", written.r#type))
        }
        (other, _) => Err(format!("loadBalancing.type is {other:?}: write LeastRequest, RoundRobin or Hash")),
    }
}

fn hash_key(written: &BackendPolicyLoadBalancingHash) -> Result<HashKey, String> {
    let field = "loadBalancing.hash";
    match (written.r#type.as_str(), written.name.as_deref()) {
        ("ClientAddress", None) => Ok(HashKey::ClientAddress),
        ("Header" | "Cookie", Some(name)) => {
            // Both are tokens (RFC 6265 section 4.1.1, RFC 9110 section 5.1).
            let token = HeaderName::try_from(name);
            let token =
                token.map_err(|_| format!("{field}.name: {name:?} is no name of a header or cookie"))?;
            match written.r#type.as_str() {
                "Header" if !tells_clients_apart(&token) => Err(format!(
                    "{field}.name: {token} tells no clients apart: backends never get it, or with the same value always, or \
                     with another one each time; choose another field"
                )),
                "Header" => Ok(HashKey::Header(token)),
                _ => Ok(HashKey::Cookie(name.into())),
            }
        }
        ("Header" | "Cookie", None) => {
            Err(format!("{field}.name is missing: write the {}'s", written.r#type))
        }
        ("ClientAddress", Some(_)) => {
            Err(format!("{field}.name: addresses of clients have none: leave it out"))
        }
        (other, _) => Err(format!("{field}.type is {other:?}: write ClientAddress, Cookie or Header")),
    }
}

fn protocol(written: &str) -> Result<BackendProtocol, String> {
    match written {
        "HTTP1" => Ok(BackendProtocol::Http1),
        "HTTP2" => Ok(BackendProtocol::H2c),
        other => Err(format!("protocol is {other:?}: write HTTP1 or HTTP2")),
    }
}

fn proxy_header(written: &str) -> Result<ProxyHeader, String> {
    match written {
        "V1" => Ok(ProxyHeader::V1),
        "V2" => Ok(ProxyHeader::V2),
        other => Err(format!("proxyProtocol is {other:?}: write V1 or V2")),
    }
}

fn duration(
    field: &str,
    written: Option<&str>,
    range: RangeInclusive<Duration>,
) -> Result<Option<Duration>, String> {
    let Some(text) = written else { return Ok(None) };
    let read = parse_duration(text).map_err(|error| format!("{field}: {text:?}: {error}"))?;
    let (least, most) = (range.start(), range.end());
    let is_within = range.contains(&read);
    is_within.then_some(Some(read)).ok_or_else(|| format!("{field} is {text:?}: write {least:?} to {most:?}"))
}

#[cfg(test)]
mod tests {
    use portcullis_model::{BackendName, PortKey};
    use serde_json::{Value, json};

    use super::*;

    fn declared(fields: Value) -> Declared {
        let mut spec = json!({"targetRefs": [{"group": "", "kind": "Service", "name": "shop"}]});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendPolicy",
            "metadata": {"name": "p"}, "spec": spec});
        super::declared(&ObjectName::new("edge", "p"), &serde_json::from_value(policy).unwrap())
    }

    fn applied(fields: Value) -> Backend {
        let backend = Backend::new(BackendName::new("edge", "shop", PortKey::tcp(80)), Vec::new());
        let declared = declared(fields);
        assert_eq!(declared.fault, None);
        declared.terms.applied(backend, L4Protocol::Tcp)
    }

    #[test]
    fn each_field_comes_to_what_it_says() {
        let balancing = |written: Value| applied(json!({"loadBalancing": written})).balancing;
        assert_eq!(balancing(json!({"type": "RoundRobin"})), Balancing::RoundRobin);
        assert_eq!(balancing(json!({"type": "LeastRequest"})), Balancing::LeastRequest);
        let hash = |key: Value| balancing(json!({"type": "Hash", "hash": key}));
        assert_eq!(hash(json!({"type": "ClientAddress"})), Balancing::Hash(HashKey::ClientAddress));
        let header = HashKey::Header(HeaderName::from_static("x-user"));
        assert_eq!(hash(json!({"type": "Header", "name": "X-User"})), Balancing::Hash(header));
        let cookie = HashKey::Cookie("User".into());
        assert_eq!(hash(json!({"type": "Cookie", "name": "User"})), Balancing::Hash(cookie));
        assert_eq!(applied(json!({"protocol": "HTTP2"})).protocol, BackendProtocol::H2c);
        assert_eq!(applied(json!({"proxyProtocol": "V1"})).proxy_header, Some(ProxyHeader::V1));
        assert_eq!(applied(json!({"proxyProtocol": "V2"})).proxy_header, Some(ProxyHeader::V2));
        let written =
            json!({"timeouts": {"connect": "250ms", "idle": "10s"}, "keepAlive": {"vanished": "1m"}});
        let [connect, idle, vanished] = [250, 10_000, 60_000].map(Duration::from_millis).map(Some);
        assert_eq!(applied(written).connections, ConnectionTerms { connect, idle, vanished });
    }

    #[test]
    fn a_port_patches_its_service_field_by_field() {
        let wide = declared(json!({"loadBalancing": {"type": "RoundRobin"}, "timeouts": {"connect": "1s"}}));
        let narrow = declared(json!({"timeouts": {"connect": "2s", "idle": "3s"}}));
        let terms = narrow.terms.over(&wide.terms);
        assert_eq!(terms.balancing, Some(Balancing::RoundRobin));
        assert_eq!((terms.connect, terms.idle), (Some(2 * SECOND), Some(3 * SECOND)));
    }

    fn by_header(name: &str) -> Value {
        json!({"loadBalancing": {"type": "Hash", "hash": {"type": "Header", "name": name}}})
    }

    #[test]
    fn fields_are_about_requests_or_connections() {
        let terms = declared(json!({
            "loadBalancing": {"type": "Hash", "hash": {"type": "Cookie", "name": "user"}}, "protocol": "HTTP2",
            "timeouts": {"connect": "1s", "idle": "3s"}, "keepAlive": {"vanished": "10s"}, "proxyProtocol": "V2",
            "slowStart": {"window": "10s"}, "outlierDetection": {},
            "limits": {"requests": 10, "pendingRequests": 1, "connections": 5}}))
        .terms;
        let of_requests =
            ["loadBalancing.hash", "protocol", "timeouts.idle", "limits.requests", "limits.pendingRequests"];
        assert_eq!(terms.of_requests(HttpChecks::None), of_requests);
        assert!(!terms.of_requests(HttpChecks::Some).contains(&"protocol"));
        assert_eq!(terms.of_connections(), ["limits.connections"]);
        let terms = declared(json!({"loadBalancing": {"type": "Hash", "hash": {"type": "ClientAddress"}},
            "limits": {"connections": 5}}))
        .terms;
        assert_eq!(terms.of_requests(HttpChecks::None), Vec::<&str>::new());
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_all_its_faults() {
        for (fields, told) in [
            (json!({"loadBalancing": {"type": "Random"}}), "loadBalancing.type is \"Random\""),
            (json!({"loadBalancing": {"type": "Hash"}}), "loadBalancing.hash is missing"),
            (
                json!({"loadBalancing": {"type": "RoundRobin", "hash": {"type": "ClientAddress"}}}),
                "loadBalancing.hash is for type Hash",
            ),
            (
                json!({"loadBalancing": {"type": "Hash", "hash": {"type": "Header"}}}),
                "loadBalancing.hash.name is missing",
            ),
            (
                json!({"loadBalancing": {"type": "Hash", "hash": {"type": "Cookie", "name": "a;b"}}}),
                "\"a;b\" is no name",
            ),
            (
                json!({"loadBalancing": {"type": "Hash", "hash": {"type": "ClientAddress", "name": "x"}}}),
                "addresses of clients have none",
            ),
            (json!({"loadBalancing": {"type": "Hash", "hash": {"type": "Path"}}}), "hash.type is \"Path\""),
            (by_header("X-Request-Id"), "loadBalancing.hash.name: x-request-id tells no clients apart"),
            (by_header("Connection"), "connection tells no clients apart"),
            (by_header("CDN-Loop"), "cdn-loop tells no clients apart"),
            (by_header("X_Forwarded_For"), "x_forwarded_for tells no clients apart"),
            (json!({"protocol": "SPDY"}), "protocol is \"SPDY\""),
            (json!({"proxyProtocol": "v2"}), "proxyProtocol is \"v2\": write V1 or V2"),
            (json!({"timeouts": {}}), "timeouts is empty: write connect or idle"),
            (json!({"timeouts": {"connect": "2m"}}), "timeouts.connect is \"2m\": write 10ms to 60s"),
            (json!({"timeouts": {"idle": "fast"}}), "timeouts.idle: \"fast\""),
            (json!({"keepAlive": {"vanished": "1s"}}), "keepAlive.vanished is \"1s\": write 4s to 3600s"),
        ] {
            let declared = declared(fields);
            assert_eq!(declared.terms, Terms::default());
            let fault = declared.fault.unwrap();
            assert!(fault.message.contains(told), "{}", fault.message);
            assert!(fault.message.ends_with("the policy is without effect"), "{}", fault.message);
        }
        let both = declared(json!({"protocol": "SPDY", "timeouts": {"idle": "0s"}})).fault.unwrap();
        assert!(both.message.contains("SPDY") && both.message.contains("timeouts.idle"));
    }
}
