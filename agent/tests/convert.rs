//! `portcullis convert` as operators call it. Each case is a folder of `tests/convert` with the
//! Ingresses of a chart or a tutorial in `in.yaml`, what they become in `out.yaml`, and the
//! differences in `differences.txt`; `PORTCULLIS_BLESS=1` writes both anew. What comes out goes
//! through `check`, and some of it is served.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use support::{Agent, HTTP, backend};

fn portcullis(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn transcript(output: &Output) -> String {
    let table: String = text(&output.stderr).lines().map(|line| format!("# {}\n", line.trim_end())).collect();
    format!("{}{table}# exit status {}\n", text(&output.stdout), output.status.code().unwrap())
}

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert");
    let mut cases: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

fn input(case: &Path) -> String {
    fs::read_to_string(case.join("in.yaml")).unwrap()
}

#[test]
fn outputs_are_as_expected() {
    let mut failures = Vec::new();
    for case in cases() {
        let output = portcullis(&["convert", "-"], &input(&case));
        let table: String =
            text(&output.stderr).lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let table = format!("{table}exit status {}\n", output.status.code().unwrap());
        for (name, actual) in [("out.yaml", text(&output.stdout)), ("differences.txt", table)] {
            let path = case.join(name);
            if std::env::var_os("PORTCULLIS_BLESS").is_some() {
                fs::write(&path, &actual).unwrap();
            }
            if fs::read_to_string(&path).unwrap_or_default() != actual {
                failures.push(format!("{}:\n{actual}", path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases().len() >= 20);
}

#[test]
fn the_list_is_written_as_values_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let case = cases().into_iter().find(|case| case.ends_with("snippet")).unwrap();
    let output = portcullis(&["convert", "-", "--report", file.to_str().unwrap()], &input(&case));
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let table = fs::read_to_string(case.join("differences.txt")).unwrap();
    // Between the heading and the sum.
    let rows: Vec<_> = table.lines().skip(1).take(report.as_array().unwrap().len()).collect();
    assert_eq!(table.lines().count(), rows.len() + 3, "{table}");
    for (row, value) in rows.into_iter().zip(report.as_array().unwrap()) {
        let cells = ["ingress", "annotation", "outcome", "now"].map(|column| value[column].as_str().unwrap());
        let written: Vec<_> = row.split_whitespace().collect();
        assert_eq!(written, cells.join(" ").split_whitespace().collect::<Vec<_>>());
    }
    assert_eq!(output.status.code(), Some(1));
    let nowhere = folder.path().join("missing/report.json");
    let output = portcullis(&["convert", "-", "--report", nowhere.to_str().unwrap()], &input(&case));
    let said = text(&output.stderr);
    assert!(said.contains("cannot write --report") && said.contains("missing/report.json"), "{said}");
    assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{said}");
}

#[test]
fn a_gateway_that_no_api_server_takes_is_refused() {
    let file = cases()[0].join("in.yaml");
    for (option, value, wanted) in [
        ("--gateway", "A B/c", "NAMESPACE/NAME is wanted"),
        ("--http-port", "0", "a port from 1 to 65535 is wanted"),
        ("--https-port", "0", "a port from 1 to 65535 is wanted"),
    ] {
        let output = portcullis(&["convert", file.to_str().unwrap(), option, value], "");
        let said = text(&output.stderr);
        assert!(said.contains(option) && said.contains(wanted), "{said}");
        assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{said}");
    }
}

/// With the Services of the input, and the Secrets and ConfigMaps that it takes for granted.
#[test]
fn check_finds_nothing_in_what_comes_out() {
    let (certificate, key) = certificate();
    for case in cases() {
        let input = input(&case);
        let output = portcullis(&["convert", "-", "-o", "json"], &input);
        let mut objects: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let mut names = BTreeSet::new();
        objects.iter().for_each(|object| referred(object, &object["metadata"]["namespace"], &mut names));
        for (kind, namespace, name) in names {
            if input.contains(&format!("name: {name},")) {
                continue;
            }
            let mut made =
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}});
            if kind == "ConfigMap" {
                made["data"] = json!({"ca.crt": certificate});
            } else {
                made["type"] = json!("kubernetes.io/tls");
                made["stringData"] = json!({"tls.crt": certificate, "tls.key": key, "ca.crt": certificate});
            }
            objects.push(made);
        }
        let given = input.split("---\n").filter(|document| !document.contains("kind: Ingress"));
        let written: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
        let all = given.fold(written, |all, document| format!("{all}---\n{document}"));
        let checked = portcullis(&["check", "-f", "-"], &all);
        assert_eq!(checked.status.code(), Some(0), "{}:\n{}", case.display(), transcript(&checked));
    }
}

fn certificate() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Secrets and ConfigMaps that an object names.
fn referred(value: &Value, namespace: &Value, names: &mut BTreeSet<(String, String, String)>) {
    for (field, inner) in value.as_object().into_iter().flatten() {
        let kind = if inner[0]["kind"] == "ConfigMap" { "ConfigMap" } else { "Secret" };
        if field == "certificateRefs" || field == "caCertificateRefs" {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            names.insert((kind.to_owned(), text(namespace), text(&inner[0]["name"])));
        }
        referred(inner, namespace, names);
    }
    value.as_array().into_iter().flatten().for_each(|inner| referred(inner, namespace, names));
}

#[test]
fn check_says_that_ingresses_are_not_served() {
    let case = cases().into_iter().find(|case| case.ends_with("snippet")).unwrap();
    let complaints = text(&portcullis(&["check", "-f", "-"], &input(&case)).stderr);
    assert!(complaints.contains("`portcullis convert` writes what to serve instead"), "{complaints}");
    assert!(complaints.contains("CLOSED"), "{complaints}");
}

/// An agent that serves what a case becomes, with backends that answer with names.
fn serve(case: &str, services: &[(&str, &str, &'static str)]) -> Agent {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert").join(case);
    serve_input(&input(&case), services)
}

fn serve_input(input: &str, services: &[(&str, &str, &'static str)]) -> Agent {
    let arguments = ["convert", "-", "--http-port", "8080", "--https-port", "8443"];
    let written = text(&portcullis(&arguments, input).stdout);
    let written = written.replace(
        "gatewayClassName: portcullis",
        "gatewayClassName: portcullis\n  addresses: [{value: ADDRESS}]",
    );
    let given = input.split("---\n").filter(|document| !document.contains("kind: Ingress"));
    let mut all = given.fold(written, |all, document| format!("{all}---\n{document}"));
    for (namespace, service, port_name) in services {
        let port = backend(port_name);
        all += &format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {service}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nports: [{{name: http, port: {port}}}, {{name: web, port: {port}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n"
        );
    }
    Agent::start(&[("all.yaml", &all)])
}

/// Status line, fields and body of an answer, in lower case.
fn ask(agent: &Agent, method: &str, host: &str, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect((agent.address, HTTP)).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.to_ascii_lowercase()
}

fn get(agent: &Agent, host: &str, path: &str, fields: &str) -> String {
    ask(agent, "GET", host, path, fields)
}

#[test]
fn canaries_are_chosen_by_header_and_cookie() {
    let agent = serve("canary", &[("shop", "shop", "old"), ("shop", "shop-new", "new")]);
    for (fields, body) in [
        ("x-canary: always\r\n", "new"),
        ("x-canary: never\r\n", "old"),
        ("cookie: a=b; canary=always\r\n", "new"),
        ("cookie: canary=never; a=b\r\n", "old"),
        ("x-canary: never\r\ncookie: canary=always\r\n", "old"),
    ] {
        for _ in 0..20 {
            let answer = get(&agent, "shop.example.com", "/", fields);
            assert!(answer.ends_with(body), "{fields}: {answer}");
        }
    }
}

#[test]
fn paths_are_rewritten() {
    let services = [("shop", "cart", "cart"), ("shop", "users", "users"), ("shop", "site", "site")];
    let agent = serve("rewrite", &services);
    let sent = get(&agent, "api.example.com", "/cart/head", "");
    assert!(sent.contains("get /head http/1.1"), "{sent}");
    for (path, body) in [
        ("/cart", "cart"),
        ("/CART/1?a=b", "cart"),
        ("/users/7", "users"),
        ("/docs/a", "site"),
        ("/x", "site"),
    ] {
        let answer = get(&agent, "api.example.com", path, "");
        assert!(answer.ends_with(body), "{path}: {answer}");
    }
}

#[test]
fn clients_of_no_list_are_refused() {
    let agent = serve("whitelist", &[("infra", "admin", "admin")]);
    assert!(get(&agent, "admin.example.com", "/", "").starts_with("http/1.1 403"));
}

#[test]
fn pages_of_allowed_origins_may_read() {
    let agent = serve("cors", &[("api", "api", "api"), ("api", "audit", "audit")]);
    let preflight = |origin: &str| {
        let fields = format!("origin: {origin}\r\naccess-control-request-method: POST\r\n");
        ask(&agent, "OPTIONS", "api.example.org", "/", &fields)
    };
    let allowed = preflight("https://app.example.org");
    assert!(allowed.contains("access-control-allow-origin: https://app.example.org"), "{allowed}");
    assert!(allowed.contains("access-control-max-age: 600"), "{allowed}");
    assert!(!preflight("https://evil.example").contains("access-control-allow-origin"));
}

/// At the listener without TLS: what has a certificate is redirected, and the rest is as it was.
#[test]
fn requests_without_tls_are_redirected() {
    let agent = serve("wordpress", &[("blog", "wordpress", "blog")]);
    let answer = get(&agent, "blog.example.com", "/a?b=c", "");
    assert!(answer.starts_with("http/1.1 308"), "{answer}");
    assert!(answer.contains("location: https://blog.example.com:8443/a?b=c"), "{answer}");
}

#[test]
fn what_cannot_be_translated_is_closed() {
    let agent = serve("snippet", &[("legacy", "portal", "portal")]);
    assert!(get(&agent, "digest.example.com", "/", "").starts_with("http/1.1 503"));
}

#[test]
fn nothing_that_kept_requests_out_is_passed_over_in_silence() {
    let input = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: broken, namespace: shop}
spec: {rules: nonsense}
---
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: old, namespace: shop}
spec: {backend: {serviceName: a, servicePort: 80}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: limited, namespace: shop, annotations: {nginx.ingress.kubernetes.io/limit-connections: "5"}}
spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: controller, namespace: ingress-nginx}
data: {global-auth-url: "http://auth/verify", enable-modsecurity: "false"}
"#;
    let converted = portcullis(&["convert", "-"], input);
    assert_eq!(converted.status.code(), Some(1));
    let told = text(&converted.stderr);
    for (name, what) in [
        ("shop/broken", "spec.rules is no list"),
        ("shop/old", "apiVersion is extensions/v1beta1"),
        ("shop/limited", "UNPROTECTED"),
        ("ingress-nginx/controller", "UNPROTECTED"),
    ] {
        let mut lines = told.lines().filter(|line| line.starts_with(name));
        assert!(lines.any(|line| line.contains(what)), "{name}: {told}");
    }
    assert!(!told.contains("enable-modsecurity") && !text(&converted.stdout).contains("name: old"), "{told}");
}

/// An Ingress with one path. Its annotations are without their prefix.
fn ingress(
    namespace: &str,
    name: &str,
    host: &str,
    path: (&str, &str),
    annotations: &[(&str, &str)],
) -> Value {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(annotation, value)| (format!("nginx.ingress.kubernetes.io/{annotation}"), json!(value)))
        .collect();
    let backend = json!({"service": {"name": name, "port": {"number": 80}}});
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "ingressClassName": "nginx",
            "rules": [{"host": host, "http": {"paths": [{"path": path.0, "pathType": path.1, "backend": backend}]}}],
        },
    })
}

fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("---\n{object}\n")).collect()
}

fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    })
}

/// As ingress-nginx has it: the longest text takes a path, whosever it is, and of equal ones the
/// segments.
#[test]
fn a_path_that_protects_takes_no_other_ones() {
    let host = "shared.example.com";
    let limited = [("limit-rps", "1000")];
    let mut objects = vec![
        ingress("a", "begin", host, ("/a", "ImplementationSpecific"), &limited),
        ingress("a", "same", host, ("/shop", "ImplementationSpecific"), &limited),
        ingress("z", "admin", host, ("/admin", "Prefix"), &[]),
        ingress("z", "shop", host, ("/shop", "Prefix"), &[]),
        ingress("z", "rest", host, ("/", "Prefix"), &[]),
    ];
    let services = [("a", "begin"), ("a", "same"), ("z", "admin"), ("z", "shop"), ("z", "rest")];
    objects.extend(services.map(|(namespace, name)| service(namespace, name)));
    let agent = serve_input(&documents(&objects), &services.map(|(namespace, name)| (namespace, name, name)));
    for (path, body) in [
        ("/admin", "admin"),
        ("/admin/x", "admin"),
        ("/a", "begin"),
        ("/abc", "begin"),
        ("/shop/x", "shop"),
        ("/shopping", "same"),
        ("/x", "rest"),
    ] {
        let answer = get(&agent, host, path, "");
        assert!(answer.ends_with(body), "{path}: {answer}");
    }
}

