//! The beginning of a client connection: which port it came to, whether its Gateway has room for
//! it, TLS if the port speaks it, and which version of HTTP follows. Nothing here knows how it is
//! served then.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{Limits, Port, PortListeners};
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::client::connection_limit::{ConnectionLimits, ConnectionPermit};
use crate::client::listener::{ListenerState, Listeners};
use crate::client::stream::Transport;
use crate::client::tls::UNRECOGNIZED_NAME;
use crate::core::snapshot::{SnapshotCell, unserved};
use crate::core::stats::{CoreCounters, Refusal};

/// HTTP/2 with prior knowledge starts so (RFC 9113 section 3.4); no HTTP/1 request can.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of the first read of a plain connection: most request heads whole.
const FIRST_READ: usize = 2048;

type Handshaken = (TlsStream<TcpStream>, Rc<ListenerState>);

/// Opens the connections of a core.
pub(crate) struct Opener {
    pub snapshot: Rc<SnapshotCell>,
    pub connection_limits: Rc<ConnectionLimits>,
    pub listeners: Rc<Listeners>,
    pub counters: Rc<CoreCounters>,
}

/// A connection on which HTTP is about to begin.
pub(crate) struct Connection {
    pub peer: SocketAddr,
    /// The address and port the client connected to.
    pub local: SocketAddr,
    pub permit: ConnectionPermit,
    pub start: Negotiated,
}

/// The first that a client sends.
enum First {
    Request,
    /// For one of the port's listeners.
    ClientHello(Arc<Port>),
}

pub(crate) struct Negotiated {
    pub transport: Transport,
    /// Bytes of the first request that were read to tell the version.
    pub replay: Vec<u8>,
    pub version: Version,
    /// The listener whose server name was asked for; `None` without TLS.
    pub tls: Option<Rc<ListenerState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

// === impl Opener ===

impl Opener {
    /// `None` if nothing is to be served on the connection, which is closed then.
    pub(crate) async fn open(&self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let local = stream.local_addr().ok()?;
        let _ = stream.set_nodelay(true);
        let (permit, first) = self.enter(local)?;
        let start = match first {
            First::Request => start_plain(&permit, stream).await?,
            First::ClientHello(port) => self.start_tls(&port, permit.limits(), stream).await?,
        };
        Some(Connection { peer, local, permit, start })
    }

    /// Lets a connection in, if its port is a Gateway's that has room for it. The address and port
    /// that it came to say which Gateway's limits hold, before a byte is read.
    fn enter(&self, local: SocketAddr) -> Option<(ConnectionPermit, First)> {
        let current = self.snapshot.load();
        let Some(port) = current.port(local) else {
            tracing::debug!(%local, "connection to a port without listener");
            return None;
        };
        let first = match &port.listeners {
            PortListeners::Http(_) => First::Request,
            PortListeners::Tls(_) => First::ClientHello(port.clone()),
            PortListeners::Tcp(listener) | PortListeners::Udp(listener) => {
                tracing::debug!(%local, listener = %listener.id, "connection to a listener that is not served");
                return None;
            }
        };
        Some((self.connection_limits.admit(&port.gateway)?, first))
    }

    async fn start_tls(&self, port: &Port, limits: &Limits, stream: TcpStream) -> Option<Negotiated> {
        match timeout(limits.tls_handshake_timeout, self.handshake(port, stream)).await {
            Ok(Some((stream, state))) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let version = if http2 { Version::Http2 } else { Version::Http1 };
                let transport = Transport::Tls(Box::new(stream));
                Some(Negotiated { transport, replay: Vec::new(), version, tls: Some(state) })
            }
            Ok(None) => None,
            Err(_) => {
                self.counters.handshake_timeout.increment();
                None
            }
        }
    }

    async fn handshake(&self, port: &Port, stream: TcpStream) -> Option<Handshaken> {
        let start = match LazyConfigAcceptor::new(Acceptor::default(), stream).await {
            Ok(start) => start,
            Err(error) => return self.refused(&error),
        };
        let name = start.client_hello().server_name().map(str::to_ascii_lowercase);
        let listener = port.listeners.by_name().and_then(|listeners| listeners.for_sni(name.as_deref()));
        let Some(listener) = listener.filter(|listener| unserved(listener).is_none()) else {
            self.counters.unknown_name.increment();
            tracing::debug!(name, "no listener of the port has this server name");
            let mut stream = start.io;
            let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
            let _ = stream.shutdown().await;
            return None;
        };
        let state = self.listeners.get(listener);
        let config = self.listeners.server_config(&state)?;
        match start.into_stream(config).await {
            Ok(stream) => {
                state.counters().connections.increment();
                Some((stream, state))
            }
            Err(error) => self.refused(&error),
        }
    }

    fn refused(&self, error: &io::Error) -> Option<Handshaken> {
        self.counters.handshake_protocol.increment();
        tracing::debug!(%error, "TLS handshake failed");
        None
    }
}

async fn start_plain(permit: &ConnectionPermit, stream: TcpStream) -> Option<Negotiated> {
    let Ok(first) = timeout(permit.limits().header_timeout, first_bytes(&stream)).await else {
        permit.refused(Refusal::HeaderTimeout);
        return None;
    };
    let replay = first.ok()?;
    let version = if replay.starts_with(PREFACE) { Version::Http2 } else { Version::Http1 };
    Some(Negotiated { transport: Transport::Plain(stream), replay, version, tls: None })
}

/// Reads until it is clear whether the preface of HTTP/2 is what begins here.
async fn first_bytes(stream: &TcpStream) -> io::Result<Vec<u8>> {
    stream.readable().await?;
    let mut bytes = Vec::with_capacity(FIRST_READ);
    loop {
        match stream.try_read_buf(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if bytes.len() < PREFACE.len() && PREFACE.starts_with(&bytes) => {}
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}
