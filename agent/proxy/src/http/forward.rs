//! Forwarding: the request as the backend gets it, time-outs, the response as the client gets it.
//! Which backend that is has been decided before.

use std::net::SocketAddr;
use std::rc::Rc;

use http::header;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{StatusCode, Version};
use portcullis_model::{Filter, Rule, WeightedBackend};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::TaskTracker;

use crate::client::clients::Client;
use crate::core::reason::Reason;
use crate::http::answer::Response;
use crate::http::body::Body;
use crate::http::decide::ForwardPlan;
use crate::http::headers;
use crate::http::upgrade;
use crate::upstream::attempt::{self, AttemptError, UpstreamResponse};
use crate::upstream::pool::Pools;
use crate::upstream::request::{Outgoing, Upload};

/// Forwards the requests of a core.
pub(crate) struct Forwarder {
    pub pools: Rc<Pools>,
    /// Where tunnels run.
    pub tasks: TaskTracker,
    pub trusted_hops: usize,
}

impl Forwarder {
    /// Sends the request where the plan says; returns the response for the client and the endpoint
    /// that it came from, or why there is none.
    pub(crate) async fn forward(
        &self,
        client: &Rc<Client>,
        plan: &ForwardPlan<'_>,
        mut outgoing: Box<Outgoing>,
    ) -> Result<(Response, SocketAddr), Reason> {
        if outgoing.upload.is_too_large() {
            return Err(Reason::BodyTooLarge);
        }
        let switch = match outgoing.upload {
            Upload::Empty => upgrade::Pending::take(&mut outgoing.parts),
            Upload::Client { .. } => None,
        };
        // Until then the response must be complete. The clock is read only for rules that limit
        // something.
        let timeouts = [plan.rule.timeouts.request, plan.rule.timeouts.backend_request];
        let deadline = timeouts.into_iter().flatten().min().map(|limit| Instant::now() + limit);
        self.prepare(client, plan, &mut outgoing.parts, switch.as_ref());
        let sent = match deadline {
            None => attempt::send(&self.pools, plan.name, outgoing).await,
            // Boxed: most requests have no time-out, and this future is moved for each of them.
            Some(deadline) => {
                let sending = timeout_at(deadline, attempt::send(&self.pools, plan.name, outgoing));
                Box::pin(sending).await.unwrap_or(Err(AttemptError::Timeout))
            }
        };
        match sent {
            Ok(answered) => self.respond(client, plan, answered, deadline, switch),
            Err(error) => Err(failed(plan, error.reason(), &error)),
        }
    }

    fn prepare(
        &self,
        client: &Client,
        plan: &ForwardPlan<'_>,
        parts: &mut Parts,
        switch: Option<&upgrade::Pending>,
    ) {
        // Origin form: path and query only, as nearly every request has it already.
        if plan.path.is_some() || parts.uri.authority().is_some() {
            let target = match (&plan.path, parts.uri.query()) {
                (None, _) => parts.uri.path_and_query().cloned(),
                (Some(path), None) => PathAndQuery::try_from(path.as_str()).ok(),
                (Some(path), Some(query)) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
            };
            parts.uri = target.unwrap_or_else(|| PathAndQuery::from_static("/")).into();
        }
        let fields = &mut parts.headers;
        headers::request_hop_by_hop(fields);
        if let Some(switch) = switch {
            switch.announce(fields);
        }
        let forwarded =
            headers::Forwarded { address: &client.address, scheme: client.scheme(), host: &plan.authority };
        headers::forwarded(fields, &forwarded, self.trusted_hops);
        let host = plan.host.as_ref().unwrap_or(&plan.authority);
        if fields.get(header::HOST) != Some(host) {
            fields.insert(header::HOST, host.clone());
        }
        for filter in filters(plan.rule, plan.backend) {
            if let Filter::RequestHeaders(edit) = filter {
                headers::edit(fields, edit);
            }
        }
    }

    fn respond(
        &self,
        client: &Rc<Client>,
        plan: &ForwardPlan<'_>,
        (mut response, lease): UpstreamResponse,
        deadline: Option<Instant>,
        switch: Option<upgrade::Pending>,
    ) -> Result<(Response, SocketAddr), Reason> {
        let tunnel = match switch {
            _ if response.status() != StatusCode::SWITCHING_PROTOCOLS => None,
            Some(switch) => Some(switch.tunnel(&self.tasks, client, &mut response)),
            None => {
                return Err(failed(plan, Reason::BackendBroken, &"the backend switched protocols unasked"));
            }
        };
        let (mut parts, incoming) = response.into_parts();
        // Intermediaries "MUST send their own HTTP-version in forwarded messages" (RFC 9112 section
        // 2.3).
        parts.version = Version::HTTP_11;
        headers::remove_hop_by_hop(&mut parts.headers);
        if let Some(protocol) = tunnel {
            protocol.announce(&mut parts.headers);
        }
        for filter in filters(plan.rule, plan.backend) {
            if let Filter::ResponseHeaders(edit) = filter {
                headers::edit(&mut parts.headers, edit);
            }
        }
        let deadline = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
        let endpoint = lease.endpoint();
        Ok((http::Response::from_parts(parts, Body::upstream(incoming, lease, deadline)), endpoint))
    }
}

fn filters<'p>(rule: &'p Rule, backend: &'p WeightedBackend) -> impl Iterator<Item = &'p Filter> {
    rule.filters.iter().chain(&backend.filters)
}

fn failed(plan: &ForwardPlan<'_>, reason: Reason, problem: &dyn std::fmt::Display) -> Reason {
    tracing::debug!(rule = %plan.rule.id, backend = %plan.name, %problem, reason = reason.name(), "no response");
    reason
}