/// A path that is protected is so at the other names of its host, and no wider host has its
/// requests.
#[test]
fn other_names_are_protected_as_well() {
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let mut objects = vec![
        ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[("server-alias", "alias.example.net")]),
        ingress("shop", "admin", "app.example.com", ("/admin", "Prefix"), &denied),
        ingress("shop", "narrow", "narrow.example.com", ("/in", "Prefix"), &denied),
        ingress("shop", "wide", "*.example.com", ("/", "Prefix"), &[]),
        ingress(
            "zoo",
            "evil",
            "evil.example.net",
            ("/admin", "Prefix"),
            &[("server-alias", "alias.example.net")],
        ),
    ];
    let services =
        [("shop", "app"), ("shop", "admin"), ("shop", "narrow"), ("shop", "wide"), ("zoo", "evil")];
    objects.extend(services.map(|(namespace, name)| service(namespace, name)));
    let agent = serve_input(&documents(&objects), &services.map(|(namespace, name)| (namespace, name, name)));
    for (host, path, status) in [
        ("app.example.com", "/admin", "403"),
        ("alias.example.net", "/admin", "403"),
        ("alias.example.net", "/", "200"),
        ("narrow.example.com", "/in", "403"),
        ("narrow.example.com", "/other", "403"),
        ("x.example.com", "/other", "200"),
    ] {
        let answer = get(&agent, host, path, "");
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{host}{path}: {answer}");
    }
}

