//! Settings of traces and logs that go to a collector by OTLP.

use std::path::PathBuf;

use http::Uri;
use portcullis_model::Share;

/// A collector, and what it gets.
#[derive(Clone, Debug)]
pub struct Otlp {
    pub collector: Collector,
    /// `None`: no request has a trace.
    pub traces: Option<Traces>,
}

/// The way to a collector that takes OTLP over HTTP.
#[derive(Clone, Debug)]
pub struct Collector {
    /// `http` or `https`, and a host; `/v1/traces` and `/v1/logs` are below its path.
    pub endpoint: Uri,
    /// A file of fields to send, each in a line, as `name: value`. It is read for each message.
    pub headers: Option<PathBuf>,
    /// PEM, in the place of the system's authorities. It is read for each connection.
    pub authorities: Option<PathBuf>,
    /// The sender's attributes, such as `service.name`.
    pub resource: Vec<(String, String)>,
}

/// The requests that have spans.
#[derive(Clone, Debug)]
pub struct Traces {
    /// The share of requests that begin a trace which is recorded, where no policy says another.
    pub sampling: Share,
    /// The largest share that others can have: a policy, or senders whose traces are followed.
    pub most: Share,
    /// Spans a second, of all cores together.
    pub spans: u32,
    pub parents: Parents,
}

/// The senders whose `traceparent` is followed: their traces go on, and are recorded if theirs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parents {
    /// Proxies in front that the Gateway's owner believes about clients, or the operator.
    Trusted,
    Any,
    None,
}
