//! Connections for requests that are bytes already.

use std::io;
use std::rc::Rc;

use portcullis_model::BackendProtocol;

use crate::core::stats::CoreCounters;
use crate::upstream::endpoint::by_client::Clients;
use crate::upstream::endpoint::connecting::Sharing;
use crate::upstream::endpoint::connection::Kind;
use crate::upstream::endpoint::response_body::Source;
use crate::upstream::endpoint::{Endpoint, Freshness, InFlight, ResponseBody, UpstreamError};
use crate::upstream::http1::plain::{PlainRequest, PlainResponse, Rest};
use crate::upstream::http1::{Http1, Unanswered};
use crate::upstream::tls::Offer;

/// A connection of HTTP/1 that is checked out for one request.
pub(crate) struct PlainConnection {
    connection: Http1,
    in_flight: InFlight,
    reused: bool,
}

/// The reason why a request got no response head.
pub(crate) struct PlainFailure {
    pub error: UpstreamError,
    /// As [`SendFailure::again`](super::SendFailure::again).
    pub may_be_sent_again: bool,
}

impl Endpoint {
    /// True if all requests go to the endpoint on connections of HTTP/1, of which no other core
    /// keeps account.
    pub(crate) fn is_plain(&self) -> bool {
        self.protocol == BackendProtocol::Http1
            && matches!(self.clients, Clients::Any)
            && self.health.is_none()
            && self.budget.is_none()
            && self.settings.header_fields <= crate::core::head::spans::MOST_FIELDS
    }

    /// A kept connection, or a new one.
    pub(crate) async fn plain_connection(
        self: &Rc<Self>,
        counters: &CoreCounters,
        freshness: Freshness,
    ) -> io::Result<PlainConnection> {
        let in_flight = InFlight::new(self);
        if freshness == Freshness::Any
            && let Some(connection) = self.kept()
        {
            return Ok(PlainConnection { connection, in_flight, reused: true });
        }
        // Boxed, since it is rare, and large as futures go.
        let connecting = self.noting_failure(counters, self.connect(counters, Offer::Requests, Sharing::All));
        match Box::pin(connecting).await? {
            Kind::Http1(connection) => Ok(PlainConnection { connection, in_flight, reused: false }),
            Kind::Http2(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl PlainConnection {
    /// Sends the request, and has the response seen once its head is here. Returns what is left of
    /// its body.
    pub(crate) async fn exchange<T>(
        self,
        request: &PlainRequest,
        see: impl FnOnce(PlainResponse<'_>) -> T,
    ) -> Result<(T, Option<ResponseBody>), PlainFailure> {
        let Self { connection, in_flight, reused } = self;
        match connection.exchange(request, in_flight.endpoint().head_limits(), see).await {
            Ok((seen, Rest::Nothing(connection))) => {
                connection.into_iter().for_each(|connection| in_flight.endpoint().keep(connection));
                Ok((seen, None))
            }
            Ok((seen, Rest::Body(body))) => {
                let body = ResponseBody::new(Source::Http1(Box::new(body)), in_flight);
                Ok((seen, Some(body)))
            }
            Err(Unanswered { error, sent, received }) => {
                let is_safe = sent == 0 || request.method.is_idempotent();
                let may_be_sent_again = reused && received == 0 && is_safe;
                Err(PlainFailure { error: error.into(), may_be_sent_again })
            }
        }
    }
}
