//! A connection that is checked out for one request, and what becomes of that.

use std::net::SocketAddr;

use http::Response;
use http::uri::Scheme;

use crate::upstream::endpoint::in_flight::InFlight;
use crate::upstream::endpoint::response_body::{ResponseBody, Source};
use crate::upstream::endpoint::{Processed, SendFailure};
use crate::upstream::http1::{Http1, Unanswered};
use crate::upstream::http2::{self, HeadSize, Http2Error, Stream};
use crate::upstream::request::{Outgoing, Resend, Upload};

/// A connection checked out for one request.
pub(crate) struct Connection {
    pub(super) kind: Kind,
    pub(super) in_flight: InFlight,
    pub reused: bool,
    /// Of the request's head, unless the endpoint speaks HTTP/1 alone.
    pub(super) head: Option<HeadSize>,
}

pub(super) enum Kind {
    Http1(Http1),
    Http2(Stream),
}

// === impl Connection ===

impl Connection {
    pub(crate) fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.kind, Kind::Http2(_))
    }

    /// Of the URLs that the backend is asked for.
    pub(crate) fn scheme(&self) -> Scheme {
        self.in_flight.endpoint().scheme()
    }

    pub(crate) async fn send(
        self,
        mut outgoing: Box<Outgoing>,
    ) -> Result<Response<ResponseBody>, SendFailure> {
        let Self { kind, in_flight, reused, head } = self;
        let sent = match kind {
            Kind::Http1(connection) => {
                let is_repeatable = reused && matches!(outgoing.upload, Upload::Empty);
                let endpoint = in_flight.endpoint();
                let longest_stall = (!outgoing.may_stall).then_some(endpoint.settings.stalled);
                let sent = connection.send(&mut outgoing, endpoint.head_limits(), longest_stall).await;
                sent.map(|response| response.map(|body| Source::Http1(Box::new(body)))).map_err(|failure| {
                    let Unanswered { error, sent, received } = failure;
                    let is_safe = sent == 0 || outgoing.parts.method.is_idempotent();
                    let again = (is_repeatable && received == 0 && is_safe).then_some(outgoing);
                    let processed = if sent == 0 { Processed::No } else { Processed::Perhaps };
                    SendFailure { error: error.into(), processed, again }
                })
            }
            Kind::Http2(place) => {
                let resend = if reused { Resend::of(&outgoing) } else { None };
                let head = head.unwrap_or_else(|| HeadSize::of(&outgoing.parts));
                // Boxed: the future of every request, to HTTP/1 backends, too, would have
                // room for it as long as its response lasts.
                let sent = Box::pin(place.send(outgoing, head)).await;
                sent.map_err(|http2::Unanswered { error, unsent }| {
                    let is_unseen = match &error {
                        Http2Error::Library(error) | Http2Error::Large(error) => {
                            error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
                        }
                        Http2Error::NoTunnels | Http2Error::TooLarge { .. } => true,
                        Http2Error::Stalled => false,
                    };
                    let processed =
                        if unsent.is_some() || is_unseen { Processed::No } else { Processed::Perhaps };
                    let is_final = matches!(error, Http2Error::TooLarge { .. });
                    let again = unsent.or_else(|| resend.filter(|_| !is_final).map(Resend::into_outgoing));
                    SendFailure { error: error.into(), processed, again }
                })
                .map(|response| response.map(|body| Source::Http2 { body, place }))
            }
        };
        sent.map(|response| response.map(|source| ResponseBody::new(source, in_flight)))
    }
}