/// Each with a word of the line that says so.
#[test]
fn what_may_be_weaker_is_closed() {
    let host = "app.example.com";
    let of = |annotations: &[(&str, &str)]| vec![ingress("shop", "app", host, ("/", "Prefix"), annotations)];
    let beside = |annotations: &[(&str, &str)], other: Value| [of(annotations), vec![other]].concat();
    let users = [("auth-type", "basic"), ("auth-secret", "users")];
    let look_around = ingress(
        "shop",
        "look",
        host,
        ("/((?!public).*)", "ImplementationSpecific"),
        &[users.as_slice(), &[("use-regex", "true")]].concat(),
    );
    let mut old = ingress("shop", "old", host, ("/admin", "Prefix"), &users);
    old["apiVersion"] = json!("networking.k8s.io/v1beta1");
    let mut classified = ingress("shop", "other", "other.example.com", ("/", "Prefix"), &[]);
    classified["spec"]["ingressClassName"] = json!("internal");
    let mut host_is_number = ingress("shop", "number", host, ("/", "Prefix"), &[]);
    host_is_number["spec"]["rules"][0]["host"] = json!(12);
    let mut forgotten = ingress("shop", "forgotten", host, ("/", "Prefix"), &[]);
    forgotten["metadata"]["annotations"]["nginx.ingress.kubernetes.io/enable-modsecurity"] = json!(true);
    let elsewhere = ingress("evil", "sso", "sso.example.com", ("/", "Prefix"), &[]);
    let mut without_host = ingress("shop", "app", host, ("/", "Prefix"), &[("auth-tls-secret", "ca")]);
    without_host["spec"] = json!({
        "ingressClassName": "nginx",
        "defaultBackend": {"service": {"name": "app", "port": {"number": 80}}},
        "tls": [{"secretName": "tls"}],
    });
    let taken = ingress(
        "evil",
        "taken",
        host,
        ("/oauth2/auth(x)", "ImplementationSpecific"),
        &[("use-regex", "true")],
    );
    let cases = [
        (of(&[("auth-url", "https://$host/oauth2/auth")]), "what it is to protect"),
        (beside(&[("auth-url", "https://$host/oauth2/auth")], taken), "is an expression that may take it"),
        (of(&[("auth-url", "http://auth.infra.svc/?allowed_groups=a")]), "it has a query"),
        (beside(&[("auth-url", "https://sso.example.com/check")], elsewhere), "another namespace"),
        (of(&[("auth-proxy-set-headers", "shop/fields")]), "who is allowed"),
        (of(&[("auth-tls-secret", "bank/tls")]), "a grant would let Gateways of shop"),
        (of(&[("configuration-snippet", "more_clear_headers Server; deny all;")]), "deny all"),
        (of(&[("limit-rps", "many")]), "no number of requests"),
        (of(&[("whitelist-source-range", ",")]), "no range"),
        (
            of(&[("whitelist-source-range", "10.0.0.1"), ("allowlist-source-range", "10.0.0.0/8")]),
            "other ranges",
        ),
        (of(&[("rewrite-target", "/public/$host")]), "variables of nginx"),
        (of(&[("backend-protocol", "FCGI")]), "is not spoken"),
        (beside(&[], look_around), "look-around"),
        (beside(&[], old), "its hosts are closed"),
        (beside(&[], host_is_number), "host is no text"),
        (of(&[("auth-url", "http://auth.infra.svc/a b")]), "TrafficPolicy shop/app"),
        (vec![without_host], "no host that could ask"),
        (vec![forgotten], "ModSecurity"),
        (vec![classified], "may be another controller's"),
    ];
    for (objects, what) in cases {
        let converted = portcullis(&["convert", "-"], &documents(&objects));
        let told = text(&converted.stderr);
        let line = told.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {told}"));
        assert!(line.contains("CLOSED"), "{line}");
        assert_eq!(converted.status.code(), Some(1), "{what}");
        assert!(!text(&converted.stdout).contains("kind: ReferenceGrant"), "{what}");
        // No request reaches the application.
        let routed = text(&converted.stdout).contains("backendRefs:\n    - name: app");
        assert!(!routed || what == "host is no text", "{what}: {}", text(&converted.stdout));
    }
}

