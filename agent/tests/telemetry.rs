//! Traces and access logs of the real agent, at OpenTelemetry's own collector, and across clients,
//! backends and auth services with its own instrumentation: `tests/telemetry`, a Go module.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use portcullis_testbed::go;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use support::{Agent, GATEWAY, HTTP, eventually};

/// Longer than anything takes.
const TIMEOUT: Duration = Duration::from_secs(90);
/// A context as clients send it.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Rules by path: an ordinary one, one that is sent again, one that an auth service has to let
/// pass, one without endpoints, and one whose requests are never recorded.
const ROUTES: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - name: plain
    matches: [{path: {value: /plain}}]
    backendRefs: [{name: app, port: 80}]
  - name: retried
    matches: [{path: {value: /fail}}]
    retry: {attempts: 2, codes: [503], backoff: 10ms}
    backendRefs: [{name: app, port: 80}]
  - name: guarded
    matches: [{path: {value: /guarded}}]
    filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {}, backendRef: {name: app, port: 80}}
    backendRefs: [{name: app, port: 80}]
  - name: denied
    matches: [{path: {value: /denied}}]
    filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {path: /deny}, backendRef: {name: app, port: 80}}
    backendRefs: [{name: app, port: 80}]
  - name: nowhere
    matches: [{path: {value: /nowhere}}]
    backendRefs: [{name: empty, port: 80}]
  - name: quiet
    matches: [{path: {value: /quiet}}]
    backendRefs: [{name: app, port: 80}]
---
apiVersion: portcullis.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: quiet, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: app, sectionName: quiet}]
  tracing: {percent: 0}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: infra}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: infra}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app-1, namespace: infra, labels: {kubernetes.io/service-name: app}}
addressType: IPv4
ports: [{name: http, port: BACKEND}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec:
  controllerName: portcullis.dev/gateway
  parametersRef: {group: portcullis.dev, kind: GatewayParameters, namespace: infra, name: logged}
---
apiVersion: portcullis.dev/v1alpha1
kind: GatewayParameters
metadata: {name: logged, namespace: infra}
spec: {accessLog: {}}
";

/// A tenant's listeners.
const TENANT: &str = r"
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: tenant, namespace: infra}
spec:
  parentRef: {name: web}
  listeners: [{name: http, protocol: HTTP, port: 8080, hostname: tenant.example}]
---
apiVersion: portcullis.dev/v1alpha1
kind: ListenerPolicy
metadata: {name: tenant, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: ListenerSet, name: tenant}]
  clientAddress: {trustedHops: 1}
";

/// Collector, client and backend as a process; they end with it.
struct Telemetry {
    process: Child,
    questions: ChildStdin,
    told: Arc<(Mutex<Vec<Value>>, Condvar)>,
    /// Addresses with ports.
    collector: String,
    secure: String,
    backend: String,
    slow: String,
}

/// A span as the collector got it.
#[derive(Clone, Debug)]
struct Span {
    service: String,
    fields: Value,
}

// === impl Telemetry ===

