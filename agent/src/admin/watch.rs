//! `/api/v1/watch`: waits for the next requests of a kind, and answers with their steps. Nothing is
//! served in another way meanwhile, and nothing is kept: the watch ends with the answer, with its
//! time, or with the connection of the one who waits.

use std::time::{Duration, Instant, UNIX_EPOCH};

use http::{HeaderName, Method};
use portcullis_inspect::{Ended, Query, RequestSteps, Step, WatchReport, foretold};
use portcullis_proxy::{
    SpanValue, WatchEnd, WatchedFor, WatchedPath, WatchedRequest, bare_host, normalise_path,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::admin::sources::Admin;
use crate::plane::READING;
use crate::watch_limits::{LONGEST_TIME, MAX_WATCHES, MOST_REQUESTS, USUAL_TIME};

/// The endpoint's name.
pub(crate) const NAME: &str = "watch";
/// The time in which cores tell of requests that outlast a watch.
const GRACE: Duration = Duration::from_secs(2);
const PARAMETERS: [&str; 7] = ["host", "path", "method", "listener", "header", "seconds", "count"];
/// Fields that a watch is for.
const MOST_FIELDS: usize = 8;

/// The reason for which nothing is waited for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("host={0:?} is no hostname: name it as in a URL, such as shop.example.com")]
    Host(String),
    #[error("path={0:?} is no path: begin it with /, and end it with * for all that begin so")]
    Path(String),
    #[error("path={0:?} has a query: name the path alone, requests with any query are watched for")]
    PathQuery(String),
    #[error("method={0:?} is no HTTP method")]
    Method(String),
    #[error("header={0:?} is neither \"Name: value\" nor a name")]
    Header(String),
    #[error("{0} headers are too many: name at most {MOST_FIELDS}")]
    Headers(usize),
    #[error("{name}={value:?} is not from 1 to {most}")]
    Number { name: &'static str, value: String, most: u64 },
    #[error(
        "{MAX_WATCHES} others wait for requests on this node: end one of their watches, or ask again later"
    )]
    Busy,
}

/// A question as it was understood.
struct Question {
    wanted: WatchedFor,
    time: Duration,
    count: usize,
}

impl Admin {
    pub(super) async fn watch(&self, query: &Query) -> Result<WatchReport, WatchError> {
        let Question { wanted, time, count } = Question::parse(query)?;
        let _place = self.watches.try_acquire().map_err(|_| WatchError::Busy)?;
        let mut told = self.plane.watch(wanted.clone(), count, time).await;
        let begun = Instant::now();
        let mut requests = Vec::new();
        let gathering = async {
            while requests.len() < count
                && let Some(request) = told.recv().await
            {
                requests.push(steps(request));
            }
        };
        // Cores end it by themselves; one that hangs does not hold the answer up.
        let _ = timeout(time + GRACE, gathering).await;
        let missing = count - requests.len();
        let why = (missing > 0).then(|| why_missing(&wanted, time, begun.elapsed(), requests.len()));
        let explained = if requests.is_empty() { self.foretold(&wanted) } else { Vec::new() };
        Ok(WatchReport { requests, missing, why, explained })
    }

    fn foretold(&self, wanted: &WatchedFor) -> Vec<portcullis_inspect::Line> {
        let Some(host) = &wanted.host else { return Vec::new() };
        let state = self.state.borrow().clone();
        let path = match &wanted.path {
            None => "",
            Some(WatchedPath::Exact(path) | WatchedPath::Beginning(path)) => path,
        };
        let method = wanted.method.as_ref().map_or("GET", Method::as_str);
        let fields = wanted.fields.iter();
        let fields = fields.filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(format!("{name}: {}", String::from_utf8_lossy(value)))
        });
        let served = self.plane.status().listeners;
        let of = (method, host.as_str(), path);
        let lines = foretold(&state.snapshot, of, &fields.collect::<Vec<_>>(), READING, &served);
        if lines.is_empty() {
            let text = format!("none: no HTTP or HTTPS listener of this node has the hostname {host}");
            return vec![portcullis_inspect::Line {
                subject: "answer".to_owned(),
                text,
                ..Default::default()
            }];
        }
        lines
    }
}

fn why_missing(wanted: &WatchedFor, time: Duration, waited: Duration, came: usize) -> String {
    let seconds = waited.min(time).as_secs();
    if waited < time {
        return format!("the agent ends, and waited for {seconds} s alone: ask its successor");
    }
    if came > 0 {
        return format!("no other such request came within {seconds} s");
    }
    let explained = match wanted.host {
        Some(_) => "this is what would become of one, as far as its head says:",
        None => "name a host, and it is said what would become of one",
    };
    format!(
        "no such request came to this node within {seconds} s: clients may be led to another node, or not get here; \
         {explained}"
    )
}

