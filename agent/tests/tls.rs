//! TLS by the binary end to end: options of listeners, sessions that another agent goes on with,
//! authorities in ClusterTrustBundles, and what backends and operators are told of certificates.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's other sides")]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig,
    ServerConnection, StreamOwned, SupportedCipherSuite, SupportedProtocolVersion,
};
use support::{Agent, HTTPS, backend, eventually};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate with its key.
struct Pair {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// A client and what it can.
struct Client<'a> {
    agent: &'a Agent,
    config: Arc<ClientConfig>,
}

/// The outcome of a handshake and a request.
struct Exchange {
    suite: CipherSuite,
    is_resumed: bool,
    answer: String,
}

// === impl Client ===

impl<'a> Client<'a> {
    fn new(agent: &'a Agent, authority: &Authority) -> Self {
        Self::able_to(agent, authority, &[&TLS12, &TLS13], &default_provider().cipher_suites, None)
    }

    fn showing(agent: &'a Agent, authority: &Authority, pair: &Pair) -> Self {
        let suites = default_provider().cipher_suites;
        Self::able_to(agent, authority, &[&TLS12, &TLS13], &suites, Some(pair))
    }

    fn able_to(
        agent: &'a Agent,
        authority: &Authority,
        versions: &[&'static SupportedProtocolVersion],
        suites: &[SupportedCipherSuite],
        shown: Option<&Pair>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = CryptoProvider { cipher_suites: suites.to_vec(), ..default_provider() };
        let builder = ClientConfig::builder_with_provider(provider.into());
        let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        let config = match shown {
            Some(pair) => builder.with_client_auth_cert(pair.chain(), pair.key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        Self { agent, config: config.into() }
    }

    /// `None` if the client is not let in.
    fn exchange(&self, host: &str, fields: &str) -> Option<Exchange> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut connection = ClientConnection::new(self.config.clone(), name).unwrap();
        let mut stream = TcpStream::connect((self.agent.address, HTTPS)).ok()?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).ok()?;
        }
        let mut stream = StreamOwned::new(connection, stream);
        let request = format!("GET /head HTTP/1.1\r\nhost: {host}\r\n{fields}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        if answer.is_empty() {
            // TLS 1.3 tells a client that is not let in after its handshake.
            return None;
        }
        Some(Exchange {
            suite: stream.conn.negotiated_cipher_suite().unwrap().suite(),
            is_resumed: stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
            answer: String::from_utf8_lossy(&answer).into_owned(),
        })
    }

    /// The status of an answer.
    fn status(&self, host: &str) -> Option<String> {
        let exchange = self.exchange(host, "")?;
        exchange.answer.split(' ').nth(1).map(str::to_owned)
    }
}

// === impl Pair ===

impl Pair {
    fn new(authority: &Authority, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        Self { certificate: params.signed_by(&key, authority).unwrap(), key }
    }

    fn of(authority: &Authority, names: &[&str]) -> Self {
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap()));
        Self::new(authority, |params| params.subject_alt_names = names.collect())
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.der().clone()]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }

    fn secret(&self) -> String {
        format!(
            "\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: tls, namespace: infra}}\ntype: kubernetes.io/tls\n\
             stringData:\n  tls.crt: |\n{}\n  tls.key: |\n{}\n",
            indented(&self.certificate.pem()),
            indented(&self.key.serialize_pem())
        )
    }
}

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn indented(pem: &str) -> String {
    pem.lines().map(|line| format!("    {line}\n")).collect()
}

fn trust_bundle(authority: &Authority) -> String {
    format!(
        "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{name: a.example:team:ca}}\n\
         spec:\n  signerName: a.example/team\n  trustBundle: |\n{}",
        indented(&authority.pem())
    )
}

/// A Gateway with a listener for each host, and its options.
fn gateway(tls: &str, listeners: &[(&str, &str)]) -> String {
    let listeners = listeners.iter().map(|(host, options)| {
        format!(
            "  - name: {name}\n    protocol: HTTPS\n    port: {HTTPS}\n    hostname: {host}\n    tls: {{certificateRefs: \
             [{{name: tls}}], options: {{{options}}}}}\n",
            name = host.trim_end_matches(".example")
        )
    });
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: web, namespace: infra}}\nspec:\n  \
         gatewayClassName: portcullis\n  addresses: [{{value: ADDRESS}}]\n{tls}  listeners:\n{}",
        listeners.collect::<String>()
    )
}

/// A route for all hosts to a backend at a port.
fn route(port: u16) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: app, namespace: infra}}
spec:
  parentRefs: [{{name: web}}]
  rules: [{{backendRefs: [{{name: app, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: infra}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: app-1, namespace: infra, labels: {{kubernetes.io/service-name: app}}}}
addressType: IPv4
ports: [{{name: http, port: {port}}}]
endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]
"
    )
}