/// The line about an annotation of shop/app, without the names: outcome and text.
fn told_of<'a>(told: &'a str, annotation: &str) -> Vec<&'a str> {
    let own = told.lines().filter_map(|line| line.strip_prefix("shop/app")?.trim_start().split_once(' '));
    own.filter(|(subject, _)| *subject == annotation).map(|(_, rest)| rest.trim_start()).collect()
}

/// Each is a part of another annotation, and nothing without it, or beside another value of it.
#[test]
fn what_is_a_part_of_another_annotation_becomes_nothing_alone() {
    let cases = [
        (vec![("canary-weight", "20")], "canary: true"),
        (vec![("canary-by-header-value", "new"), ("canary-by-header", "X")], "canary-by-header"),
        (vec![("session-cookie-name", "route")], "affinity: cookie"),
        (vec![("auth-tls-verify-client", "on")], "auth-tls-secret"),
        (vec![("auth-response-headers", "X-User")], "auth-url"),
        (vec![("permanent-redirect-code", "308")], "permanent-redirect"),
        (vec![("proxy-ssl-secret", "shop/ca"), ("backend-protocol", "HTTP")], "backend-protocol: HTTPS"),
        (vec![("proxy-ssl-verify", "off"), ("backend-protocol", "GRPC")], "backend-protocol: HTTPS"),
        (vec![("cors-max-age", "600"), ("enable-cors", "false")], "enable-cors: true"),
        (vec![("limit-burst-multiplier", "3")], "limit-rps or limit-rpm"),
    ];
    for (annotations, whole) in cases {
        let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &annotations);
        let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
        let of_part = told_of(&told, annotations[0].0);
        let wanted = format!("without effect without {whole}");
        assert!(
            matches!(of_part[..], [it] if it.starts_with("not needed") && it.contains(&wanted)),
            "{told}"
        );
    }
}

