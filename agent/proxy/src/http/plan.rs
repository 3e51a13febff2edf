//! A rule applied to a request on its way to a backend, and to the response on its way back:
//! target, header fields, and the time that both may take. Nothing here depends on the parser that
//! the heads come from.

use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, header};
use portcullis_model::{BackendName, Filter, ListenerId, Rule, WeightedBackend};
use tokio::time::Instant;

use crate::client::clients::Client;
use crate::core::head::{FieldsMut, Head, KnownField, KnownFields};
use crate::core::reason::Reason;
use crate::http::cors::CrossOrigin;
use crate::http::grpc::{self, Call};
use crate::http::headers::{self, Forwarded};
use crate::http::loops;
use crate::http::templates::{self, FilledTemplates};

/// A request on its way to a backend.
pub(crate) struct ForwardPlan<'s> {
    pub rule: &'s Rule,
    pub backend: &'s WeightedBackend,
    pub name: &'s BackendName,
    /// The host that the client asked for, with port.
    pub authority: HeaderValue,
    /// The path to send, if it is not the one that came.
    pub path: Option<String>,
    pub host: HostToSend,
    /// The known fields among those of the request.
    pub fields: KnownFields,
    pub cross_origin: Option<Box<CrossOrigin<'s>>>,
    /// `None` if no filter has any.
    pub filled: Option<Box<FilledTemplates>>,
}

/// The `Host` that the backend gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostToSend {
    /// The field that came.
    Unchanged,
    /// The authority of the plan: the target named it.
    Authority,
    Rewritten(HeaderValue),
}

/// The gateway's part in a request that it sends on.
#[derive(Clone, Copy)]
pub(crate) struct Passage<'r> {
    /// Proxies in front that are believed.
    pub trusted_hops: usize,
    /// An element for `Via`.
    pub via: Option<&'r HeaderValue>,
    /// The id that the request has in the access log. `None`: it has none yet.
    pub request_id: Option<&'r HeaderValue>,
    /// For the log.
    pub listener: Option<&'r ListenerId>,
    /// The gRPC call that the request is.
    pub call: Option<Call>,
}

// === impl ForwardPlan ===

