//! Requests on streams of HTTP/2. Those without a body that nothing happens to but an edit of heads
//! take a shorter way to backends of HTTP/1: which one it is must not show.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response, StatusCode};
use portcullis_model::{AccessLog, BackendProtocol, Filter};
use portcullis_proxy::{LogOutput, Settings};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use crate::support::rules::{edit, rule};
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::World;

const LIMIT: Duration = Duration::from_secs(50);
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A backend that gives the answer whose turn it is to a connection, ends that, and keeps the heads
/// that it got.
#[derive(Clone, Default)]
struct Backend {
    answer: Arc<Mutex<Vec<u8>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Backend {
    async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, backend) = (listener.local_addr().unwrap(), self.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(backend.clone().serve(stream));
            }
        });
        address
    }

    async fn serve(self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        self.heads.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
        let answer = self.answer.lock().unwrap().clone();
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        // What else came is read, lest the kernel reset the connection.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        Ok(())
    }

    /// The heads that came since this was asked last, without the field that differs each time.
    /// Fields are in order by name.
    fn seen(&self) -> Vec<String> {
        let heads = std::mem::take(&mut *self.heads.lock().unwrap());
        let normal = |head: String| {
            let head = head.replacen("/other", "/plain", 1);
            let (line, fields) = head.split_once("\r\n").unwrap();
            let mut fields: Vec<_> =
                fields.lines().filter(|field| !field.starts_with("x-request-id: ")).collect();
            fields.sort_by_key(|field| field.split(':').next());
            format!("{line}\n{}", fields.join("\n"))
        };
        heads.into_iter().map(normal).collect()
    }
}

