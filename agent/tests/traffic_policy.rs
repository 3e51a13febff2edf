//! TrafficPolicies of the real agent: credentials whose Secrets come, change and go; and a tenant
//! with all rights in a namespace of its own, who tries to loosen what the owner of the Gateway
//! asks for: each field that protects, by whatever the tenant can write.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use support::{Agent, HTTP, backend, eventually};

/// Keys of HS256, and a token that the first has signed, of this issuer, for the next 70 years.
const JWKS: &str = r#"{"keys": [{"kty": "oct", "k": "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;
const OTHER_JWKS: &str = r#"{"keys": [{"kty": "oct", "k": "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg"}]}"#;
const ISSUER: &str = "https://login.example";
const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
    eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUiLCJhdWQiOiJzaG9wIiwic3ViIjoiYW5uIiwiZXhwIjo0MTAyNDQ0ODAwfQ.\
    ZyfMfS3UQII63XijXbsituiSdG0IrrWWmFav64qnGWk";

const GATEWAY: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: http, protocol: HTTP, port: 8080, hostname: own.example, allowedRoutes: {namespaces: {from: All}}}
";

/// A parent route of the operator's, whose child is the tenant's, a set and routes of the tenant's.
const ROUTES: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: parent, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches: [{path: {value: /child}}]
    backendRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: child, namespace: shop}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: child, namespace: shop}
spec:
  parentRefs: [{kind: HTTPRoute, namespace: infra, name: parent}]
  rules: [{name: r, backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: web, namespace: shop}
spec:
  parentRef: {name: web, namespace: infra}
  listeners: [{name: http, protocol: HTTP, port: 8080, hostname: set.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}, {kind: ListenerSet, name: web}]
  rules: [{name: r, backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, namespace: shop, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: BACKEND}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
";

/// Of the operator's.
const SERVICE: &str = r"---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: infra}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME-1, namespace: infra, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: http, port: PORT}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
";

/// All that the tenant can have a policy on, and what it cannot.
const TARGETS: [&str; 8] = [
    "kind: Gateway, name: web",
    "kind: Gateway, name: web, sectionName: http",
    "kind: ListenerSet, name: web",
    "kind: ListenerSet, name: web, sectionName: http",
    "kind: HTTPRoute, name: web",
    "kind: HTTPRoute, name: web, sectionName: r",
    "kind: HTTPRoute, name: child",
    "kind: HTTPRoute, name: child, sectionName: r",
];

/// Older than any other, by its name before any other, and of the other's name.
fn policies(loose: &str) -> String {
    let mut text = String::new();
    for (at, target) in TARGETS.iter().enumerate() {
        let name = if at == 0 { "p".to_owned() } else { format!("a-{at}") };
        text += &format!(
            "---\napiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\n\
             metadata: {{name: {name}, namespace: shop, creationTimestamp: \"2000-01-01T00:00:00Z\"}}\n\
             spec:\n  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]\n  {loose}\n"
        );
    }
    text
}

fn strict(target: &str, protecting: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: p, namespace: infra}}\n\
         spec:\n  targetRefs: [{{group: gateway.networking.k8s.io, {target}}}]\n  {protecting}\n"
    )
}

fn secret(namespace: &str, name: &str, entry: &str, value: &str) -> String {
    let metadata = format!("{{name: {name}, namespace: {namespace}}}");
    format!("---\napiVersion: v1\nkind: Secret\nmetadata: {metadata}\nstringData:\n  {entry}: '{value}'\n")
}

/// The port of a server that answers every request 403.
fn refusing() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream
                    .write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            });
        }
    });
    port
}

fn post(agent: &Agent, host: &str, path: &str, claims: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((agent.address, HTTP)).ok()?;
    let head = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n{claims}connection: close\r\n");
    stream.write_all(format!("{head}content-length: 20\r\n\r\n01234567890123456789").as_bytes()).ok()?;
    Some(answer(stream)?.0)
}

/// The status, and all of it.
fn answer(mut stream: TcpStream) -> Option<(u16, String)> {
    let mut bytes = Vec::new();
    // What an answer comes before may be reset.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Some((text.split(' ').nth(1)?.parse().ok()?, text))
}

