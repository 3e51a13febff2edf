//! A line of the access log for a connection or session whose bytes are forwarded as they are. It
//! is written at the end.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use portcullis_model::{AccessLog as LogSettings, BackendName, ListenerId, LogField, LogFormat, ObjectName};
use serde::Serialize;

use crate::core::ending::Ending;
use crate::log::access_log::AccessLog;
use crate::log::record::{Destination, Escaped, to_the_millisecond};

/// The part of a line that is known when it begins.
pub(crate) struct Flow<'a> {
    pub at: Timestamp,
    pub gateway: &'a ObjectName,
    pub listener: &'a ListenerId,
    pub client: SocketAddr,
    /// Of the listener.
    pub protocol: &'static str,
    /// Of the ClientHello.
    pub server_name: Option<&'a str>,
    pub destination: Destination<'a>,
}

pub(crate) struct Totals {
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
    pub duration: Duration,
    pub ending: Ending,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(serialize_with = "to_the_millisecond")]
    time: Timestamp,
    gateway: &'a ObjectName,
    listener: &'a ListenerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<SocketAddr>,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<&'a BackendName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<SocketAddr>,
    received: u64,
    sent: u64,
    /// Seconds.
    duration: f64,
    ended: &'static str,
}

// === impl Flow ===

impl Flow<'_> {
    /// Flows have no status: where a log is for answers of some status and above, a flow that had
    /// no backend counts as 503, any other one as 200.
    pub(crate) fn log(&self, settings: LogSettings, totals: &Totals, log: &AccessLog) {
        let like = if totals.ending.is_refusal() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        if like < settings.minimum_status {
            return;
        }
        let line = self.line(settings, totals);
        let mut text = match log.format(settings.format) {
            LogFormat::Json => serde_json::to_string(&line).unwrap_or_else(|_| "{}".to_owned()),
            LogFormat::Text => line.text(),
        };
        text.push('\n');
        log.append(text.as_bytes());
    }

    fn line(&self, settings: LogSettings, totals: &Totals) -> Line<'_> {
        let client = Some(SocketAddr::new(self.client.ip().to_canonical(), self.client.port()));
        Line {
            time: self.at,
            gateway: self.gateway,
            listener: self.listener,
            client: client.filter(|_| !settings.omit.has(LogField::Client)),
            protocol: self.protocol,
            server_name: self.server_name,
            rule: self.destination.rule.map(ToString::to_string),
            backend: self.destination.backend,
            endpoint: self.destination.endpoint,
            received: totals.received,
            sent: totals.sent,
            duration: totals.duration.as_secs_f64(),
            ended: totals.ending.name(),
        }
    }
}

// === impl Line ===

impl Line<'_> {
    /// As much of the Combined Log Format as there is, then `name="value"`.
    fn text(&self) -> String {
        let time = self.time.strftime("%d/%b/%Y:%H:%M:%S +0000");
        let client = self.client.map_or_else(|| "-".to_owned(), |client| client.ip().to_string());
        let (protocol, sent) = (self.protocol, self.sent);
        let name = Escaped(self.server_name.unwrap_or("-"));
        let mut text = format!("{client} - - [{time}] \"{protocol} {name}\" - {sent} \"-\" \"-\"");
        let named = [
            ("gateway", Some(self.gateway.to_string())),
            ("listener", Some(self.listener.to_string())),
            ("rule", self.rule.clone()),
            ("backend", self.backend.map(BackendName::to_string)),
            ("endpoint", self.endpoint.map(|endpoint| endpoint.to_string())),
        ];
        // Writing to a String cannot fail.
        for (name, value) in named.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            let _ = write!(text, " {name}=\"{}\"", Escaped(&value));
        }
        let (received, seconds, ended) = (self.received, self.duration, self.ended);
        let _ = write!(text, " received={received} duration={seconds:.6} ended={ended}");
        text
    }
}
