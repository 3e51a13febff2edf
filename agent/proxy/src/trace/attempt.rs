//! Spans of attempts at an answer: of each endpoint that is asked, be it a backend's or an auth
//! service's.

use std::net::SocketAddr;
use std::rc::Rc;

use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderValue, header};
use portcullis_model::BackendName;

use crate::trace::active::ActiveSpan;
use crate::trace::context::{SpanId, TRACEPARENT, TraceContext};
use crate::trace::recorder::Recorder;
use crate::trace::span::Side;

/// The attempts of a request that is recorded.
pub(crate) struct Attempts {
    recorder: Rc<Recorder>,
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
        recorder: Rc<Recorder>,
        parent: TraceContext,
        state: Option<HeaderValue>,
        asked: Asked,
    ) -> Self {
        Self { recorder, parent, state, asked }
    }

    /// Begins with one, and has the request carry its context, unless a filter took that away.
    pub(crate) fn begin(
        &self,
        parts: &mut Parts,
        (backend, endpoint, scheme): (&BackendName, SocketAddr, Scheme),
        tried: usize,
    ) -> Box<ActiveSpan> {
        let Self { recorder, parent, state, asked } = self;
        recorder.charge();
        let context = parent.with_span(SpanId::random());
        let mut span = ActiveSpan::begin(recorder, Side::Client, context, Some(parent.span), state.clone());
        if let Some(field) = parts.headers.get_mut(TRACEPARENT) {
            *field = context.to_value();
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
        span
    }
}
