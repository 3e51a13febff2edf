//! Frames of HTTP/2 that a backend sends: it does not matter how they are cut, another reader of
//! all of them says the same of settings and streams, and none sends more than it may.

use std::sync::LazyLock;

use portcullis_proxy::fuzzing::{BackendFrames, backend_frames, first_window};

use crate::PIECES;
use crate::frames::{ACK, DATA, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frames};

/// The first has the largest window.
const STREAMS: [u32; 2] = [1, 3];
static LARGEST: LazyLock<usize> = LazyLock::new(first_window);
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];

pub(crate) fn run(bytes: &[u8]) {
    let seen = backend_frames(bytes, usize::MAX, &STREAMS);
    for piece in PIECES {
        assert_eq!(backend_frames(bytes, piece, &STREAMS), seen, "in pieces of {piece}");
    }
    let frames = frames(bytes);
    for stream in STREAMS {
        check_data(&frames, stream, &seen);
    }
    if seen.overrun.is_some() {
        return;
    }
    let whole = frames.iter().filter(|frame| frame.is_whole());
    let (mut all_touched, mut has_settings) = (false, false);
    for frame in whole {
        all_touched |= frame.kind == GOAWAY;
        has_settings |= is_settings(frame);
    }
    assert_eq!((seen.all_touched, seen.has_settings), (all_touched, has_settings));
    // The library ends the connection at acknowledgements that have settings.
    if !frames.iter().any(|frame| frame.kind == SETTINGS && frame.flags & ACK != 0 && frame.length > 0) {
        assert_eq!(seen.most_head, most_head(&frames));
    }
    for stream in STREAMS {
        assert_eq!(seen.open.contains(&stream), !frames.iter().any(|frame| ends(frame, stream)), "{stream}");
    }
}

/// Streams have sent no more than the largest window, or one was stopped.
fn check_data(frames: &[Frame<'_>], stream: u32, seen: &BackendFrames) {
    let until = frames.iter().position(|frame| ends(frame, stream)).map_or(frames.len(), |end| end + 1);
    let of_stream = frames[..until].iter().filter(|frame| frame.kind == DATA && frame.stream == stream);
    let came: usize = of_stream.map(|frame| frame.length).sum();
    let is_over = came > *LARGEST;
    assert!(!is_over || seen.overrun.is_some(), "{came} bytes on stream {stream}");
}

fn is_settings(frame: &Frame<'_>) -> bool {
    frame.kind == SETTINGS && frame.flags & ACK == 0
}

fn ends(frame: &Frame<'_>, stream: u32) -> bool {
    let is_last = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
    frame.is_whole() && frame.stream == stream && (is_last || frame.kind == RST_STREAM)
}

fn most_head(frames: &[Frame<'_>]) -> Option<u32> {
    let settings = frames.iter().filter(|frame| frame.is_whole() && is_settings(frame));
    let each = settings.flat_map(|frame| frame.payload.as_chunks::<6>().0);
    let sizes = each.filter_map(|setting| setting.strip_prefix(&MAX_HEADER_LIST_SIZE));
    sizes.filter_map(|value| value.try_into().ok()).map(u32::from_be_bytes).next_back()
}
