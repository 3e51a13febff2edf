//! The output, served by an agent.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::support::{Agent, HTTP, backend};
use crate::{documents, ingress, input, portcullis, service, text};

/// An agent that serves what a case becomes, with backends that answer with names.
fn serve(case: &str, services: &[(&str, &str, &'static str)]) -> Agent {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert/cases").join(case);
    serve_input(&input(&case), services)
}

/// As [`serve`], of any Ingresses.
pub(crate) fn serve_input(input: &str, services: &[(&str, &str, &'static str)]) -> Agent {
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

pub(crate) fn get(agent: &Agent, host: &str, path: &str, fields: &str) -> String {
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

/// The annotations of a host's first Ingress are those of its implicit `/`.
#[test]
fn the_rest_of_a_host_is_redirected_as_its_first_ingress_is() {
    let redirect = [("permanent-redirect", "https://new.example.org/")];
    let old = ingress("shop", "old", "app.example.com", ("/old", "Prefix"), &redirect);
    let agent = serve_input(&documents(&[old, service("shop", "old")]), &[]);
    for path in ["/old", "/other"] {
        let answer = get(&agent, "app.example.com", path, "");
        assert!(answer.starts_with("http/1.1 301"), "{path}: {answer}");
    }
}
