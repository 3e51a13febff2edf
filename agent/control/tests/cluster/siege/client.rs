//! Clients of good tenants, who ask all the time, over connections that stay open and over new
//! ones; backends that say whose they are; and what a hostile tenant's own clients get.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::client::Resumption;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::deeds::{self, Scene};
use super::node::Node;
use super::platform::{Sites, at};
use super::pod;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Threads on each node that ask, each on behalf of its share of the tenants.
const CLIENTS: usize = 2;
const PAUSE: Duration = Duration::from_millis(2);
/// Datagrams that a client sends until one is answered, and its time-out for each.
const QUESTIONS: usize = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Failures of one client that are kept in full.
const KEPT: usize = 20;

/// Signs the good tenants' certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Trusts that authority alone.
#[derive(Clone)]
pub(super) struct TlsClient(Arc<ClientConfig>);

/// One request, and by whom it has to be answered.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) to: SocketAddr,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) over: Over,
    pub(super) answer: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Tcp,
    Tls,
    /// Any datagram is answered.
    Udp,
}

/// The way to a target that stays open.
enum Way {
    Stream(Connection),
    Datagrams(UdpSocket),
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

type Connection = BufReader<Box<dyn Stream>>;

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// The first of those that failed.
    pub(crate) failures: Vec<String>,
}

pub(super) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Seen>>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "siege");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The body of a Secret with a certificate for a host.
    pub(super) fn secret(&self, host: &str) -> Value {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(host.try_into().unwrap())];
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": chain, "tls.key": key.serialize_pem()}})
    }

    /// For a backend that ends TLS itself.
    pub(super) fn server(&self, hosts: &[String]) -> Arc<ServerConfig> {
        let mut params = CertificateParams::default();
        let names = hosts.iter().map(|host| SanType::DnsName(host.as_str().try_into().unwrap()));
        params.subject_alt_names = names.collect();
        let key = KeyPair::generate().unwrap();
        let chain = vec![params.signed_by(&key, &self.0).unwrap().der().clone()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Arc::new(builder.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap())
    }

    pub(super) fn client(&self) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        TlsClient(Arc::new(config))
    }
}

impl Target {
    /// Over a connection of its own.
    pub(super) fn ask_once(&self, node: Node, sites: &Sites) -> Result<(), String> {
        node.run(|| self.ask(&mut None, sites)).map_err(|failure| format!("{}: {failure}", node.name()))
    }

    /// Over a connection that stays open, unless there was an error.
    fn ask(&self, open: &mut Option<Way>, sites: &Sites) -> Result<(), String> {
        let told =
            |error: io::Error| format!("{:?} {} {} {}: {error}", self.over, self.to, self.host, self.path);
        let mut way = match open.take() {
            Some(way) => way,
            None => self.connect(sites).map_err(told)?,
        };
        let (status, body) = match &mut way {
            Way::Stream(stream) => get(stream, &self.host, &self.path).map_err(told)?,
            Way::Datagrams(socket) => (200, ask_datagram(socket).map_err(told)?),
        };
        *open = Some(way);
        if status != 200 || body.trim() != self.answer {
            let body = body.trim();
            return Err(format!(
                "{:?} {} {} {}: {status} {body:?}",
                self.over, self.to, self.host, self.path
            ));
        }
        Ok(())
    }

    fn connect(&self, sites: &Sites) -> io::Result<Way> {
        match self.over {
            Over::Tcp => Ok(Way::Stream(BufReader::new(Box::new(connect(self.to)?)))),
            Over::Tls => {
                let name = self.host.clone().try_into().map_err(io::Error::other)?;
                let tls = ClientConnection::new(sites.tls.0.clone(), name).map_err(io::Error::other)?;
                let stream = StreamOwned::new(tls, connect(self.to)?);
                Ok(Way::Stream(BufReader::new(Box::new(stream))))
            }
            Over::Udp => {
                let socket = UdpSocket::bind(("0.0.0.0", 0))?;
                socket.connect(self.to)?;
                socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                Ok(Way::Datagrams(socket))
            }
        }
    }
}