/// The status, and the request as the backend got it.
fn get(agent: &Agent, host: &str, fields: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((agent.address, HTTP)).ok()?;
    let head = format!("GET /head HTTP/1.1\r\nhost: {host}\r\n{fields}connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    answer(stream)
}

#[test]
fn no_field_that_protects_can_be_loosened_by_a_tenant() {
    let strict_service = SERVICE.replace("NAME", "strict").replace("PORT", &refusing().to_string());
    let routes = ROUTES.replace("BACKEND", &backend("shop").to_string()) + &strict_service;
    let everybody = "allow: [0.0.0.0/0, \"::/0\"]";
    let limited = |number: u32| format!("rateLimits: [{{requests: {number}, per: Hour}}]");
    let jwks = "{kind: Secret, name: login, key: jwks}";
    let tokens = format!("jwt: {{providers: [{{name: p, issuer: \"{ISSUER}\", jwks: {jwks}}}]}}");
    let keys = "apiKeys: {secretRefs: [{name: clients}]}".to_owned();
    let passwords = "basic: {secretRef: {name: users}}".to_owned();
    // The tenant's service lets everything pass, the operator's nothing, or it does not exist.
    let asked = |service: &str| {
        format!("externalAuth: {{protocol: HTTP, backendRef: {{name: {service}, port: 80}}}}")
    };
    let login = "authorization: Basic dGVuYW50OnF1aWNr\r\n".to_owned();
    let fields = [
        (tokens.clone(), tokens, 401),
        (keys.clone(), keys, 401),
        (passwords.clone(), passwords, 401),
        (asked("strict"), asked("shop"), 403),
        (asked("missing"), asked("shop"), 500),
        ("allow: [192.0.2.0/24]".to_owned(), everybody.to_owned(), 403),
        ("deny: [127.0.0.0/8]".to_owned(), everybody.to_owned(), 403),
        ("maxRequestBody: 10".to_owned(), "maxRequestBody: 1000000".to_owned(), 413),
        (limited(1), limited(100_000), 429),
    ];
    // The tenant's are of the same names, in their own namespace.
    let secrets = [
        secret("infra", "login", "jwks", OTHER_JWKS),
        secret("infra", "clients", "operator", "s3cret"),
        secret("infra", "users", "auth", "operator:{SHA}mldR1azs8m/36yszwUTvzhxp/po="),
        secret("shop", "login", "jwks", JWKS),
        secret("shop", "clients", "tenant", "0ther"),
        secret("shop", "users", "auth", "tenant:{SHA}mldR1azs8m/36yszwUTvzhxp/po="),
    ];
    let claims = [
        String::new(),
        "x-forwarded-for: 192.0.2.1\r\nforwarded: for=192.0.2.1\r\n".to_owned(),
        format!("authorization: Bearer {TOKEN}\r\nx-api-key: 0ther\r\n"),
        login,
    ];
    // Without a policy all of it is served, so that what follows is the policy's doing.
    let agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("routes.yaml", &routes),
        ("secrets.yaml", &secrets.concat()),
    ]);
    let requests = [("own.example", "/"), ("set.example", "/"), ("own.example", "/child")];
    for (host, path) in requests {
        eventually("it is served", || post(&agent, host, path, "") == Some(200));
    }
    for (protecting, loose, expected) in &fields {
        for (target, requests) in
            [("kind: Gateway, name: web", &requests[..]), ("kind: HTTPRoute, name: parent", &requests[2..])]
        {
            agent.edit("infra.yaml", &strict(target, protecting));
            let (host, path) = requests[0];
            eventually("the policy is in force", || post(&agent, host, path, "") == Some(*expected));
            agent.edit("shop.yaml", &policies(loose));
            eventually("the tenant's policies are in force", || {
                let status = agent.command(&["status", "TrafficPolicy", "shop/a-7", "-o", "yaml"]);
                status.contains("enforced by every agent")
            });
            for (host, path) in requests {
                for claims in &claims {
                    let answer = post(&agent, host, path, claims);
                    assert_eq!(answer, Some(*expected), "{protecting} on {target}: {host}{path} {claims}");
                }
            }
            agent.edit("shop.yaml", "");
            agent.edit("infra.yaml", "");
            eventually("it is open again", || post(&agent, host, path, "") == Some(200));
        }
    }
}

const PROTECTED: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME, namespace: shop}
spec:
  parentRefs: [{name: web, namespace: infra}]
  hostnames: [NAME.example]
  rules: [{backendRefs: [{name: shop, port: 80}]}]
---
apiVersion: portcullis.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: NAME, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: NAME}]
  CREDENTIALS
---
";