#[test]
fn listeners_of_a_port_hold_clients_to_their_options() {
    let authority = authority();
    let hosts = ["usual.example", "recent.example", "strong.example", "wrong.example"];
    let listeners = [
        (hosts[0], ""),
        (hosts[1], "portcullis.dev/minimum-version: \"1.3\""),
        (
            hosts[2],
            "portcullis.dev/cipher-suites: \"TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\"",
        ),
        (hosts[3], "portcullis.dev/minimum-versoin: \"1.3\""),
    ];
    let agent = Agent::start(&[
        ("gateway.yaml", &(gateway("", &listeners) + &Pair::of(&authority, &hosts).secret())),
        ("route.yaml", &route(backend("app"))),
    ]);
    let all = default_provider().cipher_suites;
    let [weak_12, weak_13] =
        [cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_128_GCM_SHA256];
    let strong =
        [CipherSuite::TLS13_AES_256_GCM_SHA384, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384];
    for (host, old, recent, weak) in [
        (hosts[0], Some(weak_12.suite()), Some(weak_13.suite()), [true; 2]),
        (hosts[1], None, Some(weak_13.suite()), [false, true]),
        (hosts[2], Some(strong[1]), Some(strong[0]), [false; 2]),
        // What the option was to forbid must not be served without it.
        (hosts[3], None, None, [false; 2]),
    ] {
        let suite = |versions: &[&'static SupportedProtocolVersion], suites: &[SupportedCipherSuite]| {
            let client = Client::able_to(&agent, &authority, versions, suites, None);
            client.exchange(host, "").map(|exchange| exchange.suite)
        };
        assert_eq!(suite(&[&TLS12], &all), old, "{host}");
        assert_eq!(suite(&[&TLS13], &all), recent, "{host}");
        assert_eq!(suite(&[&TLS12], &[weak_12]).is_some(), weak[0], "{host}");
        assert_eq!(suite(&[&TLS13], &[weak_13]).is_some(), weak[1], "{host}");
    }
    eventually("the status says what is wrong", || {
        let status = agent.command(&["status", "gateway", "-o", "yaml"]);
        status.contains("tls.options has portcullis.dev/minimum-versoin, which is no option that we know")
    });
}

