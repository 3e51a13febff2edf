//! The smallest clients that HTTP/1.1 and HTTP/2 allow: one connection, one request at a time,
//! bytes that are always the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::{Authority, TlsClient};

use super::site::{HTTP_PORT, HTTPS_PORT, host_name};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A byte stream, with TLS or without.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

type Bytes = Box<dyn Stream>;

pub(crate) trait Client {
    /// Sends a request to a path and reads the whole answer, which must be a 200.
    fn ask(&mut self, path: &str) -> Result<()>;
}

struct Http1 {
    stream: BufReader<Bytes>,
    method: &'static str,
    /// All lines but the first, the empty one, and the body.
    rest: String,
}

struct Http2 {
    stream: Bytes,
    authority: String,
    last_stream: u32,
}

/// A connection to the site of a proxy at this address.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) address: IpAddr,
    /// Of its certificates.
    pub(crate) authority: &'a Authority,
}

// === impl Target ===

impl Target<'_> {
    /// HTTP/1.1, for a host.
    pub(crate) fn plain(self, host: &str, further: &[(&str, &str)]) -> Result<Box<dyn Client>> {
        Ok(Box::new(Http1::new(self.connect()?, host, further)))
    }

    /// The same with a body of so many bytes.
    pub(crate) fn post(self, host: &str, bytes: usize) -> Result<Box<dyn Client>> {
        let mut http1 = Http1::new(self.connect()?, host, &[("Content-Length", &bytes.to_string())]);
        http1.rest += &"x".repeat(bytes);
        Ok(Box::new(Http1 { method: "POST", ..http1 }))
    }

    fn connect(self) -> Result<Bytes> {
        let stream = TcpStream::connect(SocketAddr::new(self.address, HTTP_PORT))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Box::new(stream))
    }

    /// The same over TLS, for the first host that has a certificate.
    pub(crate) fn tls(self) -> Result<Box<dyn Client>> {
        Ok(Box::new(Http1::new(self.shake_hands(b"http/1.1")?, &tls_authority(), &[])))
    }

    pub(crate) fn http2(self) -> Result<Box<dyn Client>> {
        Ok(Box::new(Http2::new(self.shake_hands(b"h2")?, &tls_authority())?))
    }

    fn shake_hands(self, protocol: &[u8]) -> Result<Bytes> {
        let client = TlsClient::new(self.authority)?.speaking(protocol);
        let address = SocketAddr::new(self.address, HTTPS_PORT);
        Ok(Box::new(client.connect_within(TIMEOUT, address, &host_name(0))?.into_stream()))
    }
}

fn tls_authority() -> String {
    format!("{}:{HTTPS_PORT}", host_name(0))
}

// === impl Http1 ===

impl Http1 {
    fn new(stream: Bytes, host: &str, further: &[(&str, &str)]) -> Self {
        let mut fields = format!("Host: {host}\r\n");
        further.iter().for_each(|(name, value)| fields += &format!("{name}: {value}\r\n"));
        Self { stream: BufReader::new(stream), method: "GET", rest: fields + "\r\n" }
    }
}

impl Client for Http1 {
    fn ask(&mut self, path: &str) -> Result<()> {
        let request = format!("{} {path} HTTP/1.1\r\n{}", self.method, self.rest);
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.stream.get_mut().flush()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.stream.read_line(&mut head)? > 0, "the connection was closed after {head:?}");
        }
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: u64 = length.context("an answer without length")?.trim().parse()?;
        let body = std::io::copy(&mut (&mut self.stream).take(length), &mut std::io::sink())?;
        ensure!(body == length, "the connection was closed within a body");
        Ok(())
    }
}

// RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Growth of a window that keeps it below its maximum, RFC 9113, section 6.9.1; no run uses it up.
const LARGEST_WINDOW: u32 = (1 << 31) - 1 - 65_535;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

// === impl Http2 ===

impl Http2 {
    fn new(mut stream: Bytes, authority: &str) -> Result<Self> {
        let mut hello = PREFACE.to_vec();
        hello.extend(frame(SETTINGS, 0, 0, &[]));
        hello.extend(frame(WINDOW_UPDATE, 0, 0, &LARGEST_WINDOW.to_be_bytes()));
        stream.write_all(&hello)?;
        stream.flush()?;
        Ok(Self { stream, authority: authority.to_owned(), last_stream: 0 })
    }

    fn read(&mut self) -> Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c]))?];
        self.stream.read_exact(&mut payload)?;
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    fn write(&mut self, frame: &[u8]) -> Result<()> {
        self.stream.write_all(frame)?;
        Ok(self.stream.flush()?)
    }
}

impl Client for Http2 {
    fn ask(&mut self, path: &str) -> Result<()> {
        self.last_stream = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        // RFC 7541: `:method: GET` and `:scheme: https` of the static table, `:authority` and
        // `:path` by their names there.
        let mut fields = vec![0x82, 0x87];
        for (name, value) in [(0x01, self.authority.as_str()), (0x04, path)] {
            fields.extend([name, u8::try_from(value.len())?]);
            fields.extend(value.bytes());
        }
        self.write(&frame(HEADERS, END_STREAM | END_HEADERS, self.last_stream, &fields))?;
        loop {
            let read = self.read()?;
            match read.kind {
                // `:status: 200` of the static table.
                HEADERS => ensure!(read.payload.first() == Some(&0x88), "not a 200"),
                SETTINGS if read.flags & ACK == 0 => self.write(&frame(SETTINGS, ACK, 0, &[]))?,
                PING if read.flags & ACK == 0 => self.write(&frame(PING, ACK, 0, &read.payload))?,
                DATA | SETTINGS | PING | WINDOW_UPDATE => {}
                other => bail!("a frame of type {other}: {:?}", read.payload),
            }
            let ends = matches!(read.kind, DATA | HEADERS) && read.flags & END_STREAM != 0;
            if ends && read.stream == self.last_stream {
                return Ok(());
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