/// A whole response.
#[derive(Debug, PartialEq)]
struct Seen {
    status: StatusCode,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

async fn client(world: &World) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(world.plain).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

async fn read(response: Response<RecvStream>) -> Result<Seen, h2::Error> {
    let (parts, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = incoming.data().await {
        let data = data?;
        incoming.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    let trailers = incoming.trailers().await?;
    let fields = parts.headers.iter().filter(|(name, _)| *name != "date");
    let mut fields: Vec<_> =
        fields.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    fields.sort();
    Ok(Seen { status: parts.status, fields, body, trailers })
}

/// The response to a request written as text; or the reason why none came to its end. The beginning
/// of it may be lost then.
async fn send(sender: &mut SendRequest<Bytes>, rule: &str, text: &str) -> Result<Seen, Option<Reason>> {
    let mut lines = text.lines();
    let (method, rest) = lines.next().unwrap().split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(format!("http://any.test/{rule}{rest}"));
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
    let response = async { read(response.await?).await };
    timeout(LIMIT, response).await.expect("no response").map_err(|error| error.reason())
}

#[tokio::test]
async fn the_short_way_does_not_show() {
    let requests = [
        "GET /",
        "GET /a/../b/%7ec?",
        "GET /?a=b&c=%20",
        "GET /\nte: trailers\ncookie: a=1\ncookie: b=2\ncookie: c=3",
        "GET /\nexpect: 100-continue\ncontent-length: 0\nx-empty: \nx-twice: 1\nx-other: 3\nx-twice: 2",
        "GET /\nforwarded: for=1.1.1.1\nx-forwarded-for: 1.1.1.1\nx-real-ip: 1.1.1.1\nx_forwarded_for: 1.1.1.1",
        "GET /\nvia: 1.1 a\ncdn-loop: b\nx-request-id: c\nhost: any.test",
        "HEAD /",
        "POST /",
        "POST /\ncontent-length: 0",
        "DELETE /\nif-match: \"a\"",
        "OPTIONS /",
        "PURGE /",
        "GET /\ncontent-length: 5",
        "GET /edited\ncookie: a=1\nx-set: mine\nX_SET: mine",
        "GET /edited\ncookie: a=1\ncookie: b=2",
    ];
    let answers = [
        OK,
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 005\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nuntil the end",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum:  1 \r\nConnection: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 200 OK\r\n\
         Content-Length: 5\r\n\r\nhello",
        "HTTP/1.1 103 Early Hints\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: \"a\"\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\nwhatever",
        "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 999 Odder\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 099 Oddest\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: x-a, close\r\nX-A: 1\r\nKeep-Alive: timeout=1\r\nProxy-Connection: a\r\n\
         Upgrade: h2c\r\nTE: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-Padded: \t a \t\r\nX-Empty:\r\nset-cookie: b=2\r\nX-Empty: \r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx y: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX(y): a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n!#$%&'*+-.^_`|~: a\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n:status: 500\r\nContent-Length: 0\r\n\r\n",
        "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "",
    ];
    let filled = |fields: &str, bytes: usize| {
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {bytes}\r\n\r\n{}", "y".repeat(bytes))
    };
    let made = [
        filled(&"X: 1\r\n".repeat(99), 0),
        filled(&"X: 1\r\n".repeat(100), 0),
        filled(&format!("X: {}\r\n", "x".repeat(65_000)), 5),
        filled(&format!("X: {}\r\n", "x".repeat(66_000)), 5),
        filled("", 3_000),
        filled("", 200_000),
    ];
    let answers = answers.into_iter().map(str::to_owned).chain(made).map(String::into_bytes);
    let unicode = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: \xff\xfe\r\n\r\n".to_vec();
    let answers: Vec<_> = answers.chain([unicode]).collect();
    let (mut log, writer) = std::io::pipe().unwrap();
    let access_log = LogOutput::File(Arc::new(File::from(OwnedFd::from(writer))));
    let mut world = World::with(Settings { access_log, ..settings() });
    let backend = Backend::default();
    world.backend("echo", BackendProtocol::Http1, &[backend.listen().await]);
    let rules = ["/plain", "/other"].into_iter().flat_map(|path| {
        let added = edit(&[("x-set", "ours")], &[("cookie", "c=3")], &[]);
        [rule().prefix(path), rule().prefix(&format!("{path}/edited")).filter(Filter::RequestHeaders(added))]
            .map(|rule| if path == "/other" { rule.request_timeout(60_000) } else { rule })
    });
    world.http("*", rules.collect());
    let all = AccessLog::default();
    world.gateways[0].access_log = Some(all);
    world.apply().await;
    let mut sender = client(&world).await;
    let cases = requests.iter().map(|request| (*request, OK.as_bytes()));
    let cases = cases.chain(
        ["GET /", "HEAD /", "POST /"]
            .into_iter()
            .flat_map(|request| answers.iter().map(move |answer| (request, &**answer))),
    );
    for (request, answer) in cases {
        *backend.answer.lock().unwrap() = answer.to_vec();
        let case = format!("{request}: {}", answer[..answer.len().min(300)].escape_ascii());
        let [plain, other] =
            [send(&mut sender, "plain", request).await, send(&mut sender, "other", request).await];
        assert_eq!(plain, other, "{case}");
        let seen = backend.seen();
        let (plain, other) = seen.split_at(seen.len() / 2);
        assert_eq!(plain, other, "{case}");
    }
    drop(sender);
    world.proxy.drain().await;
    let mut lines = String::new();
    log.read_to_string(&mut lines).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |path: &str| {
        let lines = lines.iter().filter(|line| line["target"].as_str().unwrap().starts_with(path));
        lines
            .map(|line| {
                ["method", "protocol", "status", "reason", "sent", "complete", "backend", "endpoint"]
                    .map(|field| line[field].clone())
            })
            .collect::<Vec<_>>()
    };
    let (plain, other) = (of("/plain"), of("/other"));
    assert_eq!(plain.len(), other.len());
    for (plain, other) in plain.iter().zip(&other) {
        assert_eq!(plain, other);
    }
    assert!(plain.len() >= 100, "{}", plain.len());
}

/// "An endpoint MUST NOT generate an HTTP/2 message containing connection-specific header fields"
/// (RFC 9113 section 8.2.2), and clients take one for malformed.
#[tokio::test]
async fn trailers_have_no_fields_of_the_connection() {
    let mut world = World::new();
    let backend = Backend::default();
    world.backend("echo", BackendProtocol::Http1, &[backend.listen().await]);
    world.http("*", vec![rule()]);
    world.apply().await;
    *backend.answer.lock().unwrap() =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\
        X-Sum: 1\r\nConnection: close\r\nKeep-Alive: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec();
    let seen = send(&mut client(&world).await, "", "GET /").await.unwrap();
    let trailers = seen.trailers.unwrap();
    assert_eq!((trailers.len(), &trailers["x-sum"]), (1, &"1".parse().unwrap()));
}

/// Those that the client gives up meanwhile take nothing with them.
#[tokio::test]
async fn responses_wait_for_windows() {
    const STREAMS: usize = 30;
    let mut world = World::new();
    let backend = Backend::default();
    world.backend("echo", BackendProtocol::Http1, &[backend.listen().await]);
    world.http("*", vec![rule()]);
    world.apply().await;
    // All of one comes with its head; the other one does not.
    for bytes in [2_000, 9_000] {
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n{}", "y".repeat(bytes));
        *backend.answer.lock().unwrap() = answer.into_bytes();
        let stream = TcpStream::connect(world.plain).await.unwrap();
        let builder = h2::client::Builder::new().initial_window_size(0).to_owned();
        let (sender, mut connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
        let mut sender = sender.ready().await.unwrap();
        let (open, opened) = tokio::sync::oneshot::channel::<u32>();
        tokio::spawn(async move {
            let window = tokio::select! {
                _ = &mut connection => return,
                window = opened => window.unwrap(),
            };
            connection.set_initial_window_size(window).unwrap();
            let _ = connection.await;
        });
        let mut waiting = Vec::new();
        for number in 0..STREAMS {
            let request = Request::get("http://any.test/").body(()).unwrap();
            sender = sender.ready().await.unwrap();
            let (response, mut stream) = sender.send_request(request, true).unwrap();
            let response = timeout(LIMIT, response).await.expect("no head").unwrap();
            assert_eq!(response.status(), 200);
            match number % 2 {
                0 => stream.send_reset(Reason::CANCEL),
                _ => waiting.push(response),
            }
        }
        open.send(100).unwrap();
        for response in waiting {
            let seen = timeout(LIMIT, read(response)).await.expect("it stands still").unwrap();
            assert_eq!(seen.body.len(), bytes);
        }
        let after = send(&mut sender, "", "GET /").await.unwrap();
        assert_eq!(after.body.len(), bytes);
    }
}

/// A backend that tells what comes, an empty text at the end.
async fn listening() -> (SocketAddr, UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, seen) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            loop {
                let read = stream.read(&mut buffer).await.unwrap_or_default();
                let _ = events.send(String::from_utf8_lossy(&buffer[..read]).into_owned());
                if read == 0 {
                    break;
                }
            }
        }
    });
    (address, seen)
}

