//! Frames of backends, for `tests/fuzz` alone.

use std::rc::Rc;

use super::{Flow, PREFACE};
use crate::core::window::{Enlarged, Window, Windows};

/// The outcome of a backend's frames.
#[derive(Debug, PartialEq, Eq)]
pub struct BackendFrames {
    /// Streams of which there was a frame, none twice in a row.
    pub touched: Vec<u32>,
    /// True if all streams are to be looked at.
    pub all_touched: bool,
    pub has_settings: bool,
    /// The size of heads that the backend takes, if it said so.
    pub most_head: Option<u32>,
    /// Streams that are not over.
    pub open: Vec<u32>,
    /// The stream on which more came than its window.
    pub overrun: Option<u32>,
}

/// Follows frames that come in pieces of this size, to requests on these streams.
pub fn backend_frames(bytes: &[u8], piece: usize, streams: &[u32]) -> BackendFrames {
    let (windows, enlarged) = (Windows::http1(), Rc::<Enlarged>::default());
    let mut flow = Flow::new(enlarged.clone());
    flow.send(&[0; PREFACE]);
    for id in streams {
        flow.windows.insert(*id, Window::begin(&windows, &enlarged, *id));
    }
    let followed = bytes.chunks(piece.max(1)).try_for_each(|piece| flow.receive(piece));
    let mut open: Vec<_> = flow.windows.keys().copied().collect();
    open.sort_unstable();
    BackendFrames {
        touched: flow.touched,
        all_touched: flow.all_touched,
        has_settings: flow.has_settings,
        most_head: flow.most_head,
        open,
        overrun: followed.err().map(|overrun| overrun.0),
    }
}

/// The bytes that come on the first of some streams without being asked for.
pub fn first_window() -> usize {
    let (windows, enlarged) = (Windows::http1(), Rc::<Enlarged>::default());
    let window = Window::begin(&windows, &enlarged, 1);
    (0..).take_while(|_| window.used(1)).count()
}
