//! Forwarding by way of the HTTP library: the request to a backend, time-outs, the response back.
//! The backend, and what both look like, have been decided before.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, Version, header};
use portcullis_model::{ListenerId, TimeLimit};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::client::clients::Client;
use crate::core::head::KnownField;
use crate::core::log_limit::LogLimit;
use crate::core::reason::Reason;
use crate::http::body::{Content, Deadline};
use crate::http::grpc_web::GrpcWebCall;
use crate::http::plan::{ForwardPlan, Passage};
use crate::http::sender;
use crate::http::tunnels::Tunnels;
use crate::http::upgrade;
use crate::http::websocket;
use crate::trace::attempt::Asked;
use crate::upstream::attempt::{self, AttemptError, UpstreamResponse};
use crate::upstream::balance::Preference;
use crate::upstream::mirror::Mirrors;
use crate::upstream::pool::Pools;
use crate::upstream::request::{Outgoing, Upload};
use crate::upstream::retry;

/// Forwards the requests of a core.
pub(crate) struct Forwarder {
    pub pools: Rc<Pools>,
    mirrors: Rc<Mirrors>,
    tunnels: Rc<Tunnels>,
    /// Theirs.
    tasks: TaskTracker,
    /// The time without a byte either way after which a tunnel is reset.
    tunnel_idle: Duration,
    too_large: LogLimit,
    tls_failed: LogLimit,
}

/// A response as the client gets it, and the endpoint that it came from.
pub(crate) type BackendResponse = (http::Response<Content>, SocketAddr);

impl Forwarder {
    pub(crate) fn new(
        pools: Rc<Pools>,
        tunnels: Rc<Tunnels>,
        tasks: TaskTracker,
        tunnel_idle: Duration,
    ) -> Self {
        let mirrors = Mirrors::new(pools.clone());
        let (too_large, tls_failed) = (LogLimit::default(), LogLimit::default());
        Self { pools, mirrors, tunnels, tasks, tunnel_idle, too_large, tls_failed }
    }

