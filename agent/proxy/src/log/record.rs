//! A line of the access log, from the request's head to the last byte of the response.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Version, header};
use jiff::Timestamp;
use portcullis_model::{
    AccessLog as LogSettings, BackendName, ListenerId, LogField, LogFormat, ObjectName, RuleId, is_obeyed,
};
use serde::{Serialize, Serializer};

use crate::core::head::{Fields, Head};
use crate::core::reason::Reason;
use crate::log::access_log::AccessLog;
use crate::trace::active::ActiveSpan;
use crate::trace::context::{SpanId, TraceId};

/// The part of a line about the request, taken before the request is changed and sent on.
pub(crate) struct LoggedRequest {
    log: LogSettings,
    at: Timestamp,
    begun: Instant,
    method: Method,
    target: Option<PathAndQuery>,
    version: Version,
    host: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    pub(crate) id: HeaderValue,
    /// The addresses that it came from, according to trusted proxies.
    forwarded_for: Option<HeaderValue>,
    /// The trace that it is part of, and its span if that is recorded.
    pub(crate) trace: Option<(TraceId, Option<SpanId>)>,
}

/// The outcome of the request.
pub(crate) struct Outcome<'a> {
    pub client: SocketAddr,
    pub scheme: &'static str,
    pub gateway: &'a ObjectName,
    pub listener: Option<&'a ListenerId>,
    pub destination: Destination<'a>,
    pub status: StatusCode,
    /// Of an answer of our own.
    pub reason: Option<Reason>,
}

/// The way that a request went.
#[derive(Clone, Copy, Default)]
pub(crate) struct Destination<'a> {
    pub rule: Option<&'a Arc<RuleId>>,
    pub backend: Option<&'a BackendName>,
    pub endpoint: Option<SocketAddr>,
}

/// A response that lacks its end, as far as that is noted: in the access log, in a span, or both.
/// It has ended when this is dropped.
pub(crate) struct Record {
    line: Option<OpenLine>,
    span: Option<Box<ActiveSpan>>,
    /// Bytes of the response's body.
    pub sent: u64,
    /// True if the response came to its end.
    pub complete: bool,
}

/// A line that lacks its end.
pub(crate) struct OpenLine {
    log: Rc<AccessLog>,
    format: LogFormat,
    line: String,
    /// The text after the bytes of the body, where a format has more than time and end there.
    rest: String,
    begun: Instant,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(serialize_with = "to_the_millisecond")]
    time: Timestamp,
    gateway: &'a ObjectName,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<&'a ListenerId>,
    request_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_if_any")]
    trace_id: Option<TraceId>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_if_any")]
    span_id: Option<SpanId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded_for: Option<Cow<'a, str>>,
    scheme: &'static str,
    #[serde(serialize_with = "debugged")]
    protocol: Version,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Cow<'a, str>>,
    #[serde(serialize_with = "shown")]
    target: Target<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<Cow<'a, str>>,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<&'a BackendName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<SocketAddr>,
}

/// Path and query, as they came.
struct Target<'a>(Option<&'a PathAndQuery>, Query);

#[derive(Clone, Copy)]
enum Query {
    Shown,
    Omitted,
}

/// Text that may hold anything, between quotes of the text form.
pub(super) struct Escaped<'a>(pub &'a str);

// === impl LoggedRequest ===

impl LoggedRequest {
    pub(crate) fn new(
        log: LogSettings,
        head: &impl Head,
        id: HeaderValue,
        forwarded_for: Option<HeaderValue>,
    ) -> Self {
        let fields = head.fields();
        let omits = |field| log.omit.has(field);
        let named = head.authority().and_then(|it| HeaderValue::from_str(it).ok());
        Self {
            log,
            at: Timestamp::now(),
            begun: Instant::now(),
            method: head.method().clone(),
            target: head.target(),
            version: head.version(),
            host: named.or_else(|| fields.copy(&header::HOST)),
            referer: if omits(LogField::Referer) { None } else { fields.copy(&header::REFERER) },
            user_agent: if omits(LogField::UserAgent) { None } else { fields.copy(&header::USER_AGENT) },
            id,
            forwarded_for: forwarded_for.filter(|_| !omits(LogField::ForwardedFor)),
            trace: None,
        }
    }

    /// `None` if the Gateway does not log answers with such a status.
    pub(crate) fn begin(&self, log: &Rc<AccessLog>, outcome: &Outcome<'_>) -> Option<OpenLine> {
        if outcome.status < self.log.minimum_status {
            return None;
        }
        let line = self.line(outcome);
        let format = log.format(self.log.format);
        let (line, rest) = match format {
            LogFormat::Json => (line.json(), String::new()),
            LogFormat::Text => line.text(),
        };
        let (log, begun) = (log.clone(), self.begun);
        Some(OpenLine { log, format, line, rest, begun })
    }

    fn line<'a>(&'a self, outcome: &Outcome<'a>) -> Line<'a> {
        let client = Some(SocketAddr::new(outcome.client.ip().to_canonical(), outcome.client.port()));
        let query = if self.log.omit.has(LogField::Query) { Query::Omitted } else { Query::Shown };
        Line {
            time: self.at,
            gateway: outcome.gateway,
            listener: outcome.listener,
            request_id: String::from_utf8_lossy(self.id.as_bytes()),
            trace_id: self.trace.map(|(trace, _)| trace),
            span_id: self.trace.and_then(|(_, span)| span),
            client: client.filter(|_| !self.log.omit.has(LogField::Client)),
            forwarded_for: text(self.forwarded_for.as_ref()),
            scheme: outcome.scheme,
            protocol: self.version,
            method: self.method.as_str(),
            host: text(self.host.as_ref()).map(without_credentials),
            target: Target(self.target.as_ref(), query),
            referer: text(self.referer.as_ref()),
            user_agent: text(self.user_agent.as_ref()),
            status: outcome.status.as_u16(),
            reason: outcome.reason.map(Reason::name),
            rule: outcome.destination.rule.map(|rule| rule.to_string()),
            backend: outcome.destination.backend,
            endpoint: outcome.destination.endpoint,
        }
    }
}

