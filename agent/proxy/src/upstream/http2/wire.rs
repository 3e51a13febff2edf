//! The bytes of a connection between the HTTP library and the socket, and the windows of its
//! streams. The library gives each stream the same window, and renews it no matter who reads how
//! fast; here each has one of its own, which may change while the stream lasts. The library takes
//! all windows for the largest there are, what it says of them to the backend is replaced or left
//! out, and a backend that sends more than it may is stopped.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use foldhash::fast::RandomState;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::window::{self, Enlarged, Window, Windows};
use crate::upstream::stream::BackendStream;

/// Bytes that are written at once, at most.
const LIMIT: usize = 16 << 10;
/// Bytes that are read before what came of them is looked at: the library keeps them until then.
const READ_AHEAD: usize = 32 << 10;
const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;
const END_HEADERS: u8 = 4;
const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
const MAX_HEADER_LIST_SIZE: [u8; 2] = [0, 6];
/// Bytes of a setting: its identifier and its value.
const SETTING: usize = 6;

/// Shared by all who use the connection; the library has [`Metered`].
pub(crate) struct Wire {
    state: RefCell<State>,
    enlarged: Rc<Enlarged>,
}

/// The socket as the library sees it. Its flushes do nothing: [`Wire::poll_send`] does what they
/// would.
pub(super) struct Metered(Rc<Wire>);

/// A stream that has a window; it is over when this is dropped.
pub(super) struct Metering {
    wire: Rc<Wire>,
    window: Rc<Window>,
}

/// The streams of which a frame came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Touched {
    Some(Vec<u32>),
    All,
}

struct State {
    stream: BackendStream,
    flow: Flow,
    /// The socket did not take what the library had to write: it may have read frames then that it
    /// looks at later.
    is_blocked: bool,
    /// Bytes that came since the streams were last looked at.
    read: usize,
}

/// All but the socket.
#[derive(Debug)]
struct Flow {
    windows: HashMap<u32, Rc<Window>, RandomState>,
    enlarged: Rc<Enlarged>,
    touched: Vec<u32>,
    all_touched: bool,
    /// The backend has sent its settings.
    has_settings: bool,
    /// Those that are on their way.
    settings: Vec<u8>,
    /// The size of heads that the backend takes, if it has said so.
    most_head: Option<u32>,
    /// Streams that were given up.
    resets: usize,
    outgoing: Outgoing,
    incoming: Frames,
    /// Bytes for the socket, and how many of them it has.
    unsent: Vec<u8>,
    sent: usize,
}

/// Follows what the library writes.
#[derive(Debug)]
struct Outgoing {
    frames: Frames,
    /// The settings that are to be changed.
    settings: Vec<u8>,
    /// Nothing may come between the frames of a head.
    in_head: bool,
}

/// Follows frames, however they are cut.
#[derive(Debug)]
struct Frames {
    head: [u8; HEAD],
    filled: usize,
    /// Bytes to come of the preface or of a frame behind its head.
    left: usize,
}

/// The next of a piece of frames.
enum Part<'b> {
    /// A head is complete, or one is not yet.
    Head(Option<Head>),
    /// Bytes of the frame whose head came before; with the last ones it is complete.
    Payload(&'b [u8], Completeness),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completeness {
    Complete,
    Partial,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// The backend sent more on a stream than its window.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the backend sent more than its window on stream {0}")]
struct Overrun(u32);

// === impl Wire ===

impl Wire {
    pub(super) fn new(stream: BackendStream) -> Rc<Self> {
        let enlarged = Rc::<Enlarged>::default();
        let state = State { stream, flow: Flow::new(enlarged.clone()), is_blocked: false, read: 0 };
        Rc::new(Self { state: state.into(), enlarged })
    }

    /// The same, for the library.
    pub(super) fn metered(self: &Rc<Self>) -> Metered {
        Metered(self.clone())
    }

    /// Gives a stream a window among those of its client, before its request is sent.
    pub(super) fn meter(self: &Rc<Self>, id: u32, windows: &Rc<Windows>) -> Metering {
        let window = Window::begin(windows, &self.enlarged, id);
        self.state.borrow_mut().flow.windows.insert(id, window.clone());
        Metering { wire: self.clone(), window }
    }

    /// Has the connection's task look at a stream, as if a frame of it had come.
    pub(super) fn touch(&self, id: u32) {
        self.state.borrow_mut().flow.touched.push(id);
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.enlarged.wake();
    }

    /// Sends what there is. Called by the connection's task only.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.enlarged.set_task(cx.waker());
        self.state.borrow_mut().poll_send(cx)
    }

    /// True once the library has seen the backend's settings.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.borrow();
        state.flow.has_settings && !state.is_blocked
    }

    /// The size of heads, as HTTP/2 counts it, that the backend takes, if it has said so.
    pub(super) fn most_head(&self) -> Option<u32> {
        self.state.borrow().flow.most_head
    }

    /// The streams that were given up: backends count them against all of a connection.
    pub(super) fn resets(&self) -> usize {
        self.state.borrow().flow.resets
    }

    /// The streams that the library has seen frames of since this was last asked.
    pub(super) fn take_touched(&self) -> Touched {
        let mut state = self.state.borrow_mut();
        state.read = 0;
        match &mut *state {
            State { is_blocked: true, .. } => {
                state.is_blocked = false;
                Touched::Some(vec![])
            }
            State { flow: Flow { all_touched, touched, .. }, .. } => {
                let touched = std::mem::take(touched);
                if std::mem::take(all_touched) { Touched::All } else { Touched::Some(touched) }
            }
        }
    }
}