/// Of a closed Ingress there are a route that answers 503, and what redirects to it.
#[test]
fn nothing_becomes_what_is_not_written() {
    let all = [
        ("proxy-body-size", "8m"),
        ("limit-rps", "5"),
        ("enable-cors", "true"),
        ("cors-max-age", "600"),
        ("affinity", "cookie"),
        ("load-balance", "round_robin"),
        ("enable-opentelemetry", "true"),
        ("rewrite-target", "/new"),
    ];
    let closing = [("server-snippet", "deny all;")];
    let mut without_port = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    without_port["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"] =
        json!({"name": "http"});
    let both = [all.as_slice(), &closing].concat();
    let closed = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &both);
    let other = ingress("shop", "other", "app.example.com", ("/other", "Prefix"), &closing);
    let open = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    for objects in [vec![without_port], vec![closed], vec![open.clone(), other]] {
        let converted = portcullis(&["convert", "-"], &documents(&objects));
        let (written, told) = (text(&converted.stdout), text(&converted.stderr));
        assert!(told.contains("CLOSED"), "{told}");
        assert!(!told.contains("became") && !told.contains("maxRequestBody"), "{told}");
        for (annotation, _) in all {
            let lines = told_of(&told, annotation);
            assert!(lines.iter().all(|it| it.starts_with("lost")) && !lines.is_empty(), "{told}");
        }
        let kinds = ["TrafficPolicy", "BackendPolicy", "PathRewrite"];
        assert!(!kinds.iter().any(|kind| written.contains(kind)), "{written}");
    }
    let told = text(&portcullis(&["convert", "-"], &documents(&[open])).stderr);
    assert!(told_of(&told, "proxy-body-size")[0].starts_with("became"), "{told}");
}

/// Rules that redirect have no other filter, and no field.
#[test]
fn beside_a_redirect_filters_become_nothing() {
    let beside = [
        ("enable-cors", "true"),
        ("configuration-snippet", "more_clear_headers Server;"),
        ("affinity", "cookie"),
        ("proxy-read-timeout", "5"),
        ("rewrite-target", "/new"),
    ];
    let redirect = [("permanent-redirect", "https://a.example$request_uri")];
    let all = [redirect.as_slice(), &beside].concat();
    let object = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    for (annotation, _) in beside {
        let lines = told_of(&told, annotation);
        assert!(matches!(lines[..], [it] if it.starts_with("lost")), "{told}");
    }
    assert!(told_of(&told, "permanent-redirect")[0].starts_with("differs"), "{told}");
}

