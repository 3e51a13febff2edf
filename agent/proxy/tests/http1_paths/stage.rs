//! A proxy with one way of reading HTTP/1, the backend behind it, and what both saw of a case.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portcullis_model::{TimeLimit, Timeouts};
use portcullis_proxy::{Http1, Proxy, Settings, SocketMode};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::case::{Answer, Case};
use super::reference::{self, Message, Reading};
use super::support::fixture::{Gateway, ListenerSpec, RouteSpec};

/// The answer to requests that a case has none for.
const OTHERWISE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The time that a busy machine may need to note that a client and a backend have gone.
const SETTLED: Duration = Duration::from_secs(60);

pub(crate) struct Stage {
    http1: Http1,
    gateway: Gateway,
    seen: Arc<Mutex<Seen>>,
    backend: JoinHandle<()>,
    /// Of the backend.
    connections: Arc<Mutex<JoinSet<()>>>,
}

/// The backend's part of a case.
#[derive(Default)]
struct Seen {
    answers: Vec<Answer>,
    answered: usize,
    requests: Vec<Message>,
    /// Bytes that no strict reader takes for requests.
    malformed: Vec<Vec<u8>>,
}

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Whole requests that the backend got.
    pub requests: Vec<Message>,
    /// Whole responses that the client got.
    pub responses: Vec<Message>,
    pub end: End,
    /// Bytes that a strict reader takes for no part of a message, of either side.
    pub malformed: Vec<Vec<u8>>,
}

/// The state of the client's connection behind its last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    /// Closed while there were bytes of the client that were not read: it may have lost what it was
    /// sent.
    Reset,
    /// The gateway waits for more, or has nothing to say.
    Open,
}

// === impl Outcome ===

impl Outcome {
    /// True if this is the other one, cut off behind an answer of the gateway: it may come before
    /// the body of its request has, and how much of that is still worth to be read depends on what
    /// has come by then.
    pub(crate) fn is_cut_off(&self, other: &Self) -> bool {
        let is_refusal =
            |message: &Message| message.start.split(' ').nth(1).is_some_and(|status| status >= "400");
        let is_behind_refusal = self.end != End::Open && self.responses.last().is_some_and(is_refusal);
        (is_behind_refusal || self.end == End::Reset)
            && other.responses.starts_with(&self.responses)
            && other.requests.starts_with(&self.requests)
    }

    /// True if nothing came of the connection, and perhaps one of them answered 400 before it
    /// closed. One that begins with a line of another protocol gets no answer, unless the line is
    /// refused before all of it has come.
    pub(crate) fn is_no_http(&self, other: &Self) -> bool {
        let is_refused = |outcome: &Self| {
            outcome.end == End::Closed
                && outcome.requests.is_empty()
                && outcome.responses.iter().all(|message| message.start.ends_with(" 400"))
        };
        is_refused(self) && is_refused(other)
    }

    /// True if this is the other one with the beginning of another response, which only the end of
    /// the connection ends: a backend's body broke off, and how much of it goes out before that is
    /// noted depends on what has come by then.
    pub(crate) fn breaks_off_later(&self, other: &Self) -> bool {
        let ends_by_close = |message: &Message| {
            !message.fields.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding")
        };
        self.end == End::Closed
            && other.end == End::Closed
            && self.requests == other.requests
            && self.responses.split_last().is_some_and(|(last, before)| {
                ends_by_close(last) && (before == other.responses || other.breaks_off_in(last, before))
            })
    }

    fn breaks_off_in(&self, last: &Message, before: &[Message]) -> bool {
        self.responses.split_last().is_some_and(|(own, rest)| {
            rest == before
                && (&own.start, &own.fields) == (&last.start, &last.fields)
                && last.body.starts_with(&own.body)
        })
    }
}

// === impl Stage ===

impl Stage {
    /// Requests that the HTTP library has read.
    pub(crate) async fn by_library(&self) -> u64 {
        self.gateway.proxy.stats().await.http1_by_library
    }