#[test]
fn credentials_are_checked_against_secrets_as_they_are() {
    let gateway = GATEWAY.replace("own.example", "'*.example'");
    let tokens = format!(
        "jwt: {{providers: [{{name: p, issuer: \"{ISSUER}\", audiences: [shop],
          jwks: {{kind: Secret, name: login, key: jwks}}, claimsToHeaders: [{{claim: sub, header: x-user}}]}}]}}"
    );
    let routes = [
        ("token", &*tokens),
        ("key", "apiKeys: {secretRefs: [{name: clients}], clientHeader: x-client}"),
        ("login", "basic: {secretRef: {name: users}, userHeader: x-user}"),
    ];
    let protect =
        |(name, wanted): (&str, &str)| PROTECTED.replace("NAME", name).replace("CREDENTIALS", wanted);
    let routes =
        routes.map(protect).concat() + ROUTES.replace("BACKEND", &backend("shop").to_string()).trim();
    let login = secret("shop", "login", "jwks", JWKS);
    let clients = secret("shop", "clients", "till", "s3cret");
    let users = secret("shop", "users", "auth", "ann:{SHA}mldR1azs8m/36yszwUTvzhxp/po=");
    let agent = Agent::start(&[
        ("gateway.yaml", &gateway),
        ("routes.yaml", &routes),
        ("login.yaml", &login),
        ("clients.yaml", &clients),
        ("users.yaml", &users),
    ]);
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let password = "authorization: Basic YW5uOnF1aWNr\r\n";
    let good = [
        ("token.example", &*token, "x-user: ann\r\n"),
        ("key.example", "x-api-key: s3cret\r\n", "x-client: till\r\n"),
        ("login.example", password, "x-user: ann\r\n"),
    ];
    for (host, credentials, told) in good {
        eventually("it is served", || get(&agent, host, credentials).is_some_and(|it| it.0 == 200));
        let forged = format!("{credentials}x-user: eve\r\nx-client: eve\r\n");
        let (_, seen) = get(&agent, host, &forged).unwrap();
        assert!(seen.contains(told), "{seen}");
        assert!(!seen.contains(&told.replace("ann", "eve").replace("till", "eve")), "{seen}");
        for wrong in
            ["", "x-api-key: s3cre\r\nauthorization: Bearer a.b.c\r\n", "authorization: Basic YTpi\r\n"]
        {
            assert_eq!(get(&agent, host, wrong).map(|it| it.0), Some(401), "{host} {wrong}");
        }
    }
    // Each Secret changes for the worse and back. Nothing else is concerned by it.
    let is_now =
        |host: &str, fields: &str, status| get(&agent, host, fields).is_some_and(|it| it.0 == status);
    let says = |policy: &str, what: &str| {
        let status = agent.command(&["status", "TrafficPolicy", policy, "-o", "yaml"]);
        status.contains(what)
    };
    agent.edit("users.yaml", "");
    eventually("without its Secret nobody passes", || is_now("login.example", password, 500));
    eventually("its status says so", || says("shop/login", "basic: Secret shop/users does not exist"));
    agent.edit("users.yaml", &users);
    eventually("it is open again", || is_now("login.example", password, 200));
    agent.edit("clients.yaml", &secret("shop", "clients", "till", ""));
    eventually("an empty key closes it", || is_now("key.example", "x-api-key: s3cret\r\n", 500));
    eventually("its status says so", || says("shop/key", "the key of client till is empty"));
    agent.edit("login.yaml", &secret("shop", "login", "jwks", OTHER_JWKS));
    eventually("a key that is taken back is good no more", || is_now("token.example", &token, 401));
    agent.edit("login.yaml", &secret("shop", "login", "jwks", "no JSON"));
    eventually("what cannot be read closes it", || is_now("token.example", &token, 500));
    eventually("its status says so", || says("shop/token", "is no JSON Web Key Set"));
    assert!(is_now("login.example", password, 200));
}

/// Public keys of an issuer, each with a token that it has signed.
const FETCHED: [(&str, &str, &str); 2] = [
    (
        "first",
        "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w",
        "eyJhbGciOiJFZERTQSIsImtpZCI6ImZpcnN0In0.\
         eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUiLCJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.\
         aO4sb1IL5jyBrx9uIgUo8_92s9yuYrJbeFYUtbp3BgXgRmSMTOhe59pmghLnvZES7I3VbuCPFnWpCRrNhGG9Cg",
    ),
    (
        "second",
        "gTl3Dqh9F19Wo1Rmw0x-zMuNipG07jeiXfYPW4_Js5Q",
        "eyJhbGciOiJFZERTQSIsImtpZCI6InNlY29uZCJ9.\
         eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUiLCJzdWIiOiJhbm4iLCJleHAiOjQxMDI0NDQ4MDB9.\
         d4L5tXaM-XxNVTm9YHxm9_7tZGidFlxbOq5jBUmhW8z33jmGqnynq7tN8WOrtFOWTjxYhhlxPU87Bqh3ktQJBA",
    ),
];