fn steps(request: WatchedRequest) -> RequestSteps {
    let WatchedRequest { begun, duration, ended, attributes, trace_id, steps } = request;
    let (ended, cut) = match ended {
        WatchEnd::Complete => (Ended::Complete, None),
        WatchEnd::Cut(why) => (Ended::Cut, Some(why.to_owned())),
        WatchEnd::GoingOn => (Ended::GoingOn, None),
    };
    let attributes = attributes.into_iter().map(|(name, value)| {
        let value = match value {
            SpanValue::Text(text) => Value::from(text.into_owned()),
            SpanValue::Number(number) => Value::from(number),
        };
        (name.to_owned(), value)
    });
    let steps = steps.into_iter().map(|step| Step {
        at: step.at.as_secs_f64(),
        subject: step.subject.to_owned(),
        text: step.text,
    });
    RequestSteps {
        begun: begun.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        seconds: duration.as_secs_f64(),
        ended,
        cut,
        trace_id,
        steps: steps.collect(),
        attributes: attributes.collect(),
    }
}

// === impl Question ===

impl Question {
    fn parse(query: &Query) -> Result<Self, WatchError> {
        let headers = query.all("header");
        if headers.len() > MOST_FIELDS {
            return Err(WatchError::Headers(headers.len()));
        }
        let method = |text: &str| Method::try_from(text).map_err(|_| WatchError::Method(text.to_owned()));
        let wanted = WatchedFor {
            host: query.get("host").map(host).transpose()?,
            path: query.get("path").map(path).transpose()?,
            method: query.get("method").map(method).transpose()?,
            listener: query.get("listener").map(str::to_owned),
            fields: headers.iter().map(|line| field(line)).collect::<Result<_, _>>()?,
        };
        let time = Duration::from_secs(number(query, "seconds", USUAL_TIME, LONGEST_TIME)?);
        let count = number(query, "count", 1, MOST_REQUESTS)?;
        Ok(Self { wanted, time, count: usize::try_from(count).unwrap_or(1) })
    }
}

pub(crate) fn parameters(query: &str) -> Result<Query, portcullis_inspect::QueryError> {
    Query::parse(query, &PARAMETERS)
}

fn number(query: &Query, name: &'static str, usual: u64, most: u64) -> Result<u64, WatchError> {
    let Some(text) = query.get(name) else { return Ok(usual) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| WatchError::Number { name, value: text.to_owned(), most })
}

fn host(text: &str) -> Result<String, WatchError> {
    let host = bare_host(text).map_err(|_| WatchError::Host(text.to_owned()))?;
    Ok(host.into_owned())
}

fn path(text: &str) -> Result<WatchedPath, WatchError> {
    if text.contains('?') {
        return Err(WatchError::PathQuery(text.to_owned()));
    }
    let (beginning, is_whole) = match text.strip_suffix('*') {
        Some(beginning) => (beginning, false),
        None => (text, true),
    };
    let normal = normalise_path(beginning).ok().filter(|_| beginning.starts_with('/'));
    let normal = normal.ok_or_else(|| WatchError::Path(text.to_owned()))?.into_owned();
    Ok(if is_whole { WatchedPath::Exact(normal) } else { WatchedPath::Beginning(normal) })
}

fn field(line: &str) -> Result<(HeaderName, Option<Vec<u8>>), WatchError> {
    let (name, value) = match line.split_once(':') {
        Some((name, value)) => (name, Some(value.trim().as_bytes().to_vec())),
        None => (line, None),
    };
    let name = HeaderName::try_from(name.trim()).map_err(|_| WatchError::Header(line.to_owned()))?;
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Question, WatchError> {
        Question::parse(&parameters(query).unwrap())
    }

    #[test]
    fn questions_are_understood_as_requests_are_read() {
        let asked =
            parse("host=Shop.Example:8080&path=/a/../cart*&method=POST&header=X-A:+b&header=x-c&count=3");
        let Question { wanted, time, count } = asked.unwrap();
        assert_eq!(wanted.host.as_deref(), Some("shop.example"));
        assert_eq!(wanted.path, Some(WatchedPath::Beginning("/cart".to_owned())));
        assert_eq!(wanted.method, Some(Method::POST));
        let fields =
            [(HeaderName::from_static("x-a"), Some(b"b".to_vec())), (HeaderName::from_static("x-c"), None)];
        assert_eq!(wanted.fields, fields);
        assert_eq!((time, count), (Duration::from_secs(30), 3));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (query, told) in [
            ("host=a%20b", "host=\"a b\" is no hostname"),
            ("path=cart", "begin it with /"),
            ("path=/cart?a=b", "name the path alone"),
            ("method=G%20T", "is no HTTP method"),
            ("header=a%20b:c", "is neither"),
            ("seconds=301", "seconds=\"301\" is not from 1 to 300"),
            ("seconds=0", "is not from 1"),
            ("count=11", "count=\"11\" is not from 1 to 10"),
        ] {
            let error = parse(query).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(told), "{query}: {error}");
        }
        assert!(parse(&"header=a&".repeat(9)).is_err());
    }
}
