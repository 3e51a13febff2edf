//! A backend that takes for a request what is one to the letter, and remembers what it read: a
//! request that no client sent as one was smuggled.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// The bytes and requests that came on its connections.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<Stream>>>);

/// Those of one connection.
#[derive(Clone, Default)]
pub(crate) struct Stream {
    pub(crate) bytes: Vec<u8>,
    /// Those that were complete.
    pub(crate) requests: Vec<Request>,
    /// The reason why what is behind them is no request.
    pub(crate) malformed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: usize,
    /// Its end in the stream.
    pub(crate) end: usize,
}

/// Remembers what is read.
struct Recorded {
    stream: TcpStream,
    asked: Asked,
    number: usize,
}

// === impl Asked ===

impl Asked {
    /// Complete requests whose heads hold this.
    pub(crate) fn count(&self, text: &str) -> usize {
        let requests = |stream: &Stream| stream.requests.iter().filter(|it| it.head.contains(text)).count();
        self.lock().iter().map(requests).sum()
    }

    /// Heads of complete requests that are meant.
    pub(crate) fn heads(&self, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let streams = self.lock();
        let heads = streams.iter().flat_map(|stream| &stream.requests).map(|request| &request.head);
        heads.filter(|head| is_meant(head)).cloned().collect()
    }

    pub(crate) fn streams(&self) -> Vec<Stream> {
        self.lock().clone()
    }

    fn begin(&self) -> usize {
        let mut streams = self.lock();
        streams.push(Stream::default());
        streams.len() - 1
    }

    fn note(&self, number: usize, what: impl FnOnce(&mut Stream)) {
        what(&mut self.lock()[number]);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until the process ends.
pub(crate) fn start(address: SocketAddr) -> Result<Asked> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    let asked = Asked::default();
    let noting = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let asked = noting.clone();
            thread::spawn(move || {
                let number = asked.begin();
                if let Err(error) = serve(stream, &asked, number)
                    && error.kind() == ErrorKind::InvalidData
                {
                    asked.note(number, |stream| stream.malformed = Some(error.to_string()));
                }
            });
        }
    });
    Ok(asked)
}

fn serve(mut stream: TcpStream, asked: &Asked, number: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let recorded = Recorded { stream: stream.try_clone()?, asked: asked.clone(), number };
    let mut reader = BufReader::new(recorded);
    while let Some(head) = head(&mut reader)? {
        let body = skip_body(&mut reader, &head)?;
        let answer = answer(&head);
        let ahead = reader.buffer().len();
        asked.note(number, |stream| {
            let end = stream.bytes.len() - ahead;
            stream.requests.push(Request { head: head.to_ascii_lowercase(), body, end });
        });
        // Switches to nothing.
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// A response that says what was asked for.
pub(crate) fn answer(head: &str) -> String {
    let body = format!("asked for {}\n", path(head));
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The target of a request.
pub(crate) fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// `None` at the end of the connection.
pub(crate) fn head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let Some(line) = line(reader)? else { return Ok(None) };
        head += &line;
        if line == "\r\n" && head.len() == 2 {
            return Err(malformed("an empty line before a request"));
        }
    }
    let mut lines = head.lines();
    let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    if !matches!(words[..], [_, _, "HTTP/1.1"]) {
        return Err(malformed(&format!("the request line {words:?}")));
    }
    match lines.filter(|line| !line.is_empty()).find(|line| !is_field(line)) {
        Some(line) => Err(malformed(&format!("the field {line:?}"))),
        None => Ok(Some(head)),
    }
}

/// With its end, which has to be CRLF. Bytes that are no UTF-8 are replaced.
fn line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&line).into_owned();
    match text.strip_suffix("\r\n") {
        Some(rest) if !rest.contains(['\r', '\0']) => Ok(Some(text)),
        None if !text.ends_with('\n') => Ok(None),
        _ => Err(malformed(&format!("the line {text:?}"))),
    }
}

/// A name is a token, directly before the colon (RFC 9112 section 5.1).
fn is_field(line: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    line.split_once(':').is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(is_token))
}

/// Returns its length.
fn skip_body(reader: &mut impl BufRead, head: &str) -> io::Result<usize> {
    let head = head.to_ascii_lowercase();
    let values = |name: &str| {
        head.lines().filter_map(|line| line.strip_prefix(name)).map(str::trim).collect::<Vec<_>>()
    };
    match (&values("transfer-encoding:")[..], &values("content-length:")[..]) {
        ([], []) => Ok(0),
        (["chunked"], []) => skip_chunks(reader),
        ([], [text]) => match text.parse::<usize>() {
            Ok(length) if length.to_string() == *text => skip(reader, length).map(|()| length),
            _ => Err(malformed(&format!("the length {text:?}"))),
        },
        (codings, lengths) => Err(malformed(&format!("the codings {codings:?} and lengths {lengths:?}"))),
    }
}

fn skip_chunks(reader: &mut impl BufRead) -> io::Result<usize> {
    let mut length = 0;
    loop {
        let size = line(reader)?.ok_or(ErrorKind::UnexpectedEof)?;
        let size = usize::from_str_radix(size.trim_end(), 16);
        let size = size.map_err(|_| malformed("a chunk size that is none"))?;
        skip(reader, size)?;
        length += size;
        // Of the chunk, or trailers.
        while line(reader)?.ok_or(ErrorKind::UnexpectedEof)? != "\r\n" {
            if size > 0 {
                return Err(malformed("a chunk that does not end"));
            }
        }
        if size == 0 {
            return Ok(length);
        }
    }
}

fn skip(reader: &mut impl BufRead, length: usize) -> io::Result<()> {
    let skipped = io::copy(&mut Read::take(reader, length as u64), &mut io::sink())?;
    if skipped < length as u64 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

// === impl Recorded ===

impl Read for Recorded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.asked.note(self.number, |stream| stream.bytes.extend_from_slice(&buffer[..count]));
        Ok(count)
    }
}
