//! XBackends: names that a DNS server of the test answers for lead to hosts, in TLS too, and to
//! nothing that they must not lead to.
#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use portcullis_netns_tests::{Scenario, VIP};
use portcullis_testbed::{Agent, Authority, Backend, Certificate, Datapath, until};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Names are looked up again after five seconds at the earliest.
const SOON: Duration = Duration::from_secs(60);
const NAME: &str = "api.example.com";
/// The DNS server, and a host of the internet as far as the node knows.
const DNS: &str = "10.2.0.2:53";
const HOST: &str = "93.184.215.14";
/// Of a cloud, which answers on the link of each machine.
const METADATA: &str = "169.254.169.254";
const HOST_IN_TLS: &str = "93.184.215.14:8443";

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, protocol: HTTP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: api, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{group: gateway.networking.x-k8s.io, kind: XBackend, name: api}]}]
";

/// A network with a host of the internet behind the node, which has the name.
struct Internet {
    scenario: Scenario,
    host: Backend,
    dns: Dns,
}

/// A DNS server with names that are aliases of others, which have addresses, all for no time. Other
/// names do not exist, and `None` is never answered.
#[derive(Clone)]
struct Dns(Arc<Mutex<BTreeMap<String, Option<Vec<IpAddr>>>>>);

impl Internet {
    fn new(test: &str) -> Self {
        let scenario = Scenario::without_configuration(test).unwrap();
        let host = scenario.backend("host", HOST).unwrap();
        // What no route leads to is left out before it is judged.
        for host in [HOST, METADATA] {
            scenario.ip_on_node(&["route", "add", &format!("{host}/32"), "via", "10.2.0.2"]).unwrap();
        }
        let dns = Dns(Arc::default());
        let socket = scenario.datagrams_at_backends(DNS).unwrap();
        socket.set_read_timeout(None).unwrap();
        let records = dns.clone();
        thread::spawn(move || records.answer_at(&socket));
        dns.set(&[HOST]);
        fs::write(scenario.config().join("gateway.yaml"), GATEWAY).unwrap();
        Self { scenario, host, dns }
    }

    fn start(&self, options: &[&str]) -> Agent {
        let mut launch = self.scenario.launch_with(Datapath::Userspace).unwrap();
        launch.arguments.extend(["--name-server", DNS].map(Into::into));
        launch.arguments.extend(options.iter().map(Into::into));
        launch.start().unwrap()
    }

    fn write(&self, port: u16, tls: &str) {
        let backend = format!(
            "apiVersion: gateway.networking.x-k8s.io/v1alpha1\nkind: XBackend\n\
             metadata: {{name: api, namespace: infra}}\nspec:\n  type: ExternalHostname\n  \
             externalHostname: {{hostname: {NAME}}}\n  port: {{number: {port}}}\n{tls}"
        );
        fs::write(self.scenario.config().join("api.yaml"), backend).unwrap();
    }

    fn status(&self) -> u16 {
        self.scenario.request("http://any.example/").send().unwrap().status
    }

    fn answers(&self, status: u16) -> Result<()> {
        let answer = self.scenario.request("http://any.example/").send()?;
        ensure!(answer.status == status, "{answer:?}");
        Ok(())
    }
}

impl Dns {
    fn set(&self, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.0.lock().unwrap().insert(NAME.to_owned(), Some(addresses));
    }

    fn say_nothing(&self) {
        self.0.lock().unwrap().insert(NAME.to_owned(), None);
    }

    fn forget(&self) {
        self.0.lock().unwrap().clear();
    }

    fn answer_at(&self, socket: &UdpSocket) {
        let mut question = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut question) {
            let answer = answer(&question[..length], &self.0.lock().unwrap());
            if let Some(answer) = answer {
                socket.send_to(&answer, client).unwrap();
            }
        }
    }
}