    /// Sends the request to the backend of the plan.
    ///
    /// # Errors
    /// The reason why there is no response.
    pub(crate) async fn forward(
        &self,
        client: &Rc<Client>,
        plan: &ForwardPlan<'_>,
        passage: Passage<'_>,
        mut outgoing: Box<Outgoing>,
    ) -> Result<BackendResponse, Reason> {
        if !plan.is_authorized() {
            return Err(plan.failed(Reason::AuthFailed, &"an auth service was not asked"));
        }
        if outgoing.upload.is_too_large() {
            return Err(Reason::BodyTooLarge);
        }
        let parts = &mut outgoing.parts;
        let switch = match outgoing.upload {
            Upload::Empty if plan.fields.has(KnownField::Upgrade) => upgrade::Pending::take(parts),
            Upload::Empty | Upload::Client(_) | Upload::Kept(_) | Upload::Copied(_) | Upload::Whole(_) => {
                None
            }
        };
        let deadline = plan.deadline(passage.call);
        let pools = self.pools.serving(passage.listener_id());
        // gRPC is a matter of HTTP/2.
        let web = passage.call.and_then(|call| call.web).filter(|_| pools.may_speak_http2(plan.name));
        if let Some(target) = plan.target(parts) {
            parts.uri = target.into();
        }
        if let Some(web) = web {
            web.edit_request(&mut outgoing)?;
        }
        let parts = &mut outgoing.parts;
        // Before filters can change the fields that list it.
        let address = sender::client(&parts.headers, passage.proxies, client.peer.ip());
        let upgrade = switch.as_ref().map(|switch| &switch.protocol);
        plan.edit_request(&mut parts.headers, client, passage, upgrade);
        if web.is_some() {
            parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        outgoing.upload.keep_out(|| plan.edited_names());
        outgoing.upload_until = deadline.filter(|_| passage.call.is_some());
        outgoing.answer_time = deadline.and_then(|_| plan.answer_time());
        if !matches!(outgoing.upload, Upload::Empty) {
            // Of a gRPC call over HTTP/2, the agent notices when the client is gone.
            let is_call = passage.call.is_some() && outgoing.parts.version == Version::HTTP_2;
            outgoing.may_stall = is_call || plan.timeouts().request == TimeLimit::Lifted;
        }
        outgoing.trace = passage.trace.and_then(|trace| trace.attempts(Asked::Backend));
        let session = plan.session.as_ref().and_then(|session| session.endpoint());
        let preference = Preference { client: address, session };
        // A tunnel is no matter of requests.
        if switch.is_none() {
            self.mirrors.send(&pools, plan.mirrors(), address, &client.downstream, &mut outgoing);
        }
        // Boxed: most requests have no time-out and no retries, and this future is moved for each
        // of them.
        let sent = match (plan.retry(), deadline) {
            (None, None) => {
                let sent = attempt::send(&pools, plan.name, preference, &client.downstream, outgoing).await;
                sent.map(|answered| (answered, None))
            }
            (None, Some(deadline)) => {
                let sending = attempt::send(&pools, plan.name, preference, &client.downstream, outgoing);
                let sending = Box::pin(timeout_at(deadline, sending));
                let sent = sending.await.unwrap_or(Err(AttemptError::Timeout));
                sent.map(|answered| (answered, Some(deadline)))
            }
            (Some((retry, default)), deadline) => {
                let (retry, limit) = (retry.over(default), plan.timeouts().backend_request.duration());
                let downstream = &client.downstream;
                let sending = retry::send(&pools, plan.name, preference, downstream, outgoing, retry, limit);
                let sent = match deadline {
                    None => Box::pin(sending).await,
                    Some(deadline) => {
                        let sending = Box::pin(timeout_at(deadline, sending));
                        sending.await.unwrap_or(Err(AttemptError::Timeout))
                    }
                };
                // Until it must be complete: by the time of the attempt, or of the whole.
                sent.map(|(answered, attempt)| (answered, attempt.into_iter().chain(deadline).min()))
            }
        };
        match sent {
            Ok(answered) => self.respond(client, plan, passage, answered, switch, web),
            Err(error) => Err(self.failed(plan, passage.listener_id(), &error)),
        }
    }

    /// Logs why the request got no response.
    pub(crate) fn failed(
        &self,
        plan: &ForwardPlan<'_>,
        listener: Option<&ListenerId>,
        error: &AttemptError,
    ) -> Reason {
        if error.reason() == Reason::ResponseTooLarge && self.too_large.is_due() {
            let listener = listener.map(tracing::field::display);
            tracing::warn!(listener, rule = %plan.rule.id, backend = %plan.name, "502: {error}");
        }
        if error.reason() == Reason::BackendTls && self.tls_failed.is_due() {
            tracing::warn!(rule = %plan.rule.id, backend = %plan.name, "502: no TLS: {error}");
        }
        plan.failed(error.reason(), error)
    }

    fn respond(
        &self,
        client: &Rc<Client>,
        plan: &ForwardPlan<'_>,
        passage: Passage<'_>,
        (response, deadline): (UpstreamResponse, Option<Instant>),
        switch: Option<upgrade::Pending>,
        web: Option<GrpcWebCall>,
    ) -> Result<BackendResponse, Reason> {
        let (mut parts, incoming) = response.into_parts();
        let endpoint = incoming.endpoint();
        let known = incoming.known_fields(&parts.headers);
        // Intermediaries "MUST send their own HTTP-version in forwarded messages" (RFC 9112 section
        // 2.3).
        parts.version = Version::HTTP_11;
        let content = if parts.status == StatusCode::SWITCHING_PROTOCOLS {
            let Some((switch, (backend, place))) = switch.zip(incoming.into_tunnel()) else {
                return Err(plan.failed(Reason::BackendBroken, &"the backend switched protocols unasked"));
            };
            if switch.is_stream() {
                let switched = websocket::accepted(&mut parts);
                switched.ok_or_else(|| plan.failed(Reason::BackendBroken, &"it is no WebSocket"))?;
                plan.edit_response(&mut parts.headers, known, None);
            } else {
                let protocol = parts.headers.get(header::UPGRADE).unwrap_or(&switch.protocol).clone();
                plan.edit_response(&mut parts.headers, known, Some(&protocol));
            }
            let registered = self.tunnels.register(client.clone(), passage.listener.cloned());
            let joining = switch.join(backend, registered, self.tunnel_idle);
            self.tasks.spawn_local(async move {
                joining.await;
                drop(place);
            });
            Content::Text(None)
        } else if switch.is_some_and(|switch| switch.is_stream()) && parts.status.is_success() {
            // The client would take it for the tunnel that it asked for.
            return Err(plan.failed(Reason::BackendBroken, &"the backend did not switch protocols"));
        } else {
            let format = web.and_then(|web| web.edit_response(&mut parts.headers));
            plan.edit_response(&mut parts.headers, known, None);
            let deadline = deadline.map(|at| Deadline::new(at, passage.call));
            let mut content = Content::upstream(incoming, deadline);
            if let Some(format) = format {
                content.translate(format);
            }
            content
        };
        if let Some(session) = &plan.session {
            session.edit(&mut parts.headers, plan.name.as_str(), endpoint, client.scheme());
        }
        Ok((http::Response::from_parts(parts, content), endpoint))
    }
}