fn write_keys(directory: &Path, keys: &[char]) {
    let lines =
        keys.iter().zip(1..).map(|(digit, at)| format!("key-{at} {}\n", digit.to_string().repeat(64)));
    let file = directory.join("keys");
    fs::write(&file, lines.collect::<String>()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn sessions_go_on_at_another_agent_with_the_same_keys() {
    let (authority, directories) = (authority(), [(); 3].map(|()| tempfile::tempdir().unwrap()));
    let hosts = ["given.example", "none.example"];
    let listeners = [(hosts[0], ""), (hosts[1], "portcullis.dev/session-tickets: \"off\"")];
    let manifest = gateway("", &listeners) + &Pair::of(&authority, &hosts).secret();
    let route = route(backend("app"));
    let start = |at: usize, keys: &[char]| {
        let directory = directories[at].path();
        write_keys(directory, keys);
        let options = ["--state-dir", directory.to_str().unwrap()];
        Agent::start_with(&options, &[("gateway.yaml", &manifest), ("route.yaml", &route)])
    };
    let (first, same, other) = (start(0, &['a']), start(1, &['a', 'b']), start(2, &['c']));
    let resumes = |at: &Agent, host: &str, version: &'static SupportedProtocolVersion| {
        let suites = default_provider().cipher_suites;
        let client = Client::able_to(&first, &authority, &[version], &suites, None);
        assert!(!client.exchange(host, "").unwrap().is_resumed, "it is the first");
        Client { agent: at, ..client }.exchange(host, "").unwrap().is_resumed
    };
    for version in [&TLS12, &TLS13] {
        for agent in [&first, &same] {
            assert!(resumes(agent, hosts[0], version), "{version:?}");
            assert!(!resumes(agent, hosts[1], version), "there are no tickets: {version:?}");
        }
        assert!(!resumes(&other, hosts[0], version), "{version:?}");
    }
    write_keys(directories[2].path(), &['a', 'c']);
    eventually("the file is read again", || resumes(&other, hosts[0], &TLS13));
}

#[test]
fn clients_are_verified_by_a_trust_bundle_and_backends_told_of_them() {
    let [one, two, of_server] = [(); 3].map(|()| authority());
    let frontend = "  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: certificates.k8s.io, kind: \
                    ClusterTrustBundle, name: 'a.example:team:ca'}]}}}}\n";
    let hosts = ["told.example", "silent.example"];
    let fields = "Client-Cert,X-Forwarded-Client-Cert";
    let option = format!("portcullis.dev/forward-client-certificate: \"{fields}\"");
    let listeners = [(hosts[0], &*option), (hosts[1], "")];
    let agent = Agent::start(&[
        ("gateway.yaml", &(gateway(frontend, &listeners) + &Pair::of(&of_server, &hosts).secret())),
        ("route.yaml", &route(backend("app"))),
        ("bundle.yaml", &trust_bundle(&one)),
    ]);
    let pair = |authority: &Authority| {
        Pair::new(authority, |params| {
            params.distinguished_name.push(rcgen::DnType::CommonName, "cart");
            params.subject_alt_names = vec![SanType::URI("spiffe://shop/cart".try_into().unwrap())];
        })
    };
    let shown = [pair(&one), pair(&two)];
    let clients = shown.each_ref().map(|shown| Client::showing(&agent, &of_server, shown));
    let forged = "client-cert: :Zm9yZ2Vk:\r\nX_Forwarded_Client_Cert: Hash=forged\r\nX-Forwarded-Client-Cert: forged\r\n";
    let sent = |host| clients[0].exchange(host, forged).unwrap().answer.to_lowercase();
    let (told, silent) = (sent(hosts[0]), sent(hosts[1]));
    assert!(!told.contains("forged") && !told.contains("zm9yz2vk"), "{told}");
    assert!(told.contains("\r\nclient-cert: :"), "{told}");
    assert!(told.contains(";subject=\"cn=cart\";uri=spiffe://shop/cart\r\n"), "{told}");
    assert!(silent.contains("200 ok") && !silent.contains("client"), "{silent}");

    let are_let_in = || clients.each_ref().map(|client| client.status(hosts[0]).is_some());
    assert_eq!(are_let_in(), [true, false]);
    assert!(Client::new(&agent, &of_server).status(hosts[0]).is_none(), "without a certificate");
    agent.edit("bundle.yaml", &trust_bundle(&two));
    eventually("the other authority is believed", || are_let_in() == [false, true]);
    agent.edit("bundle.yaml", "");
    eventually("without one, no client is let in", || are_let_in() == [false; 2]);
}

/// A backend that speaks TLS only, and answers every request with nothing.
fn tls_backend(pair: &Pair) -> u16 {
    let builder = ServerConfig::builder_with_provider(default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(builder.with_single_cert(pair.chain(), pair.key()).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            if stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).and_then(|()| stream.flush());
            }
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    port
}

#[test]
fn backends_are_verified_by_a_trust_bundle() {
    let [right, wrong, of_server] = [(); 3].map(|()| authority());
    let policy = "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: app, namespace: infra}
spec:
  targetRefs: [{group: \"\", kind: Service, name: app}]
  validation:
    hostname: app.example
    caCertificateRefs: [{group: certificates.k8s.io, kind: ClusterTrustBundle, name: 'a.example:team:ca'}]
";
    let host = "web.example";
    let agent = Agent::start(&[
        ("gateway.yaml", &(gateway("", &[(host, "")]) + &Pair::of(&of_server, &[host]).secret())),
        ("route.yaml", &route(tls_backend(&Pair::of(&right, &["app.example"])))),
        ("policy.yaml", policy),
        ("bundle.yaml", &trust_bundle(&right)),
    ]);
    let client = Client::new(&agent, &of_server);
    let answers = |status: &str| client.status(host).as_deref() == Some(status);
    assert!(answers("200"));
    agent.edit("bundle.yaml", &trust_bundle(&wrong));
    eventually("the backend is not believed any more", || answers("502"));
    agent.edit("bundle.yaml", &trust_bundle(&right));
    eventually("it is again", || answers("200"));
    agent.edit("bundle.yaml", "");
    eventually("without the bundle nothing is sent", || answers("500"));
    eventually("the status says why", || {
        let status = agent.command(&["status", "BackendTLSPolicy", "-o", "yaml"]);
        status.contains("ClusterTrustBundle a.example:team:ca does not exist")
    });
}

#[test]
fn operators_are_told_of_certificates_that_expire() {
    let authority = authority();
    let pair = Pair::new(&authority, |params| {
        params.subject_alt_names = vec![SanType::DnsName("web.example".try_into().unwrap())];
        params.not_after = rcgen::date_time_ymd(2001, 9, 9);
    });
    let manifest = gateway("", &[("web.example", "")]) + &pair.secret();
    let agent = Agent::start(&[("gateway.yaml", &manifest)]);
    let metric = "tls_certificate_expiry_timestamp_seconds{gateway=\"infra/web\",parent_kind=\"Gateway\",\
                  parent=\"infra/web\",listener=\"web\"} 999993600";
    let metrics = agent.admin("/metrics").unwrap().body;
    assert!(metrics.contains(metric), "{metrics}");
    let status = agent.command(&["status", "listeners"]);
    assert!(status.contains("Gateway infra/web listener web: a certificate expired "), "{status}");
}
