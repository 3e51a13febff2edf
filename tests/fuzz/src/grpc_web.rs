//! Responses of gRPC as browsers get them: messages stay what they are, trailers are the last one,
//! and never part of another, whatever pieces the body comes in.
//!
//! The bytes are trailers, one a line, an empty line, and messages; without an empty line they are
//! messages alone.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis_proxy::fuzzing::{Frames, WebFormat, from_base64, grpc_web};

use crate::PIECES;
use crate::fields::fields;

const TRAILERS: u8 = 0x80;

pub(crate) fn run(bytes: &[u8]) {
    let end = bytes.windows(2).position(|pair| pair == b"\n\n");
    let (trailers, body) = match end {
        Some(end) => (Some(fields(&bytes[..end])), &bytes[end + 2..]),
        None => (None, bytes),
    };
    let is_whole = messages(body).is_some();
    for piece in PIECES {
        let frames = || Frames { data: body.chunks(piece).collect(), trailers: trailers.clone() };
        let binary = grpc_web(&frames(), WebFormat::Binary);
        let text = grpc_web(&frames(), WebFormat::Text);
        assert_eq!(binary.is_ok(), is_whole || trailers.is_none(), "by {piece}");
        assert_eq!(text.is_ok(), binary.is_ok(), "by {piece}");
        let (Ok(binary), Ok(text)) = (binary, text) else { continue };
        let binary = binary.concat();
        assert_eq!(&binary[..body.len()], body, "by {piece}");
        match &trailers {
            None => assert_eq!(binary.len(), body.len()),
            Some(trailers) => are_last(&binary, trailers),
        }
        assert_eq!(digits(&text), binary, "by {piece}");
        assert_eq!(from_base64(&text.concat(), piece), Ok(binary), "our own reader, by {piece}");
    }
}

/// "The last message": a block of lines.
fn are_last(binary: &[u8], trailers: &HeaderMap) {
    let messages = messages(binary).unwrap_or_default();
    let [.., (TRAILERS, block)] = &messages[..] else {
        unreachable!("no trailers are last in {}", binary.escape_ascii())
    };
    let mut read = HeaderMap::new();
    for line in block.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").unwrap_or_default();
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or_default();
        let name = HeaderName::from_lowercase(&line[..colon]);
        let value = HeaderValue::from_bytes(line.get(colon + 1..).unwrap_or_default());
        let (Ok(name), Ok(value)) = (name, value) else { unreachable!("{}", line.escape_ascii()) };
        read.append(name, value);
    }
    assert_eq!(read, *trailers);
}

/// Flags and bytes of messages; `None` if the last is not whole.
fn messages(mut bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (prefix, rest) = bytes.split_first_chunk::<5>()?;
        let [flag, length @ ..] = *prefix;
        let (message, rest) = rest.split_at_checked(u32::from_be_bytes(length) as usize)?;
        messages.push((flag, message));
        bytes = rest;
    }
    Some(messages)
}

/// The bytes that the pieces stand for, none of which breaks a group of digits.
fn digits(pieces: &[Bytes]) -> Vec<u8> {
    let piece = |piece: &Bytes| {
        assert!(piece.len().is_multiple_of(4), "{piece:?}");
        // Padding ends a message, and the piece.
        STANDARD.decode(piece).unwrap_or_else(|error| unreachable!("{piece:?}: {error}"))
    };
    pieces.iter().flat_map(piece).collect()
}
