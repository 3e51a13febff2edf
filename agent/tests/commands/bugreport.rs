//! `portcullis bugreport`: what is in it, and that nothing in it is secret.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::read::GzDecoder;
use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::portcullis;
use crate::support::{Agent, eventually};

/// The key of HS256 as JWKS have it.
const HMAC_KEY: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc";
/// A key of sessions and of TLS tickets.
const SESSION_KEY: &str = "5e5510f15e5510f15e5510f15e5510f15e5510f15e5510f15e5510f15e5510f1";
/// The part of a line of htpasswd behind its colon.
const PASSWORD: &str = "{SHA}mldR1azs8m/36yszwUTvzhxp/po=";

/// Everything that has a secret: Secrets of all uses, those that cannot be read, and routes with
/// credentials in them. `KEY` and `CERTIFICATE` are PEM, indented.
const MANIFESTS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  tls:
    backend: {clientCertificateRef: {name: tls}}
    frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: Secret, name: clients-ca}]}}}
  listeners:
  - {name: http, protocol: HTTP, port: 8080}
  - {name: https, protocol: HTTPS, port: 8443, tls: {certificateRefs: [{name: tls}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: infra}
type: kubernetes.io/tls
stringData:
  tls.crt: |
CERTIFICATE
  tls.key: |
KEY
---
apiVersion: v1
kind: Secret
metadata: {name: clients-ca, namespace: infra}
stringData:
  ca.crt: |
CERTIFICATE
  ca.key: |
KEY
---
apiVersion: v1
kind: Secret
metadata: {name: login, namespace: infra}
stringData: {jwks.json: '{"keys": [{"kty": "oct", "k": "HMAC_KEY"}]}'}
---
apiVersion: v1
kind: Secret
metadata: {name: clients, namespace: infra}
stringData: {partner: s3cret-of-api-keys}
---
apiVersion: v1
kind: Secret
metadata: {name: users, namespace: infra}
stringData: {auth: "ann:PASSWORD"}
---
apiVersion: v1
kind: Secret
metadata: {name: broken, namespace: infra}
data: s3cret-in-no-entry
---
apiVersion: v1
kind: Secret
metadata: {name: broken-too, namespace: infra}
data: {password: "s3cret that is not base64"}
---
apiVersion: portcullis.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: all, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  jwt: {providers: [{name: p, issuer: "https://login.example", jwks: {kind: Secret, name: login}, from: {header: x-token}}]}
  apiKeys: {secretRefs: [{name: clients}]}
  basic: {secretRef: {name: users}}
  externalAuth: {protocol: HTTP, backendRef: {name: auth, port: 80}}
---
apiVersion: v1
kind: Service
metadata: {name: auth, namespace: infra}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: credentials, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches:
    - headers: [{name: authorization, value: Bearer s3cret-of-match}, {name: x-origin, value: s3cret-of-origin}]
      queryParams: [{name: access_token, value: s3cret-of-query}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{name: authorization, value: Basic s3cret-of-filter}]
        add: [{name: x-partner, value: s3cret-of-partner}]
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, backendRef: {name: auth, port: 80}, http: {allowedHeaders: [x-partner]}}
    backendRefs: [{name: auth, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: refused, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: s3cret-in-no-list}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: refused-values, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: authorization, value: "s3cret-with-a-blank "}]}
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: authorization, value: [s3cret-in-a-list]}]}
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: authorization, value: {a: s3cret-in-an-object}}]}
  - filters:
    - type: URLRewrite
      requestHeaderModifier: {set: [{name: authorization, value: s3cret-of-another-filter}]}
  - filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: "authorization: s3cret-as-a-filter"}
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: ["authorization: s3cret-as-a-pair"]}
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: "authorization: s3cret-as-a-name"}]}
  - filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {add: {authorization: s3cret-in-a-map}}
  - filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {"authorization: s3cret-as-a-field": 1}
---
apiVersion: v1
kind: Secret
metadata: {name: misspelt, namespace: infra}
"password: s3cret-as-a-key": 1
---
apiVersion: v1
kind: Secret
metadata: {name: misspelt-too, namespace: infra}
stringData: {"password: s3cret-as-an-entry": ""}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: accepted-values, namespace: infra}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches: [{headers: [{type: RegularExpression, name: x-key, value: "(s3cret-of-expression"}]}]
  - matches: [{path: {value: /old}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: "/new?token=s3cret-of-path"}}
"#;

fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(fs::File::open(archive).unwrap()));
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    files.collect()
}