// === impl Metering ===

impl Metering {
    pub(super) fn window(&self) -> &Rc<Window> {
        &self.window
    }
}

impl Drop for Metering {
    fn drop(&mut self) {
        self.wire.state.borrow_mut().flow.windows.remove(&self.window.stream());
        self.window.end();
    }
}

// === impl Metered ===

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.state.borrow_mut();
        if state.read >= READ_AHEAD {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut state.stream).poll_read(cx, buffer))?;
        state.read += buffer.filled().len() - before;
        let followed = state.flow.receive(&buffer.filled()[before..]);
        Poll::Ready(followed.map_err(|overrun| io::Error::new(io::ErrorKind::InvalidData, overrun)))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.state.borrow_mut();
        if state.flow.unsent.len() >= LIMIT {
            let sent = state.poll_send(cx);
            state.is_blocked = sent.is_pending();
            ready!(sent)?;
        }
        Poll::Ready(Ok(state.flow.send_parts(parts)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state.borrow_mut();
        ready!(state.poll_send(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

// === impl State ===

impl State {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, flow, .. } = self;
        loop {
            flow.write_due();
            if flow.unsent.is_empty() {
                // TLS takes more than the socket does.
                return Pin::new(stream).poll_flush(cx);
            }
            while flow.sent < flow.unsent.len() {
                match ready!(Pin::new(&mut *stream).poll_write(cx, &flow.unsent[flow.sent..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => flow.sent += count,
                }
            }
            flow.unsent.clear();
            flow.sent = 0;
        }
    }
}

// === impl Flow ===

impl Flow {
    fn new(enlarged: Rc<Enlarged>) -> Self {
        let outgoing = Outgoing { frames: Frames::behind(PREFACE), settings: vec![], in_head: false };
        Self {
            windows: HashMap::default(),
            enlarged,
            touched: vec![],
            all_touched: false,
            has_settings: false,
            settings: vec![],
            most_head: None,
            resets: 0,
            outgoing,
            incoming: Frames::behind(0),
            unsent: vec![],
            sent: 0,
        }
    }

    /// Takes what there is room for, and says how much that is.
    fn send_parts(&mut self, parts: &[io::IoSlice<'_>]) -> usize {
        let mut count = 0;
        for part in parts {
            let taken = part.len().min(LIMIT.saturating_sub(self.unsent.len()));
            self.send(&part[..taken]);
            count += taken;
            // A head that is cut takes no room yet: what is behind it has to wait all the same.
            if taken < part.len() {
                break;
            }
        }
        count
    }

    /// Takes what the library writes.
    fn send(&mut self, mut bytes: &[u8]) {
        while let Some(part) = self.outgoing.frames.next(&mut bytes) {
            match part {
                Part::Head(None) => {}
                Part::Head(Some(head)) => self.send_head(head),
                Part::Payload(bytes, completeness) => self.send_payload(bytes, completeness),
            }
        }
    }

    fn send_head(&mut self, head: Head) {
        let Self { windows, outgoing, unsent, resets, .. } = self;
        match head.kind {
            WINDOW_UPDATE if head.stream != 0 => return,
            RST_STREAM => *resets += 1,
            HEADERS => windows.get(&head.stream).into_iter().for_each(|window| window.open()),
            _ => {}
        }
        if matches!(head.kind, HEADERS | CONTINUATION) {
            outgoing.in_head = head.flags & END_HEADERS == 0;
        }
        unsent.extend_from_slice(&outgoing.frames.head);
    }

    fn send_payload(&mut self, bytes: &[u8], completeness: Completeness) {
        let Self { outgoing, unsent, .. } = self;
        match outgoing.frames.current() {
            Head { kind: WINDOW_UPDATE, stream, .. } if stream != 0 => {}
            Head { kind: SETTINGS, flags, .. } if flags & ACK == 0 => {
                outgoing.settings.extend_from_slice(bytes);
                if completeness == Completeness::Complete {
                    let mut settings = std::mem::take(&mut outgoing.settings);
                    let initial =
                        settings.chunks_exact_mut(SETTING).filter(|it| it[..2] == INITIAL_WINDOW_SIZE);
                    initial.for_each(|setting| setting[2..].copy_from_slice(&window::SMALLEST.to_be_bytes()));
                    unsent.append(&mut settings);
                }
            }
            _ => unsent.extend_from_slice(bytes),
        }
    }

    /// Says which windows are larger, unless the library is in the middle of something.
    fn write_due(&mut self) {
        let Self { windows, enlarged, outgoing, unsent, .. } = self;
        if !outgoing.frames.is_between() || outgoing.in_head {
            return;
        }
        for id in enlarged.take() {
            let Some(window) = windows.get(&id) else { continue };
            let more = window.take_due();
            if more > 0 {
                unsent.extend_from_slice(&[0, 0, 4, WINDOW_UPDATE, 0]);
                unsent.extend_from_slice(&id.to_be_bytes());
                unsent.extend_from_slice(&more.to_be_bytes());
            }
        }
    }

    /// Follows what the backend sends.
    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), Overrun> {
        while let Some(part) = self.incoming.next(&mut bytes) {
            let head = match part {
                Part::Head(None) => continue,
                Part::Payload(bytes, completeness) => {
                    let head = self.incoming.current();
                    if head.kind == SETTINGS {
                        self.settings.extend_from_slice(bytes);
                    }
                    match completeness {
                        Completeness::Partial => continue,
                        Completeness::Complete => head,
                    }
                }
                Part::Head(Some(head)) => {
                    if head.kind == DATA
                        && let Some(window) = self.windows.get(&head.stream)
                    {
                        if head.flags & PADDED != 0 {
                            window.pad();
                        }
                        let length = u32::try_from(head.length).unwrap_or(u32::MAX);
                        if !window.used(length) {
                            return Err(Overrun(head.stream));
                        }
                    }
                    if head.length > 0 {
                        continue;
                    }
                    head
                }
            };
            self.received(head);
        }
        Ok(())
    }

    /// A frame is complete.
    fn received(&mut self, head: Head) {
        match head.kind {
            GOAWAY => self.all_touched = true,
            SETTINGS if head.flags & ACK == 0 => {
                self.has_settings = true;
                let settings = std::mem::take(&mut self.settings);
                for setting in settings.chunks_exact(SETTING) {
                    let value = setting.strip_prefix(&MAX_HEADER_LIST_SIZE);
                    let value = value.and_then(|value| value.try_into().ok()).map(u32::from_be_bytes);
                    self.most_head = value.or(self.most_head);
                }
            }
            DATA | HEADERS | CONTINUATION | RST_STREAM => {
                if self.touched.last() != Some(&head.stream) {
                    self.touched.push(head.stream);
                }
                if head.kind == RST_STREAM {
                    self.windows.remove(&head.stream).into_iter().for_each(|window| window.close());
                } else if head.kind != CONTINUATION && head.flags & END_STREAM != 0 {
                    self.windows.remove(&head.stream).into_iter().for_each(|window| window.complete());
                }
            }
            _ => {}
        }
    }
}

// === impl Frames ===

impl Frames {
    /// Of which the first begins behind so many bytes.
    fn behind(left: usize) -> Self {
        Self { head: [0; HEAD], filled: 0, left }
    }

    fn is_between(&self) -> bool {
        self.left == 0 && self.filled == 0
    }

    /// The last head that was complete.
    fn current(&self) -> Head {
        let [a, b, c, kind, flags, id @ ..] = self.head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // The first bit is reserved.
        Head { length, kind, flags, stream: u32::from_be_bytes(id) & (u32::MAX >> 1) }
    }

    fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Option<Part<'b>> {
        if bytes.is_empty() {
            return None;
        }
        if self.left > 0 {
            let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
            self.left -= payload.len();
            *bytes = rest;
            let completeness = if self.left == 0 { Completeness::Complete } else { Completeness::Partial };
            return Some(Part::Payload(payload, completeness));
        }
        let (taken, rest) = bytes.split_at((HEAD - self.filled).min(bytes.len()));
        self.head[self.filled..self.filled + taken.len()].copy_from_slice(taken);
        self.filled += taken.len();
        *bytes = rest;
        if self.filled < HEAD {
            return Some(Part::Head(None));
        }
        self.filled = 0;
        let head = self.current();
        self.left = head.length;
        Some(Part::Head(Some(head)))
    }
}
