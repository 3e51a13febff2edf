//! The binary end to end, in user space: manifests in a directory become traffic, edits take
//! effect, what is broken keeps serving, and SIGTERM drains.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's ports")]
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use socket2::{Domain, Socket, Type};
use support::{Agent, Answer, HTTP, backend, backend_that_answers, eventually};

const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners:
  - {name: http, protocol: HTTP, port: 8080, allowedRoutes: {namespaces: {from: All}}}
  - name: https
    protocol: HTTPS
    port: 8443
    hostname: secure.example
    tls: {certificateRefs: [{name: secure}]}
    allowedRoutes: {namespaces: {from: All}}
"#;

fn service(name: &str, port: u16) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: {port}}}]
endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]
"#
    )
}

fn route(service: &str) -> String {
    format!(
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: shop, namespace: shop}}
spec:
  parentRefs: [{{name: web, namespace: infra}}]
  rules: [{{backendRefs: [{{name: {service}, port: 80}}]}}]
"#
    )
}

fn secret(certificate: &CertifiedKey<rcgen::KeyPair>) -> String {
    let indent = |pem: String| pem.replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: secure, namespace: infra}}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n    {}\n  tls.key: |\n    {}\n",
        indent(certificate.cert.pem()),
        indent(certificate.signing_key.serialize_pem())
    )
}

fn certificate() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["secure.example".to_owned()]).unwrap()
}

fn from(body: &str) -> Option<Answer> {
    Some(Answer { status: 200, body: body.to_owned() })
}

#[test]
fn nothing_is_cleaned_up_beside_a_running_agent() {
    let services = service("blue", backend("blue"));
    let agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
    ]);
    let [pins, state] = ["pins", "state"].map(|name| agent.dir.path().join(name).display().to_string());
    // One of the agents of other tests may end before it is named.
    eventually("an agent is named", || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        let output = command.args(["cleanup", "--pin-dir", &pins, "--state-dir", &state]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains("nothing is removed"), "{said}");
        said.contains("(portcullis)")
    });
    assert_eq!(agent.http("any.example", "/"), from("blue"));
}

/// Each would remove the other's status files, and `status` show any of the two.
#[test]
fn two_agents_do_not_write_statuses_to_one_directory() {
    let agent = Agent::start(&[("gateway.yaml", GATEWAY)]);
    let mut second = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    second.args(["run", "--datapath", "userspace", "--beside-others"]);
    second.arg("--config-dir").arg(agent.dir.path().join("conf"));
    second.arg("--admin-socket").arg(agent.dir.path().join("second.sock"));
    let output = second.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    let first = format!("process {} (portcullis)", agent.child.id());
    assert!(said.contains(&first) && said.contains("--status-dir"), "{said}");
}

/// The kernel lets processes of a user share a port; half of the connections would go astray.
#[test]
fn a_port_is_given_up_to_another_process_that_shares_it() {
    let services = service("blue", backend("blue"));
    let agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
    ]);
    assert_eq!(agent.http("any.example", "/"), from("blue"));
    let sharing = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    sharing.set_reuse_port(true).unwrap();
    sharing.bind(&SocketAddr::from((agent.address, HTTP)).into()).unwrap();
    sharing.listen(16).unwrap();
    let says = |what: &str| agent.command(&["status", "Gateway", "-o", "yaml"]).contains(what);
    eventually("the status says so", || says("another process listens on"));
    drop(sharing);
    eventually("the port is served again", || agent.http("any.example", "/") == from("blue"));
    eventually("the status says that, too", || !says("another process listens on"));
}

#[test]
fn a_backend_with_a_tls_policy_gets_nothing_in_plaintext() {
    let private = TcpListener::bind("127.0.0.1:0").unwrap();
    private.set_nonblocking(true).unwrap();
    let policy = |validation: &str| {
        format!(
            r#"
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: private, namespace: shop}}
spec:
  targetRefs: [{{group: "", kind: Service, name: private}}]
  validation: {{hostname: private.example{validation}}}
"#
        )
    };
    for (policy, reason) in [
        (policy(", caCertificateRefs: [{group: '', kind: ConfigMap, name: gone}]"), "NoValidCACertificate"),
        // A rule of the CRD refuses it.
        (policy(""), "Invalid"),
    ] {
        let agent = Agent::start(&[
            ("gateway.yaml", GATEWAY),
            ("services.yaml", &service("private", private.local_addr().unwrap().port())),
            ("route.yaml", &route("private")),
            ("policy.yaml", &policy),
        ]);
        assert_eq!(agent.http("any.example", "/").map(|answer| answer.status), Some(500));
        assert_eq!(private.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "a connection came");
        eventually("the policy's status says so", || {
            agent.command(&["status", "BackendTLSPolicy"]).contains(&format!("Accepted=False/{reason}"))
        });
    }
}

