//! The real agent as a child process on loopback addresses of its own, small HTTP backends, and a
//! client. Needs no root.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

pub(crate) const HTTP: u16 = 8080;
pub(crate) const HTTPS: u16 = 8443;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A Gateway with a listener on [`HTTP`], and nothing behind it.
pub(crate) const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{value: ADDRESS}]
  listeners: [{name: http, protocol: HTTP, port: 8080}]
";

/// An agent with a configuration directory; both end with it.
pub(crate) struct Agent {
    pub dir: TempDir,
    pub address: Ipv4Addr,
    pub(crate) child: Child,
}

/// An answer, as far as tests look at it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    pub body: String,
}

impl Agent {
    /// Starts an agent on manifests in which `ADDRESS` stands for its address, and waits until it
    /// is ready.
    pub(crate) fn start(manifests: &[(&str, &str)]) -> Self {
        Self::start_with(&[], manifests)
    }

    /// With more options.
    pub(crate) fn start_with(options: &[&str], manifests: &[(&str, &str)]) -> Self {
        let agent = Self::launch(options, manifests);
        agent.until_ready();
        agent
    }

    pub(crate) fn start_unready(manifests: &[(&str, &str)]) -> Self {
        Self::launch(&[], manifests)
    }

    pub(crate) fn start_unready_with(options: &[&str], manifests: &[(&str, &str)]) -> Self {
        Self::launch(options, manifests)
    }

    fn launch(options: &[&str], manifests: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = own_address();
        fs::create_dir(dir.path().join("conf")).unwrap();
        for (name, text) in manifests {
            write(&dir.path().join("conf").join(name), &text.replace("ADDRESS", &address.to_string()));
        }
        let child = run(dir.path(), options);
        Self { dir, address, child }
    }

    /// Ends the agent and starts another one, with a log of its own, on the same manifests.
    pub(crate) fn restart(&mut self) {
        self.signal("TERM");
        self.wait();
        self.child = run(self.dir.path(), &[]);
        self.until_ready();
    }

    fn until_ready(&self) {
        eventually("the agent is ready", || self.admin("/readyz").is_some_and(|answer| answer.status == 200));
    }

    /// Replaces a manifest as editors do.
    pub(crate) fn edit(&self, name: &str, text: &str) {
        write(&self.dir.path().join("conf").join(name), &text.replace("ADDRESS", &self.address.to_string()));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The word that follows the text in the log, once it is there.
    pub(crate) fn logged(&self, text: &str) -> String {
        let mut word = None;
        eventually(text, || {
            let log = self.log();
            let rest = log.split_once(text).map(|(_, rest)| rest);
            word = rest.and_then(|rest| Some(rest.split_whitespace().next()?.to_owned()));
            word.is_some()
        });
        word.unwrap()
    }

    /// Standard output.
    pub(crate) fn access_log(&self) -> String {
        fs::read_to_string(self.dir.path().join("out")).unwrap()
    }

    pub(crate) fn http(&self, host: &str, path: &str) -> Option<Answer> {
        self.http_on(HTTP, host, path)
    }

    pub(crate) fn http_on(&self, port: u16, host: &str, path: &str) -> Option<Answer> {
        let mut stream = TcpStream::connect((self.address, port)).ok()?;
        exchange(&mut stream, host, path)
    }

    /// Trusts exactly the given certificate.
    pub(crate) fn https(
        &self,
        certificate: &CertificateDer<'static>,
        host: &str,
        path: &str,
    ) -> Option<Answer> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect((self.address, HTTPS)).ok()?;
        exchange(&mut StreamOwned::new(connection, stream), host, path)
    }

    pub(crate) fn admin(&self, path: &str) -> Option<Answer> {
        let socket = self.dir.path().join("admin.sock");
        exchange(&mut UnixStream::connect(socket).ok()?, "admin", path)
    }

    /// Asks and keeps the connection, as a scraper does.
    pub(crate) fn scrape(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.dir.path().join("admin.sock")).unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: admin\r\n\r\n").unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        stream
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(arguments).arg("--admin-socket").arg(self.dir.path().join("admin.sock"));
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
    }
}

/// The agent as a process, with what it needs in the directory.
fn run(dir: &Path, options: &[&str]) -> Child {
    let log = fs::File::create(dir.join("log")).unwrap();
    let out = fs::File::create(dir.join("out")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["run", "--datapath", "userspace", "--cores", "2", "--drain-timeout", "10", "--config-dir"])
        .arg(dir.join("conf"))
        .arg("--admin-socket")
        .arg(dir.join("admin.sock"))
        .arg("--pin-dir")
        .arg(dir.join("pins"))
        .arg("--beside-others")
        .args(options)
        .stderr(log)
        .stdout(out)
        .spawn()
        .unwrap()
}

/// A backend that answers every request with its name; `/head` with what it was sent.
pub(crate) fn backend(name: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, name));
        }
    });
    port
}

fn serve(mut stream: TcpStream, name: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            let sent = String::from_utf8_lossy(&head);
            let body = if head.starts_with(b"GET /head ") { &sent } else { name };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            head.clear();
        }
    }
}

/// A backend that answers with these bytes, whatever it is asked, and closes.
pub(crate) fn backend_that_answers(answer: String) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

/// Polls until the condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A loopback address that no other test of any process uses at the same time: a listener on it is
/// the claim.
fn own_address() -> Ipv4Addr {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let last = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Ipv4Addr::new(127, high.max(1), low, last)
}

fn exchange(stream: &mut (impl Read + Write), host: &str, path: &str) -> Option<Answer> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = Vec::new();
    // A TLS peer that closes without close_notify is an error after the whole answer.
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}

fn write(path: &Path, text: &str) {
    let temporary: PathBuf = path.with_extension("tmp");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}
