//! The beginning of a client connection: the port that it came to, room for it at its Gateway, TLS
//! on ports that have it, and what follows: a version of HTTP, or bytes that are forwarded as they
//! are. Serving it is not done here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use portcullis_model::{Access, ClientAddress, L4Rule, Peer, PortListeners, Serves};
use rustls::server::Accepted;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use crate::client::budget::{Bucket, Charged};
use crate::client::client_identity::ClientIdentity;
use crate::client::connection_limit::{ConnectionLimits, ConnectionPermit};
use crate::client::hello::{Hello, Refused, read_hello};
use crate::client::listener::{ListenerState, Listeners, PortTerms, Refusal};
use crate::client::open_limit::OpenCount;
use crate::client::proxy_header;
use crate::client::stream::Transport;
use crate::client::tls::{UNRECOGNIZED_NAME, normal_name};
use crate::client::turns::{HandshakeTurns, MOST_WAITING};
use crate::core::moment::Moment;
use crate::core::snapshot::SnapshotCell;
use crate::core::stats::{CoreCounters, ExceededLimit, HandshakeFailure, NotAdmitted};

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
    pub turns: Rc<HandshakeTurns>,
}

/// A connection, by what follows on it.
pub(crate) enum Opened {
    Http(Box<Connection>),
    L4(Box<L4Connection>),
}

/// A connection on which HTTP is about to begin.
pub(crate) struct Connection {
    pub peer: SocketAddr,
    /// The address and port the client connected to.
    pub local: SocketAddr,
    pub permit: ConnectionPermit,
    pub start: Negotiated,
    pub charge: Charge,
    /// Without TLS, the terms of the port, as the listener is not known.
    pub terms: Option<Rc<PortTerms>>,
}

/// The time at which a connection is taken from the budgets of listeners.
pub(crate) enum Charge {
    /// It has been: from those of the only listener that it can be for.
    Before,
    /// With its first request to each of them, from those that it has not been taken from.
    ByListener(Charged),
}

/// A connection whose bytes are about to be forwarded as they are.
pub(crate) struct L4Connection {
    pub peer: SocketAddr,
    /// The same, unless a proxy said whose connection it is.
    pub socket_peer: SocketAddr,
    /// The address and port the client connected to.
    pub local: SocketAddr,
    pub permit: ConnectionPermit,
    pub stream: L4Stream,
}

/// A connection of a listener that forwards bytes as they are.
pub(crate) struct L4Stream {
    pub transport: Transport,
    /// Bytes that were read to find the rule: the backend gets them first.
    pub replay: Vec<u8>,
    /// Of its ClientHello.
    pub server_name: Option<Box<str>>,
    pub listener: Rc<ListenerState>,
    /// `None` if the listener has no rule for the server name. TLS has not begun then.
    pub rule: Option<Arc<L4Rule>>,
}

/// A connection to a Gateway that has room for it, before a byte of it is read.
struct Admitted {
    permit: ConnectionPermit,
    first: First,
    charge: Charge,
    terms: Option<Rc<PortTerms>>,
}

/// The end of a connection that nothing is served on.
enum End {
    InOrder,
    /// In order it would look like a server that had nothing to say; and it is cheaper.
    Reset,
    /// It goes on when it is known for which client it is.
    Unnamed,
}

/// The first that a client sends.
enum First {
    Request,
    /// For one of the port's listeners, as they are when it has come.
    ClientHello,
    /// Anything, or nothing before the backend has said something.
    Bytes(Rc<ListenerState>, Arc<L4Rule>),
}

/// The service of a TLS connection.
enum Start {
    Http(Negotiated),
    L4(L4Stream),
}

pub(crate) struct Negotiated {
    pub transport: Transport,
    /// Bytes of the first request that were read to determine the version.
    pub replay: Vec<u8>,
    pub version: Version,
    pub tls: ClientTls,
}