/// An API server would refuse the write, and keep the version before. Here an agent that starts may
/// never have seen one; what is broken must not be open then.
#[test]
fn a_policy_that_the_schema_refuses_closes_its_targets() {
    let policy = |kind: &str, spec: &str| {
        format!(
            r"
apiVersion: portcullis.dev/v1alpha1
kind: {kind}
metadata: {{name: p, namespace: infra}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: web}}]
  {spec}
"
        )
    };
    let services = service("blue", backend("blue"));
    let mut agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
    ]);
    let fault = "ERROR CONF/p.yaml:2: KIND infra/p: spec.deny: Invalid value";
    let fault = fault.replace("CONF", &agent.dir.path().join("conf").display().to_string());
    // Without an answer no client is let in.
    for (kind, good, while_good, closed) in [
        ("TrafficPolicy", "deny: [127.0.0.0/8]", Some(403), Some(500)),
        ("ListenerPolicy", "deny: [192.0.2.0/24]", Some(200), None),
    ] {
        let fault = fault.replace("KIND", kind);
        let status = |agent: &Agent| agent.http("any.example", "/").map(|answer| answer.status);
        assert_eq!(status(&agent), Some(200), "{kind}");
        agent.edit("p.yaml", &policy(kind, "deny: 127.0.0.0/8"));
        eventually("its targets are closed", || status(&agent) == closed);
        eventually("the log says so", || agent.log().contains(&fault));

        agent.edit("p.yaml", &policy(kind, good));
        eventually("it holds", || status(&agent) == while_good);
        agent.edit("p.yaml", &policy(kind, "deny: 127.0.0.0/8"));
        eventually("it is refused", || agent.log().contains("; its last good version stays in force"));
        assert_eq!(status(&agent), while_good);

        agent.restart();
        assert_eq!(status(&agent), closed, "{kind}");
        let log = agent.log();
        let line = log.lines().find(|line| line.contains(&fault)).unwrap();
        assert!(line.ends_with("; its targets are closed until that is right"), "{line}");
        eventually("its status says so", || {
            agent.command(&["status", kind, "-o", "yaml"]).contains("spec.deny: Invalid value")
        });
        let problems = agent.admin("/problems").unwrap().body;
        assert!(problems.contains(&format!("{kind} infra/p: spec.deny: Invalid value")), "{problems}");

        agent.edit("p.yaml", "");
        eventually("it is gone", || status(&agent) == Some(200));
    }
    // Nothing tells what this was about, or even that it was a policy.
    agent.edit("p.yaml", "kind: TrafficPolicy\nspec: [\n");
    agent.restart();
    let log = agent.log();
    let line = log.lines().find(|line| line.contains("p.yaml")).unwrap();
    assert!(line.contains(" ERROR ") && line.ends_with("; this document is left out"), "{line}");
}