#[test]
fn a_canary_beside_a_closed_path_becomes_nothing() {
    let closed = ingress("shop", "main", "app.example.com", ("/", "Prefix"), &[("server-snippet", "a b;")]);
    let canary = [("canary", "true"), ("canary-weight", "20")];
    let canary = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &canary);
    let told = text(&portcullis(&["convert", "-"], &documents(&[closed, canary])).stderr);
    for annotation in ["canary", "canary-weight"] {
        let lines = told_of(&told, annotation);
        assert!(matches!(lines[..], [it] if it.starts_with("lost")), "{told}");
    }
}

#[test]
fn a_redirect_to_tls_that_is_closed_becomes_nothing() {
    let forced = [("force-ssl-redirect", "true")];
    let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &forced);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    let lines = told_of(&told, "force-ssl-redirect");
    assert!(matches!(lines[..], [it] if it.starts_with("CLOSED")), "{told}");
}

/// A limit is of each target of a policy, where it was of an Ingress.
#[test]
fn a_limit_that_becomes_several_is_told_of() {
    let mut limited = ingress("shop", "app", "a.example.com", ("/", "Prefix"), &[("limit-rpm", "10")]);
    let mut other = limited["spec"]["rules"][0].clone();
    other["host"] = json!("b.example.com");
    let both = |rule: Value| json!([limited["spec"]["rules"][0], rule]);
    let (same, mut different) = (both(other.clone()), other);
    different["http"]["paths"][0]["path"] = json!("/b");
    let different = both(different);
    for (rules, status) in [(same, 0), (different, 1)] {
        limited["spec"]["rules"] = rules;
        let converted = portcullis(&["convert", "-"], &documents(std::slice::from_ref(&limited)));
        let told = text(&converted.stderr);
        assert_eq!(converted.status.code(), Some(status), "{told}");
        assert_eq!(told.contains("UNPROTECTED"), status == 1, "{told}");
    }
}

/// F5's controller has other annotations, and the class `nginx`, too.
#[test]
fn annotations_of_another_controller_are_named_once() {
    let mut object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    for annotation in ["nginx.org/rewrites", "nginx.org/server-snippets", "nginx.com/jwt-realm"] {
        object["metadata"]["annotations"][annotation] = json!("a");
    }
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    for prefix in ["nginx.org/*", "nginx.com/*"] {
        let lines: Vec<_> = told.lines().filter(|line| line.contains(prefix)).collect();
        assert!(matches!(lines[..], [line] if line.contains("lost") && line.contains("F5")), "{told}");
    }
}