/// The client's side of TLS. All of it is empty without.
#[derive(Default)]
pub(crate) struct ClientTls {
    /// The one whose server name was asked for.
    pub listener: Option<Rc<ListenerState>>,
    /// `None` unless backends are to learn it.
    pub identity: Option<Box<ClientIdentity>>,
    /// Of the ClientHello.
    pub server_name: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

// === impl Opener ===

impl Opener {
    /// `None` if nothing is to be served on the connection, which is closed then.
    pub(crate) async fn open(&self, stream: TcpStream, peer: SocketAddr) -> Option<Opened> {
        let local = stream.local_addr().ok()?;
        let (socket_peer, mut peer) = (peer, peer);
        let mut admitted = self.admit(local, peer.ip(), None);
        if let Err(End::Unnamed) = admitted {
            // Boxed: few ports have proxies in front that speak of their clients.
            let named = Box::pin(self.name_client(&stream, peer, local)).await;
            admitted = named.ok_or(End::Reset).and_then(|(client, permit)| {
                peer = client;
                self.admit(local, client.ip(), Some(permit))
            });
        }
        let Admitted { permit, first, charge, terms } = match admitted {
            Ok(admitted) => admitted,
            Err(End::InOrder) => return None,
            Err(End::Reset | End::Unnamed) => {
                reset_on_close(&stream);
                return None;
            }
        };
        let start = match first {
            First::Request => Start::Http(start_plain(&permit, terms.as_deref(), stream).await?),
            First::ClientHello => {
                let handshake = self.handshake(local, peer.ip(), &permit, stream);
                let handshake = timeout(permit.limits().tls_handshake_timeout, handshake);
                let shaken = handshake.await.unwrap_or(Err(HandshakeFailure::Timeout));
                shaken.inspect_err(|failure| self.counters.handshake_failed(*failure)).ok()?
            }
            First::Bytes(listener, rule) => Start::L4(L4Stream {
                transport: Transport::Plain(stream),
                replay: Vec::new(),
                server_name: None,
                listener,
                rule: Some(rule),
            }),
        };
        Some(match start {
            Start::Http(start) => {
                Opened::Http(Box::new(Connection { peer, local, permit, start, charge, terms }))
            }
            Start::L4(stream) => {
                Opened::L4(Box::new(L4Connection { peer, socket_peer, local, permit, stream }))
            }
        })
    }

    /// Lets a connection in, if its port is a Gateway's that has room for it, and the terms of
    /// the port permit it. The address and port that it came to
    /// determine the Gateway whose limits apply, before a byte is read. With a permit, it is a
    /// connection that has one, and whose client is known.
    fn admit(
        &self,
        local: SocketAddr,
        client: IpAddr,
        permit: Option<ConnectionPermit>,
    ) -> Result<Admitted, End> {
        let current = self.snapshot.load();
        let Some(port) = current.port(local) else {
            tracing::debug!(%local, "connection to a port without listener");
            return Err(End::InOrder);
        };
        if port.client_address != ClientAddress::OfPeer && permit.is_none() {
            return Err(End::Unnamed);
        }
        let full = if port.listeners.by_name().is_none() { End::Reset } else { End::InOrder };
        let first = match &port.listeners {
            PortListeners::Http(_) => First::Request,
            PortListeners::Tls(_) => First::ClientHello,
            PortListeners::Tcp(listener) | PortListeners::Udp(listener) => match &listener.serves {
                Serves::Tcp(rule) => First::Bytes(self.listeners.get(listener), rule.clone()),
                _ => return Err(End::Reset),
            },
        };
        let permit = match permit {
            Some(permit) => permit,
            None => self.connection_limits.admit(&port.gateway).ok_or(full)?,
        };
        if let First::Bytes(listener, _) = &first {
            listener.admit(client).map_err(|_| End::Reset)?;
            listener.occupy(&permit.places, client).map_err(|_| End::Reset)?;
            return Ok(Admitted { permit, first, charge: Charge::Before, terms: None });
        }
        let terms = self.listeners.terms(port);
        let access = terms.clients.as_ref().map(|ranges| ranges.access(&client.to_canonical()));
        if access == Some(Access::Denied) {
            let why = format_args!("the addresses that their ListenerPolicies permit");
            terms.keep_out(&permit, (client, local), NotAdmitted::Address, why);
            return Err(End::Reset);
        }
        let (charge, terms) = match first {
            First::Request => {
                let mut charged = Charged::default();
                if let Err(Bucket { owner, .. }) = charged.charge(&terms.budgets) {
                    let why = format_args!("the connections a second of the ListenerPolicy on {owner}");
                    terms.keep_out(&permit, (client, local), NotAdmitted::Connections, why);
                    return Err(End::Reset);
                }
                if let Err(OpenCount { owner, .. }) = permit.places.take(&terms.open) {
                    let why = format_args!("the connections that the ListenerPolicy on {owner} lets be open");
                    terms.keep_out(&permit, (client, local), NotAdmitted::Connections, why);
                    return Err(End::Reset);
                }
                (Charge::ByListener(charged), Some(terms))
            }
            First::ClientHello | First::Bytes(..) => (Charge::Before, None),
        };
        Ok(Admitted { permit, first, charge, terms })
    }