    pub(crate) async fn new(http1: Http1) -> Self {
        let settings = Settings { cores: 1, sockets: SocketMode::Steered, http1, ..Settings::default() };
        let proxy = Proxy::start(settings).unwrap();
        let address = proxy.sockets()[0].v4.local_addr().unwrap();
        let gateway = Gateway { proxy, address };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        // What has a time-out takes the way of all that is not plain.
        let mut timed = RouteSpec::to("/b", "backend");
        let limit = TimeLimit::Of(Duration::from_secs(60));
        timed.timeouts = Timeouts { request: limit, ..Timeouts::default() };
        let routes = vec![RouteSpec::to("/a", "backend"), timed];
        gateway.serve(vec![ListenerSpec::new("http", "*", false, routes)], &[("backend", &[endpoint])]).await;
        let seen = Arc::<Mutex<Seen>>::default();
        let connections = Arc::<Mutex<JoinSet<()>>>::default();
        let (of_backend, accepted) = (seen.clone(), connections.clone());
        let backend = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                lock(&accepted).spawn(answer(stream, of_backend.clone()));
            }
        });
        Self { http1, gateway, seen, backend, connections }
    }

    /// Ends the backend's connections, and waits until no client is served any more: a request that
    /// is still under way would come to the backend in the next case.
    async fn settle(&self) {
        let mut connections = std::mem::take(&mut *lock(&self.connections));
        connections.shutdown().await;
        while self.gateway.proxy.stats().await.gateways.values().any(|gateway| gateway.open > 0) {
            tokio::task::yield_now().await;
        }
    }

    /// Plays the case. `silence`: the time for which nothing may happen before it is over.
    pub(crate) async fn play(&self, case: &Case, silence: Duration) -> Outcome {
        *lock(&self.seen) = Seen { answers: case.answers.clone(), ..Seen::default() };
        let stream = TcpStream::connect(self.gateway.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let writing = async {
            for piece in case.client.chunks(case.piece.clamp(1, usize::MAX)) {
                // The gateway may have had enough.
                if writer.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            std::future::pending::<()>().await;
        };
        let reading = async {
            let mut received = Vec::new();
            loop {
                match tokio::time::timeout(silence, reader.read_buf(&mut received)).await {
                    Ok(Ok(1..)) => {}
                    Ok(Ok(0)) => return (received, End::Closed),
                    Ok(Err(_)) => return (received, End::Reset),
                    Err(_) => return (received, End::Open),
                }
            }
        };
        let (received, end) = tokio::select! {
            outcome = reading => outcome,
            () = writing => unreachable!("it has no end"),
        };
        let Seen { requests, mut malformed, .. } = std::mem::take(&mut *lock(&self.seen));
        drop((reader, writer));
        let settled = tokio::time::timeout(SETTLED, self.settle()).await;
        settled.unwrap_or_else(|_| {
            panic!("{:?}: a connection outlives both sides:\n{}", self.http1, case.to_text())
        });
        let (responses, rest) = responses(&received, &case.client, end);
        malformed.extend(rest);
        Outcome { requests, responses, end, malformed }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.backend.abort();
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers requests as the case says, as long as they are such to a strict reader.
async fn answer(mut stream: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut received = Vec::new();
    loop {
        let (message, size) = match reference::request(&received) {
            Reading::Message(message, size) => (message, size),
            Reading::Incomplete => match stream.read_buf(&mut received).await {
                Ok(1..) => continue,
                Ok(0) | Err(_) => return,
            },
            Reading::Malformed => return lock(&seen).malformed.push(received),
        };
        received.drain(..size);
        let answer = {
            let mut seen = lock(&seen);
            seen.requests.push(without_random(message));
            seen.answered += 1;
            seen.answers.get(seen.answered - 1).cloned()
        };
        let answer = answer.unwrap_or(Answer { bytes: OTHERWISE.to_vec(), closes: false });
        if answer.closes {
            // The end comes with the last byte: the gateway is not to take the connection for one
            // that is kept.
            SockRef::from(&stream).set_tcp_cork(true).unwrap();
        }
        if stream.write_all(&answer.bytes).await.is_err() || answer.closes {
            return;
        }
    }
}

/// The whole responses among these bytes, and what is behind them if that is no part of one. The
/// methods are those of the client's requests; behind one that is in doubt nothing can be said.
fn responses(mut received: &[u8], mut client: &[u8], end: End) -> (Vec<Message>, Option<Vec<u8>>) {
    let (mut responses, mut is_known) = (Vec::new(), true);
    while !received.is_empty() {
        client = skip_empty_lines(client);
        let method = match reference::request(client) {
            Reading::Message(message, size) => {
                client = &client[size..];
                message.start.split(' ').next().unwrap_or_default().to_owned()
            }
            Reading::Incomplete | Reading::Malformed => {
                let first = client.split(|byte| !byte.is_ascii_uppercase()).next().unwrap_or_default();
                let method = String::from_utf8_lossy(first).into_owned();
                (client, is_known) = (&[], false);
                method
            }
        };
        loop {
            match reference::response(received, &method, end == End::Closed) {
                Reading::Message(message, size) => {
                    received = &received[size..];
                    let is_final = !message.start.split(' ').nth(1).unwrap_or_default().starts_with('1');
                    responses.push(without_random(message));
                    if is_final {
                        break;
                    }
                }
                Reading::Incomplete => return (responses, None),
                Reading::Malformed => return (responses, is_known.then(|| received.to_vec())),
            }
        }
    }
    (responses, None)
}

/// An empty line before a request is none of it (RFC 9112 section 2.2).
pub(crate) fn skip_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    bytes
}

/// The message without what is never the same twice, and without what may differ: the phrase of
/// its status, the version of a refusal of what is no request, zeros in front of a number, how
/// many lines a list has, and whether an end of the connection is announced.
fn without_random(mut message: Message) -> Message {
    let is_response = message.start.starts_with("HTTP/");
    let is_without_length = message.start.split(' ').nth(1) == Some("204");
    message.fields.retain(|(name, _)| {
        let may_differ = is_response && name == "connection";
        !(may_differ || is_without_length && name == "content-length")
    });
    for (name, value) in &mut message.fields {
        match &**name {
            "date" | "x-request-id" => value.clear(),
            // A mark of the gateway that differs from one to the next.
            "cdn-loop" => value.clear(),
            "content-length" => *value = value.trim_start_matches('0').to_owned(),
            _ => {}
        }
    }
    if is_response {
        let words: Vec<_> = message.start.split(' ').take(2).collect();
        message.start =
            if words[..] == ["HTTP/1.0", "400"] { "HTTP/1.1 400".to_owned() } else { words.join(" ") };
    }
    message.fields.dedup_by(|next, field| {
        let is_same_list = field.0 == "trailer" && next.0 == "trailer";
        if is_same_list {
            field.1 = format!("{}, {}", field.1, next.1);
        }
        is_same_list
    });
    message
}
