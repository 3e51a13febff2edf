//! Metrics for scrapers on other machines: who may read them, and what else is there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

#[expect(dead_code, reason = "for the agent's traffic")]
mod support;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use support::{Agent, GATEWAY};
use tempfile::TempDir;

/// An authority, and files with what it vouches for.
struct Files {
    directory: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self { directory: tempfile::tempdir().unwrap(), authority };
        files.write("ca", &files.authority.pem());
        files
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        // As kubelets do it: the file changes at once.
        let next = self.path("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, self.path(name)).unwrap();
    }

    /// Writes `NAME` with a certificate for an address or a name, and `NAME.key`.
    fn certificate(&self, name: &str, subject: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([subject.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(name, &certificate.pem());
    }
}

/// The URL of the metrics of an agent that runs with these options.
fn start(options: &[&str]) -> (Agent, String) {
    let agent = Agent::start_with(options, &[("gateway.yaml", GATEWAY)]);
    let url = format!("{}/metrics", agent.logged("metrics on "));
    (agent, url)
}

/// The status, 0 if there is no answer, and the body.
fn curl(url: &str, arguments: &[&str]) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"]);
    let output = curl.args(arguments).arg(url).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn loopback_needs_no_credentials_and_has_metrics_alone() {
    let (_agent, url) = start(&["--metrics-address", "127.0.0.1:0"]);
    let (status, body) = curl(&url, &["-H", "Host: anything.example"]);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("portcullis_agent_info") && body.contains("process_open_fds"), "{body}");
    let root = url.strip_suffix("/metrics").unwrap();
    for path in ["/", "/config", "/status", "/explain", "/readyz"] {
        assert_eq!(curl(&format!("{root}{path}"), &[]).0, 404, "{path}");
    }
    assert_eq!(curl(&url, &["--data", "x"]).0, 405);
}

#[test]
fn an_option_of_an_address_that_is_not_given_is_told_of() {
    let options = ["--metrics-token-file", "/none"];
    let agent = Agent::start_with(&options, &[("gateway.yaml", GATEWAY)]);
    let says = "--metrics-token-file is without effect: there is no --metrics-address";
    assert!(agent.log().contains(says), "{}", agent.log());
}

#[test]
fn a_token_is_wanted_and_may_change() {
    let files = Files::new();
    files.write("token", "first\n");
    let token = files.path("token");
    let (agent, url) = start(&["--metrics-address", "[::]:0", "--metrics-token-file", &token]);
    assert!(agent.log().contains("in clear text"), "{}", agent.log());
    let url = url.replace("[::]", "127.0.0.1");
    let with = |value: &str| curl(&url, &["-H", &format!("Authorization: {value}")]).0;
    assert_eq!(curl(&url, &[]).0, 401);
    for (value, status) in [
        ("Bearer first", 200),
        ("bearer first", 200),
        ("Bearer firs", 401),
        ("Bearer", 401),
        ("Basic first", 401),
    ] {
        assert_eq!(with(value), status, "{value}");
    }
    assert_eq!(curl(&url.replace("/metrics", "/config"), &[]).0, 401, "nor is it told what there is");
    files.write("token", "second");
    assert_eq!([with("Bearer first"), with("Bearer second")], [401, 200]);
    files.write("token", " \n");
    assert_eq!([with("Bearer "), with("Bearer second")], [503, 503]);
    assert_eq!(agent.log().matches("token is empty").count(), 1, "{}", agent.log());
}

#[test]
fn nothing_of_metrics_keeps_an_agent_from_serving() {
    let files = Files::new();
    let [certificate, token] = [files.path("agent"), files.path("token")];
    let key = files.path("agent.key");
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = other.local_addr().unwrap().to_string();
    let options = ["--metrics-address", &address, "--metrics-token-file", &token];
    let tls = ["--metrics-certificate", &certificate, "--metrics-key", &key];
    let agent = Agent::start_with(&[&options[..], &tls].concat(), &[("gateway.yaml", GATEWAY)]);
    assert_eq!(agent.http("any.example", "/").unwrap().status, 404);
    assert!(agent.log().contains(&format!("cannot listen on {address}")), "{}", agent.log());
    drop(other);
    let url = format!("{}/metrics", agent.logged("metrics on "));
    let scrape = || curl(&url, &["--cacert", &files.path("ca"), "-H", "Authorization: Bearer secret"]).0;
    assert_eq!(scrape(), 0, "there is no certificate");
    files.certificate("agent", "127.0.0.1");
    assert_eq!(scrape(), 503, "there is no token");
    files.write("token", "secret");
    assert_eq!(scrape(), 200);
    for file in [certificate, token] {
        let of_file = |line: &&str| line.contains("no scrapes are answered") && line.contains(&file);
        assert_eq!(agent.log().lines().filter(of_file).count(), 1, "{file}: {}", agent.log());
    }
}

#[test]
fn scrapers_may_need_certificates_and_the_agents_own_may_change() {
    let files = Files::new();
    files.certificate("agent", "127.0.0.1");
    files.certificate("scraper", "prometheus.example");
    let (path, authority) = (|name: &str| files.path(name), files.path("ca"));
    let (_agent, url) = start(&[
        "--metrics-address",
        "0.0.0.0:0",
        "--metrics-certificate",
        &path("agent"),
        "--metrics-key",
        &path("agent.key"),
        "--metrics-client-ca",
        &authority,
    ]);
    assert!(url.starts_with("https://"), "{url}");
    let url = url.replace("0.0.0.0", "127.0.0.1");
    let scrape = || {
        let (certificate, key) = (path("scraper"), path("scraper.key"));
        curl(&url, &["--cacert", &authority, "--cert", &certificate, "--key", &key]).0
    };
    assert_eq!(scrape(), 200);
    assert_eq!(curl(&url, &["--cacert", &authority]).0, 0, "there has to be a certificate");
    // A scraper that checks whom it asks refuses another name.
    files.certificate("agent", "other.example");
    assert_eq!(scrape(), 0);
    files.certificate("agent", "127.0.0.1");
    assert_eq!(scrape(), 200);
}

#[test]
fn an_agent_does_not_start_open_to_all_by_mistake() {
    for (options, problem) in [
        (&["--metrics-address", "0.0.0.0:0"][..], "--metrics-open"),
        (&["--metrics-address", "0.0.0.0:0", "--metrics-certificate", "tls.crt"], "--metrics-key"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let error = refused(directory.path(), options);
        assert!(error.contains(problem), "{options:?}: {error}");
    }
}

/// The message of an agent that ends instead of starting.
fn refused(directory: &Path, options: &[&str]) -> String {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    agent.args(["run", "--datapath", "userspace", "--beside-others", "--config-dir"]).arg(directory);
    agent.arg("--admin-socket").arg(directory.join("admin.sock")).args(options);
    let output = agent.env("PORTCULLIS_PIN_DIR", directory.join("pins")).output().unwrap();
    assert!(!output.status.success(), "{options:?}");
    String::from_utf8(output.stderr).unwrap()
}