#[test]
fn a_younger_ingress_passes_on_no_connections_of_a_host() {
    let mut bank = ingress("bank", "bank", "bank.example.com", ("/", "Prefix"), &[]);
    bank["spec"]["tls"] = json!([{"hosts": ["bank.example.com"], "secretName": "tls"}]);
    bank["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    let passed = [("ssl-passthrough", "true")];
    let mut evil = ingress("evil", "evil", "bank.example.com", ("/evil", "Prefix"), &passed);
    evil["metadata"]["creationTimestamp"] = json!("2024-01-01T00:00:00Z");
    let written = text(&portcullis(&["convert", "-"], &documents(&[evil, bank])).stdout);
    assert!(!written.contains("TLSRoute") && written.contains("protocol: HTTPS"), "{written}");
}

/// Over TLS, a wildcard's listener would have had the requests, and its routes.
#[test]
fn a_host_without_a_certificate_is_protected_at_the_listener_of_a_wider_one() {
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let admin = ingress("shop", "admin", "admin.example.com", ("/", "Prefix"), &denied);
    let mut wide = ingress("wide", "wide", "*.example.com", ("/", "Prefix"), &[]);
    wide["spec"]["tls"] = json!([{"hosts": ["*.example.com"], "secretName": "wildcard"}]);
    let output = portcullis(&["convert", "-", "-o", "json"], &documents(&[admin, wide])).stdout;
    let objects: Vec<Value> = serde_json::from_slice(&output).unwrap();
    let of = |kind: &str, namespace: &str| {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["namespace"] == namespace;
        objects.iter().find(is_it).unwrap()
    };
    let parents = &of("HTTPRoute", "shop")["spec"]["parentRefs"];
    assert_eq!(parents[1]["sectionName"], "any.example.com", "{parents}");
    let namespaces = &of("ListenerSet", "wide")["spec"]["listeners"][0]["allowedRoutes"]["namespaces"];
    let values = &namespaces["selector"]["matchExpressions"][0]["values"];
    assert_eq!(*values, json!(["shop", "wide"]), "{namespaces}");
}

/// Names of hosts and Ingresses that lead to the same names of objects, more hosts than an object
/// takes, and a name as long as names are.
#[test]
fn names_are_those_of_one_object_whatever_the_order() {
    let secure = |name: &str, hosts: &[String], annotations: &[(&str, &str)]| {
        let mut object = ingress("shop", name, &hosts[0], ("/", "Prefix"), annotations);
        let rule = object["spec"]["rules"][0].clone();
        let rules = hosts.iter().map(|host| {
            let mut rule = rule.clone();
            rule["host"] = json!(host);
            rule
        });
        object["spec"]["rules"] = rules.collect();
        object["spec"]["tls"] = json!([{"hosts": hosts, "secretName": "tls"}]);
        object
    };
    let host = |name: &str| vec![format!("{name}.example.com")];
    let many: Vec<_> = (0..150).map(|number| format!("h{number}.example.com")).collect();
    let www = [("from-to-www-redirect", "true")];
    let mut objects = vec![
        secure("app", &host("app"), &www),
        secure("app-again", &host("app"), &www),
        secure("app-www", &host("b"), &www),
        secure("app-to-https", &host("c"), &[]),
        secure("many", &many, &[]),
        secure("many-2", &host("d"), &[]),
        secure(&"l".repeat(253), &host("e"), &[("rewrite-target", "/$1")]),
        secure("wild", &host("*"), &[]),
        secure("any", &["any.example.com".to_owned()], &[]),
        secure("one-ca", &host("f"), &[("auth-tls-secret", "a-b")]),
        secure("other-ca", &host("g"), &[("auth-tls-secret", "a")]),
    ];
    let forth = portcullis(&["convert", "-"], &documents(&objects));
    assert_eq!(forth.status.code(), Some(0), "{}", text(&forth.stderr));
    objects.reverse();
    let back = portcullis(&["convert", "-"], &documents(&objects));
    assert_eq!((text(&forth.stdout), text(&forth.stderr)), (text(&back.stdout), text(&back.stderr)));
    let checked = text(&portcullis(&["check", "-f", "-"], &text(&forth.stdout)).stdout);
    assert!(!checked.contains("Refused") && !checked.contains("DefinedTwice"), "{checked}");
    assert!(!checked.contains("Conflicted"), "{checked}");
}

#[test]
fn what_protects_is_applied_before_what_it_protects() {
    for case in cases() {
        let written = text(&portcullis(&["convert", "-"], &input(&case)).stdout);
        let policy = written.rfind("\nkind: TrafficPolicy").unwrap_or(0);
        let route = written.find("\nkind: HTTPRoute").unwrap_or(usize::MAX);
        assert!(policy < route, "{}", case.display());
    }
}

/// Of an object that is there twice no one is believed, and which comes first changes nothing.
#[test]
fn an_ingress_that_is_there_twice_is_closed() {
    let open = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    let denied = [("denylist-source-range", "127.0.0.1")];
    let denying = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &denied);
    let of = |objects: &[Value]| {
        let output = portcullis(&["convert", "-"], &documents(objects));
        (text(&output.stdout), text(&output.stderr), output.status.code())
    };
    let both = of(&[open.clone(), denying.clone()]);
    assert_eq!(both, of(&[denying, open.clone()]));
    assert!(both.1.contains("in the input twice") && both.2 == Some(1), "{both:?}");
    assert_eq!(of(&[open.clone(), open.clone()]).2, of(&[open]).2);
}
