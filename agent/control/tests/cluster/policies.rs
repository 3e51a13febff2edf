//! Policies of our own that an API server refuses, so that no agent ever sees them, and those next
//! to them that it takes. A directory of manifests does not have the CEL rules.

use serde_json::{Value, json};

use crate::schema::{self, Row};

fn target(kind: &str, name: &str, section: Option<&str>) -> Value {
    let mut target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name});
    if let Some(section) = section {
        target["sectionName"] = section.into();
    }
    target
}

fn with_targets(targets: Value) -> Value {
    json!({"targetRefs": targets, "deny": ["192.0.2.1"]})
}

fn with_terms(terms: Value) -> Value {
    let mut spec = json!({"targetRefs": [target("Gateway", "web", None)]});
    spec.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
    spec
}

/// So many different addresses.
fn addresses(number: usize) -> Vec<String> {
    (0..number).map(|at| format!("10.{}.{}.0/24", at / 256, at % 256)).collect()
}

/// One object that is taken, and one next to it that is not, with the words of its refusal.
fn rows() -> Vec<Row> {
    let web = || target("Gateway", "web", None);
    let https = || target("Gateway", "web", Some("https"));
    let many = |number: usize| -> Value {
        (0..number).map(|at| target("ListenerSet", &format!("set-{at}"), None)).collect()
    };
    vec![
        (
            "needs one of connections, allow, deny, proxyProtocol, clientAddress, limits and accessLog",
            with_terms(json!({"allow": []})),
            with_terms(json!({})),
        ),
        (
            "names a target more than once",
            with_targets(json!([web(), https(), target("ListenerSet", "web", None)])),
            with_targets(json!([web(), https(), web()])),
        ),
        (
            "names a target more than once",
            with_targets(json!([https(), target("Gateway", "web", Some("http"))])),
            with_targets(json!([https(), https()])),
        ),
        ("spec.targetRefs", with_targets(many(16)), with_targets(many(17))),
        ("spec.targetRefs", with_targets(many(1)), with_targets(json!([]))),
        (
            "spec.targetRefs[0].kind",
            with_targets(json!([target("ListenerSet", "web", None)])),
            with_targets(json!([target("Service", "web", None)])),
        ),
        (
            "spec.targetRefs[0].group",
            with_targets(json!([web()])),
            with_targets(json!([{"group": "", "kind": "Gateway", "name": "web"}])),
        ),
        (
            "spec.targetRefs[0].group: Required",
            with_targets(json!([web()])),
            with_targets(json!([{"kind": "Gateway", "name": "web"}])),
        ),
        (
            "spec.targetRefs[0].name",
            with_targets(json!([target("Gateway", "w", None)])),
            with_targets(json!([target("Gateway", "", None)])),
        ),
        (
            "spec.targetRefs[0].sectionName",
            with_targets(json!([https()])),
            with_targets(json!([target("Gateway", "web", Some("a b"))])),
        ),
        (
            "needs one of trustedHops and trustedProxies",
            with_terms(json!({"clientAddress": {"trustedHops": 0}})),
            with_terms(json!({"clientAddress": {}})),
        ),
        (
            "needs one of trustedHops and trustedProxies",
            with_terms(json!({"clientAddress": {"trustedProxies": addresses(64)}})),
            with_terms(json!({"clientAddress": {"trustedHops": 1, "trustedProxies": ["192.0.2.1"]}})),
        ),
        (
            "others are told apart by trustedProxies",
            with_terms(json!({"clientAddress": {"trustedProxies": ["192.0.2.1"], "others": "Refuse"}})),
            with_terms(json!({"clientAddress": {"trustedHops": 1, "others": "Refuse"}})),
        ),
        (
            "spec.clientAddress.trustedHops",
            with_terms(json!({"clientAddress": {"trustedHops": 16}})),
            with_terms(json!({"clientAddress": {"trustedHops": 17}})),
        ),
        (
            "spec.clientAddress.trustedProxies",
            with_terms(json!({"clientAddress": {"trustedProxies": ["fd00::/8"]}})),
            with_terms(json!({"clientAddress": {"trustedProxies": addresses(65)}})),
        ),
        (
            "spec.clientAddress.trustedProxies[0]",
            with_terms(json!({"clientAddress": {"trustedProxies": ["192.0.2.0/24"]}})),
            with_terms(json!({"clientAddress": {"trustedProxies": ["proxy.example"]}})),
        ),
        (
            "spec.connections.perSecond",
            with_terms(json!({"connections": {"perSecond": 1}})),
            with_terms(json!({"connections": {"perSecond": 0}})),
        ),
        (
            "spec.connections.perSecond",
            with_terms(json!({"connections": {"perSecond": 1_000_000}})),
            with_terms(json!({"connections": {"perSecond": 1_000_001}})),
        ),
        (
            "needs perSecond or open",
            with_terms(json!({"connections": {"open": 1}})),
            with_terms(json!({"connections": {}})),
        ),
        (
            "burst needs perSecond",
            with_terms(json!({"connections": {"perSecond": 1, "burst": 2}})),
            with_terms(json!({"connections": {"open": 1, "burst": 2}})),
        ),
        (
            "spec.connections.open",
            with_terms(json!({"connections": {"open": 10_000_000}})),
            with_terms(json!({"connections": {"open": 0}})),
        ),
        (
            "spec.limits",
            with_terms(json!({"limits": {"headerFields": 10}})),
            with_terms(json!({"limits": {}})),
        ),
        (
            "spec.limits.requestsPerConnection",
            with_terms(json!({"limits": {"requestsPerConnection": 1}})),
            with_terms(json!({"limits": {"requestsPerConnection": 0}})),
        ),
        (
            "must be 1s to 24h",
            with_terms(json!({"limits": {"idleTimeout": "1s"}})),
            with_terms(json!({"limits": {"idleTimeout": "999ms"}})),
        ),
        (
            "spec.accessLog.format",
            with_terms(json!({"accessLog": {"format": "Text"}})),
            with_terms(json!({"accessLog": {"format": "XML"}})),
        ),
        (
            "spec.connections.burst",
            with_terms(json!({"connections": {"perSecond": 1, "burst": 1_000_000}})),
            with_terms(json!({"connections": {"perSecond": 1, "burst": 0}})),
        ),
        (
            "spec.allow",
            with_terms(json!({"allow": addresses(128)})),
            with_terms(json!({"allow": addresses(129)})),
        ),
        (
            "spec.deny",
            with_terms(json!({"deny": addresses(128)})),
            with_terms(json!({"deny": addresses(129)})),
        ),
        (
            "spec.deny[1]: Duplicate",
            with_terms(json!({"deny": ["192.0.2.1", "192.0.2.2"]})),
            with_terms(json!({"deny": ["192.0.2.1", "192.0.2.1"]})),
        ),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["255.255.255.255/32"]})),
            with_terms(json!({"allow": ["256.0.0.1"]})),
        ),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["0.0.0.0/0"]})),
            with_terms(json!({"allow": ["0.0.0.0/33"]})),
        ),
        ("spec.allow[0]", with_terms(json!({"allow": ["::/0"]})), with_terms(json!({"allow": ["::/129"]}))),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["2001:db8::1/128"]})),
            with_terms(json!({"allow": ["office.example.com"]})),
        ),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["fe80::1"]})),
            with_terms(json!({"allow": ["fe80::1%eth0"]})),
        ),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["10.0.0.1"]})),
            with_terms(json!({"allow": ["010.0.0.1"]})),
        ),
        (
            "spec.allow[0]",
            with_terms(json!({"allow": ["10.0.0.0/8"]})),
            with_terms(json!({"allow": ["10.0.0.0/08"]})),
        ),
    ]
}