fn text(value: Option<&HeaderValue>) -> Option<Cow<'_, str>> {
    value.map(|value| String::from_utf8_lossy(value.as_bytes()))
}

/// An authority without a password, which some clients write into it.
fn without_credentials(authority: Cow<'_, str>) -> Cow<'_, str> {
    match authority.rsplit_once('@') {
        Some((_, host)) => Cow::Owned(host.to_owned()),
        None => authority,
    }
}

// === impl Record ===

impl Record {
    /// `None` if there is nothing to note.
    pub(crate) fn of(line: Option<OpenLine>, span: Option<Box<ActiveSpan>>) -> Option<Box<Self>> {
        let is_any = line.is_some() || span.is_some();
        is_any.then(|| Box::new(Self { line, span, sent: 0, complete: false }))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Self { line, span, sent, complete } = self;
        if let Some(OpenLine { log, format, line, rest, begun }) = line {
            let seconds = begun.elapsed().as_secs_f64();
            let end = match format {
                LogFormat::Json => {
                    format!(",\"sent\":{sent},\"duration\":{seconds:.6},\"complete\":{complete}}}\n")
                }
                LogFormat::Text => format!(" {sent}{rest} duration={seconds:.6} complete={complete}\n"),
            };
            line.push_str(&end);
            log.append(line.as_bytes());
        }
        if let Some(span) = span {
            span.number("http.response.body.size", i64::try_from(*sent).unwrap_or(i64::MAX));
            span.step("end", || match complete {
                true => format!("all is sent: {sent} bytes of a body"),
                false => format!("the response breaks off after {sent} bytes of its body"),
            });
            if *complete {
                span.finish();
            }
        }
    }
}

// === impl Line ===

impl Line<'_> {
    /// An object that is still open.
    fn json(&self) -> String {
        let mut json = serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned());
        json.pop();
        if json.bytes().all(|byte| byte < 0x7f) { json } else { without_what_is_obeyed(&json) }
    }

    /// The Combined Log Format, in which the bytes of the body come in between, then
    /// `name="value"`.
    fn text(&self) -> (String, String) {
        let time = self.time.strftime("%d/%b/%Y:%H:%M:%S +0000");
        let (method, target, version) = (self.method, self.target.to_string(), self.protocol);
        let request = format!("{method} {} {version:?}", Escaped(&target));
        let client = self.client.map_or_else(|| "-".to_owned(), |client| client.ip().to_string());
        let head = format!("{client} - - [{time}] \"{request}\" {}", self.status);
        let quoted = |it: &Option<Cow<'_, str>>| format!("\"{}\"", Escaped(it.as_deref().unwrap_or("-")));
        let mut rest = format!(" {} {}", quoted(&self.referer), quoted(&self.user_agent));
        for (name, value) in self.more() {
            // Writing to a String cannot fail.
            let _ = write!(rest, " {name}=\"{}\"", Escaped(&value));
        }
        (head, rest)
    }

    /// Names and values that the Combined Log Format has no place for.
    fn more(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fields = [
            ("gateway", Some(self.gateway.to_string())),
            ("listener", self.listener.map(ListenerId::to_string)),
            ("forwarded_for", self.forwarded_for.as_deref().map(str::to_owned)),
            ("host", self.host.as_deref().map(str::to_owned)),
            ("reason", self.reason.map(str::to_owned)),
            ("rule", self.rule.clone()),
            ("backend", self.backend.map(BackendName::to_string)),
            ("endpoint", self.endpoint.map(|it| it.to_string())),
            ("request_id", Some(self.request_id.clone().into_owned())),
            ("trace_id", self.trace_id.map(|it| it.to_string())),
            ("span_id", self.span_id.map(|it| it.to_string())),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// JSON as terminals and readers of lines show it: serde leaves characters beyond ASCII as they
/// are.
fn without_what_is_obeyed(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if is_obeyed(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(character);
        }
    }
    shown
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(target, query) = self;
        f.write_str(target.map_or("", |target| match query {
            Query::Shown => target.as_str(),
            Query::Omitted => target.path(),
        }))
    }
}

/// So that no client can write lines of its own.
impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if is_obeyed(control) => write!(f, "{}", control.escape_unicode())?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn shown<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn shown_if_any<S: Serializer>(value: &Option<impl fmt::Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

pub(super) fn to_the_millisecond<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}

/// A version has no other form.
fn debugged<S: Serializer>(value: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_client_is_obeyed() {
        let text = "a\u{9b}31m\u{85}\u{2028}\u{202e}\u{e0041}ä";
        let json = serde_json::to_string(text).unwrap();
        let shown = without_what_is_obeyed(&json);
        assert_eq!(shown, r#""a\u009b31m\u0085\u2028\u202e\udb40\udc41ä""#);
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        assert_eq!(Escaped(text).to_string(), r"a\u{9b}31m\u{85}\u{2028}\u{202e}\u{e0041}ä");
    }

    #[test]
    fn hosts_are_without_credentials() {
        for (authority, shown) in [
            ("user:password@a.com", "a.com"),
            ("user:p@ssword@a.com:80", "a.com:80"),
            ("a.com", "a.com"),
            ("@", ""),
        ] {
            assert_eq!(without_credentials(authority.into()), shown, "{authority}");
        }
    }
}
