//! The beginning of a client connection: the port that it came to, room for it at its Gateway, TLS
//! on ports that have it, and the version of HTTP that follows. Serving it is not done here.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use portcullis_model::{Listener, PortListeners, Serves};
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;

use crate::client::connection_limit::{ConnectionLimits, ConnectionPermit};
use crate::client::listener::{ListenerState, Listeners};
use crate::client::stream::Transport;
use crate::client::tls::{UNRECOGNIZED_NAME, normal_name};
use crate::core::snapshot::{SnapshotCell, refusal};
use crate::core::stats::{CoreCounters, ExceededLimit, HandshakeFailure};

/// HTTP/2 with prior knowledge starts so (RFC 9113 section 3.4); no HTTP/1 request can.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Its first line, after which a broken one is an HTTP/2 client's, too: the method is reserved
/// (RFC 9113 section 11.6).
const PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Bytes of TLS records that wait for the socket.
const UNSENT_TLS: usize = 32 << 10;
/// Bytes of the first read of a plain connection: most request heads whole.
const FIRST_READ: usize = 2048;

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

/// A connection to a Gateway that has room for it, before a byte of it is read.
struct Admitted {
    permit: ConnectionPermit,
    first: First,
}

/// The first that a client sends.
enum First {
    Request,
    /// For one of the port's listeners, as they are when it has come.
    ClientHello,
}

pub(crate) struct Negotiated {
    pub transport: Transport,
    /// Bytes of the first request that were read to determine the version.
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
        let Admitted { permit, first } = self.admit(local)?;
        let start = match first {
            First::Request => start_plain(&permit, stream).await?,
            First::ClientHello => {
                let handshake = timeout(permit.limits().tls_handshake_timeout, self.handshake(local, stream));
                let shaken = handshake.await.unwrap_or(Err(HandshakeFailure::Timeout));
                shaken.inspect_err(|failure| self.counters.handshake_failed(*failure)).ok()?
            }
        };
        Some(Connection { peer, local, permit, start })
    }

    /// Lets a connection in, if its port is a Gateway's that has room for it. The address and port
    /// that it came to determine the Gateway whose limits apply, before a byte is read.
    fn admit(&self, local: SocketAddr) -> Option<Admitted> {
        let current = self.snapshot.load();
        let Some(port) = current.port(local) else {
            tracing::debug!(%local, "connection to a port without listener");
            return None;
        };
        let first = match &port.listeners {
            PortListeners::Http(_) => First::Request,
            PortListeners::Tls(_) => First::ClientHello,
            PortListeners::Tcp(listener) | PortListeners::Udp(listener) => {
                tracing::debug!(%local, listener = %listener.id, "connection to a listener that is not served");
                return None;
            }
        };
        Some(Admitted { permit: self.connection_limits.admit(&port.gateway)?, first })
    }

    async fn handshake(&self, local: SocketAddr, stream: TcpStream) -> Result<Negotiated, HandshakeFailure> {
        let accepting = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let start = accepting.await.map_err(protocol_failure)?;
        let name = start.client_hello().server_name().map(normal_name);
        let current = self.snapshot.load();
        let listeners = current.port(local).and_then(|port| port.listeners.by_name());
        let listener = listeners.and_then(|listeners| listeners.for_sni(name.as_deref()));
        let terminates = |listener: &Listener| refusal(listener).is_none() && listener.serves.tls().is_some();
        let served = listener.filter(|listener| terminates(listener)).and_then(|listener| {
            let state = self.listeners.get(listener);
            let config = self.listeners.server_config(&state)?;
            Some((state, config))
        });
        let Some((state, config)) = served else {
            let failure = match listener.map(|listener| &listener.serves) {
                Some(Serves::NoCertificate) => HandshakeFailure::NoCertificate,
                _ => HandshakeFailure::UnknownName,
            };
            tracing::debug!(
                name,
                failure = failure.name(),
                "no listener of the port serves this server name"
            );
            let mut stream = start.io;
            let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
            let _ = stream.shutdown().await;
            return Err(failure);
        };
        let mut stream = start.into_stream(config).await.map_err(protocol_failure)?;
        stream.get_mut().1.set_buffer_limit(Some(UNSENT_TLS));
        state.counters().connections.increment();
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Negotiated {
            transport: Transport::Tls(Box::new(stream)),
            replay: Vec::new(),
            version: if is_http2 { Version::Http2 } else { Version::Http1 },
            tls: Some(state),
        })
    }
}

fn protocol_failure(error: io::Error) -> HandshakeFailure {
    tracing::debug!(%error, "TLS handshake failed");
    HandshakeFailure::Protocol
}

async fn start_plain(permit: &ConnectionPermit, stream: TcpStream) -> Option<Negotiated> {
    let Ok(first) = timeout(permit.limits().header_timeout, first_bytes(&stream)).await else {
        permit.refused(ExceededLimit::HeaderTimeout);
        return None;
    };
    let replay = first.ok()?;
    let version = if replay.starts_with(PREFACE_LINE) { Version::Http2 } else { Version::Http1 };
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