/// By its manifests, in the words of those who copy them.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_takes_what_the_documentation_shows() {
    const PAGE: &str = include_str!("../../../../docs/listener-policy.md");
    const EXAMPLE: &str = include_str!("../../../../examples/listener-policy/listener-policy.yaml");
    schema::take_what_is_shown("ListenerPolicy", PAGE, EXAMPLE, 2).await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_refuses_policies_that_mean_nothing() {
    schema::tell_apart("ListenerPolicy", rows()).await;
}

/// As [`rows`], of credentials that TrafficPolicies want.
fn credentials() -> Vec<Row> {
    let with =
        |field: &str, terms: Value| json!({"targetRefs": [target("HTTPRoute", "shop", None)], field: terms});
    let provider = |terms: Value| {
        let mut provider = json!({"name": "a", "issuer": "i", "jwks": {"kind": "Secret", "name": "k"}});
        provider.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
        provider
    };
    let providers = |providers: Vec<Value>| with("jwt", json!({"providers": providers}));
    let jwt = |terms: Value| providers(vec![provider(terms)]);
    let keys = |from: Value| with("apiKeys", json!({"secretRefs": [{"name": "k"}], "from": from}));
    let basic = |header: &str| with("basic", json!({"secretRef": {"name": "u"}, "userHeader": header}));
    let remote = |terms: Value| {
        let mut remote = json!({"backendRef": {"name": "login", "port": 80}, "path": "/keys?a=b"});
        remote.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
        providers(vec![json!({"name": "a", "issuer": "i", "remoteJwks": remote})])
    };
    let service = |terms: Value| remote(json!({"backendRef": terms}));
    vec![
        (
            "needs one of jwks and remoteJwks",
            remote(json!({})),
            jwt(json!({"remoteJwks": {"backendRef": {"name": "login", "port": 80}, "path": "/"}})),
        ),
        (
            "needs one of jwks and remoteJwks",
            jwt(json!({})),
            providers(vec![json!({"name": "a", "issuer": "i"})]),
        ),
        ("remoteJwks.path", remote(json!({"path": "/"})), remote(json!({"path": "keys"}))),
        (
            "remoteJwks.cacheDuration",
            remote(json!({"cacheDuration": "1h"})),
            remote(json!({"cacheDuration": "1 h"})),
        ),
        (
            "remoteJwks.backendRef.port",
            service(json!({"name": "login", "namespace": "auth", "port": 1})),
            service(json!({"name": "login"})),
        ),
        (
            "remoteJwks.backendRef.kind",
            service(json!({"group": "", "kind": "Service", "name": "login", "port": 1})),
            service(json!({"kind": "Secret", "name": "login", "port": 1})),
        ),
        (
            "jwks.kind",
            jwt(json!({"jwks": {"kind": "ConfigMap", "name": "k", "key": "e"}})),
            jwt(json!({"jwks": {"kind": "Service", "name": "k"}})),
        ),
        (
            "spec.jwt.providers[1]: Duplicate",
            providers(vec![provider(json!({})), provider(json!({"name": "b"}))]),
            providers(vec![provider(json!({})); 2]),
        ),
        ("spec.jwt.providers", jwt(json!({"from": {"cookie": "c"}})), providers(Vec::new())),
        ("clockSkewSeconds", jwt(json!({"clockSkewSeconds": 300})), jwt(json!({"clockSkewSeconds": 301}))),
        ("expiration", jwt(json!({"expiration": "Optional"})), jwt(json!({"expiration": "Never"}))),
        (
            "requiredClaims[0].values",
            jwt(json!({"requiredClaims": [{"claim": "a", "values": ["b"]}]})),
            jwt(json!({"requiredClaims": [{"claim": "a", "values": []}]})),
        ),
        (
            "claimsToHeaders[0].header",
            jwt(json!({"claimsToHeaders": [{"claim": "sub", "header": "X-User"}]})),
            jwt(json!({"claimsToHeaders": [{"claim": "sub", "header": "X User"}]})),
        ),
        ("spec.apiKeys.from", keys(json!({"header": "a"})), keys(json!({"header": "a", "cookie": "b"}))),
        ("spec.apiKeys.from", keys(json!({"cookie": "b"})), keys(json!({}))),
        (
            "spec.apiKeys.secretRefs",
            with("apiKeys", json!({"secretRefs": [{"name": "a"}, {"name": "b"}]})),
            with("apiKeys", json!({"secretRefs": []})),
        ),
        ("spec.basic.userHeader", basic("x-user"), basic("a b")),
    ]
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_refuses_traffic_policies_that_mean_nothing() {
    let route = || target("HTTPRoute", "shop", None);
    let rule = || target("HTTPRoute", "shop", Some("cart"));
    let at = |targets: Value| json!({"targetRefs": targets, "maxRequestBody": 1});
    let with = |terms: Value| {
        let mut spec = json!({"targetRefs": [route()]});
        spec.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
        spec
    };
    let limit = |requests: i32, per: &str| json!({"requests": requests, "per": per});
    let limits = |limits: Vec<Value>| with(json!({"rateLimits": limits}));
    let by = |key: Value| limits(vec![json!({"requests": 1, "per": "Hour", "key": key})]);
    let auth = |terms: Value| {
        let mut auth = json!({"protocol": "HTTP", "backendRef": {"name": "a", "port": 80}});
        auth.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
        with(json!({"externalAuth": auth}))
    };
    let compression = |algorithms: &[&str], least: i64| {
        with(json!({"compression": {"algorithms": algorithms, "minLength": least}}))
    };
    let rows = [
        ("needs one field beside targetRefs", with(json!({"allow": []})), with(json!({}))),
        ("names a target more than once", at(json!([route(), rule()])), at(json!([rule(), route(), rule()]))),
        (
            "spec.targetRefs[0].kind",
            at(json!([target("GRPCRoute", "shop", None)])),
            at(json!([target("TCPRoute", "shop", None)])),
        ),
        ("spec.maxRequestBody", with(json!({"maxRequestBody": 1})), with(json!({"maxRequestBody": 0}))),
        ("spec.deny", with(json!({"deny": addresses(128)})), with(json!({"deny": addresses(129)}))),
        ("spec.allow[0]", with(json!({"allow": ["::1"]})), with(json!({"allow": ["localhost"]}))),
        (
            "rateLimits[0].requests",
            limits(vec![limit(100_000, "Hour")]),
            limits(vec![limit(100_001, "Hour")]),
        ),
        ("rateLimits[0].requests", limits(vec![limit(1, "Minute")]), limits(vec![limit(0, "Minute")])),
        ("rateLimits[0].per", limits(vec![limit(1, "Second")]), limits(vec![limit(1, "Day")])),
        (
            "rateLimits[0].scope",
            limits(vec![json!({"requests": 1, "per": "Hour", "scope": "Cluster"})]),
            limits(vec![json!({"requests": 1, "per": "Hour", "scope": "Global"})]),
        ),
        ("spec.rateLimits", limits(vec![limit(1, "Hour"); 8]), limits(vec![limit(1, "Hour"); 9])),
        (
            "header is for type Header",
            by(json!({"type": "Header", "header": "X-Key"})),
            by(json!({"type": "ClientAddress", "header": "X-Key"})),
        ),
        ("header is for type Header", by(json!({"type": "ClientAddress"})), by(json!({"type": "Header"}))),
        (
            "key.header",
            by(json!({"type": "Header", "header": "x_key"})),
            by(json!({"type": "Header", "header": "x key"})),
        ),
        ("externalAuth.protocol", auth(json!({"protocol": "HTTP"})), auth(json!({"protocol": "TCP"}))),
        (
            "grpc is for protocol GRPC",
            auth(json!({"protocol": "GRPC", "grpc": {}})),
            auth(json!({"grpc": {}})),
        ),
        (
            "http is for protocol HTTP",
            auth(json!({"http": {}})),
            auth(json!({"protocol": "GRPC", "http": {}})),
        ),
        (
            "a Service needs a port",
            auth(json!({"backendRef": {"name": "a", "namespace": "other", "port": 80}})),
            auth(json!({"backendRef": {"name": "a"}})),
        ),
        (
            "externalAuth.http.path",
            auth(json!({"http": {"path": "/verify/%20"}})),
            auth(json!({"http": {"path": "/verify?a"}})),
        ),
        (
            "externalAuth.http.allowedResponseHeaders[0]",
            auth(json!({"http": {"allowedResponseHeaders": ["X-User"]}})),
            auth(json!({"http": {"allowedResponseHeaders": ["X User"]}})),
        ),
        (
            "externalAuth.forwardBody.maxSize",
            auth(json!({"forwardBody": {"maxSize": 1 << 20}})),
            auth(json!({"forwardBody": {"maxSize": (1 << 20) + 1}})),
        ),
        ("spec.retry.attempts", with(json!({"retry": {}})), with(json!({"retry": {"attempts": -1}}))),
        (
            "spec.retry.attempts",
            with(json!({"retry": {"attempts": 1000}})),
            with(json!({"retry": {"attempts": 1001}})),
        ),
        (
            "spec.retry.codes[1]",
            with(json!({"retry": {"codes": [400, 599]}})),
            with(json!({"retry": {"codes": [400, 600]}})),
        ),
        (
            "spec.retry.codes[1]: Duplicate",
            with(json!({"retry": {"codes": []}})),
            with(json!({"retry": {"codes": [503, 503]}})),
        ),
        (
            "spec.retry.backoff",
            with(json!({"retry": {"backoff": "1s500ms"}})),
            with(json!({"retry": {"backoff": "1.5s"}})),
        ),
        ("spec.timeouts", with(json!({"timeouts": {"request": "0s"}})), with(json!({"timeouts": {}}))),
        (
            "spec.timeouts.backendRequest",
            with(json!({"timeouts": {"backendRequest": "10s"}})),
            with(json!({"timeouts": {"backendRequest": "10"}})),
        ),
        (
            "backendRequest cannot be longer than request",
            with(json!({"timeouts": {"request": "0s", "backendRequest": "2s"}})),
            with(json!({"timeouts": {"request": "1s", "backendRequest": "2s"}})),
        ),
        ("compression.algorithms[0]", compression(&["br"], 0), compression(&["deflate"], 0)),
        ("compression.algorithms[1]", compression(&["br", "gzip", "zstd"], 0), compression(&["br", "br"], 0)),
        (
            "claim is for type Claim",
            by(json!({"type": "Claim", "claim": "org.id"})),
            by(json!({"type": "ClientAddress", "claim": "sub"})),
        ),
        (
            "claim is for type Claim",
            by(json!({"type": "Claim", "claim": "sub"})),
            by(json!({"type": "Claim"})),
        ),
        ("compression.algorithms", compression(&[], 0), with(json!({"compression": {"minLength": 1}}))),
        ("compression.minLength", compression(&["gzip"], 0), compression(&["gzip"], -1)),
        ("spec.grpcWeb", with(json!({"grpcWeb": "Pass"})), with(json!({"grpcWeb": "translate"}))),
    ];
    schema::tell_apart("TrafficPolicy", rows.into_iter().chain(credentials())).await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_refuses_backend_policies_that_mean_nothing() {
    let service = || json!({"group": "", "kind": "Service", "name": "shop"});
    let with = |terms: Value| {
        let mut spec = json!({"targetRefs": [service()]});
        spec.as_object_mut().unwrap().extend(terms.as_object().cloned().unwrap());
        spec
    };
    let hash = |key: Value| with(json!({"loadBalancing": {"type": "Hash", "hash": key}}));
    let terms = json!({"protocol": "HTTP2"});
    let rows = [
        ("needs one of loadBalancing", with(terms.clone()), with(json!({}))),
        (
            "names a target more than once",
            with(terms.clone()),
            json!({"targetRefs": [service(), service()], "protocol": "HTTP2"}),
        ),
        (
            "hash is for type Hash",
            with(json!({"loadBalancing": {"type": "RoundRobin"}})),
            with(json!({"loadBalancing": {"type": "Hash"}})),
        ),
        (
            "name is for the types Header and Cookie",
            hash(json!({"type": "ClientAddress"})),
            hash(json!({"type": "Header"})),
        ),
        (
            "loadBalancing.hash.name",
            hash(json!({"type": "Cookie", "name": "user_id"})),
            hash(json!({"type": "Cookie", "name": "user;id"})),
        ),
        (
            "timeouts.connect",
            with(json!({"timeouts": {"connect": "1s500ms"}})),
            with(json!({"timeouts": {"connect": "soon"}})),
        ),
        ("spec.proxyProtocol", with(json!({"proxyProtocol": "V2"})), with(json!({"proxyProtocol": "v2"}))),
        (
            "targetRefs[0].kind",
            with(terms),
            json!({"targetRefs": [{"group": "", "kind": "Secret", "name": "shop"}], "protocol": "HTTP2"}),
        ),
    ];
    schema::tell_apart("BackendPolicy", rows).await;
}