/// Header, question, an alias, and a record for each address of the family that it has.
fn answer(question: &[u8], records: &BTreeMap<String, Option<Vec<IpAddr>>>) -> Option<Vec<u8>> {
    let (mut at, mut labels) = (12, Vec::new());
    while question[at] > 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8_lossy(&question[at + 1..end]).to_lowercase());
        at = end;
    }
    let found = match records.get(&labels.join(".")) {
        Some(None) => return None,
        Some(Some(addresses)) => Some(addresses),
        None => None,
    };
    let is_for_v4 = question[at + 1..at + 3] == [0, 1];
    let addresses = found.into_iter().flatten().filter(|address| address.is_ipv4() == is_for_v4);
    let addresses: Vec<_> = addresses.collect();
    let (code, count) = match found {
        Some(_) => (0, u8::try_from(addresses.len()).unwrap() + 1),
        None => (3, 0),
    };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(&question[12..at + 5]);
    if count > 0 {
        answer.extend([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 0, 0, 3, 1, b'x', 0]);
    }
    for address in addresses {
        answer.extend([1, b'x', 0, 0]);
        match address {
            IpAddr::V4(address) => {
                answer.extend([1, 0, 1, 0, 0, 0, 0, 0, 4]);
                answer.extend(address.octets());
            }
            IpAddr::V6(address) => {
                answer.extend([28, 0, 1, 0, 0, 0, 0, 0, 16]);
                answer.extend(address.octets());
            }
        }
    }
    Some(answer)
}

fn says(agent: &Agent, text: &str) -> Result<()> {
    let status = agent.status("XBackend", "infra", "api")?;
    ensure!(status.contains(text), "{status}");
    Ok(())
}

#[test]
fn a_name_leads_where_it_may_lead_and_nowhere_else() {
    let internet = Internet::new("external");
    let Internet { scenario, host, dns } = &internet;
    let node = scenario.server_on_node("node", "0.0.0.0:8080").unwrap();
    internet.write(8080, "");
    let agent = internet.start(&[]);
    until(SOON, || internet.answers(200)).unwrap();
    until(SOON, || says(&agent, "ResolvedRefs")).unwrap();

    // The owner of the name makes other hosts of it: nothing is sent there, and it is told.
    let forbidden = ["127.0.0.1", METADATA, "0.0.0.0", "10.2.0.3", "10.2.0.1", "10.1.0.1", VIP];
    dns.set(&forbidden);
    until(SOON, || internet.answers(503)).unwrap();
    until(SOON, || forbidden.iter().try_for_each(|address| says(&agent, &format!("{address} is ")))).unwrap();
    let before = host.requests();
    for _ in 0..20 {
        assert_eq!(internet.status(), 503);
    }
    let without_address = || agent.metric("portcullis_external_hosts_without_address ");
    until(SOON, || {
        ensure!(without_address()? == 1.0);
        Ok(())
    })
    .unwrap();
    // One of several may be where it may be: it alone is used.
    dns.set(&[&forbidden[..], &[HOST]].concat());
    until(SOON, || internet.answers(200)).unwrap();
    for _ in 0..20 {
        assert_eq!(internet.status(), 200);
    }
    assert!(host.requests() >= before + 20);
    // Whatever the form in which it is written. What no route leads to is left out only where
    // there is other.
    let carrying: [&[&str]; 2] =
        [&["::1", "::ffff:127.0.0.1"], &["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"]];
    for forbidden in carrying {
        dns.set(forbidden);
        until(SOON, || forbidden.iter().try_for_each(|address| says(&agent, &format!("{address} is "))))
            .unwrap();
        // Told of perhaps while the addresses of the other family are those of before.
        until(SOON, || internet.answers(503)).unwrap();
    }
    assert_eq!((node.requests(), scenario.blog.requests()), (0, 0));

    dns.forget();
    until(SOON, || internet.answers(503)).unwrap();
    until(SOON, || says(&agent, "NXDOMAIN")).unwrap();
    dns.set(&[HOST]);
    until(SOON, || internet.answers(200)).unwrap();

    // Servers that say nothing change nothing, for a while.
    dns.say_nothing();
    until(SOON, || {
        let log = agent.log();
        ensure!(log.contains("does not answer in time"), "{log}");
        Ok(())
    })
    .unwrap();
    assert_eq!(internet.status(), 200);
}

