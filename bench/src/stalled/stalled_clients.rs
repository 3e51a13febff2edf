//! Clients that ask and do not read, or announce and do not send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::site::ONE;

const STREAMS: u32 = 100;
pub(super) const ENDLESS_PATH: &str = "/endless";
pub(super) const UPLOAD_PATH: &str = "/upload";
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time that the next bytes of a connection may take which its proxy has closed.
const LAST_READ: Duration = Duration::from_secs(1);
/// Of 64 KiB.
const PIECES: usize = 256;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const HEADERS: u8 = 1;
const END_STREAM_AND_HEADERS: u8 = 5;
const LARGEST_WINDOW: u32 = i32::MAX as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Http1,
    Http2,
    Upload,
}

/// Open as long as this is.
#[derive(Default)]
pub(super) struct StalledClients {
    streams: Vec<TcpStream>,
    /// Connections that could not be made.
    refused: usize,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Upload];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1 readers",
            Self::Http2 => "HTTP/2 readers, 100 streams",
            Self::Upload => "uploads",
        }
    }

    fn request(self) -> Vec<u8> {
        match self {
            Self::Http1 => format!("GET {ENDLESS_PATH} HTTP/1.1\r\nHost: {ONE}\r\n\r\n").into_bytes(),
            Self::Upload => {
                let head =
                    format!("POST {UPLOAD_PATH} HTTP/1.1\r\nHost: {ONE}\r\nContent-Length: 1000000\r\n\r\n");
                [head.as_bytes(), &[b'x'; 1024]].concat()
            }
            Self::Http2 => http2_requests(),
        }
    }
}

/// A hundred requests at once, with the largest windows there are.
fn http2_requests() -> Vec<u8> {
    let field = |index: u8, value: &str| [&[index, value.len() as u8], value.as_bytes()].concat();
    // GET, http, :authority, :path; see RFC 7541, appendix A.
    let head = [&[0x82, 0x86][..], &field(0x41, ONE), &field(0x44, ENDLESS_PATH)].concat();
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[&[0, 4][..], &LARGEST_WINDOW.to_be_bytes()].concat()));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(LARGEST_WINDOW - 65_535).to_be_bytes()));
    for stream in 0..STREAMS {
        bytes.extend(frame(HEADERS, END_STREAM_AND_HEADERS, 2 * stream + 1, &head));
    }
    bytes
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

impl StalledClients {
    pub(super) fn open(&mut self, kind: Kind, address: SocketAddr, count: usize) {
        let request = kind.request();
        for _ in 0..count {
            let opened = TcpStream::connect_timeout(&address, TIMEOUT).and_then(|mut stream| {
                stream.set_write_timeout(Some(TIMEOUT))?;
                stream.write_all(&request)?;
                Ok(stream)
            });
            match opened {
                Ok(stream) => self.streams.push(stream),
                Err(_) => self.refused += 1,
            }
        }
    }

    /// Reads what there is, at last, to see which of them have been closed: behind what the kernel
    /// had for a client comes an end.
    pub(super) fn closed(self) -> usize {
        let is_closed = |mut stream: TcpStream| {
            let mut piece = vec![0; 64 << 10];
            // No end within what sockets hold: the proxy goes on.
            let mut reads = (0..PIECES).map(|_| stream.read(&mut piece));
            match reads.find(|read| !matches!(read, Ok(count) if *count > 0)) {
                Some(Ok(_)) => true,
                Some(Err(error)) => error.kind() != ErrorKind::WouldBlock,
                None => false,
            }
        };
        let reads = self.streams.into_iter().filter(|it| it.set_read_timeout(Some(LAST_READ)).is_ok());
        let reads: Vec<_> = reads.map(|stream| thread::spawn(move || is_closed(stream))).collect();
        self.refused + reads.into_iter().filter_map(|read| read.join().ok()).filter(|closed| *closed).count()
    }
}
