//! A connection whose bytes are forwarded as they are, from the choice of its backend to its line
//! in the access log. A connection without backend is reset: its client is to know that this is no
//! answer of a server that had nothing to say.

use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use jiff::Timestamp;
use portcullis_model::{L4Protocol, L4Rule, ListenerId};

use crate::client::connection::{L4Connection, L4Stream};
use crate::client::stream::Transport;
use crate::core::ending::Ending;
use crate::core::pipe::Pipes;
use crate::core::snapshot::SnapshotCell;
use crate::l4::copy::{self, Scratch};
use crate::l4::side::reset_on_close;
use crate::l4::splice;
use crate::l4::streams::{Stream, Streams};
use crate::l4::target::{log_refusal, refusal, target};
use crate::log::access_log::AccessLog;
use crate::log::flow::{Flow, Totals};
use crate::log::record::Destination;
use crate::upstream::dedicated::connect;
use crate::upstream::endpoint::{Channel, Dedicated};
use crate::upstream::hops::{Hops, Looped, Passed};
use crate::upstream::pool::Pools;
use crate::upstream::proxy_header::Ends;
use crate::upstream::stream::BackendStream;

/// Forwards the connections of a core.
pub(crate) struct StreamForwarder {
    pools: Rc<Pools>,
    snapshot: Rc<SnapshotCell>,
    streams: Rc<Streams>,
    access_log: Rc<AccessLog>,
    hops: Hops,
    pipes: Rc<Pipes>,
    scratch: Scratch,
}

/// A backend's connection, which is reset unless both sides came to their end.
struct BackendConnection {
    dedicated: Dedicated,
    ending: Option<Ending>,
}

/// The client's connection, the listener, and how many of those the connection has passed.
struct Origin<'r> {
    client: Ends,
    listener: &'r ListenerId,
    passed: Result<Passed, Looped>,
}

// === impl StreamForwarder ===

impl StreamForwarder {
    pub(crate) fn new(
        pools: Rc<Pools>,
        snapshot: Rc<SnapshotCell>,
        streams: Rc<Streams>,
        access_log: Rc<AccessLog>,
        hops: Hops,
        pipes: Rc<Pipes>,
    ) -> Self {
        let scratch = Scratch::default();
        Self { pools, snapshot, streams, access_log, hops, pipes, scratch }
    }

    pub(crate) async fn serve(&self, connection: L4Connection) {
        let (at, begun) = (Timestamp::now(), Instant::now());
        let L4Connection { peer, socket_peer, local, permit, stream } = connection;
        let L4Stream { mut transport, replay, server_name, listener, rule } = stream;
        let current = self.snapshot.load();
        let registered = self.streams.register(peer, local, listener.clone(), &current);
        drop(current);
        let id = rule.as_deref().and_then(|rule| rule.id.as_ref());
        let mut destination = Destination { rule: id, ..Default::default() };
        let passed = self.hops.passed(L4Protocol::Tcp, socket_peer, local.ip());
        let forwarding = self.forward(
            &mut transport,
            replay,
            rule.as_deref(),
            Origin { client: Ends { client: peer, local }, listener: &listener.listener.id, passed },
            &registered.stream,
            &mut destination,
        );
        let driven = registered.stream.drive(pin!(forwarding)).await;
        let ending = driven.unwrap_or_else(|order| order);
        if ending != Ending::Closed {
            reset_on_close(transport.socket());
        }
        listener.counters().forwarded.ended(ending);
        let current = self.snapshot.load();
        let log = current.port(local).map_or_else(|| permit.access_log(), |port| port.gateway.access_log);
        if let Some(log) = listener.listener.admission.access_log(log) {
            let flow = Flow {
                at,
                gateway: permit.gateway(),
                listener: &listener.listener.id,
                client: peer,
                protocol: listener.listener.serves.protocol(),
                server_name: server_name.as_deref(),
                destination,
            };
            let progress = &registered.stream.progress;
            let totals = Totals {
                received: progress.received(),
                sent: progress.sent(),
                duration: begun.elapsed(),
                ending,
            };
            flow.log(log, &totals, &self.access_log);
        }
    }

    async fn forward<'r>(
        &self,
        transport: &mut Transport,
        replay: Vec<u8>,
        rule: Option<&'r L4Rule>,
        origin: Origin<'_>,
        stream: &Stream,
        destination: &mut Destination<'r>,
    ) -> Ending {
        let Some(rule) = rule else { return Ending::NoRoute };
        let backend = match target(rule) {
            Ok(backend) => backend,
            Err(why) => {
                log_refusal(rule, &why);
                return refusal(rule);
            }
        };
        destination.backend = Some(backend);
        let Ok(passed) = origin.passed else { return Ending::Looped };
        let (pools, channel) = match transport {
            Transport::Plain(_) => (self.pools.clone(), Channel::AsItCame),
            Transport::Tls(_) => (self.pools.serving(Some(origin.listener)), Channel::Secured),
        };
        let dedicated = match connect(&pools, backend, origin.client, &self.hops, passed, channel).await {
            Ok(dedicated) => dedicated,
            Err(error) => {
                log_refusal(rule, &error);
                destination.endpoint = error.endpoint();
                return error.ending();
            }
        };
        destination.endpoint = Some(dedicated.endpoint);
        let mut backend = BackendConnection { dedicated, ending: None };
        let (to, progress) = (&mut backend.dedicated.stream, &stream.progress);
        let joined = match (transport, to) {
            (Transport::Plain(client), BackendStream::Plain(socket)) => {
                splice::join(client, socket, replay, &self.pipes, &self.scratch, progress).await
            }
            // What came as it is goes as it came.
            (Transport::Plain(_), BackendStream::Tls(_)) => return Ending::BackendTls,
            (Transport::Tls(client), to) => copy::join(client, to, &self.scratch, progress).await,
        };
        let ending = joined.map_or_else(
            |broken| {
                tracing::debug!(side = ?broken.side, error = %broken.error, "connection broken");
                broken.ending()
            },
            |()| Ending::Closed,
        );
        backend.ending = Some(ending);
        ending
    }
}

// === impl BackendConnection ===

impl Drop for BackendConnection {
    fn drop(&mut self) {
        if self.ending != Some(Ending::Closed) {
            reset_on_close(self.dedicated.stream.socket());
        }
    }
}
