//! XBackends end to end: names that a DNS server of the test answers for lead to hosts, in TLS too,
//! and to nothing that they must not lead to.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::generate_simple_self_signed;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use support::{Agent, Answer, backend, eventually};

const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: api, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{group: gateway.networking.x-k8s.io, kind: XBackend, name: api}]}]
"#;

/// A DNS server with A records that live for no time; other names do not exist.
#[derive(Clone)]
struct Dns {
    records: Arc<Mutex<BTreeMap<String, Vec<Ipv4Addr>>>>,
    address: SocketAddr,
}

impl Dns {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let dns = Self { records: Arc::default(), address: socket.local_addr().unwrap() };
        let records = dns.records.clone();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut question) {
                let answer = answer(&question[..length], &records.lock().unwrap());
                socket.send_to(&answer, client).unwrap();
            }
        });
        dns
    }

    fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.records.lock().unwrap().insert(name.to_owned(), addresses);
    }
}

/// Header, question, and an A record for each address that the name has.
fn answer(question: &[u8], records: &BTreeMap<String, Vec<Ipv4Addr>>) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] > 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8(question[at + 1..end].to_vec()).unwrap().to_lowercase());
        at = end;
    }
    let is_for_v4 = question[at + 1..at + 3] == [0, 1];
    let found = records.get(&labels.join("."));
    let addresses = found.filter(|_| is_for_v4).map(Vec::as_slice).unwrap_or_default();
    let code = if found.is_some() { 0 } else { 3 };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(addresses.len()).unwrap(), 0, 0, 0, 0]);
    answer.extend(&question[12..at + 5]);
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}

fn x_backend(port: u16, tls: &str) -> String {
    format!(
        r#"
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {{name: api, namespace: infra}}
spec:
  type: ExternalHostname
  externalHostname: {{hostname: api.example.com}}
  port: {{number: {port}}}
{tls}"#
    )
}

fn status(agent: &Agent) -> String {
    agent.command(&["status", "XBackend", "infra/api", "-o", "yaml"])
}

fn is(answer: Option<Answer>, status: u16) -> bool {
    answer.is_some_and(|answer| answer.status == status)
}

#[test]
fn a_name_leads_where_it_may_lead_and_nowhere_else() {
    let dns = Dns::start();
    dns.set("api.example.com", &["127.0.0.1"]);
    let port = backend("api");
    let server = dns.address.to_string();
    let options = ["--name-server", &server, "--external-ranges", "127.0.0.0/8"];
    let files = [("gateway.yaml", GATEWAY), ("api.yaml", &x_backend(port, ""))];
    let agent = Agent::start_with(&options, &files);
    eventually("the name leads to the host", || is(agent.http("any.example", "/"), 200));

    // Its owner makes another host of it: nothing is sent there, and it is told.
    dns.set("api.example.com", &["169.254.169.254", "0.0.0.0"]);
    eventually("nothing is sent to other hosts", || is(agent.http("any.example", "/"), 503));
    eventually("the status tells of it", || status(&agent).contains("169.254.169.254 is not public"));

    dns.set("api.example.com", &["127.0.0.1"]);
    eventually("the name leads to the host again", || is(agent.http("any.example", "/"), 200));

    dns.records.lock().unwrap().clear();
    eventually("the name is gone", || is(agent.http("any.example", "/"), 503));
    eventually("the status tells of it", || status(&agent).contains("NXDOMAIN"));
}

#[test]
fn names_lead_to_no_private_address_unless_the_operator_allows_it() {
    let dns = Dns::start();
    dns.set("api.example.com", &["127.0.0.1"]);
    let server = dns.address.to_string();
    let port = backend("private");
    let files = [("gateway.yaml", GATEWAY), ("api.yaml", &x_backend(port, ""))];
    let agent = Agent::start_with(&["--name-server", &server], &files);
    eventually("the status tells of it", || status(&agent).contains("127.0.0.1 is not public"));
    assert!(is(agent.http("any.example", "/"), 503));

    let names =
        ["--name-server", &server, "--external-ranges", "127.0.0.0/8", "--external-names", "*.example.org"];
    let agent = Agent::start_with(&names, &files);
    assert!(is(agent.http("any.example", "/"), 500));
    assert!(status(&agent).contains("NotAllowed"), "{}", status(&agent));
}

#[test]
fn a_host_has_to_be_who_it_has_to_be() {
    let certified = generate_simple_self_signed(["api.example.com".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            if stream.read(&mut [0; 4096]).is_ok() {
                let name = stream.conn.server_name().unwrap_or_default().to_owned();
                let length = name.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{name}"
                );
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    let dns = Dns::start();
    dns.set("api.example.com", &["127.0.0.1"]);
    let server = dns.address.to_string();
    let tls = |name: &str| {
        format!(
            "  tls:\n    mode: ServerOnly\n    validation:\n      hostname: {name}\n      caCertificateRefs: [{{group: \"\", kind: ConfigMap, name: ca}}]\n"
        )
    };
    let pem = certified.cert.pem().replace('\n', "\n    ");
    let ca = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca, namespace: infra}}\ndata:\n  ca.crt: |\n    {pem}\n"
    );
    let files = [
        ("gateway.yaml", GATEWAY),
        ("ca.yaml", &ca),
        ("api.yaml", &x_backend(port, &tls("api.example.com"))),
    ];
    let options = ["--name-server", &server, "--external-ranges", "127.0.0.1"];
    let agent = Agent::start_with(&options, &files);
    let expected = Some(Answer { status: 200, body: "api.example.com".to_owned() });
    eventually("the host is known", || agent.http("any.example", "/") == expected);

    agent.edit("api.yaml", &x_backend(port, &tls("other.example.com")));
    eventually("another host is not", || is(agent.http("any.example", "/"), 502));
}