/// The body has no end then, and is not to look as if it had: proxies give up requests with
/// NO_ERROR, too.
#[tokio::test]
async fn a_request_that_its_client_resets_is_not_whole() {
    let (backend, mut seen) = listening().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let mut sender = client(&world).await;
    let mut next = async || timeout(LIMIT, seen.recv()).await.expect("nothing comes").unwrap();
    for reason in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        let request = Request::post("http://any.test/").body(()).unwrap();
        let (_response, mut upload) = sender.send_request(request, false).unwrap();
        upload.send_data(Bytes::from_static(b"half"), false).unwrap();
        let mut got = String::new();
        while !got.ends_with("\r\n\r\n4\r\nhalf\r\n") {
            got += &next().await;
        }
        upload.send_reset(reason);
        assert_eq!(next().await, "", "{reason}");
    }
}

#[tokio::test]
async fn a_request_does_not_outlive_its_stream_or_its_connection() {
    let (backend, mut seen) = listening().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    world.http("*", vec![rule(), rule().prefix("/other").request_timeout(60_000)]);
    world.apply().await;
    let mut next = async || timeout(LIMIT, seen.recv()).await.expect("nothing comes").unwrap();
    for path in ["plain", "other"] {
        let mut sender = client(&world).await;
        let request = || Request::get(format!("http://any.test/{path}")).body(()).unwrap();
        let (response, mut stream) = sender.send_request(request(), true).unwrap();
        assert!(next().await.starts_with("GET "));
        stream.send_reset(Reason::CANCEL);
        assert_eq!(next().await, "", "{path}: reset");
        drop((response, stream));
        let stream = TcpStream::connect(world.plain).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let (_response, _) = sender.ready().await.unwrap().send_request(request(), true).unwrap();
        assert!(next().await.starts_with("GET "));
        connection.abort();
        assert_eq!(next().await, "", "{path}: closed");
    }
}

