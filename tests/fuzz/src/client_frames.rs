//! Frames of HTTP/2 that a client sends: it does not matter how they are cut, and another reader of
//! all of them counts the same.

use portcullis_proxy::fuzzing::{ClientFrames, Refused, client_frames};

use crate::PIECES;
use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, Frame, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, frames,
};

const PREFACE: usize = 24;
/// Frames that may come at once: those that cost nothing, and resets.
const CONTROL: usize = 1000;
const RESETS: usize = 500;

pub(crate) fn run(bytes: &[u8]) {
    let expected = expected(bytes);
    for piece in PIECES {
        assert_eq!(client_frames(bytes, piece), expected, "in pieces of {piece}");
    }
}

fn expected(bytes: &[u8]) -> Result<ClientFrames, Refused> {
    let frames = frames(bytes.get(PREFACE..).unwrap_or_default());
    let count = |kinds: &[u8]| frames.iter().filter(|frame| kinds.contains(&frame.kind)).count();
    if count(&[PRIORITY, SETTINGS, PING]) > CONTROL || count(&[RST_STREAM]) > RESETS {
        return Err(Refused);
    }
    let data = frames.iter().filter(|frame| frame.kind == DATA).map(|frame| frame.payload.len()).sum();
    let is_head = |frame: &&Frame<'_>| matches!(frame.kind, HEADERS | CONTINUATION);
    let last_head = frames.iter().rfind(is_head);
    let goes_on = last_head.is_some_and(|frame| frame.flags & END_HEADERS == 0);
    let is_cut = frames.last().filter(is_head).is_some_and(|frame| frame.payload.len() < frame.length);
    Ok(ClientFrames { has_begun: !frames.is_empty(), is_in_head: goes_on || is_cut, data })
}