impl Telemetry {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(options: &[&str]) -> Self {
        let program = go::built("tests/telemetry", ".", "telemetry").unwrap();
        let mut command = Command::new(program);
        command.args(options);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (questions, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let told = Arc::<(Mutex<Vec<Value>>, Condvar)>::default();
        let telling = told.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let (lines, comes) = &*telling;
                lines.lock().unwrap().push(serde_json::from_str(&line).unwrap());
                comes.notify_all();
            }
        });
        let [collector, secure, backend, slow] = [(); 4].map(|()| String::new());
        let mut this = Self { process, questions, told, collector, secure, backend, slow };
        let places = this
            .wait("what it listens at", |lines| lines.iter().find_map(|line| line.get("listening").cloned()));
        let place = |name: &str| places[name].as_str().unwrap().to_owned();
        (this.collector, this.secure) = (place("collector"), place("secure"));
        (this.backend, this.slow) = (place("backend"), place("slow"));
        this
    }

    /// Waits until something can be made of the lines.
    fn wait<T>(&self, what: &str, mut find: impl FnMut(&[Value]) -> Option<T>) -> T {
        let (lines, comes) = &*self.told;
        let mut found = None;
        let lines = lines.lock().unwrap();
        let waited = comes.wait_timeout_while(lines, TIMEOUT, |lines| {
            found = find(lines);
            found.is_none()
        });
        let lines = waited.unwrap().0;
        assert!(found.is_some(), "within {TIMEOUT:?}: {what}; there is {:#?}", &**lines);
        found.unwrap()
    }

    fn agent(&self, options: &[&str]) -> Agent {
        let endpoint = format!("http://{}", self.collector);
        self.agent_at(&endpoint, options)
    }

    fn agent_at(&self, collector: &str, options: &[&str]) -> Agent {
        let options = [&["--otlp-endpoint", collector], options].concat();
        Agent::start_with(&options, &[("gateway.yaml", GATEWAY), ("routes.yaml", &self.routes())])
    }

    fn routes(&self) -> String {
        ROUTES.replace("BACKEND", self.backend.rsplit(':').next().unwrap())
    }

    /// Has the client ask; returns the answer.
    fn ask(&mut self, agent: &Agent, path: &str, more: Value) -> Value {
        let before = self.wait("the answers before", |lines| Some(answers(lines).count()));
        let mut question =
            json!({"url": format!("http://{}:{HTTP}{path}", agent.address), "host": "app.example"});
        question.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        writeln!(self.questions, "{question}").unwrap();
        let answer = self.wait("an answer", |lines| answers(lines).nth(before).cloned());
        assert_eq!(answer["error"], Value::Null, "{path}");
        answer
    }

    /// All spans that have come.
    fn spans(&self) -> Vec<Span> {
        spans(&self.told.0.lock().unwrap())
    }

    /// The trace in which a span has this path, once it has so many spans.
    fn trace(&self, path: &str, count: usize) -> Vec<Span> {
        self.wait(&format!("{count} spans of {path}"), |lines| {
            let spans = spans(lines);
            let id = spans.iter().find(|span| span.attribute("url.path") == path)?.id("traceId");
            let trace: Vec<_> = spans.into_iter().filter(|span| span.id("traceId") == id).collect();
            (trace.len() >= count).then_some(trace)
        })
    }

    /// The log record of this target.
    fn record(&self, target: &str) -> Value {
        self.wait(&format!("the record of {target}"), |lines| {
            let records =
                lines.iter().flat_map(|line| every(&line["logs"], "resourceLogs", "scopeLogs", "logRecords"));
            records.map(|(_, record)| record).find(|record| attribute(record, "target") == target)
        })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn answers(lines: &[Value]) -> impl Iterator<Item = &Value> {
    lines.iter().filter_map(|line| line.get("answer"))
}

fn spans(lines: &[Value]) -> Vec<Span> {
    let all = lines.iter().flat_map(|line| every(&line["traces"], "resourceSpans", "scopeSpans", "spans"));
    all.map(|(service, fields)| Span { service, fields }).collect()
}

/// The items of a message, each with the service that it is of.
fn every(message: &Value, resources: &str, scopes: &str, items: &str) -> Vec<(String, Value)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for resource in list(&message[resources]) {
        let service = attribute(&resource["resource"], "service.name");
        for scope in list(&resource[scopes]) {
            found.extend(list(&scope[items]).into_iter().map(|item| (service.clone(), item)));
        }
    }
    found
}

/// Empty if there is none.
fn attribute(item: &Value, name: &str) -> String {
    let attributes = item["attributes"].as_array();
    let found = attributes.and_then(|all| all.iter().find(|attribute| attribute["key"] == name));
    let value = found.and_then(|found| found["value"].as_object()?.values().next());
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default()
}

// === impl Span ===

impl Span {
    fn id(&self, name: &str) -> String {
        self.fields[name].as_str().unwrap_or_default().to_owned()
    }

    fn attribute(&self, name: &str) -> String {
        attribute(&self.fields, name)
    }

