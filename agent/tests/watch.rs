//! The next requests of a kind, step by step: `portcullis watch` and `/api/v1/watch` of the real
//! agent, with traffic that comes as it does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Agent, GATEWAY, HTTP, backend, backend_that_answers, eventually};

/// Longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(90);
const SECRET: &str = "c2VjcmV0";

/// Rules by path: an ordinary one, one that is sent again, one that an auth service denies; one
/// that has rate limits.
const ROUTES: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: infra}
spec:
  parentRefs: [{name: web}]
  hostnames: [shop.example]
  rules:
  - name: cart
    matches: [{path: {value: /cart}}, {path: {value: /head}}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: x-key, value: c2VjcmV0}]}
    backendRefs: [{name: cart, port: 80}]
  - name: retried
    matches: [{path: {value: /fail}}]
    retry: {attempts: 2, codes: [503], backoff: 10ms}
    backendRefs: [{name: broken, port: 80}]
  - name: denied
    matches: [{path: {value: /denied}}]
    filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {}, backendRef: {name: guard, port: 80}}
    backendRefs: [{name: cart, port: 80}]
  - name: limited
    matches: [{path: {value: /limited}}]
    backendRefs: [{name: cart, port: 80}]
---
apiVersion: portcullis.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: limited, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop, sectionName: limited}]
  rateLimits: [{requests: 1, per: Hour}]
";

const SILENT: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: silent, namespace: infra}
spec:
  parentRefs: [{name: web}]
  hostnames: [silent.example]
  rules: [{backendRefs: [{name: silent, port: 80}]}]
";

fn service(name: &str, port: u16) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: infra}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: infra, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: {port}}}]
endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]
"
    )
}

fn start() -> Agent {
    start_with(&[])
}

fn start_with(options: &[&str]) -> Agent {
    let answers = |status: &str| {
        backend_that_answers(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"))
    };
    let services = [("cart", backend("cart")), ("broken", answers("503 No")), ("guard", answers("403 No"))];
    let services = services.map(|(name, port)| service(name, port)).concat();
    let manifests = [("gateway.yaml", GATEWAY), ("routes.yaml", &format!("{ROUTES}{services}"))];
    Agent::start_with(options, &manifests)
}

/// The answer to the command while requests come.
fn watched(agent: &Agent, arguments: &[&str], mut request: impl FnMut()) -> Value {
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let time: &[&str] = if arguments.contains(&"--seconds") { &[] } else { &["--seconds", "60"] };
            let arguments = [&["watch", "-o", "json"], time, arguments].concat();
            serde_json::from_str::<Value>(&agent.command(&arguments)).unwrap()
        });
        let deadline = Instant::now() + TIMEOUT;
        while !watching.is_finished() {
            assert!(Instant::now() < deadline, "the watch sees nothing");
            request();
        }
        watching.join().unwrap()
    })
}

