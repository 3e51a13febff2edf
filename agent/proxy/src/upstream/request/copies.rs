//! Copies of a body, made as it is read. They never hold it up: what the reader of a copy has not
//! taken yet waits for it, and a copy that comes to be too far behind is given up.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::Notify;

use crate::core::shares::Share;
use crate::upstream::request::piece::Piece;

/// Bytes by which a copy may be behind.
const MOST_BEHIND: usize = 256 << 10;

/// All copies of a body, for the one who reads it.
#[derive(Default)]
pub(crate) struct Copies {
    all: Vec<Rc<Copy>>,
}

/// A copy of a body, to be sent.
pub(crate) struct CopiedUpload(Rc<Copy>);

/// A look at a copy that is being sent.
pub(crate) struct CopyWatch(Rc<Copy>);

/// The end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyEnd {
    /// The same as the body's.
    Complete,
    /// The body was not read to its end.
    Broken,
    /// It was given up.
    Behind,
}

struct Copy {
    state: RefCell<State>,
    room: Share,
    ended: Notify,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    bytes: usize,
    end: Option<CopyEnd>,
    waker: Option<Waker>,
    is_unwanted: bool,
}

// === impl Copies ===

impl Copies {
    /// The room is for the part of the copy that is yet to be taken.
    pub(crate) fn add(&mut self, room: Share) -> (CopiedUpload, CopyWatch) {
        let copy = Rc::new(Copy { state: RefCell::default(), room, ended: Notify::new() });
        self.all.push(copy.clone());
        (CopiedUpload(copy.clone()), CopyWatch(copy))
    }

    pub(super) fn push(&self, frame: &Frame<Bytes>) {
        if let Some(piece) = Piece::copy(frame) {
            self.push_piece(&piece);
        }
    }

    pub(super) fn push_piece(&self, piece: &Piece) {
        self.all.iter().for_each(|copy| copy.push(piece));
    }

    pub(super) fn complete(&self) {
        self.all.iter().for_each(|copy| copy.end(CopyEnd::Complete));
    }
}

/// A body that is given up before its end has no copy that could pass for a whole one.
impl Drop for Copies {
    fn drop(&mut self) {
        self.all.iter().for_each(|copy| copy.end(CopyEnd::Broken));
    }
}

// === impl CopiedUpload ===

impl CopiedUpload {
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CopyEnd>>> {
        let mut state = self.0.state.borrow_mut();
        if let Some(piece) = state.pieces.pop_front() {
            state.bytes -= piece.cost();
            self.0.room.give_back(piece.cost());
            return Poll::Ready(Some(Ok(piece.into_frame())));
        }
        match state.end {
            // What is left of it was forgotten.
            _ if state.is_unwanted => Poll::Ready(Some(Err(CopyEnd::Behind))),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(CopyEnd::Complete) => Poll::Ready(None),
            Some(end) => Poll::Ready(Some(Err(end))),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let state = self.0.state.borrow();
        state.pieces.is_empty() && state.end == Some(CopyEnd::Complete) && !state.is_unwanted
    }
}

impl Drop for CopiedUpload {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

// === impl CopyWatch ===

impl CopyWatch {
    pub(crate) async fn ended(&self) -> CopyEnd {
        loop {
            let ended = self.0.ended.notified();
            let end = self.0.state.borrow().end;
            match end {
                Some(end) => return end,
                None => ended.await,
            }
        }
    }

