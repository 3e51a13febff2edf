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
    let input = input(&case);
    let arguments = ["convert", "-", "--http-port", "8080", "--https-port", "8443"];
    let written = text(&portcullis(&arguments, &input).stdout);
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
        ("shop/broken", "neither paths nor a default backend"),
        ("shop/old", "apiVersion is extensions/v1beta1"),
        ("shop/limited", "UNPROTECTED"),
        ("ingress-nginx/controller", "UNPROTECTED"),
    ] {
        let line =
            told.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {told}"));
        assert!(line.contains(what), "{line}");
    }
    assert!(!told.contains("enable-modsecurity") && !text(&converted.stdout).contains("name: old"), "{told}");
}