/// Subjects and texts of the first request.
fn steps(report: &Value) -> Vec<(String, String)> {
    let steps = report["requests"][0]["steps"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    steps.map(|step| (text(&step["subject"]), text(&step["text"]))).collect()
}

/// Fails unless there are such steps, in this order.
#[track_caller]
fn assert_steps(report: &Value, expected: &[(&str, &str)]) {
    let all = steps(report);
    let mut rest = all.iter();
    for (subject, part) in expected {
        let is_there = rest.any(|(its, text)| its == subject && text.contains(part));
        assert!(is_there, "{subject}: {part}: {all:#?}");
    }
}

/// A request with all that is to be kept secret.
fn ask(agent: &Agent, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect((agent.address, HTTP)).unwrap();
    let fields = format!("authorization: Bearer {SECRET}\r\ncookie: a={SECRET}\r\nx-tenant: {SECRET}\r\n");
    write!(stream, "GET {path}?key={SECRET} HTTP/1.1\r\nhost: {host}\r\n{fields}connection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// GET in HTTP/2 with prior knowledge; returns once the response has ended.
fn ask_by_http2(agent: &Agent, host: &str, path: &str) {
    let mut stream = TcpStream::connect((agent.address, HTTP)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // `:method: GET` and `:scheme: http` are in the static table, as are the names of the others.
    let mut fields = vec![0x82, 0x86];
    for (name, value) in [(0x04, path), (0x01, host)] {
        fields.push(name);
        fields.push(u8::try_from(value.len()).unwrap());
        fields.extend_from_slice(value.as_bytes());
    }
    let frame = |kind: u8, flags: u8, id: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, id];
        frame.extend_from_slice(payload);
        frame
    };
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    stream.write_all(&frame(1, 0x5, 1, &fields)).unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [_, high, low, kind, flags, .., id] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        stream.read_exact(&mut payload).unwrap();
        if id == 1 && matches!(kind, 0 | 1) && flags & 1 == 1 {
            return;
        }
    }
}

#[test]
fn the_next_request_is_told_of_step_by_step() {
    let agent = start();
    let report = watched(&agent, &["--host", "shop.example", "--path", "/cart/7"], || {
        assert!(ask(&agent, "shop.example", "/cart").starts_with("HTTP/1.1 200 "), "another path");
        assert!(ask(&agent, "shop.example", "/cart/7").starts_with("HTTP/1.1 200 "));
    });
    assert_eq!((&report["missing"], report["requests"].as_array().unwrap().len()), (&Value::from(0), 1));
    let expected = [
        ("request", "GET shop.example/cart/7 by HTTP/1.1"),
        ("connection", "without TLS, to port 8080 of Gateway infra/web"),
        ("listener", "Gateway infra/web listener http, tenant infra"),
        ("rule", "HTTPRoute infra/shop rule 0 (cart), by its match PathPrefix /cart"),
        ("filter", "sets x-key"),
        ("backend", "infra/cart:80"),
        ("attempt", "1 to infra/cart:80: http to 127.0.0.1:"),
        ("connection", "HTTP/1.1, without TLS"),
        ("answer", "200"),
        ("response", "200 (2xx), by the backend infra/cart:80"),
        ("end", "4 bytes"),
    ];
    assert_steps(&report, &expected);
    let request = &report["requests"][0];
    assert_eq!(request["ended"], "complete");
    assert!(request.get("traceId").is_none(), "{request}");
    assert_eq!(request["attributes"]["http.response.status_code"], 200);
    assert!(!report.to_string().contains(SECRET), "{report}");
    let times: Vec<_> =
        request["steps"].as_array().unwrap().iter().map(|it| it["at"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && request["seconds"].as_f64().unwrap() >= *times.last().unwrap());

    // A backend gets what it would have got.
    let mut seen = String::new();
    watched(&agent, &["--path", "/head", "-H", "x-tenant"], || seen = ask(&agent, "shop.example", "/head"));
    assert!(!seen.contains("traceparent"), "{seen}");
}

#[test]
fn retries_and_refusals_are_steps() {
    let agent = start();
    let report = watched(&agent, &["--path", "/fail*"], || drop(ask(&agent, "shop.example", "/failing")));
    assert_eq!(report["requests"][0]["attributes"]["error.type"], "no_route", "{report}");
    let report = watched(&agent, &["--path", "/fail"], || drop(ask(&agent, "shop.example", "/fail")));
    let expected = [
        ("rule", "rule 1 (retried)"),
        ("attempt", "1 to infra/broken:80"),
        ("answer", "503"),
        ("retry", "again in"),
        ("attempt", "2 to infra/broken:80"),
        ("retry", "again in"),
        ("attempt", "3 to infra/broken:80"),
        ("response", "503 (5xx), by the backend infra/broken:80"),
    ];
    assert_steps(&report, &expected);

    let report = watched(&agent, &["--path", "/denied"], || drop(ask(&agent, "shop.example", "/denied")));
    let expected = [
        ("rule", "rule 2 (denied)"),
        ("checks", "auth service infra/guard:80"),
        ("attempt", "1 to auth service infra/guard:80"),
        ("auth", "auth service infra/guard:80 denies it with 403"),
        ("response", "403 (4xx), by the gateway itself: auth_denied"),
    ];
    assert_steps(&report, &expected);

    ask(&agent, "shop.example", "/limited");
    let mut answer = String::new();
    let limited = &["--path", "/limited", "--count", "2"];
    let report = watched(&agent, limited, || answer = ask(&agent, "shop.example", "/limited"));
    assert_eq!(report["requests"].as_array().unwrap().len(), 2);
    let expected = [
        ("rule", "rule 3 (limited)"),
        ("policy", "TrafficPolicy infra/limited on HTTPRoute infra/shop rule limited checks rate limits"),
    ];
    assert_steps(&report, &expected);
    assert!(report.to_string().contains("429 (4xx), by the gateway itself: rate_limited"), "{report}");

    let report = watched(&agent, &["--host", "nobody.example"], || drop(ask(&agent, "nobody.example", "/")));
    assert_steps(
        &report,
        &[("listener", "http"), ("response", "404 (4xx), by the gateway itself: no_route")],
    );
    assert!(!steps(&report).iter().any(|(subject, _)| subject == "rule"));
    assert!(!report.to_string().contains(SECRET), "{report}");
}

#[test]
fn requests_of_the_http_library_and_of_http2_are_told_of_too() {
    let agent = start_with(&["--http1", "library"]);
    let report = watched(&agent, &["--path", "/cart"], || drop(ask(&agent, "shop.example", "/cart")));
    let expected = [
        ("request", "GET shop.example/cart by HTTP/1.1"),
        ("attempt", "1 to infra/cart:80"),
        ("response", "200 (2xx), by the backend infra/cart:80"),
        ("end", "4 bytes"),
    ];
    assert_steps(&report, &expected);
    let report = watched(&agent, &["--host", "shop.example", "--listener", "http"], || {
        ask_by_http2(&agent, "shop.example", "/cart");
    });
    let expected = [
        ("request", "GET shop.example/cart by HTTP/2.0"),
        ("rule", "rule 0 (cart)"),
        ("attempt", "1 to infra/cart:80"),
        ("response", "200 (2xx), by the backend infra/cart:80"),
        ("end", "4 bytes"),
    ];
    assert_steps(&report, &expected);
}

#[test]
fn a_watch_that_sees_nothing_says_what_would_become_of_such_a_request() {
    let agent = start();
    let told = agent.command(&["watch", "--host", "shop.example", "--path", "/cart", "--seconds", "1"]);
    for text in [
        "no such request came to this node within 1 s",
        "HTTPRoute infra/shop rule 0 (cart)",
        "infra/cart:80 →",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    let wrong = agent.command(&["watch", "--path", "cart"]);
    assert!(wrong.contains("begin it with /"), "{wrong}");
}

#[test]
fn a_request_that_outlasts_its_watch_is_told_of_as_far_as_it_went() {
    let agent = start();
    // Its backend takes connections, and that is all.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    thread::spawn(move || silent.incoming().collect::<Vec<_>>());
    agent.edit("silent.yaml", &format!("{SILENT}{}", service("silent", port)));
    eventually("the route is served", || {
        let explained = agent.command(&["explain", "http://silent.example:8080/"]);
        explained.contains("infra/silent:80 →")
    });
    let mut streams = Vec::new();
    let report = watched(&agent, &["--host", "silent.example", "--seconds", "2"], || {
        // Until the command watches, however long it takes to start.
        let mut stream = TcpStream::connect((agent.address, HTTP)).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nhost: silent.example\r\n\r\n").unwrap();
        streams.push(stream);
        thread::sleep(Duration::from_millis(20));
    });
    assert_eq!(report["requests"][0]["ended"], "goingOn", "{report}");
    assert_steps(&report, &[("attempt", "1 to infra/silent:80"), ("connection", "a new one")]);
    assert!(!steps(&report).iter().any(|(subject, _)| subject == "response"));
}

#[test]
fn what_makes_no_sense_is_told() {
    let agent = start();
    let wrong = agent.command(&["watch", "--path", "cart"]);
    assert!(wrong.contains("begin it with /"), "{wrong}");
}

#[test]
fn watches_are_few_and_end_with_those_who_wait() {
    let agent = start();
    let watch = || {
        let mut stream = UnixStream::connect(agent.dir.path().join("admin.sock")).unwrap();
        stream
            .write_all(b"GET /api/v1/watch?host=none.example&seconds=300 HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    // One of five is told to come again, whichever it is.
    let mut waiting = [(); 5].map(|()| watch());
    let mut refused = Vec::new();
    eventually("the fifth is told to come again", || {
        let mut part = [0; 4096];
        for stream in &mut waiting {
            let read = stream.read(&mut part).unwrap_or_default();
            refused.extend_from_slice(&part[..read]);
        }
        String::from_utf8_lossy(&refused).contains("4 others wait")
    });
    assert!(refused.starts_with(b"HTTP/1.1 503 "));
    // Others are answered meanwhile.
    assert_eq!(agent.admin("/api/v1/overview").unwrap().status, 200);
    drop(waiting);
    let asked = || agent.admin("/api/v1/watch?seconds=1&host=none.example").unwrap();
    eventually("their places are free", || asked().status == 200);
    assert_eq!(agent.http("shop.example", "/cart").unwrap().status, 200);
}
