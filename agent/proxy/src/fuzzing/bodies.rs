//! Bodies in chunks, and in base64.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;

use super::Refused;
use crate::http::body::grpc_web::Translation;
use crate::http::grpc_web::Format;
use crate::upstream::http1::{BodyLength, Decoded, Decoder};
use crate::upstream::request::base64::Base64;

/// A chunked body, as far as it was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ChunkedBody {
    pub data: Vec<u8>,
    pub trailers: HeaderMap,
    /// Bytes up to its end, if it came.
    pub size: Option<usize>,
    pub is_malformed: bool,
}

/// Reads a chunked body that comes in pieces of this size.
pub fn chunked_body(bytes: &[u8], piece: usize) -> ChunkedBody {
    let mut body = ChunkedBody::default();
    let mut decoder = Decoder::new(BodyLength::Chunked);
    let (mut held, mut come) = (Bytes::new(), 0);
    loop {
        match decoder.decode(&mut held) {
            Ok(Decoded::Data(data)) => body.data.extend(data),
            Ok(Decoded::Trailers(trailers)) => body.trailers = trailers,
            Ok(Decoded::End) => {
                body.size = Some(come - held.len());
                return body;
            }
            Ok(Decoded::More) if come < bytes.len() => {
                let next = &bytes[come..bytes.len().min(come + piece.max(1))];
                come += next.len();
                let mut all = BytesMut::from(&held[..]);
                all.extend_from_slice(next);
                held = all.freeze();
            }
            Ok(Decoded::More) => return body,
            Err(_) => {
                body.is_malformed = true;
                return body;
            }
        }
    }
}

/// The bytes that a text of gRPC-Web stands for, which comes in pieces of this size.
pub fn from_base64(text: &[u8], piece: usize) -> Result<Vec<u8>, Refused> {
    let (mut base64, mut decoded) = (Base64::default(), Vec::new());
    for piece in text.chunks(piece.max(1)) {
        decoded.extend(base64.decode(piece).map_err(|_| Refused)?);
    }
    if base64.is_whole() { Ok(decoded) } else { Err(Refused) }
}

/// The body of a response of gRPC: pieces of data, and trailers if there are some.
pub struct Frames<'b> {
    pub data: Vec<&'b [u8]>,
    pub trailers: Option<HeaderMap>,
}

/// A format of gRPC-Web.
#[derive(Clone, Copy)]
pub enum WebFormat {
    Binary,
    Text,
}

/// The body in gRPC-Web, in the pieces that a client gets.
pub fn grpc_web(frames: &Frames<'_>, format: WebFormat) -> Result<Vec<Bytes>, Refused> {
    let format = match format {
        WebFormat::Binary => Format::Binary,
        WebFormat::Text => Format::Text,
    };
    let data = frames.data.iter().map(|data| Frame::data(Bytes::copy_from_slice(data)));
    let end = frames.trailers.clone().map(Frame::trailers);
    let mut translation = Translation::to(format);
    data.map(Some).chain([end]).map(|frame| translation.pass(frame).map_err(|_| Refused)).collect()
}