const ISSUERS_SERVICE: &str = r"
apiVersion: v1
kind: Service
metadata: {name: login, namespace: auth}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: login-1, namespace: auth, labels: {kubernetes.io/service-name: login}}
addressType: IPv4
ports: [{name: http, port: BACKEND}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
";

const GRANT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: keys, namespace: auth}
spec:
  from: [{group: portcullis.dev, kind: TrafficPolicy, namespace: shop}]
  to: [{group: "", kind: Service, name: login}]
"#;

/// The port of a Service that has this key, of those above, whatever it is asked.
fn issuer(key: &Arc<Mutex<usize>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let key = key.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let (kid, x, _) = FETCHED[*key.lock().unwrap()];
            let set =
                format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "{kid}", "x": "{x}"}}]}}"#);
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", set.len());
            let _ = stream.write_all((head + &set).as_bytes());
        }
    });
    port
}

#[test]
fn keys_are_fetched_from_a_service_that_permits_it() {
    let current = Arc::new(Mutex::new(0));
    let service = ISSUERS_SERVICE.replace("BACKEND", &issuer(&current).to_string());
    let tokens = format!(
        "jwt: {{providers: [{{name: p, issuer: \"{ISSUER}\",
          remoteJwks: {{backendRef: {{name: login, namespace: auth, port: 80}}, path: /keys}}}}]}}"
    );
    let routes = PROTECTED.replace("NAME", "token").replace("CREDENTIALS", &tokens)
        + ROUTES.replace("BACKEND", &backend("shop").to_string()).trim();
    let agent = Agent::start(&[
        ("gateway.yaml", &GATEWAY.replace("own.example", "'*.example'")),
        ("routes.yaml", &routes),
        ("service.yaml", &service),
        ("grant.yaml", GRANT),
    ]);
    let [first, second] = FETCHED.map(|(_, _, token)| format!("authorization: Bearer {token}\r\n"));
    let is_now = |fields: &str, status| get(&agent, "token.example", fields).is_some_and(|it| it.0 == status);
    eventually("its keys are fetched", || is_now(&first, 200));
    assert!(is_now("", 401) && is_now(&first.replace("aO4sb1", "aO4sb2"), 401));
    *current.lock().unwrap() = 1;
    // The first request with a new key waits for it.
    assert!(is_now(&second, 200));
    // Each core takes what was published by itself.
    eventually("the key that is gone counts no more", || is_now(&first, 401));
    agent.edit("grant.yaml", "");
    eventually("without permission nobody passes", || is_now(&second, 500));
    let status = agent.command(&["status", "TrafficPolicy", "shop/token", "-o", "yaml"]);
    assert!(status.contains("has to allow TrafficPolicies of namespace shop"), "{status}");
    agent.edit("grant.yaml", GRANT);
    eventually("it is open again", || is_now(&second, 200));
}

#[test]
fn keys_that_cannot_be_fetched_are_a_problem() {
    let service = |port: u16| ISSUERS_SERVICE.replace("BACKEND", &port.to_string());
    let tokens = format!(
        "jwt: {{providers: [{{name: p, issuer: \"{ISSUER}\",
          remoteJwks: {{backendRef: {{name: login, namespace: auth, port: 80}}, path: /keys?a=b}}}}]}}"
    );
    let routes = PROTECTED.replace("NAME", "token").replace("CREDENTIALS", &tokens)
        + ROUTES.replace("BACKEND", &backend("shop").to_string()).trim();
    let agent = Agent::start(&[
        ("gateway.yaml", &GATEWAY.replace("own.example", "'*.example'")),
        ("routes.yaml", &routes),
        ("service.yaml", &service(1)),
        ("grant.yaml", GRANT),
    ]);
    let problems = || agent.admin("/problems").unwrap().body;
    let told = "key set auth/login:80/keys: cannot be fetched: ";
    eventually("it is a problem", || problems().contains(told));
    assert!(problems().contains("; no token of its issuer passes"), "{}", problems());
    assert!(agent.command(&["status", "--problems"]).contains(told));
    let rows = agent.admin("/api/v1/problems").unwrap().body;
    assert!(rows.contains("\"object\":\"key set auth/login:80/keys\""), "{rows}");
    agent.edit("service.yaml", &service(issuer(&Arc::default())));
    eventually("it is none", || !problems().contains(told));
}