#[test]
fn manifests_become_traffic_and_edits_take_effect() {
    let services = service("blue", backend("blue")) + &service("green", backend("green"));
    let first = certificate();
    let agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
        ("secret.yaml", &secret(&first)),
    ]);
    assert_eq!(agent.http("any.example", "/"), from("blue"));
    assert_eq!(agent.https(first.cert.der(), "secure.example", "/"), from("blue"));

    agent.edit("route.yaml", &route("green"));
    let edited = Instant::now();
    eventually("the edited route is served", || agent.http("any.example", "/") == from("green"));
    println!("visible after {:?}", edited.elapsed());

    let second = certificate();
    agent.edit("secret.yaml", &secret(&second));
    eventually("the new certificate is served", || {
        agent.https(second.cert.der(), "secure.example", "/") == from("green")
    });
    assert_eq!(agent.https(first.cert.der(), "secure.example", "/"), None);

    let explained = agent.command(&["explain", "http://any.example:8080/x"]);
    assert!(explained.contains("backend   1 of 1: shop/green:80 → 127.0.0.1:"), "{explained}");
    let status = agent.command(&["status", "httproutes"]);
    assert!(status.contains("HTTPRoute  shop/shop  Gateway infra/web  ok"), "{status}");
    let metrics = agent.admin("/metrics").unwrap().body;
    assert!(metrics.contains(r#"listener="http",http_response_status_class="2xx""#), "{metrics}");
}

#[test]
fn broken_input_is_reported_and_everything_else_keeps_serving() {
    let services = service("blue", backend("blue"));
    let agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
    ]);
    agent.edit("route.yaml", "kind: HTTPRoute\nspec: [\n");
    eventually("the syntax error is reported", || agent.log().contains("route.yaml:"));
    assert_eq!(agent.http("any.example", "/"), from("blue"));

    agent.edit("route.yaml", &route("blue").replace("port: 80}]}]", "port: 80000}]}]"));
    let refused = "spec.rules[0].backendRefs[0].port: Invalid value: 80000: should be less than or equal to 65535; its last good version stays in force";
    eventually("the refused object is reported", || agent.log().contains(refused));
    assert_eq!(agent.http("any.example", "/"), from("blue"));

    agent.edit("secret.yaml", &secret(&certificate()).replace("BEGIN CERTIFICATE", "BEGIN CERTIFICAT"));
    agent.edit("route.yaml", &route("nowhere"));
    eventually("a route to nowhere answers 500", || {
        agent.http("any.example", "/").is_some_and(|it| it.status == 500)
    });
    // Statuses are told after the traffic has changed.
    for words in ["ResolvedRefs=False/BackendNotFound", "InvalidCertificateRef"] {
        eventually("the status says so", || agent.command(&["status"]).contains(words));
    }
}

/// As on a disk that was full: no status changes when there is room again.
#[test]
fn statuses_that_cannot_be_written_are_a_problem_until_they_are() {
    let services = service("blue", backend("blue"));
    let agent = Agent::start(&[("gateway.yaml", GATEWAY), ("services.yaml", &services)]);
    let in_the_way = agent.dir.path().join("conf/.status/HTTPRoute");
    std::fs::write(&in_the_way, "").unwrap();
    agent.edit("route.yaml", &route("blue"));
    let told = "statuses: cannot be written to ";
    eventually("it is a problem", || agent.admin("/problems").unwrap().body.contains(told));
    let problems = agent.command(&["status", "--problems"]);
    assert!(problems.contains(told), "{problems}");
    let problems = agent.admin("/api/v1/problems").unwrap().body;
    assert!(problems.contains("cannot be written to "), "{problems}");
    assert!(agent.log().contains("cannot write status files; traffic is served nevertheless"));
    assert_eq!(agent.http("any.example", "/"), from("blue"));
    std::fs::remove_file(in_the_way).unwrap();
    eventually("it is none", || !agent.admin("/problems").unwrap().body.contains(told));
    let status = agent.command(&["status", "httproutes"]);
    assert!(status.contains("HTTPRoute  shop/shop  Gateway infra/web  ok"), "{status}");
    eventually("the log says so", || agent.log().contains("status files are written again"));
}

#[test]
fn a_gateway_whose_port_is_taken_is_not_programmed_until_it_is_free() {
    let agent = Agent::start_unready(&[]);
    let taken = std::net::TcpListener::bind((agent.address, support::HTTP)).unwrap();
    eventually("the admin endpoint answers", || agent.admin("/readyz").is_some());
    assert_eq!(agent.admin("/readyz").unwrap().status, 503, "never ready with nothing");
    agent.edit("gateway.yaml", GATEWAY);
    eventually("the Gateway says so", || {
        agent.command(&["status", "gateway"]).contains("Programmed=False/AddressNotUsable")
    });
    let status = agent.command(&["status", "gateway", "-o", "yaml"]);
    assert!(status.contains("Address already in use"), "{status}");
    drop(taken);
    eventually("it is tried again", || !agent.command(&["status", "gateway"]).contains("AddressNotUsable"));
    assert_eq!(agent.admin("/readyz").unwrap().status, 200);
}

/// A backend that answers one request with its name, once it is told to.
fn held_backend(name: &'static str) -> (u16, Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (answer, told) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        told.recv().unwrap();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()).unwrap();
    });
    (port, answer)
}