#[test]
fn the_operator_allows_private_addresses_and_none_of_the_nodes() {
    let internet = Internet::new("external-ranges");
    let Internet { scenario, dns, .. } = &internet;
    let node = scenario.server_on_node("node", "0.0.0.0:8080").unwrap();
    internet.write(8080, "");
    dns.set(&["10.2.0.3"]);
    let agent = internet.start(&["--external-ranges", "0.0.0.0/0"]);
    until(SOON, || internet.answers(200)).unwrap();
    assert!(scenario.blog.requests() > 0);

    dns.set(&["127.0.0.1", METADATA, "10.2.0.1", "10.1.0.1", VIP]);
    until(SOON, || internet.answers(503)).unwrap();
    for said in ["127.0.0.1 is loopback", "169.254.169.254 is loopback", "10.1.0.1 is a node's", VIP] {
        until(SOON, || says(&agent, said)).unwrap();
    }
    assert_eq!(node.requests(), 0);
    drop(agent);

    let agent = internet.start(&["--external-names", "*.example.org"]);
    until(SOON, || internet.answers(500)).unwrap();
    until(SOON, || says(&agent, "NotAllowed")).unwrap();
}

#[test]
fn a_host_has_to_be_who_it_has_to_be() {
    let internet = Internet::new("external-tls");
    let authority = Authority::new().unwrap();
    serve_in_tls(&internet.scenario, &authority.issue(&[NAME]).unwrap());
    let authorities = |name: &str, authority: &Authority| {
        let pem = authority.pem().replace('\n', "\n    ");
        let map = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: infra}}\n\
             data:\n  ca.crt: |\n    {pem}\n"
        );
        fs::write(internet.scenario.config().join(format!("{name}.yaml")), map).unwrap();
    };
    authorities("ca", &authority);
    authorities("other-ca", &internet.scenario.authority);
    let tls = |host: &str, ca: &str| {
        format!(
            "  tls:\n    mode: ServerOnly\n    validation:\n      hostname: {host}\n      \
             caCertificateRefs: [{{group: \"\", kind: ConfigMap, name: {ca}}}]\n"
        )
    };
    internet.write(8443, &tls(NAME, "ca"));
    let agent = internet.start(&[]);
    until(SOON, || internet.answers(200)).unwrap();
    let asked_for = internet.scenario.request("http://any.example/").send().unwrap();
    assert!(asked_for.text.ends_with(NAME), "{asked_for:?}");

    for (tls, status) in [
        (tls("other.example.com", "ca"), 502),
        (tls(NAME, "other-ca"), 502),
        // Authorities that are not there verify no host.
        (tls(NAME, "none"), 500),
        (tls(NAME, "ca"), 200),
    ] {
        internet.write(8443, &tls);
        until(SOON, || internet.answers(status)).unwrap();
    }
    drop(agent);
}

/// A host that answers with the name that it was asked for by (SNI), once a connection.
fn serve_in_tls(scenario: &Scenario, certificate: &Certificate) {
    let chain = vec![CertificateDer::from_pem_slice(certificate.chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(builder.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap());
    let address: SocketAddr = HOST_IN_TLS.parse().unwrap();
    let listener = scenario.at_backends(|| Ok(TcpListener::bind(address)?)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            if stream.read(&mut [0; 4096]).is_ok() {
                let name = stream.conn.server_name().unwrap_or_default().to_owned();
                let length = name.len();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
                let _ = write!(stream, "{head} {length}\r\n\r\n{name}");
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
}
