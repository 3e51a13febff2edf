//! New connections to an endpoint: who makes one, in which protocol, and which others wait for it.

use std::io;
use std::time::Duration;

use portcullis_model::BackendProtocol;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::core::stats::CoreCounters;
use crate::upstream::dial::Dial;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::endpoint::by_client::Clients;
use crate::upstream::endpoint::connection::Kind;
use crate::upstream::http1::Http1;
use crate::upstream::http2::{Multiplexed, Stream};
use crate::upstream::stream::BackendStream;
use crate::upstream::tls::{Offer, Security};

/// Probes that a peer may leave unanswered until it counts as vanished.
const PROBES: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Unknown,
    Http1,
    Http2,
}

/// The requests that a new connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    All,
    /// One with fields so large that backends may end the connection for it.
    One,
}

impl Endpoint {
    /// A new connection for a request.
    pub(super) async fn connect(
        &self,
        counters: &CoreCounters,
        offer: Offer,
        sharing: Sharing,
    ) -> io::Result<Kind> {
        match self.protocol {
            BackendProtocol::Negotiated if offer == Offer::Requests => {
                self.negotiate(counters, sharing).await
            }
            BackendProtocol::Http1 | BackendProtocol::Negotiated => {
                Ok(Kind::Http1(Http1::new(self.dial(counters, offer).await?)))
            }
            BackendProtocol::H2c => self.connect_shared(counters, sharing).await.map(Kind::Http2),
        }
    }

    /// Requests that waited for a connection share its fate, so that none waits for a second one to
    /// fail.
    async fn connect_shared(&self, counters: &CoreCounters, sharing: Sharing) -> io::Result<Stream> {
        if sharing == Sharing::One {
            return self.share(self.dial(counters, Offer::Requests).await?, sharing).await;
        }
        let before = self.failures.get().0;
        let _only = self.connecting.lock().await;
        match self.made_meanwhile(before)? {
            Some(stream) => Ok(stream),
            None => self.share(self.dial(counters, Offer::Requests).await?, sharing).await,
        }
    }

    /// The same where the endpoint chooses: unless it chose HTTP/1 lately, requests wait for its
    /// choice rather than to make a connection each.
    async fn negotiate(&self, counters: &CoreCounters, sharing: Sharing) -> io::Result<Kind> {
        let before = self.failures.get().0;
        let mut only = None;
        if self.choice.get() != Choice::Http1 && sharing == Sharing::All {
            only = Some(self.connecting.lock().await);
            if let Some(stream) = self.made_meanwhile(before)? {
                return Ok(Kind::Http2(stream));
            }
        }
        // The one before may have found out.
        let _only = only.filter(|_| self.choice.get() != Choice::Http1);
        let stream = self.dial(counters, Offer::Requests).await?;
        if stream.is_http2() {
            self.choice.set(Choice::Http2);
            self.share(stream, sharing).await.map(Kind::Http2)
        } else {
            self.choice.set(Choice::Http1);
            Ok(Kind::Http1(Http1::new(stream)))
        }
    }

    /// A place on a connection that another request made, or that one's failure.
    fn made_meanwhile(&self, failures_before: u32) -> io::Result<Option<Stream>> {
        if let Some(stream) = self.stream() {
            return Ok(Some(stream));
        }
        let (failures, why) = self.failures.get();
        if failures == failures_before { Ok(None) } else { Err(why.into()) }
    }

    async fn share(&self, stream: BackendStream, sharing: Sharing) -> io::Result<Stream> {
        // By default the kernel waits a quarter of an hour for acknowledgements before it gives a
        // peer up. PING frames are no way: gRPC servers close a connection whose client sends them
        // more often than every five minutes.
        SockRef::from(stream.socket()).set_tcp_user_timeout(Some(self.settings.vanished))?;
        let connection = Multiplexed::open(stream, &self.settings).await?;
        let place = connection.stream().ok_or(io::ErrorKind::ConnectionReset)?;
        if sharing == Sharing::All {
            self.shared.borrow_mut().push(connection);
        }
        Ok(place)
    }

    async fn dial(&self, counters: &CoreCounters, offer: Offer) -> io::Result<BackendStream> {
        self.may_send()?;
        let mut socket = self.finish_dial(self.begin_dial(counters)?).await?;
        match &self.clients {
            Clients::Any => {}
            Clients::One(client) => announce(&mut socket, &client.header).await?,
            // It would be for no client.
            Clients::Each(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
        self.secure(socket, offer).await
    }

    pub(super) fn may_send(&self) -> io::Result<()> {
        match self.security {
            Security::Plain | Security::Tls(_) => Ok(()),
            Security::Refused => {
                let why = "it cannot be spoken to in TLS as it has to be, and nothing is sent without";
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
        }
    }

    pub(super) async fn secure(&self, socket: TcpStream, offer: Offer) -> io::Result<BackendStream> {
        match &self.security {
            Security::Plain => Ok(BackendStream::Plain(socket)),
            // Boxed: connections in plaintext would have room for the handshake, too.
            Security::Tls(tls) => {
                Ok(BackendStream::Tls(Box::new(Box::pin(tls.connect(socket, offer)).await?)))
            }
            Security::Refused => self.may_send().and(Err(io::ErrorKind::InvalidData.into())),
        }
    }

    pub(super) fn begin_dial(&self, counters: &CoreCounters) -> io::Result<Dial> {
        counters.connects.increment();
        Dial::begin(self.address)
    }

    /// Probes detect a peer that vanished while nothing is sent, as in a tunnel or a long poll.
    pub(super) async fn finish_dial(&self, dial: Dial) -> io::Result<TcpStream> {
        let stream = dial.finish().await?;
        stream.set_nodelay(true)?;
        let pause = (self.settings.vanished / (PROBES + 1)).max(Duration::from_secs(1));
        let probing = TcpKeepalive::new().with_time(pause).with_interval(pause).with_retries(PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&probing)?;
        self.set_failed(None);
        Ok(stream)
    }
}

/// Has a connection begin with the header. The socket's buffer is empty, and takes all of it.
pub(super) async fn announce(socket: &mut TcpStream, header: &[u8]) -> io::Result<()> {
    socket.write_all(header).await
}
