//! Spans of attempts at an answer: of each endpoint that is asked, be it a backend's or an auth
//! service's.

use std::borrow::Cow;
use std::net::SocketAddr;

use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderValue, header};
use portcullis_model::BackendName;

use crate::trace::active::ActiveSpan;
use crate::trace::context::{SpanId, TRACEPARENT, TraceContext};
use crate::trace::span::Side;
use crate::trace::takers::Takers;

/// The attempts of a request that is recorded.
pub(crate) struct Attempts {
    takers: Takers,
    /// With the span that asks.
    parent: TraceContext,
    state: Option<HeaderValue>,
    asked: Asked,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Backend,
    AuthService,
}

// === impl Attempts ===

impl Attempts {
    pub(super) fn new(
        takers: Takers,
        parent: TraceContext,
        state: Option<HeaderValue>,
        asked: Asked,
    ) -> Self {
        Self { takers, parent, state, asked }
    }

    /// Tells the operator who waits for the request.
    pub(crate) fn step<T: Into<Cow<'static, str>>>(&self, subject: &'static str, text: impl FnOnce() -> T) {
        self.takers.step(subject, text);
    }

    /// Begins with one, and has the request carry its context, unless a filter took that away.
    pub(crate) fn begin(
        &self,
        parts: &mut Parts,
        (backend, endpoint, scheme): (&BackendName, SocketAddr, Scheme),
        tried: usize,
    ) -> Box<ActiveSpan> {
        let Self { takers, parent, state, asked } = self;
        let context = parent.with_span(SpanId::random());
        let mut span =
            ActiveSpan::begin(takers.clone(), Side::Client, context, Some(parent.span), state.clone());
        if let Some(recorder) = &takers.recorder {
            recorder.charge();
            if let Some(field) = parts.headers.get_mut(TRACEPARENT) {
                *field = context.to_value();
            }
        }
        span.method(&parts.method);
        if *asked == Asked::AuthService {
            span.name("ext_auth");
            span.text("portcullis.auth", "true");
        }
        span.text("server.address", endpoint.ip().to_canonical().to_string());
        span.number("server.port", endpoint.port());
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        span.text("url.full", format!("{scheme}://{}{}", host.unwrap_or_default(), parts.uri.path()));
        span.text("portcullis.backend", backend.to_string());
        if let Ok(tried @ 1..) = i64::try_from(tried) {
            span.number("http.request.resend_count", tried);
        }
        span.step("attempt", || {
            let of = match asked {
                Asked::Backend => "",
                Asked::AuthService => "auth service ",
            };
            format!("{} to {of}{backend}: {scheme} to {endpoint}", tried.saturating_add(1))
        });
        span
    }
}
