//! The admin endpoints of a running agent on their port: what is answered to whom, and what a
//! client cannot hold.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's traffic")]
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Agent, GATEWAY, eventually};

struct Admin {
    port: u16,
    agent: Agent,
}

impl Admin {
    fn start() -> Self {
        Self::of(&[("gateway.yaml", GATEWAY)])
    }

    fn of(manifests: &[(&str, &str)]) -> Self {
        let options = ["--admin-port", "0", "--admin-host", "agent.example"];
        let agent = Agent::start_with(&options, manifests);
        let port = agent.logged("admin endpoints on http://127.0.0.1:").parse().unwrap();
        Self { port, agent }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// The whole answer to a request without body.
    fn ask(&self, method: &str, path: &str, fields: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nConnection: close\r\n{fields}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn only_the_agents_own_names_are_answered() {
    let admin = Admin::start();
    for (host, status) in [
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("[::1]:9270", 200),
        ("agent.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ] {
        let answer = admin.ask("GET", "/config", &format!("Host: {host}\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        assert_eq!(answer.contains("infra/web"), status == 200, "{host}: {answer}");
        assert!(status == 200 || answer.contains("--admin-host"), "{answer}");
    }
    // RFC 9112, section 3.2.
    for fields in ["", "Host: localhost\r\nHost: localhost\r\n"] {
        let answer = admin.ask("GET", "/config", fields);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("one Host field"), "{answer}");
    }
}

#[test]
fn a_scrape_gets_the_format_it_asks_for() {
    let admin = Admin::start();
    let ask = |accept: &str| admin.ask("GET", "/metrics", &format!("Host: localhost\r\n{accept}"));
    let open = ask("Accept: application/openmetrics-text; version=1.0.0, text/plain; q=0.5\r\n");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(
        open.contains("# TYPE network_server_connections counter\n") && open.ends_with("# EOF\n"),
        "{open}"
    );
    let text = ask("");
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    assert!(text.contains("# TYPE network_server_connections_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
}

#[test]
fn methods_are_those_of_the_endpoint() {
    let admin = Admin::start();
    for (method, path, status, field) in [
        ("HEAD", "/livez", 200, "content-length: 3"),
        ("HEAD", "/metrics", 200, "content-type: text/plain; version=0.0.4"),
        ("POST", "/metrics", 405, "allow: GET, HEAD"),
        ("GET", "/explain", 405, "allow: POST"),
        ("GET", "/none", 404, "content-type"),
    ] {
        let answer = admin.ask(method, path, "Host: localhost\r\n");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        assert!(answer.contains(field), "{method} {path}: {answer}");
        assert!(method != "HEAD" || answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[test]
fn a_question_that_does_not_end_is_not_waited_for() {
    let admin = Admin::start();
    let mut stream = admin.connect();
    write!(stream, "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{").unwrap();
    let (begun, mut answer) = (Instant::now(), String::new());
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
}

#[test]
fn held_connections_keep_no_probe_out() {
    let admin = Admin::start();
    let held: Vec<_> = (0..500).map(|_| admin.connect()).collect();
    for path in ["/livez", "/readyz", "/metrics"] {
        let answer = admin.ask("GET", path, "Host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
    let mut oldest = &held[0];
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0, "it gave its place away");
}

/// The agent finds the probe and more connections than it holds at once.
#[test]
fn a_probe_is_answered_whoever_comes_after_it() {
    let admin = Admin::start();
    admin.agent.signal("STOP");
    let mut probe = admin.connect();
    write!(probe, "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    // No more than the kernel keeps for a listener.
    let _later: Vec<_> = (0..100).map(|_| admin.connect()).collect();
    admin.agent.signal("CONT");
    let mut answer = String::new();
    let read = probe.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{read:?} {answer}");
}

#[test]
fn an_answer_under_way_is_not_broken_off_for_connections_that_ask_nothing() {
    let admin = Admin::start();
    let mut asking = admin.connect();
    write!(asking, "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{").unwrap();
    // Once it is answered the agent waits for the rest of the question.
    assert!(admin.ask("GET", "/livez", "Host: localhost\r\n").starts_with("HTTP/1.1 200 "));
    let later: Vec<_> = (0..200).map(|_| admin.connect()).collect();
    let mut oldest = &later[0];
    assert_eq!(oldest.read(&mut [0]).unwrap_or(0), 0, "it gave its place away");
    write!(asking, "}}").unwrap();
    let mut answer = [0; 12];
    asking.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");
}

/// Each has more answers to take than the kernel keeps, and takes none.
#[test]
fn clients_that_take_nothing_keep_nobody_out() {
    const ASKED: usize = 400;
    const QUESTION: &str = "GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let route = |number| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: route-{number}, namespace: infra}}\n\
             spec: {{parentRefs: [{{name: web}}], hostnames: [host-{number}.example], rules: [{{}}]}}\n"
        )
    };
    let routes: String = (0..300).map(route).collect();
    let admin = Admin::of(&[("gateway.yaml", GATEWAY), ("routes.yaml", &routes)]);
    let size = admin.ask("GET", "/config", "Host: localhost\r\n").len();
    assert!(size * ASKED > 12 << 20, "{size}");
    let mut held: Vec<_> = (0..8).map(|_| admin.connect()).collect();
    for stream in &mut held {
        stream.write_all(QUESTION.repeat(ASKED).as_bytes()).unwrap();
    }
    for path in ["/metrics", "/config", "/metrics", "/api/v1/routes"] {
        let answer = admin.ask("GET", path, "Host: localhost\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    }
    for mut stream in held {
        let mut taken = Vec::new();
        let _ended = stream.read_to_end(&mut taken);
        assert!(taken.len() < size * ASKED, "it was broken off");
    }
}

/// A route with a backend, and one that is not there.
const SHOP: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: infra}
spec:
  parentRefs: [{name: web}]
  hostnames: [shop.example]
  rules:
  - matches: [{path: {value: /a, type: Exact}}, {path: {value: /cart}, headers: [{name: x-a, value: '<b>'}]}]
    backendRefs: [{name: cart, port: 80}]
  - backendRefs: [{name: nowhere, port: 80}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: Authorization, value: Basic c2VjcmV0}]
        add: [{name: x-api-key, value: c2VjcmV0}]
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: infra}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart, namespace: infra, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{port: 1}]
endpoints: [{addresses: [127.0.0.9]}]
";

impl Admin {
    fn of_shop() -> Self {
        Self::of(&[("gateway.yaml", GATEWAY), ("shop.yaml", SHOP)])
    }

    /// Status and value of an answer of the API.
    fn api(&self, path: &str) -> (u16, Value) {
        let answer = self.ask("GET", &format!("/api/v1/{path}"), "Host: localhost\r\n");
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.contains("cache-control: no-store"), "{head}");
        (status, serde_json::from_str(body).unwrap())
    }

    fn items(&self, path: &str) -> Vec<Value> {
        let (status, value) = self.api(path);
        assert_eq!(status, 200, "{value}");
        value["items"].as_array().unwrap().clone()
    }
}

#[test]
fn the_tree_is_told_piece_by_piece_down_to_the_endpoint() {
    let admin = Admin::of_shop();
    let gateways = admin.items("gateways");
    assert_eq!((&gateways[0]["gateway"], &gateways[0]["rules"]), (&json!("infra/web"), &json!(3)));
    let listeners = admin.items("listeners?gateway=infra/web");
    assert_eq!(listeners[0]["listener"], "Gateway infra/web listener http");
    assert_eq!((&listeners[0]["tenant"], &listeners[0]["hosts"]), (&json!("infra"), &json!(1)));
    let of_listener = "gateway=infra%2Fweb&listener=Gateway+infra/web+listener+http";
    assert_eq!(admin.items(&format!("hosts?{of_listener}"))[0]["host"], "shop.example");
    let rules = admin.items(&format!("routes?{of_listener}&host=shop.example"));
    assert_eq!(rules.len(), 3);
    let named: Vec<_> = rules.iter().filter_map(|row| row["backends"][0]["backend"].as_str()).collect();
    assert_eq!(named, ["infra/cart:80", "infra/cart:80"], "{rules:?}");
    assert_eq!(admin.items("endpoints?backend=infra/cart:80"), [json!({"address": "127.0.0.9:1"})]);
    let backend = admin.items("backends?backend=infra/cart:80");
    assert_eq!(backend[0]["endpoints"], 1);
    for (q, rows) in [("PATHPREFIX+%3Cb", 1), ("x-a", 1), ("shop.example", 3), ("nothing-of-it", 0)] {
        assert_eq!(admin.items(&format!("routes?q={q}")).len(), rows, "{q}");
        assert_eq!(admin.items(&format!("gateways?q={q}")).len(), rows.min(1), "{q}");
    }
    let (_, part) = admin.api("routes?offset=2&limit=5");
    assert_eq!((&part["total"], part["items"].as_array().unwrap().len()), (&json!(3), 1));
}

#[test]
fn the_api_explains_as_the_command_does_and_names_the_nodes() {
    let admin = Admin::of_shop();
    let (status, told) = admin.api("explain?url=http://shop.example:8080/cart&header=X-A:+%3Cb%3E");
    assert_eq!(status, 200);
    let lines = told["lines"].as_array().unwrap();
    let at = |subject: &str| {
        let line = lines.iter().find(|line| line["subject"] == subject).unwrap();
        line["at"].clone()
    };
    assert_eq!(at("backend")["backend"], "infra/cart:80");
    assert_eq!(at("rule")["rule"], "HTTPRoute infra/cart rule 0");
    assert_eq!(at("rule")["match"], "PathPrefix /cart, header x-a=<b>");
    let url = "http://shop.example:8080/cart";
    let command = admin.agent.command(&["explain", url, "-H", "X-A: <b>", "-o", "json"]);
    let command: Value = serde_json::from_str(&command).unwrap();
    assert_eq!(command, told);
}

/// Heads that a Gateway takes are questions, and what is longer is none that any takes.
#[test]
fn long_fields_are_explained() {
    let admin = Admin::of_shop();
    let field = format!("X-A: {}", "a".repeat(70_000));
    let explained = admin.agent.command(&["explain", "http://shop.example:8080/cart", "-H", &field]);
    assert!(explained.contains("431"), "{explained}");
    // The line end that ends the request is its last two bytes.
    let (most, spaces) = ((256 << 10) + 1, " ".repeat((256 << 10) - 1));
    let longer = format!("Host: localhost\r\nContent-Length: {most}\r\n\r\n{spaces}");
    let answer = admin.ask("POST", "/explain", &longer);
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("no Gateway takes such a"), "{answer}");
}

/// All processes of the machine reach the port, and operators paste answers elsewhere.
#[test]
fn values_that_filters_write_are_told_by_name_alone() {
    let admin = Admin::of_shop();
    let question = r#"{"url": "http://shop.example:8080/", "method": "GET", "headers": [], "all": false}"#;
    let posted = format!("Host: localhost\r\nContent-Length: {}\r\n\r\n{question}", question.len());
    let json = "Host: localhost\r\nAccept: application/json\r\n";
    let explained = admin.agent.command(&["explain", "http://shop.example:8080/"]);
    let answers = [
        admin.ask("GET", "/api/v1/explain?url=http://shop.example:8080/", json),
        admin.ask("POST", "/explain", &posted),
        admin.ask("GET", "/config", json),
        admin.ask("GET", "/config", "Host: localhost\r\n"),
        explained,
    ];
    for answer in answers {
        assert!(answer.contains("authorization") && answer.contains("x-api-key"), "{answer}");
        assert!(answer.contains("(left out)") && !answer.contains("c2VjcmV0"), "{answer}");
    }
}

#[test]
fn problems_and_node_and_traffic_are_told() {
    let admin = Admin::of_shop();
    let mut route = None;
    eventually("the route's status is written", || {
        route = admin.items("problems").into_iter().find(|it| it["object"] == "HTTPRoute infra/cart");
        route.is_some()
    });
    let route = route.unwrap();
    assert_eq!(route["severity"], "error");
    assert!(route["message"].as_str().unwrap().contains("nowhere"), "{route}");
    assert_eq!(route["remedy"], "create it, or correct the reference");
    let (_, overview) = admin.api("overview");
    assert_eq!((&overview["ready"], &overview["size"]["rules"]), (&json!(true), &json!(3)));
    let (_, node) = admin.api("node");
    assert_eq!(node["listeners"]["items"][0]["servedBy"]["by"], "user space (HTTP)");
    assert!(!node["fallbacks"].as_array().unwrap().is_empty(), "{node}");
    assert_eq!(admin.items("certificates"), Vec::<Value>::new());
    assert_eq!(admin.agent.http("shop.example", "/other").unwrap().status, 500);
    let (_, traffic) = admin.api("traffic");
    assert_eq!(traffic["listeners"][0]["requests"][5], 1, "{traffic}");
    assert_eq!(traffic["routes"][0]["name"], "HTTPRoute infra/cart", "{traffic}");
}

#[test]
fn questions_that_make_no_sense_are_told_what_they_lack() {
    let admin = Admin::of_shop();
    for (path, status, error) in [
        ("nothing", 404, "docs/api.md"),
        ("routes?listeners=a", 400, "there is no parameter \"listeners\""),
        ("routes?limit=many", 400, "is no number"),
        ("endpoints", 400, "the parameter backend is missing"),
        ("explain?url=nonsense", 400, "is no URL"),
        (&format!("routes?limit=1&q={}", "h+".repeat(3000)), 400, "name at most 8"),
        (&format!("problems?q={}", "h".repeat(257)), 400, "of 256 bytes"),
    ] {
        let (found, value) = admin.api(path);
        assert_eq!(found, status, "{path}");
        assert!(value["error"].as_str().unwrap().contains(error), "{path}: {value}");
    }
    let ask = |method: &str, fields: &str| admin.ask(method, "/api/v1/overview", fields);
    assert!(ask("POST", "Host: localhost\r\n").starts_with("HTTP/1.1 405 "));
    assert!(ask("GET", "Host: evil.example\r\n").starts_with("HTTP/1.1 421 "));
}

#[test]
fn pages_of_other_sites_are_answered_nothing_but_links_to_the_page() {
    let admin = Admin::start();
    let ask = |method: &str, path: &str, fields: &str| {
        let answer = admin.ask(method, path, &format!("Host: localhost\r\n{fields}"));
        for field in ["cache-control: no-store", "x-content-type-options: nosniff"] {
            assert_eq!(answer.matches(field).count(), 1, "{method} {path}: {answer}");
        }
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let read = [
        "/",
        "/ui",
        "/about",
        "/livez",
        "/metrics",
        "/config",
        "/routes",
        "/listeners",
        "/problems",
        "/api/v1/overview",
    ];
    let link = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    let frame = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n";
    for path in read {
        let is_page = matches!(path, "/" | "/ui");
        assert_eq!(ask("GET", path, ""), "200", "{path}");
        assert_eq!(ask("GET", path, "Sec-Fetch-Site: same-origin\r\n"), "200", "{path}");
        for site in ["cross-site", "same-site"] {
            let site = format!("Sec-Fetch-Site: {site}\r\n");
            assert_eq!(ask("GET", path, &format!("{site}Sec-Fetch-Mode: no-cors\r\n")), "403", "{path}");
            assert_eq!(ask("GET", path, &format!("{site}{frame}")), "403", "{path}");
            let expected = if is_page { "200" } else { "403" };
            assert_eq!(ask("GET", path, &format!("{site}{link}")), expected, "{path}");
            assert_eq!(ask("POST", path, &format!("{site}{link}")), "403", "{path}");
        }
    }
    assert_eq!(ask("POST", "/explain", "Sec-Fetch-Site: cross-site\r\n"), "403");
}
