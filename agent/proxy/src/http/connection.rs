//! HTTP on a client connection, until either side ends it. The HTTP library parses; time-outs, and
//! checks where it is too lenient, are in [`client`](crate::client).

use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use portcullis_model::Limits;

use crate::client::clients::{Client, Clients};
use crate::client::connection::{Connection, Negotiated, Version};
use crate::client::frame_budget::FrameBudget;
use crate::client::framing::Framing;
use crate::client::stream::{CheckedStream, ProtocolCheck};
use crate::client::write_buffer::{FlushAfterPoll, WriteBuffer};
use crate::core::reason::Reason;
use crate::core::settings::Http1;
use crate::core::task::LocalExecutor;
use crate::http::h1;
use crate::http::service::Service;

/// The HTTP library takes no smaller limit for a head; what is left of it is ours to enforce.
const SMALLEST_BUFFER: usize = 8 << 10;

/// Fields that the HTTP library takes unless it is told a number, which costs two lists of so many
/// for each request.
const USUAL_FIELDS: u32 = 100;

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
    let (mut transport, mut replay, mut framing) = (transport, replay, Framing::default());
    if version == Version::Http1 && service.http1 == Http1::Own {
        let served = h1::serve(transport, replay, client.progress.clone(), &client, &service);
        let Some(Some(left)) = client.drive(served, |_| {}).await else { return };
        (transport, replay) = (left.transport, left.unread);
        if left.has_served {
            framing = Framing::behind_requests();
        }
    }
    let check = match version {
        Version::Http1 => ProtocolCheck::Http1(framing),
        Version::Http2 => ProtocolCheck::Http2(FrameBudget::default()),
    };
    let stream = CheckedStream::new(transport, replay, check, client.progress.clone());
    let counters = service.router.counters.clone();
    let for_service = client.clone();
    let service =
        service_fn(move |request: Request<Incoming>| service.clone().answer(for_service.clone(), request));
    let ended = match version {
        Version::Http1 => {
            let connection =
                http1_builder(limits).serve_connection(TokioIo::new(stream), service).with_upgrades();
            let ended = client.drive(connection, |it| it.graceful_shutdown()).await;
            ended.map(|ended| {
                ended.map_err(|error| {
                    // It answered by itself, and never called the service.
                    unreadable(&error).into_iter().for_each(|reason| counters.answered(reason));
                    io::Error::other(error)
                })
            })
        }
        Version::Http2 => {
            let streams = clients.streams(streams);
            let write_buffer = WriteBuffer::new(stream);
            registered.set_write_buffer(write_buffer.share());
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

/// The reason why the HTTP library refused a request, if that is what ended the connection.
fn unreadable(error: &hyper::Error) -> Option<Reason> {
    match (error.is_parse_too_large(), error.is_parse()) {
        (true, _) => Some(Reason::FieldsTooLarge),
        (false, true) => Some(Reason::Malformed),
        (false, false) => None,
    }
}

/// Without the library's time-outs: [`Clients`] has them.
fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).half_close(false);
    builder.max_buf_size(head_bytes(limits).max(SMALLEST_BUFFER));
    if limits.header_fields != USUAL_FIELDS {
        builder.max_headers(limits.header_fields as usize);
    }
    builder
}

/// Bytes that the HTTP library may take in before we look at target and fields on their own.
fn head_bytes(limits: &Limits) -> usize {
    limits.target_bytes as usize + limits.header_bytes as usize
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
