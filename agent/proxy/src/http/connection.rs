//! HTTP on a client connection, until either side ends it. The HTTP library parses; time-outs, and
//! checks where it is too lenient, are in [`client`](crate::client).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::Limits;

use crate::client::clients::{Client, Clients};
use crate::client::connection::{Connection, Negotiated, Version};
use crate::client::frame_budget::FrameBudget;
use crate::client::framing::Framing;
use crate::client::stream::{CheckedStream, ProtocolCheck};
use crate::client::write_buffer::{FlushAfterPoll, WriteBuffer};
use crate::core::settings::Http1;
use crate::core::task::LocalExecutor;
use crate::http::detour;
use crate::http::h1::Unserved;
use crate::http::library::{head_bytes, http1_builder, note_unreadable};
use crate::http::service::Service;

/// Bytes that HTTP/2 counts for a field besides its own (RFC 9113 section 6.5.2).
const HTTP2_FIELD: u32 = 32;

/// HTTP/2 flow control: bytes that a client may send before we have passed them on.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER: usize = 64 << 10;
/// Resets a client may have pending, and those it may provoke, before the connection ends
/// (CVE-2023-44487, CVE-2025-8671); those of requests under way are counted in [`FrameBudget`].
const PENDING_RESETS: usize = 20;
const PROVOKED_RESETS: usize = 200;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn serve(connection: Connection, clients: &Rc<Clients>, service: Rc<Service>) {
    let Connection { peer, local, permit, start, charge, terms } = connection;
    let Negotiated { transport, replay, version, tls } = start;
    let client = Rc::new(Client::new((peer, local), tls, permit, version, charge, clients));
    let limits = client.limits();
    let listener = client.tls.as_ref().and_then(|state| state.listener.admission.limits.as_deref());
    let common = terms.as_ref().and_then(|terms| terms.limits.common.as_ref());
    let streams = listener.or(common).and_then(|limits| limits.http2_streams);
    let streams = streams.map_or(limits.http2_streams, |streams| streams.min(limits.http2_streams));
    match (listener, &terms) {
        (Some(limits), _) => client.tighten(limits),
        (None, Some(terms)) if terms.limits.are_there => client.tighten_by_request(common),
        (None, _) => {}
    }
    let registered = clients.register(&client, &service.snapshot.load());
    let mut unserved = Unserved { transport, unread: replay, has_served: false };
    if version == Version::Http1 && service.http1 == Http1::Own {
        match detour::serve(unserved, &client, &service).await {
            Some(left) => unserved = left,
            None => return,
        }
    }
    let framing = if unserved.has_served { Framing::behind_requests() } else { Framing::default() };
    let check = match version {
        Version::Http1 => ProtocolCheck::Http1(framing),
        Version::Http2 => ProtocolCheck::Http2(FrameBudget::default()),
    };
    let Unserved { transport, unread, .. } = unserved;
    let stream = CheckedStream::new(transport, unread, check, client.progress.clone());
    let counting = service.clone();
    let for_service = client.clone();
    let answer = move |request: Request<Incoming>| service.clone().answer(for_service.clone(), request);
    let ended = match version {
        Version::Http1 => {
            let connection = http1_builder(limits)
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .with_upgrades();
            let ended = client.drive(connection, |it| it.graceful_shutdown()).await;
            ended.map(|ended| {
                ended.map_err(|error| {
                    note_unreadable(&error, &counting);
                    io::Error::other(error)
                })
            })
        }
        Version::Http2 => {
            let streams = clients.streams(streams);
            let write_buffer = WriteBuffer::new(stream);
            registered.set_write_buffer(write_buffer.share());
            // Boxed: the library moves the future of each stream ten times.
            let service = service_fn(move |request| Box::pin(answer(request)));
            let connection =
                http2_builder(limits, streams).serve_connection(TokioIo::new(write_buffer.share()), service);
            let connection = FlushAfterPoll::new(connection, write_buffer);
            client.drive(connection, |it| it.connection().graceful_shutdown()).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(client = %peer, %error, "client connection ended");
    }
}

fn http2_builder(limits: &Limits, streams: u32) -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
    builder.max_concurrent_streams(streams).enable_connect_protocol();
    let fields = limits.header_fields * HTTP2_FIELD;
    builder
        .max_header_list_size(u32::try_from(head_bytes(limits)).unwrap_or(u32::MAX).saturating_add(fields));
    builder.max_pending_accept_reset_streams(PENDING_RESETS).max_local_error_reset_streams(PROVOKED_RESETS);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder.max_send_buf_size(SEND_BUFFER);
    builder
}
