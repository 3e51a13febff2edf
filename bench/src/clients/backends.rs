//! The backends of all names: a socket for each kind, which answers with the label of the name
//! whose backend has the address that it was reached at. Those of names that are passed through
//! have the certificates.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::world::{Kind, World, label_at};

/// Connections at a time, of each kind.
const THREADS: usize = 32;
const BACKLOG: i32 = 1024;
/// For a client to end a connection that was answered.
const LINGER: Duration = Duration::from_millis(200);
/// The path by which a page reports an answer that it got.
const REPORT: &str = "/report?";
/// The path of the page itself.
pub(super) const PAGE: &str = "/page";

pub(super) struct Backends {
    /// The page that is served.
    page: Arc<Mutex<String>>,
    /// Queries of the reports that pages sent.
    pub(super) reports: Receiver<String>,
}

/// Of one kind's socket.
#[derive(Clone)]
struct Server {
    kind: Kind,
    listener: Arc<TcpListener>,
    tls: Option<Arc<ServerConfig>>,
    page: Arc<Mutex<String>>,
    reports: Sender<String>,
}

impl Backends {
    pub(super) fn start(world: &World) -> Result<Self> {
        let (sender, reports) = channel();
        let page = Arc::<Mutex<String>>::default();
        for kind in Kind::ALL {
            let tls = match kind {
                Kind::Passthrough => Some(server_config(world)?),
                Kind::Terminate | Kind::Https => None,
            };
            let listener = Arc::new(listen(kind.backend_port())?);
            let server = Server { kind, listener, tls, page: page.clone(), reports: sender.clone() };
            for _ in 0..THREADS {
                let server = server.clone();
                thread::spawn(move || {
                    for stream in server.listener.incoming().flatten() {
                        // A client that goes away is counted by the client.
                        let _ = server.serve(stream);
                    }
                });
            }
        }
        Ok(Self { page, reports })
    }

    pub(super) fn set_page(&self, page: String) {
        if let Ok(mut served) = self.page.lock() {
            *served = page;
        }
    }
}

impl Server {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let label = match stream.local_addr()?.ip() {
            IpAddr::V4(address) => label_at(self.kind, address),
            IpAddr::V6(_) => return Ok(()),
        };
        let socket = stream.try_clone()?;
        match &self.tls {
            None => self.answer(stream, &label)?,
            Some(config) => {
                let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, stream);
                self.answer(&mut stream, &label)?;
                stream.conn.send_close_notify();
                stream.flush()?;
            }
        }
        // To close it before the client's end has come would reset it.
        socket.shutdown(Shutdown::Write)?;
        socket.set_read_timeout(Some(LINGER))?;
        io::copy(&mut &socket, &mut io::sink()).map(drop)
    }

    /// To one request.
    fn answer(&self, stream: impl Read + Write, label: &str) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while line.trim_end() != "" {
            line.clear();
            stream.read_line(&mut line)?;
        }
        let page = || self.page.lock().map(|page| page.clone()).unwrap_or_default();
        let (kind, body) = match path.strip_prefix(REPORT) {
            Some(report) => {
                let _ = self.reports.send(report.to_owned());
                ("text/plain", label.to_owned())
            }
            None if path == PAGE => ("text/html", page()),
            None => ("text/plain", label.to_owned()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Access-Control-Allow-Origin: *\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        );
        stream.get_mut().write_all((head + &body).as_bytes())?;
        stream.get_mut().flush()
    }
}

/// At all addresses of loopback, and nowhere else.
fn listen(port: u16) -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(b"lo"))?;
    socket.bind(&SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn server_config(world: &World) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut resolver = ResolvesServerCertUsingSni::new();
    for name in world.names.iter().filter(|name| name.kind == Kind::Passthrough) {
        let chain = CertificateDer::from_pem_slice(name.certificate.chain.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(name.certificate.key.as_bytes())?;
        resolver.add(&name.host, CertifiedKey::from_der(vec![chain], key, &provider)?)?;
    }
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver))))
}