#[test]
fn sigterm_lets_open_requests_finish() {
    let (port, answer) = held_backend("blue");
    let services = service("blue", port);
    let mut agent = Agent::start(&[
        ("gateway.yaml", GATEWAY),
        ("services.yaml", &services),
        ("route.yaml", &route("blue")),
    ]);
    thread::scope(|scope| {
        let held = scope.spawn(|| agent.http("any.example", "/"));
        eventually("the request is under way", || {
            let metrics = agent.admin("/metrics").unwrap().body;
            metrics.contains(r#"network_server_connections_open{gateway="infra/web"} 1"#)
        });
        let _scraper = agent.scrape();
        agent.signal("TERM");
        eventually("it drains", || agent.log().contains("SIGTERM: draining"));
        answer.send(()).unwrap();
        assert_eq!(held.join().unwrap(), from("blue"));
    });
    assert!(agent.wait().success());
    assert_eq!(agent.http("any.example", "/"), None);
}

#[test]
fn sighup_reads_what_no_event_told() {
    let services = service("blue", backend("blue")) + &service("green", backend("green"));
    let agent = Agent::start(&[("gateway.yaml", GATEWAY), ("services.yaml", &services)]);
    let elsewhere = agent.dir.path().join("elsewhere");
    std::fs::write(&elsewhere, route("blue")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, agent.dir.path().join("conf/route.yaml")).unwrap();
    eventually("the linked route is served", || agent.http("any.example", "/") == from("blue"));
    std::fs::write(&elsewhere, route("green")).unwrap();
    agent.signal("HUP");
    eventually("the edited target is served", || agent.http("any.example", "/") == from("green"));
}

const TWO_GATEWAYS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: strict, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  infrastructure: {parametersRef: {group: portcullis.dev, kind: GatewayParameters, name: strict}}
  listeners: [{name: http, protocol: HTTP, port: 8080, hostname: strict.example}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lax, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8443}]
"#;

fn parameters(spec: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: GatewayParameters\nmetadata: {{name: strict, namespace: infra}}\nspec: {spec}\n"
    )
}