impl ForwardPlan<'_> {
    /// The target in origin form, path and query only; `None` if it is the one that came, as for
    /// nearly every request.
    pub(crate) fn target(&self, head: &impl Head) -> Option<PathAndQuery> {
        if self.path.is_none() && head.authority().is_none() {
            return None;
        }
        let target = match (&self.path, head.query()) {
            (None, _) => head.target(),
            (Some(path), None) => PathAndQuery::try_from(path.as_str()).ok(),
            (Some(path), Some(query)) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
        };
        Some(target.unwrap_or_else(|| PathAndQuery::from_static("/")))
    }

    /// Until then the response must be complete, however many attempts there are; without retries
    /// the limit of an attempt is one of the whole. The clock is read only for rules that limit
    /// something, and for gRPC calls that do.
    pub(crate) fn deadline(&self, call: Option<Call>) -> Option<Instant> {
        let Rule { timeouts, retry, .. } = self.rule;
        let attempt = if retry.is_none() { timeouts.backend_request } else { None };
        let limits = [timeouts.request, attempt, call.and_then(|call| call.timeout)];
        limits.into_iter().flatten().min().map(|limit| Instant::now() + limit)
    }

    /// The time of an attempt.
    fn limit(&self) -> Option<Duration> {
        let timeouts = [self.rule.timeouts.request, self.rule.timeouts.backend_request];
        timeouts.into_iter().flatten().min()
    }

    /// Makes the fields of the request those that the backend gets. `upgrade` is the protocol that
    /// the client asks to switch to, and may.
    pub(crate) fn edit_request(
        &self,
        fields: &mut impl FieldsMut,
        client: &Client,
        passage: Passage<'_>,
        upgrade: Option<&HeaderValue>,
    ) {
        let signature = if self.fields.has(KnownField::CdnLoop) {
            loops::signed(fields, client.pseudonym())
        } else {
            client.pseudonym().clone()
        };
        headers::request_hop_by_hop(fields, self.fields);
        if let Some(protocol) = upgrade {
            headers::announce_upgrade(fields, protocol);
        }
        let (address, host) = (&client.address, &self.authority);
        let forwarded = Forwarded { address, scheme: client.scheme(), host, request_id: passage.request_id };
        headers::forwarded(fields, self.fields, &forwarded, passage.trusted_hops);
        if let Some(via) = passage.via {
            fields.append(header::VIA, via.clone());
        }
        match &self.host {
            HostToSend::Unchanged => {}
            HostToSend::Authority => fields.insert(header::HOST, self.authority.clone()),
            HostToSend::Rewritten(host) => fields.insert(header::HOST, host.clone()),
        }
        let mut filled = FilledTemplates::request_edits(self.filled.as_deref());
        for filter in self.rule.filters.iter().chain(&self.backend.filters) {
            let edit = match filter {
                Filter::RequestHeaders(edit) => Some(edit),
                Filter::RequestTemplates(_) => filled.next(),
                Filter::ResponseHeaders(_)
                | Filter::ResponseTemplates(_)
                | Filter::Rewrite(_)
                | Filter::Cors(_)
                | Filter::Mirror(_)
                | Filter::Substitution(_) => None,
            };
            if let Some(edit) = edit {
                headers::edit(fields, edit);
            }
        }
        if let Some(timeout) = passage.call.and_then(|call| call.shortened(self.limit())) {
            fields.insert(grpc::TIMEOUT, timeout);
        }
        // Not for filters to change: a loop would go unnoticed.
        loops::sign(fields, signature);
    }

    /// The names that its trailers must not have, because filters decide about them.
    pub(crate) fn edited_names(&self) -> Vec<HeaderName> {
        let mut names = Vec::new();
        for filter in self.rule.filters.iter().chain(&self.backend.filters) {
            match filter {
                Filter::RequestHeaders(edit) => names.extend(headers::edited(edit)),
                Filter::RequestTemplates(templates) => {
                    names.extend(templates.names().map(headers::copy_name));
                }
                Filter::ResponseHeaders(_)
                | Filter::ResponseTemplates(_)
                | Filter::Rewrite(_)
                | Filter::Cors(_)
                | Filter::Mirror(_)
                | Filter::Substitution(_) => {}
            }
        }
        names
    }

    /// The backends that get a copy of this request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &BackendName> {
        let filters = self.rule.filters.iter().chain(&self.backend.filters);
        filters.filter_map(|filter| match filter {
            Filter::Mirror(mirror) if mirror.share.takes(fastrand::u32(..)) => Some(&mirror.backend),
            _ => None,
        })
    }

    /// Makes the fields of the response those that the client gets. `upgrade` is the protocol that
    /// the backend switches to.
    pub(crate) fn edit_response(&self, fields: &mut impl FieldsMut, upgrade: Option<&HeaderValue>) {
        headers::remove_hop_by_hop(fields);
        if let Some(protocol) = upgrade {
            headers::announce_upgrade(fields, protocol);
        }
        let mut filled = FilledTemplates::response_edits(self.filled.as_deref());
        for filter in self.rule.filters.iter().chain(&self.backend.filters) {
            match filter {
                Filter::Cors(_) => self.cross_origin.iter().for_each(|it| it.edit(fields)),
                other => templates::edit_response(fields, other, &mut filled),
            }
        }
    }

    /// Logs why the request got no response.
    pub(crate) fn failed(&self, reason: Reason, problem: &dyn std::fmt::Display) -> Reason {
        tracing::debug!(rule = %self.rule.id, backend = %self.name, %problem, reason = reason.name(), "no response");
        reason
    }
}