/// "A server MAY request that the client abort transmission of a request without error by sending
/// a RST_STREAM with an error code of NO_ERROR after sending a complete response" (RFC 9113 section
/// 8.1).
#[tokio::test]
async fn uploads_end_without_error_behind_a_response() {
    let mut world = World::new();
    let backend = Backend::default();
    *backend.answer.lock().unwrap() = OK.into();
    world.backend("echo", BackendProtocol::Http1, &[backend.listen().await]);
    world.http("*", vec![rule().prefix("/failed").fail(500), rule().prefix("/echo")]);
    world.apply().await;
    let mut sender = client(&world).await;
    for (path, status) in [("failed", 500), ("none", 404), ("echo", 200)] {
        let request = Request::post(format!("http://any.test/{path}")).body(()).unwrap();
        sender = sender.ready().await.unwrap();
        let (response, mut upload) = sender.send_request(request, false).unwrap();
        upload.send_data(Bytes::from(vec![b'x'; 20_000]), false).unwrap();
        let seen = async { read(response.await.unwrap()).await.unwrap() };
        assert_eq!(timeout(LIMIT, seen).await.expect("no response").status, status);
        let reset = std::future::poll_fn(|cx| upload.poll_reset(cx));
        let reason = timeout(LIMIT, reset).await.expect("the upload may go on");
        assert_eq!(reason.unwrap(), Reason::NO_ERROR, "{path}");
    }
    assert_eq!(send(&mut sender, "echo", "GET /").await.unwrap().status, 200, "windows are not used up");
}

/// A backend of HTTP/2 that resets the stream behind a part of its response, or all of it.
async fn resetting(reason: Reason, rest: Rest) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_resetting(stream, reason, rest));
        }
    });
    address
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    More,
}

const PREFACE: usize = 24;
const FRAME: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 4;

/// Frame by frame: a library would not send what is before a reset.
async fn serve_resetting(mut stream: TcpStream, reason: Reason, rest: Rest) -> std::io::Result<()> {
    let mut seen = vec![0; PREFACE];
    stream.read_exact(&mut seen).await?;
    stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await?;
    loop {
        let mut head = [0; FRAME];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, _, id @ ..] = head;
        stream.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize]).await?;
        if kind != HEADERS {
            continue;
        }
        let ends = u8::from(rest == Rest::Nothing);
        let code = u32::from(reason).to_be_bytes();
        let answer = [
            &[0, 0, 1, HEADERS, END_HEADERS][..],
            &id,
            // :status 200
            &[0x88, 0, 0, 4, 0, ends],
            &id,
            &[b'h', b'a', b'l', b'f', 0, 0, 4, 3, 0],
            &id,
            &code,
        ];
        stream.write_all(&answer.concat()).await?;
    }
}

/// "without error" (RFC 9113 section 8.1) a backend may reset the request behind a response that is
/// complete. Behind a part of one it is no end, by whichever code.
#[tokio::test]
async fn a_response_that_its_backend_resets_is_not_whole() {
    for (reason, rest, expected) in [
        (Reason::NO_ERROR, Rest::Nothing, Ok("half")),
        (Reason::NO_ERROR, Rest::More, Err(Reason::INTERNAL_ERROR)),
        (Reason::CANCEL, Rest::More, Err(Reason::CANCEL)),
        (Reason::INTERNAL_ERROR, Rest::More, Err(Reason::INTERNAL_ERROR)),
        (Reason::ENHANCE_YOUR_CALM, Rest::More, Err(Reason::ENHANCE_YOUR_CALM)),
    ] {
        let mut world = World::new();
        world.backend("echo", BackendProtocol::H2c, &[resetting(reason, rest).await]);
        world.http("*", vec![rule()]);
        world.apply().await;
        for begun in [Rest::Nothing, Rest::More] {
            let request = Request::post("http://any.test/").body(()).unwrap();
            let (response, _upload) =
                client(&world).await.send_request(request, begun == Rest::Nothing).unwrap();
            let response = async { read(response.await?).await };
            let seen = timeout(LIMIT, response).await.expect("no response");
            let seen = seen.map(|seen| String::from_utf8(seen.body).unwrap());
            let seen = seen.map_err(|error: h2::Error| error.reason().unwrap());
            assert_eq!(seen, expected.map(str::to_owned), "{reason} {rest:?} {begun:?}");
        }
        let mut http1 = Client::connect(Via::Http1, world.plain, "any.test").await;
        assert_eq!(http1.try_send("GET /").await.is_ok(), expected.is_ok(), "{reason} {rest:?}");
    }
}