    /// The client that a connection is for, on a port where its proxies say so, and its place at
    /// the Gateway. `None`: it is for no client that can be let in.
    async fn name_client(
        &self,
        stream: &TcpStream,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Option<(SocketAddr, ConnectionPermit)> {
        let port = self.snapshot.load().port(local).cloned()?;
        let permit = self.connection_limits.admit(&port.gateway)?;
        let terms = self.listeners.terms(&port);
        let keep_out = |reason, why| terms.keep_out(&permit, (peer.ip(), local), reason, why);
        let proxies = match &port.client_address {
            ClientAddress::OfPeer => return Some((peer, permit)),
            ClientAddress::OfProxies(proxies) => proxies,
            ClientAddress::Disputed => {
                let why = format_args!("ListenerPolicies, which do not agree about its proxyProtocol");
                keep_out(NotAdmitted::ProxyHeader, why);
                return None;
            }
        };
        match proxies.peer(&peer.ip().to_canonical()) {
            Peer::Proxy => {}
            Peer::Client => return Some((peer, permit)),
            Peer::Refused => {
                let why =
                    format_args!("the proxyProtocol of a ListenerPolicy: the client is none of its proxies");
                keep_out(NotAdmitted::Address, why);
                return None;
            }
        }
        match timeout(terms.header_timeout(permit.limits()), proxy_header::read(stream)).await {
            Ok(Ok(client)) => Some((client.unwrap_or(peer), permit)),
            Ok(Err(error)) => {
                let why =
                    format_args!("the proxyProtocol of a ListenerPolicy: a proxy sent no header, or {error}");
                keep_out(NotAdmitted::ProxyHeader, why);
                None
            }
            Err(_) => {
                permit.refused(ExceededLimit::HeaderTimeout);
                None
            }
        }
    }

    async fn handshake(
        &self,
        local: SocketAddr,
        client: IpAddr,
        permit: &ConnectionPermit,
        mut stream: TcpStream,
    ) -> Result<Start, HandshakeFailure> {
        let Hello { server_name, answer, bytes } = read_hello(&mut stream).await.map_err(hello_failure)?;
        let name = server_name.as_deref().map(normal_name);
        let current = self.snapshot.load();
        let listeners = current.port(local).and_then(|port| port.listeners.by_name());
        let listener = listeners.and_then(|listeners| listeners.for_sni(name.as_deref()));
        let Some(listener) = listener.filter(|listener| listener.serves != Serves::NoCertificate) else {
            let failure = match listener {
                Some(_) => HandshakeFailure::NoCertificate,
                None => HandshakeFailure::UnknownName,
            };
            let reason = failure.name();
            tracing::debug!(name, reason, "no listener of the port serves this server name");
            let port = current.port(local).cloned();
            drop(current);
            match port.map(|port| self.listeners.refusal(&port)) {
                Some(Refusal::Reset) => reset_on_close(&stream),
                Some(Refusal::Alert) | None => {
                    let _ = stream.write_all(&UNRECOGNIZED_NAME).await;
                    let _ = stream.shutdown().await;
                }
            }
            return Err(failure);
        };
        let state = self.listeners.get(listener);
        if state.admit(client).is_err() || state.occupy(&permit.places, client).is_err() {
            reset_on_close(&stream);
            return Err(HandshakeFailure::NotAdmitted);
        }
        let (rule, replay, transport) = match &listener.serves {
            Serves::TlsPassthrough(rules) => {
                (rules.for_sni(name.as_deref()).cloned(), bytes, Transport::Plain(stream))
            }
            Serves::TlsTerminated { rules, .. } => {
                let rule = rules.for_sni(name.as_deref()).cloned();
                drop(bytes);
                let transport = match &rule {
                    Some(_) => {
                        Transport::Tls(Box::new(self.terminate(&state, client, answer, stream).await?))
                    }
                    None => Transport::Plain(stream),
                };
                (rule, Vec::new(), transport)
            }
            Serves::Http(_)
            | Serves::Https { .. }
            | Serves::Tcp(_)
            | Serves::Udp(_)
            | Serves::NoCertificate => {
                drop(bytes);
                let stream = self.terminate(&state, client, answer, stream).await?;
                let session = stream.get_ref().1;
                let is_http2 = session.alpn_protocol() == Some(b"h2");
                let identity = listener.serves.tls().and_then(|tls| ClientIdentity::of(tls, session));
                return Ok(Start::Http(Negotiated {
                    transport: Transport::Tls(Box::new(stream)),
                    replay: Vec::new(),
                    version: if is_http2 { Version::Http2 } else { Version::Http1 },
                    tls: ClientTls {
                        listener: Some(state),
                        identity,
                        server_name: name.map(String::into_boxed_str),
                    },
                }));
            }
        };
        let server_name = name.map(String::into_boxed_str);
        Ok(Start::L4(L4Stream { transport, replay, server_name, listener: state, rule }))
    }

    async fn terminate(
        &self,
        listener: &ListenerState,
        client: IpAddr,
        answer: Result<Accepted, Refused>,
        mut stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, HandshakeFailure> {
        let accepted = match answer {
            Ok(accepted) => accepted,
            Err(refused) => return Err(protocol_failure(refused.send(&mut stream).await)),
        };
        let config = self.listeners.server_config(listener).ok_or(HandshakeFailure::NoCertificate)?;
        let asked = Moment::now();
        let Ok(turn) = self.turns.take(listener.handshakes()).await else {
            let why = format_args!("{MOST_WAITING} handshakes that wait for their turn on this core");
            listener.keep_out(NotAdmitted::Handshakes, client, why);
            reset_on_close(&stream);
            return Err(HandshakeFailure::NotAdmitted);
        };
        // The library computes its answer to the hello right here, and in the first poll.
        let handshake = StartHandshake::from_parts(accepted, stream).into_stream(config);
        let mut handshake = std::pin::pin!(handshake);
        let begun = std::future::poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
        drop(turn);
        let shaken = match begun {
            Poll::Ready(shaken) => shaken,
            Poll::Pending => handshake.await,
        };
        let mut stream = shaken.map_err(protocol_failure)?;
        stream.get_mut().1.set_buffer_limit(Some(UNSENT_TLS));
        listener.counters().connections.increment();
        if let Some(durations) = listener.durations() {
            durations.shaken_hands(asked);
        }
        Ok(stream)
    }
}

/// The client learns at once that there is nothing, and no state of the connection stays.
fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

fn hello_failure(error: io::Error) -> HandshakeFailure {
    match error.kind() {
        // A probe of the port by a load balancer, for instance, ends it without a byte.
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => HandshakeFailure::Reset,
        _ => protocol_failure(error),
    }
}

fn protocol_failure(error: io::Error) -> HandshakeFailure {
    tracing::debug!(%error, "TLS handshake failed");
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            HandshakeFailure::ClientCertificate
        }
        _ => HandshakeFailure::Protocol,
    }
}

async fn start_plain(
    permit: &ConnectionPermit,
    terms: Option<&PortTerms>,
    mut stream: TcpStream,
) -> Option<Negotiated> {
    let limits = permit.limits();
    let time = terms.map_or(limits.header_timeout, |terms| terms.header_timeout(limits));
    let Ok(first) = timeout(time, first_bytes(&mut stream)).await else {
        permit.refused(ExceededLimit::HeaderTimeout);
        return None;
    };
    let replay = first.ok()?;
    let version = if replay.starts_with(PREFACE_LINE) { Version::Http2 } else { Version::Http1 };
    Some(Negotiated { transport: Transport::Plain(stream), replay, version, tls: ClientTls::default() })
}

/// Reads until it is clear whether the preface of HTTP/2 is what begins here.
async fn first_bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.readable().await?;
    let mut bytes = Vec::with_capacity(FIRST_READ);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if bytes.len() >= PREFACE.len() || !PREFACE.starts_with(&bytes) {
            return Ok(bytes);
        }
    }
}