/// The client learns that the backend failed, and nothing of the limits; the operator, where and
/// which.
#[test]
fn a_response_over_the_limits_is_told_with_listener_backend_and_limit() {
    let field = |bytes: usize| format!("x: {}\r\n", "v".repeat(bytes));
    let options = ["--max-response-header", "8", "--max-response-fields", "20"];
    for (fields, limit) in [
        (field(10 << 10), "a response head of more than 8 KiB (--max-response-header)"),
        (field(1).repeat(21), "a response head of more than 20 fields (--max-response-fields)"),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n");
        let port = backend_that_answers(answer);
        let services = service("blue", port);
        let manifests =
            [("gateway.yaml", GATEWAY), ("services.yaml", &services), ("route.yaml", &route("blue"))];
        let agent = Agent::start_with(&options, &manifests);
        let answer = agent.http("any.example", "/");
        assert_eq!(answer, Some(Answer { status: 502, body: "the backend failed\n".to_owned() }), "{limit}");
        let log = agent.log();
        let told: Vec<_> = log.lines().filter(|line| line.contains(" 502: ")).collect();
        let [told] = told[..] else { panic!("{log}") };
        for part in [
            " WARN ",
            "Gateway infra/web listener http",
            "shop/blue:80",
            &format!("127.0.0.1:{port} sent {limit}"),
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}

#[test]
fn proxies_in_front_are_believed_where_asked_for() {
    let services = service("blue", backend("blue"));
    let manifests = [("gateway.yaml", GATEWAY), ("services.yaml", &services), ("route.yaml", &route("blue"))];
    for (options, chain) in [(&[][..], "127.0.0.1\r\n"), (&["--trusted-hops", "1"], "7.7.7.7, 127.0.0.1\r\n")]
    {
        let agent = Agent::start_with(options, &manifests);
        let answer = agent.http("any.example\r\nx-forwarded-for: 6.6.6.6, 7.7.7.7", "/head").unwrap();
        assert!(answer.body.contains(&format!("\r\nx-forwarded-for: {chain}")), "{answer:?}");
    }
}

#[test]
fn parameters_hold_for_their_gateway_alone_and_follow_edits() {
    let strict = parameters("{accessLog: {}, limits: {targetBytes: 256}}");
    let mut agent = Agent::start(&[("gateways.yaml", TWO_GATEWAYS), ("parameters.yaml", &strict)]);
    let long = format!("/{}", "x".repeat(300));
    let status = |port, path: &str| agent.http_on(port, "any.example", path).map(|answer| answer.status);
    assert_eq!(
        (status(8080, &long), status(8080, "/1"), status(8443, &long)),
        (Some(414), Some(404), Some(404))
    );

    agent.edit("parameters.yaml", &parameters("{limits: {targetBytes: 2}}"));
    eventually("the schema's complaint is shown", || {
        agent.log().contains("should be greater than or equal to 256")
    });
    assert_eq!(status(8080, &long), Some(414), "what was good stays in force");

    agent.edit("parameters.yaml", &parameters("{accessLog: {enabled: false}, limits: {targetBytes: 1024}}"));
    eventually("the limit is another one", || status(8080, &long) == Some(404));
    agent.signal("TERM");
    assert!(agent.wait().success());
    let log = agent.access_log();
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count(r#""gateway":"infra/strict""#), log.lines().count(), "{log}");
    assert!(count(r#""status":414,"reason":"target_too_long""#) >= 2, "{log}");
    assert_eq!(
        count(r#""reason":"no_listener""#),
        1,
        "the log was off when the limit was another one: {log}"
    );
}

/// The test's client is not in the office.
#[test]
fn the_example_of_listener_policies_keeps_strangers_from_the_admin_page() {
    let example = include_str!("../../examples/listener-policy/listener-policy.yaml");
    let agent = Agent::start(&[("example.yaml", &example.replace("127.0.0.1", "ADDRESS"))]);
    let status = |host| agent.http(host, "/").map(|answer| answer.status);
    eventually("the policies are in force", || status("admin.example.com") == Some(403));
    assert_eq!(status("shop.example.com"), Some(404), "it has no route");
    let explained = agent.command(&["explain", "http://admin.example.com:8080/"]);
    for line in [
        "clients   of 198.51.100.0/24, 2001:db8:1::/48; none of 203.0.113.0/24; others are refused",
        "budget    10 connections/s, 10 at once, of Gateway infra/web listener admin; more are refused",
        "budget    1000 connections/s, 2000 at once, of Gateway infra/web; more are refused",
    ] {
        assert!(explained.contains(line), "{line}: {explained}");
    }
    let routes = agent.command(&["routes"]);
    for (term, text) in [
        ("clients", "of 198.51.100.0/24, 2001:db8:1::/48"),
        ("clients", "none of 203.0.113.0/24"),
        ("budget", "10 connections/s, 10 at once, of Gateway infra/web listener admin"),
        ("budget", "1000 connections/s, 2000 at once, of Gateway infra/web"),
    ] {
        let row = |line: &str| line.contains("listener admin") && line.contains(term) && line.ends_with(text);
        assert!(routes.lines().any(row), "{term} {text}: {routes}");
    }
    assert!(agent.command(&["status", "ListenerPolicy"]).contains("infra/office-only"));
}

/// Of ingress-nginx's `rewrite-target: /$2`, and of a page that is closed.
#[test]
fn the_example_of_route_filters_rewrites_and_answers() {
    let example = include_str!("../../examples/route-filter/route-filter.yaml");
    let port = support::backend("app").to_string();
    let example = example.replace("value: 127.0.0.1", "value: ADDRESS").replace("9000", &port);
    let agent = Agent::start(&[("example.yaml", &example)]);
    let get = |path| agent.http("shop.example.com", path).expect("an answer");
    assert_eq!(get("/something").body, "app");
    let sent = get("/something/a/../head").body;
    assert!(sent.starts_with("GET /head HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("x-asked-by: 127.0.0.1 for shop.example.com/something/head\r\n"), "{sent}");
    let closed = get("/something/checkout/1");
    assert_eq!((closed.status, &*closed.body), (503, "The checkout opens again at ten.\n"));
    let explained = agent.command(&["explain", "http://shop.example.com:8080/something/x"]);
    assert!(explained.contains(r#""substitution":"/$2""#), "{explained}");
    let explained = agent.command(&["explain", "http://shop.example.com:8080/something/checkout"]);
    assert!(explained.contains("503 with 33 bytes of text/plain"), "{explained}");
    assert!(agent.command(&["routes"]).contains("503 with 33 bytes"));
    assert!(agent.command(&["status", "RouteFilter"]).contains("shop/rewrite-target"));
    assert!(agent.command(&["dump"]).contains("opens again"));
    let broken =
        example.replace(r#"pathRewrite: {pattern: "/something("#, r#"pathRewrite: {pattern: "(/something("#);
    agent.edit("example.yaml", &broken);
    eventually("a bad expression is never skipped", || get("/something/head").status == 500);
    let told = agent.command(&["status", "RouteFilter", "rewrite-target"]);
    assert!(told.contains("Accepted=False/UnsupportedValue") && told.contains("unclosed group"), "{told}");
}

/// Of each listener, of those that a policy is about, and of the one that takes a request.
#[test]
fn the_part_of_the_node_that_serves_a_listener_is_told_with_the_reason() {
    let example = include_str!("../../examples/listener-policy/listener-policy.yaml");
    let agent = Agent::start(&[("example.yaml", &example.replace("127.0.0.1", "ADDRESS"))]);
    eventually("the policies are in force", || {
        agent.http("admin.example.com", "/").map(|answer| answer.status) == Some(403)
    });
    let said = ["user space (HTTP): requests are read", "its own socket: no kernel programs are in use"];
    // All listeners have the Gateway's budget, and refuse whom its policy does.
    let terms = [
        (
            "shop",
            "user space, at accept: no kernel programs are in use",
            "user space, at accept: only connections with a server name are counted before",
        ),
        (
            "admin",
            "user space, at the request: the port's listeners permit others; whom no listener of the port permits: user \
             space, at accept",
            "user space, at the request: some are not those of all listeners of the port",
        ),
    ];
    let (_, clients, budgets) = terms[1];
    for arguments in [&["status"][..], &["status", "listeners"], &["status", "gateway", "web"]] {
        let status = agent.command(arguments);
        assert!(status.contains("datapath    userspace (ordinary sockets), as asked for"), "{status}");
        assert!(status.contains("on no interface: --name-interface names none"), "{status}");
        for (listener, clients, budgets) in terms {
            let name = format!("Gateway infra/web listener {listener} ");
            let row = status.lines().find(|line| line.contains(&name)).unwrap_or_else(|| panic!("{status}"));
            said.into_iter()
                .chain([clients, budgets])
                .for_each(|text| assert!(row.contains(text), "{text}: {row}"));
        }
    }
    let of_policy = agent.command(&["status", "listenerpolicy", "office-only"]);
    assert!(of_policy.contains("listener admin") && !of_policy.contains("listener shop"), "{of_policy}");
    assert!(!agent.command(&["status", "gatewayclass"]).contains("STEERED BY"));
    let json = agent.command(&["status", "listeners", "infra/web", "-o", "json"]);
    assert!(json.contains(r#""servedBy""#) && json.contains(r#""listener": "admin""#), "{json}");

    let explained = agent.command(&["explain", "http://admin.example.com:8080/"]);
    for (what, text) in
        [("served ", said[0]), ("steered", said[1]), ("clients", clients), ("budget ", budgets)]
    {
        let told = |line: &str| line.starts_with(what) && line.ends_with(text);
        assert!(explained.lines().any(told), "{what} {text}: {explained}");
    }
    let dump = agent.command(&["dump"]);
    assert!(dump.contains("enforcedBy:") && dump.contains(clients), "{dump}");
    let metrics = agent.admin("/metrics").unwrap().body;
    for line in [
        r#"portcullis_datapath_without_programs{reason="asked-for"} 1"#,
        r#"portcullis_terms_enforced{terms="clients",enforced_by="userspace"} 2"#,
        r#"portcullis_terms_enforced{terms="budgets",enforced_by="userspace"} 2"#,
    ] {
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
}

/// At start, and as long as it is so: the operator believes in a protection that is not there.
#[test]
fn options_for_kernel_programs_are_not_ignored_in_silence() {
    let options = ["--interface", "lo", "--name-interface", "lo,absent0", "--unknown-names", "10"];
    let agent = Agent::start_with(&options, &[("gateway.yaml", GATEWAY)]);
    let log = agent.log();
    for option in ["--name-interface lo,absent0", "--unknown-names 10"] {
        assert!(
            log.contains(&format!("{option} is without effect: there are no kernel programs, and ")),
            "{log}"
        );
    }
    let status = agent.command(&["status"]);
    let none = "no kernel programs are in use";
    let names = format!(
        "names       on no interface; not on lo: {none}; not on absent0: {none}; --unknown-names 10 is without effect: names \
         are read on no interface"
    );
    for line in [&format!("guard       on no interface; not on lo: {none}"), &names] {
        assert!(status.lines().any(|it| it == line), "{line}: {status}");
    }
    let metrics = agent.admin("/metrics").unwrap().body;
    for interface in ["lo", "absent0"] {
        let line = format!("portcullis_interface_unread{{interface=\"{interface}\",reason=\"asked-for\"}} 1");
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
}
