//! HTTP on a client connection, until either side ends it. Time-outs, and checks where libraries
//! are too lenient, are in [`client`](crate::client).

use std::io;
use std::pin::pin;
use std::rc::Rc;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::client::clients::{Client, Clients};
use crate::client::connection::{Connection, Negotiated, Version};
use crate::client::frame_budget::FrameBudget;
use crate::client::framing::Framing;
use crate::client::stream::{CheckedStream, ProtocolCheck};
use crate::client::write_buffer::{FlushAfterPoll, WriteBuffer};
use crate::core::settings::Http1;
use crate::http::detour;
use crate::http::h1::Unserved;
use crate::http::h2::Http2;
use crate::http::library::{http1_builder, note_unreadable};
use crate::http::service::Service;

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
    let ended = match version {
        Version::Http1 => {
            let (answering, for_service) = (service.clone(), client.clone());
            let answer = move |request| answering.clone().answer(for_service.clone(), request);
            let connection = http1_builder(limits)
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .with_upgrades();
            let ended = client.drive(pin!(connection), |it| it.graceful_shutdown()).await;
            ended.map(|ended| {
                ended.map_err(|error| {
                    note_unreadable(&error, &service);
                    io::Error::other(error)
                })
            })
        }
        Version::Http2 => {
            let streams = clients.streams(streams);
            let write_buffer = WriteBuffer::new(stream);
            registered.set_write_buffer(write_buffer.share());
            let connection = Http2::new(write_buffer.share(), streams, client.clone(), service);
            let connection = FlushAfterPoll::new(connection, write_buffer);
            client.drive(pin!(connection), |it| it.connection().finish()).await
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(client = %peer, %error, "client connection ended");
    }
}