#[test]
fn nothing_in_a_report_is_secret() {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    let key = signing_key.serialize_pem();
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let manifests = MANIFESTS.replace("CERTIFICATE\n", &indented(&cert.pem())).replace("  KEY\n", "KEY\n");
    let manifests = manifests.replace("HMAC_KEY", HMAC_KEY).replace("PASSWORD", PASSWORD);
    let manifests = manifests.replace("KEY\n", &indented(&key));
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("keys"), format!("key-1700000000 {SESSION_KEY}\n")).unwrap();
    fs::set_permissions(state.join("keys"), fs::Permissions::from_mode(0o600)).unwrap();
    let pod = r#"{"containers": [{"env": [{"name": "A", "value": "s3cret-of-pod"}]}]}"#;
    let options = ["--state-dir", state.to_str().unwrap(), "--dedicated-pod", pod];
    let agent = Agent::start_with(&options, &[("all.yaml", &manifests)]);
    eventually("the policy is in force", || {
        let status = agent.command(&["status", "TrafficPolicy"]);
        status.contains("infra/all") && agent.command(&["dump"]).contains("the key of one of 1 clients")
    });
    let file = directory.path().join("report.tar.gz");
    let output = agent.command(&["bugreport", "--file", file.to_str().unwrap()]);
    assert!(output.ends_with("report.tar.gz: 13 files, without secrets\n"), "{output}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let files = unpacked(&file);
    let named = |name: &str| files.get(name).map(String::as_str).unwrap_or_default();
    for (name, part) in [
        ("agent.json", "dedicated-pod"),
        ("asking.json", env!("CARGO_PKG_VERSION")),
        ("ready.txt", "200 OK\nok: "),
        ("problems.txt", "HTTPRoute infra/refused"),
        ("problems.txt", "Secret infra/broken"),
        ("problems.txt", "Secret infra/misspelt: has unknown fields (1)"),
        ("problems.txt", "HTTPRoute infra/refused-values"),
        ("problems.json", "HTTPRoute infra/accepted-values"),
        ("node.json", "datapath"),
        ("traffic.json", "\"at\": "),
        ("certificates.json", "a.example"),
        ("status.json", "TrafficPolicy"),
        ("listeners.json", "datapath"),
        ("config.json", "x-partner"),
        ("metrics.txt", "datapath=\"userspace\""),
        ("log.txt", "INFO Portcullis "),
        ("log.txt", "HTTPRoute infra/refused"),
    ] {
        assert!(named(name).contains(part), "{name}: {part} in {:?}:\n{}", files.keys(), named(name));
    }
    // Of what is refused, and of what filters write, nor do those on the machine who may ask it.
    for answer in ["/problems", "/api/v1/problems", "/log"].map(|place| agent.admin(place).unwrap().body) {
        for secret in [
            "in-no-list",
            "with-a-blank",
            "in-a-list",
            "in-an-object",
            "of-another-filter",
            "as-a-",
            "as-an-",
            "in-a-map",
            "in-no-entry",
        ] {
            assert!(!answer.contains(secret), "{secret} in {answer}");
        }
    }
    let secrets = ["s3cret", "mldR1azs8m", "PRIVATE KEY", HMAC_KEY, SESSION_KEY, "czNjcmV0"];
    // Lines of the key, and what its bytes would be as numbers.
    let lines = key.lines().filter(|line| !line.starts_with('-'));
    let numbers = ["7,7,7,7,7,7,7,7", "7,\n        7,\n"];
    for secret in secrets.into_iter().chain(lines).chain(numbers) {
        for (name, text) in &files {
            assert!(!text.contains(secret), "{name} has {secret}:\n{text}");
        }
    }
}

#[test]
fn a_report_says_what_could_not_be_got() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.tar.gz");
    let (file, socket) = (file.to_str().unwrap(), directory.path().join("none.sock"));
    let arguments = ["bugreport", "--file", file, "--admin-socket", socket.to_str().unwrap()];
    let output = portcullis(&arguments);
    assert_eq!(output.status.code(), Some(2));
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(complaints.contains("portcullis: not in it: agent.json, ready.txt, "), "{complaints}");
    assert_eq!(complaints.matches(": no agent answers on ").count(), 1, "{complaints}");
    let files = unpacked(Path::new(file));
    assert_eq!(files.keys().collect::<Vec<_>>(), ["asking.json", "missing.txt"]);
    assert!(files["missing.txt"].contains("config.json: no agent answers on "), "{}", files["missing.txt"]);
    let again = portcullis(&arguments);
    let complaints = String::from_utf8(again.stderr).unwrap();
    assert!(complaints.contains("exists already: remove it, or choose another --file"), "{complaints}");
    let folder = directory.path().to_str().unwrap();
    let to_folder = portcullis(&["bugreport", "--file", folder, "--admin-socket", arguments[4]]);
    let complaints = String::from_utf8(to_folder.stderr).unwrap();
    assert!(complaints.contains(&format!("{folder} is no file: choose another --file")), "{complaints}");
}