/// Datagrams may be lost, and their clients know it.
fn ask_datagram(socket: &UdpSocket) -> io::Result<String> {
    let mut last = io::ErrorKind::TimedOut.into();
    for _ in 0..QUESTIONS {
        socket.send(b"whose")?;
        let mut buffer = [0; 128];
        match socket.recv(&mut buffer) {
            Ok(length) => return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn get(stream: &mut Connection, host: &str, path: &str) -> io::Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes())?;
    stream.get_mut().flush()?;
    let head = head(stream)?.to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let length = field("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("no status line"))?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Up to the empty line.
fn head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

impl Load {
    pub(super) fn start(sites: &Sites, tenants: &[super::good::Tenant]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = Node::ALL.into_iter().flat_map(|node| (0..CLIENTS).map(move |client| (node, client)));
        let clients = clients.map(|(node, client)| {
            let share = tenants.iter().skip(client).step_by(CLIENTS);
            let targets: Vec<_> = share.flat_map(|tenant| tenant.targets(sites)).collect();
            let (stop, sites) = (stop.clone(), sites.clone());
            std::thread::spawn(move || {
                node.enter();
                ask_all(&targets, &sites, &stop)
            })
        });
        Self { clients: clients.collect(), stop }
    }

    pub(super) fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Seen::default();
        for seen in self.clients.into_iter().map(|client| client.join().unwrap()) {
            all.answered += seen.answered;
            all.failed += seen.failed;
            all.failures.extend(seen.failures);
        }
        all
    }
}

/// Every target over its open connection, every tenth time over a new one.
fn ask_all(targets: &[Target], sites: &Sites, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut open: Vec<Option<Way>> = targets.iter().map(|_| None).collect();
    for (at, turn) in (0..targets.len()).cycle().zip(0_usize..) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if turn.is_multiple_of(10) {
            open[at] = None;
        }
        match targets[at].ask(&mut open[at], sites) {
            Ok(()) => seen.answered += 1,
            Err(failure) => {
                seen.failed += 1;
                seen.failures.extend((seen.failures.len() < KEPT).then_some(failure));
            }
        }
        std::thread::sleep(PAUSE);
    }
    seen
}

/// Answers as long as the process runs; returns its port.
pub(super) fn backend(name: String) -> u16 {
    let listener = pod::listener();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let name = name.clone();
            std::thread::spawn(move || answer_all(stream, &name));
        }
    });
    port
}

/// The same over TLS.
pub(super) fn tls_backend(name: String, tls: Arc<ServerConfig>) -> u16 {
    let listener = pod::listener();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (name, tls) = (name.clone(), ServerConnection::new(tls.clone()).unwrap());
            std::thread::spawn(move || answer_all(StreamOwned::new(tls, stream), &name));
        }
    });
    port
}

/// The same to each datagram.
pub(super) fn datagram_backend(name: String) -> u16 {
    let socket = pod::datagrams();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((_, client)) = socket.recv_from(&mut [0; 128]) {
            let _ = socket.send_to(name.as_bytes(), client);
        }
    });
    port
}

fn answer_all(stream: impl Read + Write, name: &str) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
    loop {
        head(&mut stream)?;
        stream.get_mut().write_all(answer.as_bytes())?;
        stream.get_mut().flush()?;
    }
}

/// Answers to requests for routes whose endpoints are no pods, other than that there is no
/// endpoint; and anything that such endpoints say on connections.
pub(super) fn leaks(node: Node, edge: IpAddr, scenes: &[Scene]) -> Vec<String> {
    let mut leaks = Vec::new();
    for scene in scenes {
        for name in deeds::forbidden(node) {
            let host = scene.host(name);
            let answer = connect(at(edge, 80)).and_then(|stream| {
                let stream: Box<dyn Stream> = Box::new(stream);
                get(&mut BufReader::new(stream), &host, "/healthz")
            });
            match answer {
                Ok((500 | 503, _)) => {}
                Ok((status, body)) => leaks.push(format!("{host}: {status} {body:?}")),
                Err(error) => leaks.push(format!("{host}: {error}")),
            }
            let to = at(edge, scene.port_to(name));
            let said = connect(to).and_then(|mut stream| {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n")?;
                stream.read(&mut [0])
            });
            if let Ok(1..) = said {
                leaks.push(format!("{host}: TCP {to} is answered"));
            }
        }
    }
    leaks
}
