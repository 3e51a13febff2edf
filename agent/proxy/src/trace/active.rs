//! Spans that are going on.

use std::borrow::Cow;
use std::cell::Cell;
use std::time::{Instant, SystemTime};

use http::{HeaderValue, Method, StatusCode};

use crate::trace::context::{SpanId, TraceContext};
use crate::trace::span::{Side, Span, Status, Value, shortened};
use crate::trace::takers::Takers;
use crate::trace::watch::WatchEnd;

/// A span that is going on. It ends when this is dropped.
pub(crate) struct ActiveSpan {
    takers: Takers,
    /// `None` once it has ended.
    span: Option<Span>,
    begun: Instant,
    /// The error if it ends now.
    unfinished: Cell<Option<&'static str>>,
}

// === impl ActiveSpan ===

impl ActiveSpan {
    pub(super) fn begin(
        takers: Takers,
        side: Side,
        context: TraceContext,
        parent: Option<SpanId>,
        state: Option<HeaderValue>,
    ) -> Box<Self> {
        let now = SystemTime::now();
        let span = Span {
            context,
            parent,
            state,
            side,
            name: String::new(),
            begun: now,
            ended: now,
            attributes: Vec::new(),
            status: Status::Unset,
        };
        let unfinished = Cell::new(Some("cancelled"));
        Box::new(Self { takers, span: Some(span), begun: Instant::now(), unfinished })
    }

    /// Tells the operator who waits for the request, if there is one.
    pub(crate) fn step<T: Into<Cow<'static, str>>>(&self, subject: &'static str, text: impl FnOnce() -> T) {
        self.takers.step(subject, text);
    }

    pub(crate) fn text(&mut self, name: &'static str, text: impl Into<Cow<'static, str>>) {
        self.set(name, Value::Text(shortened(text.into())));
    }

    pub(crate) fn number(&mut self, name: &'static str, number: impl Into<i64>) {
        self.set(name, Value::Number(number.into()));
    }

    /// The last word counts: backends refuse spans that have an attribute twice.
    fn set(&mut self, name: &'static str, value: Value) {
        let Some(Span { attributes, .. }) = &mut self.span else { return };
        match attributes.iter_mut().find(|(there, _)| *there == name) {
            Some((_, there)) => *there = value,
            None => attributes.push((name, value)),
        }
    }

    /// The method, and the beginning of the name. Those that are not registered are the client's
    /// invention, and could be any number: "it MUST set the attribute to `_OTHER`".
    pub(crate) fn method(&mut self, method: &Method) {
        let known = [
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::CONNECT,
            Method::OPTIONS,
            Method::TRACE,
            Method::PATCH,
        ];
        let is_known = known.contains(method);
        if is_known {
            self.text("http.request.method", method.as_str().to_owned());
        } else {
            self.text("http.request.method", "_OTHER");
            self.text("http.request.method_original", method.as_str().to_owned());
        }
        self.name(if is_known { method.as_str() } else { "HTTP" });
    }

    /// Adds to the name.
    pub(crate) fn name(&mut self, part: &str) {
        let Some(Span { name, .. }) = &mut self.span else { return };
        if !name.is_empty() {
            name.push(' ');
        }
        name.push_str(part);
    }

    /// Notes the status, and the reason if it is the gateway's own. It is an error of a server from
    /// 500 on, and one for a client from 400 on.
    pub(crate) fn answered(&mut self, status: StatusCode, reason: Option<&'static str>) {
        let Some(span) = &mut self.span else { return };
        let is_error = match span.side {
            Side::Server => status.is_server_error(),
            Side::Client => status.is_server_error() || status.is_client_error(),
        };
        if is_error {
            span.status = Status::Error;
        }
        self.number("http.response.status_code", status.as_u16());
        match reason {
            Some(reason) => self.text("error.type", reason),
            None if is_error => self.text("error.type", status.as_str().to_owned()),
            None => {}
        }
    }

    /// Notes that there is no answer, for this reason.
    pub(crate) fn failed(&mut self, reason: &'static str) {
        self.text("error.type", reason);
        if let Some(span) = &mut self.span {
            span.status = Status::Error;
        }
    }

    /// The error if it ends before [`ActiveSpan::finish`].
    pub(crate) fn unless_finished(&mut self, error: &'static str) {
        self.unfinished.set(Some(error));
    }

    /// Whatever is to come has come; the time goes on until it is dropped.
    pub(crate) fn finish(&self) {
        self.unfinished.set(None);
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        if let Some(error) = self.unfinished.get() {
            self.text("error.type", error);
        }
        let Some(mut span) = self.span.take() else { return };
        if let (Some(watched), Side::Server) = (&self.takers.watched, span.side) {
            let ended = self.unfinished.get().map_or(WatchEnd::Complete, WatchEnd::Cut);
            watched.tell(ended, &span.attributes);
        }
        if let Some(recorder) = &self.takers.recorder {
            span.ended = span.begun + self.begun.elapsed();
            recorder.take(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::queue::SpanQueue;
    use crate::trace::recorder::Recorder;

    #[test]
    fn an_answer_that_breaks_off_has_one_error() {
        let (queue, mut spans) = SpanQueue::new(1);
        let recorder = Recorder::new(1, queue);
        let takers = Takers { recorder: Some(recorder.clone()), watched: None };
        let mut span = ActiveSpan::begin(takers, Side::Server, TraceContext::begin(), None, None);
        span.answered(StatusCode::INTERNAL_SERVER_ERROR, None);
        span.unless_finished("incomplete");
        drop(span);
        recorder.flush();
        let [span] = &spans.try_recv().unwrap()[..] else { panic!("one span") };
        let errors: Vec<_> = span.attributes.iter().filter(|(name, _)| *name == "error.type").collect();
        assert_eq!(errors, [&("error.type", Value::Text("incomplete".into()))]);
    }
}