    /// Nothing more of it is to be sent.
    pub(crate) fn abandon(&self) {
        self.0.abandon();
    }
}

// === impl Copy ===

impl Copy {
    fn push(&self, piece: &Piece) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() || state.is_unwanted {
            return;
        }
        let cost = piece.cost();
        if state.bytes + cost > MOST_BEHIND || !self.room.take(cost) {
            drop(state);
            return self.end(CopyEnd::Behind);
        }
        state.bytes += cost;
        state.pieces.push_back(piece.clone());
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Ends the copy. If it is not whole, nothing more of it is sent.
    fn end(&self, end: CopyEnd) {
        let mut state = self.state.borrow_mut();
        if state.end.is_some() {
            return;
        }
        state.end = Some(end);
        if end != CopyEnd::Complete {
            self.forget(&mut state);
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        self.ended.notify_waiters();
    }

    fn abandon(&self) {
        let mut state = self.state.borrow_mut();
        state.is_unwanted = true;
        self.forget(&mut state);
    }

    fn forget(&self, state: &mut State) {
        state.pieces.clear();
        self.room.give_back(std::mem::take(&mut state.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::shares::CoreShares;

    fn data(bytes: usize) -> Frame<Bytes> {
        Frame::data(Bytes::from(vec![b'x'; bytes]))
    }

    fn poll(copy: &mut CopiedUpload) -> Poll<Option<Result<usize, CopyEnd>>> {
        let frame = copy.poll_frame(&mut Context::from_waker(Waker::noop()));
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.into_data().unwrap().len())))
    }

    /// One namespace has half of a room.
    fn room(bytes: usize) -> Share {
        CoreShares::new(2 * bytes).of("test")
    }

    fn copies() -> (Share, Copies, CopiedUpload) {
        let (room, mut copies) = (room(2 * MOST_BEHIND), Copies::default());
        let (copy, _) = copies.add(room.clone());
        (room, copies, copy)
    }

    fn is_free(room: &Share) -> bool {
        let is_free = room.take(2 * MOST_BEHIND);
        if is_free {
            room.give_back(2 * MOST_BEHIND);
        }
        is_free
    }

    #[test]
    fn a_copy_is_whole_or_breaks_off() {
        let (room, copies, mut copy) = copies();
        assert_eq!(poll(&mut copy), Poll::Pending);
        copies.push(&data(1000));
        copies.complete();
        drop(copies);
        assert!(!copy.is_end_stream() && !is_free(&room));
        assert_eq!(poll(&mut copy), Poll::Ready(Some(Ok(1000))));
        assert!(copy.is_end_stream() && is_free(&room));
        assert_eq!(poll(&mut copy), Poll::Ready(None));

        let (room, copies, mut copy) = self::copies();
        copies.push(&data(1000));
        drop(copies);
        assert!(!copy.is_end_stream() && is_free(&room));
        assert_eq!(poll(&mut copy), Poll::Ready(Some(Err(CopyEnd::Broken))));
    }

    #[test]
    fn a_copy_that_is_far_behind_is_given_up() {
        let (room, copies, mut copy) = copies();
        for _ in 0..MOST_BEHIND / 1024 {
            copies.push(&data(1024));
        }
        assert_eq!(poll(&mut copy), Poll::Ready(Some(Ok(1024))));
        copies.push(&data(1024));
        copies.push(&data(1));
        assert_eq!(poll(&mut copy), Poll::Ready(Some(Err(CopyEnd::Behind))));
        assert!(is_free(&room));
        // What is small costs, too.
        let (_, copies, mut copy) = self::copies();
        (0..=MOST_BEHIND / 64).for_each(|_| copies.push(&data(1)));
        assert_eq!(poll(&mut copy), Poll::Ready(Some(Err(CopyEnd::Behind))));
    }

    #[test]
    fn what_a_core_has_is_shared() {
        let (room, mut copies) = (room(MOST_BEHIND), Copies::default());
        let (mut one, _) = copies.add(room.clone());
        let (mut other, _) = copies.add(room.clone());
        copies.push(&data(MOST_BEHIND / 2 + 1));
        assert_eq!(poll(&mut other), Poll::Ready(Some(Err(CopyEnd::Behind))));
        assert!(matches!(poll(&mut one), Poll::Ready(Some(Ok(_)))));
        copies.push(&data(MOST_BEHIND));
        drop(one);
        assert!(room.take(MOST_BEHIND), "a reader that is gone needs nothing");
    }
}
