//! The service that the HTTP library calls with requests. It cannot fail: anything that goes wrong
//! becomes a status and a line in the log. The [`router`](crate::http::router) decides.

use std::convert::Infallible;
use std::rc::Rc;

use http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use portcullis_model::SlowClients;

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::core::snapshot::SnapshotCell;
use crate::http::body::Body;
use crate::http::decide::Decision;
use crate::http::forward::Forwarder;
use crate::http::router::Router;
use crate::http::websocket;
use crate::upstream::request::Outgoing;

pub(crate) type Response = http::Response<Body>;

/// Answers the requests of a core.
pub(crate) struct Service {
    pub snapshot: Rc<SnapshotCell>,
    pub router: Router,
    pub forwarder: Forwarder,
}

// === impl Service ===

impl Service {
    /// The request is put on the heap before anything waits: the future of every request is moved,
    /// and would hold it several times.
    pub(crate) fn answer(
        self: Rc<Self>,
        client: Rc<Client>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> {
        let exchange = Exchange::begin(&client);
        let mut outgoing = Outgoing::new(request, client.limits(), &client.progress.untaken, &client.windows);
        websocket::into_upgrade(&mut outgoing.parts);
        async move { Ok(self.respond(&client, exchange, outgoing).await) }
    }

    async fn respond(
        &self,
        client: &Rc<Client>,
        mut exchange: Exchange,
        mut outgoing: Box<Outgoing>,
    ) -> Response {
        let current = self.snapshot.load();
        let is_connect = websocket::is_extended_connect(&outgoing.parts);
        let request = self.router.route(&current, client, &outgoing.parts);
        // Messages of gRPC come and are taken whenever the application likes.
        if request.is_grpc() {
            exchange.take_any_time();
        }
        if let Decision::Forward(plan) = &request.decision
            && plan.rule.timeouts.slow_clients == SlowClients::Keep
        {
            exchange.take_any_time();
        }
        // An HTTP/1 connection has one body at a time, and is watched as a whole.
        if outgoing.parts.version == Version::HTTP_2
            && !exchange.may_take_any_time()
            && let Some(upload) = outgoing.upload.track()
        {
            client.watch_upload(&upload);
        }
        let forwarded = match &request.decision {
            Decision::Forward(plan) => {
                let passage = self.router.passage(&request);
                let forwarding = self.forwarder.forward(client, plan, passage, outgoing);
                forwarding.await.map_err(|reason| self.router.answer(client, &request, &reason.into()))
            }
            Decision::Own(own) => Err(self.router.answer(client, &request, own)),
        };
        let mut response = match forwarded {
            Ok((response, endpoint)) => {
                let record = self.router.forwarded(client, &request, response.status(), endpoint);
                response.map(|content| Body::new(content, exchange, record))
            }
            Err((answer, record)) => {
                let mut response = answer.map(|text| Body::new(text.into(), exchange, record));
                // A success would open a tunnel that leads nowhere.
                if is_connect && response.status().is_success() {
                    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
                }
                response
            }
        };
        if client.is_last_response() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