    fn kind(&self) -> &'static str {
        match self.fields["kind"].as_i64() {
            Some(2) => "server",
            Some(3) => "client",
            _ => "internal",
        }
    }

    fn is_error(&self) -> bool {
        self.fields["status"]["code"] == 2
    }
}

/// Follows a trace from one span to the only next one, by service and kind.
fn chain(trace: &[Span]) -> Vec<(String, &'static str)> {
    let mut parent = String::new();
    let mut chain = Vec::new();
    while let Some(span) = trace.iter().find(|span| span.id("parentSpanId") == parent) {
        chain.push((span.service.clone(), span.kind()));
        parent = span.id("spanId");
    }
    chain
}

/// The spans of a trace that are the gateway's, of this kind, in the order of time.
fn of_gateway<'t>(trace: &'t [Span], kind: &str) -> Vec<&'t Span> {
    let mut spans: Vec<_> =
        trace.iter().filter(|span| span.service == "portcullis" && span.kind() == kind).collect();
    spans.sort_by_key(|span| span.id("startTimeUnixNano"));
    spans
}

fn sent(answer: &Value) -> Value {
    serde_json::from_str(answer["body"].as_str().unwrap()).unwrap()
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

#[test]
fn a_request_is_one_trace_from_its_client_to_its_backend() {
    let mut telemetry = Telemetry::start();
    let agent = telemetry.agent(&["--trace-parents", "any", "--trace-sampling", "0", "--access-log", "otlp"]);
    for (path, http2) in [("/plain/1", false), ("/plain/2", true)] {
        let asked = format!("{path}?secret=1");
        let answer = telemetry.ask(
            &agent,
            &asked,
            json!({"traced": true, "http2": http2, "fields": {"tracestate": "a=1"}}),
        );
        assert_eq!(answer["status"], 200);
        let trace = telemetry.trace(path, 4);
        let expected =
            [("client", "client"), ("portcullis", "server"), ("portcullis", "client"), ("backend", "server")];
        let expected = expected.map(|(service, kind)| (service.to_owned(), kind));
        assert_eq!(chain(&trace), expected, "{trace:#?}");
        let [server] = of_gateway(&trace, "server")[..] else { panic!("{trace:#?}") };
        let version = if http2 { "2" } else { "1.1" };
        for (name, value) in [
            ("http.request.method", "GET"),
            ("url.path", path),
            ("url.query", ""),
            ("url.scheme", "http"),
            ("server.address", "app.example"),
            ("server.port", "8080"),
            ("network.protocol.version", version),
            ("http.route", "HTTPRoute infra/app rule 0 (plain)"),
            ("http.response.status_code", "200"),
            ("portcullis.gateway", "infra/web"),
            ("portcullis.backend", "infra/app:80"),
            ("error.type", ""),
        ] {
            assert_eq!(server.attribute(name), value, "{name}: {server:#?}");
        }
        assert_eq!(server.fields["name"], "GET HTTPRoute infra/app rule 0 (plain)");
        let [client] = of_gateway(&trace, "client")[..] else { panic!("{trace:#?}") };
        assert_eq!(client.attribute("url.full"), format!("http://app.example{path}"));
        assert!(
            trace
                .iter()
                .all(|span| span.service != "portcullis" || !span.fields.to_string().contains("secret"))
        );
        // What the backend was told, and what the line in the log says.
        let told = sent(&answer);
        let parent = format!("00-{}-{}-01", client.id("traceId"), client.id("spanId"));
        assert_eq!(told["traceparent"], json!([parent]));
        let record = telemetry.record(&asked);
        assert_eq!(record["traceId"], server.fields["traceId"], "{record:#}");
        assert_eq!(record["spanId"], server.fields["spanId"]);
        assert_eq!(attribute(&record, "request_id"), told["x-request-id"][0].as_str().unwrap());
        assert_eq!(server.attribute("portcullis.request_id"), attribute(&record, "request_id"));
        assert_eq!(attribute(&record, "status"), "200");
    }
}

#[test]
fn each_attempt_and_each_question_has_a_span() {
    let mut telemetry = Telemetry::start();
    let agent = telemetry.agent(&["--trace-sampling", "100"]);
    for (at, http2) in [(1, false), (2, true)] {
        let more = json!({"http2": http2});
        assert_eq!(telemetry.ask(&agent, &format!("/fail/1/{at}"), more.clone())["status"], 200);
        // The server's, two attempts, and the backend's for each.
        let trace = telemetry.trace(&format!("/fail/1/{at}"), 5);
        let attempts = of_gateway(&trace, "client");
        let outcomes = attempts.iter().map(|span| {
            (
                span.attribute("http.response.status_code"),
                span.attribute("http.request.resend_count"),
                span.is_error(),
            )
        });
        let expected = [("503", "", true), ("200", "1", false)];
        let expected =
            expected.map(|(status, tried, is_error)| (status.to_owned(), tried.to_owned(), is_error));
        assert_eq!(outcomes.collect::<Vec<_>>(), expected, "{trace:#?}");
        let of_backend = trace.iter().filter(|span| span.service == "backend");
        let parents: Vec<_> = of_backend.map(|span| span.id("parentSpanId")).collect();
        assert!(attempts.iter().all(|span| parents.contains(&span.id("spanId"))), "{trace:#?}");

        assert_eq!(telemetry.ask(&agent, &format!("/guarded/{at}"), more.clone())["status"], 200);
        let trace = telemetry.trace(&format!("/guarded/{at}"), 5);
        let [auth, forwarded] = of_gateway(&trace, "client")[..] else { panic!("{trace:#?}") };
        assert_eq!(
            (&*auth.attribute("portcullis.auth"), &*forwarded.attribute("portcullis.auth")),
            ("true", "")
        );
        assert!(
            trace
                .iter()
                .any(|span| span.service == "backend" && span.id("parentSpanId") == auth.id("spanId"))
        );

        assert_eq!(telemetry.ask(&agent, &format!("/denied/{at}"), more.clone())["status"], 403);
        let trace = telemetry.trace(&format!("/denied/{at}"), 3);
        let [server] = of_gateway(&trace, "server")[..] else { panic!("{trace:#?}") };
        assert_eq!(server.attribute("error.type"), "auth_denied");
        assert!(!server.is_error(), "403 is the client's error");

        assert_eq!(telemetry.ask(&agent, &format!("/nowhere/{at}"), more.clone())["status"], 503);
        let trace = telemetry.trace(&format!("/nowhere/{at}"), 1);
        let [server] = of_gateway(&trace, "server")[..] else { panic!("{trace:#?}") };
        assert_eq!(server.attribute("error.type"), "no_endpoint");
        assert!(server.is_error());

        assert_eq!(telemetry.ask(&agent, &format!("/unknown/{at}"), more)["status"], 404);
        let trace = telemetry.trace(&format!("/unknown/{at}"), 1);
        assert_eq!(of_gateway(&trace, "server")[0].attribute("error.type"), "no_route");
    }
}

#[test]
fn what_is_not_recorded_has_a_context_all_the_same() {
    let mut telemetry = Telemetry::start();
    let agent = telemetry.agent(&["--trace-sampling", "100"]);
    let told = sent(&telemetry.ask(&agent, "/quiet", json!({})));
    let parent = told["traceparent"][0].as_str().unwrap().to_owned();
    assert!(parent.starts_with("00-") && parent.ends_with("-00"), "{parent}");
    // Of clients that are not believed, neither the trace nor its state goes on.
    let fields = json!({"fields": {"traceparent": traceparent("01"), "tracestate": "a=1"}});
    for path in ["/quiet", "/plain"] {
        let told = sent(&telemetry.ask(&agent, path, fields.clone()));
        assert!(!told["traceparent"][0].as_str().unwrap().contains(TRACE), "{told}");
        assert_eq!(told["tracestate"], Value::Null);
    }
    telemetry.trace("/plain", 3);
    let quiet = telemetry.spans().iter().filter(|span| span.attribute("url.path") == "/quiet").count();
    assert_eq!(quiet, 0);
    // The line has the id of the trace that the backend knows.
    eventually("the lines", || agent.access_log().lines().count() == 3);
    let log = agent.access_log();
    let line: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(line["trace_id"].as_str().unwrap(), parent.split('-').nth(1).unwrap());
    assert_eq!(line["span_id"], Value::Null);
}

#[test]
fn traces_of_believed_senders_go_on_as_they_came() {
    let mut telemetry = Telemetry::start();
    let agent = telemetry.agent(&["--trusted-hops", "1", "--trace-sampling", "0"]);
    let ask = |telemetry: &mut Telemetry, parent: &str| {
        let fields = json!({"traceparent": parent, "tracestate": "a=1", "x-forwarded-for": "192.0.2.1"});
        sent(&telemetry.ask(&agent, "/plain/believed", json!({"fields": fields})))
    };
    let told = ask(&mut telemetry, &traceparent("00"));
    assert_eq!((&told["traceparent"], &told["tracestate"]), (&json!([traceparent("00")]), &json!(["a=1"])));
    let told = ask(&mut telemetry, &traceparent("01"));
    assert_eq!(told["tracestate"], json!(["a=1"]));
    let trace = telemetry.trace("/plain/believed", 3);
    let [server] = of_gateway(&trace, "server")[..] else { panic!("{trace:#?}") };
    assert_eq!((server.id("traceId"), server.id("parentSpanId")), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(server.fields["traceState"], "a=1");
    // What cannot be read begins a trace, without the state.
    for hostile in [
        "",
        "00",
        &"0".repeat(4000),
        &traceparent("01").to_ascii_uppercase(),
        &format!("{}, {}", traceparent("01"), traceparent("01")),
        &format!("00-{}-{PARENT}-01", "0".repeat(32)),
        &format!("ff-{TRACE}-{PARENT}-01"),
    ] {
        let told = ask(&mut telemetry, hostile);
        let parent = told["traceparent"][0].as_str().unwrap();
        assert!(
            parent.len() == 55 && !parent.contains(TRACE) && parent.ends_with("-00"),
            "{hostile}: {parent}"
        );
        assert_eq!(told["tracestate"], Value::Null, "{hostile}");
    }
}

#[test]
fn a_tenant_that_believes_all_clients_has_none_of_their_traces_go_on() {
    let mut telemetry = Telemetry::start();
    let gateway = GATEWAY.replace("spec:\n", "spec:\n  allowedListeners: {namespaces: {from: Same}}\n");
    let routes =
        telemetry.routes().replace("[{name: web}]", "[{name: web}, {kind: ListenerSet, name: tenant}]");
    let collector = format!("http://{}", telemetry.collector);
    let options = ["--otlp-endpoint", &collector, "--trace-sampling", "0", "--trace-sampling-limit", "0"];
    let manifests = [("gateway.yaml", &*gateway), ("routes.yaml", &routes), ("tenant.yaml", TENANT)];
    let agent = Agent::start_with(&options, &manifests);
    let fields =
        json!({"traceparent": traceparent("01"), "x-forwarded-for": "192.0.2.1", "x-request-id": "given"});
    let asked = json!({"host": "tenant.example", "fields": fields});
    let told = sent(&telemetry.ask(&agent, "/plain/forged", asked));
    assert_eq!(told["x-request-id"][0], "given", "the tenant does believe its clients: {told}");
    let parent = told["traceparent"][0].as_str().unwrap();
    assert!(!parent.contains(TRACE) && parent.ends_with("-00"), "{parent}");
}

#[test]
fn clients_cannot_have_more_recorded_than_the_budget_has() {
    let mut telemetry = Telemetry::start();
    let agent = telemetry.agent(&["--trace-parents", "any", "--trace-sampling", "0", "--trace-spans", "2"]);
    let fields = json!({"fields": {"traceparent": traceparent("01")}});
    let mut sampled = 0;
    for _ in 0..100 {
        let told = sent(&telemetry.ask(&agent, "/plain", fields.clone()));
        let parent = told["traceparent"][0].as_str().unwrap().to_owned();
        assert!(parent.contains(TRACE) && !parent.contains(PARENT), "{parent}");
        sampled += usize::from(parent.ends_with("-01"));
    }
    assert!((1..50).contains(&sampled), "{sampled} of 100");
    let metrics = agent.admin("/metrics").unwrap().body;
    let left = metrics.lines().find_map(|line| line.strip_prefix("portcullis_traces_over_budget_total "));
    assert_eq!(left.unwrap().parse::<usize>().unwrap(), 100 - sampled);
}

#[test]
fn a_collector_that_is_down_or_slow_costs_no_request() {
    let mut telemetry = Telemetry::start();
    // No other socket is given the port while this socket has it, and it does not listen.
    let down = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    down.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = down.local_addr().unwrap().as_socket().unwrap();
    let agent = telemetry.agent_at(&format!("http://{address}"), &["--trace-sampling", "100"]);
    for _ in 0..50 {
        assert_eq!(telemetry.ask(&agent, "/plain", json!({}))["status"], 200);
    }
    eventually("the spans are counted as lost", || {
        let metrics = agent.admin("/metrics").unwrap().body;
        let lost = metrics.lines().find_map(|line| {
            line.strip_prefix("portcullis_otlp_items_total{signal=\"traces\",outcome=\"lost\"} ")
        });
        lost.is_some_and(|lost| lost.parse::<u32>().unwrap() >= 2)
    });
    assert_eq!(agent.log().matches("spans are lost, and counted").count(), 1, "{}", agent.log());
    let slow = format!("http://{}", telemetry.slow);
    let agent = telemetry.agent_at(&slow, &["--trace-sampling", "100", "--access-log", "otlp"]);
    for _ in 0..50 {
        assert_eq!(telemetry.ask(&agent, "/plain", json!({}))["status"], 200);
    }
    assert!(telemetry.spans().iter().all(|span| span.service != "portcullis"));
}

#[test]
fn the_access_log_goes_to_a_file() {
    let mut telemetry = Telemetry::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let agent = telemetry.agent(&["--access-log", file.to_str().unwrap(), "--access-log-files", "1"]);
    telemetry.ask(&agent, "/plain/filed", json!({}));
    eventually("its line", || fs::read_to_string(&file).is_ok_and(|text| text.contains("/plain/filed")));
    assert_eq!(agent.access_log(), "");
}

#[test]
fn the_collector_is_spoken_to_in_tls_and_is_told_who_sends() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let [certificate, key, headers] = ["tls.crt", "tls.key", "headers"].map(place);
    fs::write(&certificate, issued.cert.pem()).unwrap();
    fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    fs::write(&headers, "authorization: Bearer first\n").unwrap();
    let mut telemetry = Telemetry::start_with(&["-certificate", &certificate, "-key", &key]);
    let endpoint = format!("https://{}", telemetry.secure);
    let sampled = ["--trace-sampling", "100"];
    // Another's certificate is not taken.
    let distrusting = telemetry.agent_at(&endpoint, &sampled);
    telemetry.ask(&distrusting, "/plain/distrusted", json!({}));
    distrusting.logged("spans are lost, and counted: no TLS");
    let options = [&sampled[..], &["--otlp-ca", &certificate, "--otlp-headers-file", &headers]].concat();
    let agent = telemetry.agent_at(&endpoint, &options);
    for token in ["first", "second"] {
        fs::write(&headers, format!("authorization: Bearer {token}\n")).unwrap();
        let path = format!("/plain/{token}");
        telemetry.ask(&agent, &path, json!({}));
        let sent = telemetry.wait("the spans", |lines| {
            let line = lines.iter().find(|line| {
                line["authorization"] != Value::Null && line["traces"].to_string().contains(&path)
            });
            line.map(|line| line["authorization"].clone())
        });
        assert_eq!(sent, json!([format!("Bearer {token}")]));
    }
    assert!(
        !telemetry
            .spans()
            .iter()
            .any(|span| span.attribute("url.path") == "/plain/distrusted" && span.service == "portcullis")
    );
    assert!(!agent.log().contains("Bearer"));
}
