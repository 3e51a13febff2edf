//! The bytes that backends of HTTP/2 may be ahead of a client: a window for each response, renewed
//! and enlarged as the client's socket takes what came. The responses of a connection share what
//! there is beyond their smallest windows; those that find too little of it wait for their turn, so
//! that a hundred responses at once have a large window now and then, not a tiny one all the time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

/// The smallest window, which every response has.
pub(crate) const SMALLEST: u32 = 1 << 10;
/// The window of a response in the beginning, if there is plenty.
const FIRST: u32 = 16 << 10;
/// The largest window beside other responses.
const LARGE: u32 = 64 << 10;
/// Bytes that are worth waiting for.
const ENOUGH: u32 = 48 << 10;
/// Windows that were used up become larger by this factor.
const GROWTH: u32 = 4;
/// Bytes beyond the smallest windows that a connection has: one response at a time over HTTP/1,
/// and over HTTP/2 what may come after it.
const HTTP1: u32 = (24 << 10) - SMALLEST;
const HTTP2: u32 = 128 << 10;

/// Of a client's connection.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Bytes that responses have together, beyond the smallest windows, and those that are lent.
    shared: u32,
    lent: Cell<u32>,
    /// The window of a response in the beginning.
    first: u32,
    responses: Cell<u32>,
    /// Bytes that came and that the client has not asked for.
    ahead: Cell<usize>,
    /// Responses that the client has taken something of.
    taken: RefCell<Vec<Rc<Window>>>,
    /// Those whose turn comes when enough is free.
    waiting: RefCell<VecDeque<Rc<Window>>>,
    /// One of them had its turn since the last look.
    has_served: Cell<bool>,
    /// Lent bytes do not come back: responses that wait have to make do with little.
    is_scarce: Cell<bool>,
}

/// Of a response.
#[derive(Debug)]
pub(crate) struct Window {
    windows: Rc<Windows>,
    connection: Rc<Enlarged>,
    stream: u32,
    /// Bytes of [`Windows::shared`] that it has.
    lent: Cell<u32>,
    /// As it was when it was last enlarged.
    size: Cell<u32>,
    /// Bytes that the backend may send, and those of them that it is yet to be told of.
    left: Cell<u32>,
    due: Cell<u32>,
    state: Cell<State>,
    /// Bytes that came, and those that the backend announced. `None` if it sends others besides,
    /// or announced none.
    came: Cell<Option<u64>>,
    length: Cell<Option<u64>>,
    /// Bytes that came and that the client has not asked for.
    held: Cell<u32>,
    /// Those that it has asked for and that are yet to be written.
    unread: RefCell<Option<Arc<AtomicUsize>>>,
    queue: Cell<Queue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request's head is not on its way, without which the backend knows no such stream.
    Unsent,
    Open,
    /// Nothing more comes.
    Over,
    /// The same, as the backend has sent all of it.
    Complete,
}

/// The list of [`Windows`] that a response is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    None,
    Taken,
    Waiting,
}

/// The streams of a backend's connection whose windows were enlarged, and the task that tells it.
#[derive(Debug, Default)]
pub(crate) struct Enlarged {
    streams: RefCell<Vec<u32>>,
    task: RefCell<Option<Waker>>,
}

// === impl Windows ===

impl Windows {
    /// Of a connection that has one response at a time.
    pub(crate) fn http1() -> Rc<Self> {
        Self::new(HTTP1, HTTP1 + SMALLEST)
    }

    pub(crate) fn http2() -> Rc<Self> {
        Self::new(HTTP2, FIRST)
    }

    fn new(shared: u32, first: u32) -> Rc<Self> {
        Rc::new(Self {
            shared,
            lent: Cell::default(),
            first,
            responses: Cell::default(),
            ahead: Cell::default(),
            taken: RefCell::default(),
            waiting: RefCell::default(),
            has_served: Cell::default(),
            is_scarce: Cell::default(),
        })
    }

    /// Bytes in memory that the client has not asked for.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead.get()
    }

    /// Renews the windows of responses that the client has taken enough of. Called when its socket
    /// has taken what it takes.
    pub(crate) fn renew(&self) {
        let mut taken = self.taken.borrow_mut();
        if taken.is_empty() {
            return;
        }
        taken.retain(|window| {
            self.settle(window);
            let queue = match window.wanted() {
                0 if window.unread() > 0 => Queue::Taken,
                0 => Queue::None,
                _ => {
                    self.waiting.borrow_mut().push_back(window.clone());
                    Queue::Waiting
                }
            };
            window.queue.set(queue);
            queue == Queue::Taken
        });
        drop(taken);
        self.serve();
    }

    /// Called now and then: if what is lent stays with responses that are hardly taken, the others
    /// have what is left.
    pub(crate) fn sweep(&self) {
        if !self.has_served.replace(false) && !self.waiting.borrow().is_empty() {
            self.is_scarce.set(true);
            self.serve();
        }
    }

    /// Counts as lent what the response has by now.
    fn settle(&self, window: &Window) {
        let lent = window.outstanding().saturating_sub(SMALLEST);
        self.lent.set(self.lent.get() - window.lent.replace(lent) + lent);
    }

    /// Enlarges the windows whose turn it is. Those that wait have less and less meanwhile.
    fn serve(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        waiting.iter().for_each(|window| self.settle(window));
        if self.is_scarce.get() {
            self.is_scarce.set(self.free() < ENOUGH + FIRST);
            waiting.retain(|window| !self.grant(window, SMALLEST / 2, self.free() / 2));
        }
        let room = || if self.is_alone() { self.free() } else { self.free().saturating_sub(FIRST) };
        while waiting.front().is_some_and(|window| self.grant(window, ENOUGH, room())) {
            waiting.pop_front();
        }
    }

    /// Enlarges a window by what it wants and there is room for, unless that is too little. True if
    /// it need not wait.
    fn grant(&self, window: &Window, enough: u32, room: u32) -> bool {
        let wanted = window.wanted();
        let more = wanted.min(SMALLEST.saturating_sub(window.outstanding()) + room);
        if more < wanted.min(enough) {
            return false;
        }
        self.has_served.set(true);
        window.queue.set(Queue::None);
        self.lend(window, more);
        true
    }

    fn lend(&self, window: &Window, more: u32) {
        if more > 0 {
            window.enlarge(more);
            self.settle(window);
        }
    }

    fn is_alone(&self) -> bool {
        self.responses.get() == 1
    }

    /// A piece of which the client has a part counts once more, so more may be lent than there is.
    fn free(&self) -> u32 {
        self.shared.saturating_sub(self.lent.get())
    }
}

// === impl Window ===

impl Window {
    /// Of a stream whose request is about to be sent. A client that reads nothing of many responses
    /// leaves most of what is shared to others that it reads.
    pub(crate) fn begin(windows: &Rc<Windows>, connection: &Rc<Enlarged>, stream: u32) -> Rc<Self> {
        let responses = windows.responses.get();
        windows.responses.set(responses + 1);
        let window = Rc::new(Self {
            windows: windows.clone(),
            connection: connection.clone(),
            stream,
            lent: Cell::new(0),
            size: Cell::new(SMALLEST),
            left: Cell::new(SMALLEST),
            due: Cell::new(0),
            state: Cell::new(State::Unsent),
            came: Cell::new(Some(0)),
            length: Cell::new(None),
            held: Cell::new(0),
            unread: RefCell::default(),
            queue: Cell::new(Queue::None),
        });
        let kept = if responses == 0 { 0 } else { windows.shared / 4 * 3 };
        windows.lend(&window, (windows.first - SMALLEST).min(windows.free().saturating_sub(kept)));
        window
    }

    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    // --- the backend's side ---

    /// The head of its request is written.
    pub(crate) fn open(&self) {
        if self.state.get() == State::Unsent {
            self.state.set(State::Open);
            if self.due.get() > 0 {
                self.connection.streams.borrow_mut().push(self.stream);
            }
        }
    }

    /// The bytes by which it is larger than the backend knows.
    pub(crate) fn take_due(&self) -> u32 {
        self.due.take()
    }

    /// A frame of so many bytes came. False if that is more than there may be.
    pub(crate) fn used(&self, bytes: u32) -> bool {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.unwrap_or_default());
        self.came.set(self.came.get().map(|came| came + u64::from(bytes)));
        left.is_some()
    }

    /// The length that the backend announced.
    pub(crate) fn announce(&self, length: Option<u64>) {
        self.length.set(length);
    }

    /// Frames have bytes that belong to no body, so it is no longer known how many are to come.
    pub(crate) fn pad(&self) {
        self.came.set(None);
    }

    pub(crate) fn close(&self) {
        self.state.set(State::Over);
        self.left.set(0);
        self.due.set(0);
    }

    /// The backend has ended the stream.
    pub(crate) fn complete(&self) {
        self.close();
        self.state.set(State::Complete);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state.get() == State::Complete
    }

    /// Another value after every frame that came; `None` if the backend may send none, because the
    /// client has yet to take what came.
    pub(crate) fn mark(&self) -> Option<(Option<u64>, u32)> {
        (self.left.get() > 0).then(|| (self.came.get(), self.left.get()))
    }

    // --- the client's side ---

    /// As [`Windows::renew`] of its client.
    pub(crate) fn renew(&self) {
        self.windows.renew();
    }

    /// Has the bytes that the HTTP library has for the client count.
    pub(crate) fn count_unread(&self, unread: Arc<AtomicUsize>) {
        self.unread.replace(Some(unread));
    }

    pub(crate) fn hold(&self, bytes: usize) {
        self.set_held(self.held.get() as usize + bytes);
    }

    /// Bytes are no longer held, because the client has them.
    pub(crate) fn taken(self: &Rc<Self>, bytes: usize) {
        self.set_held((self.held.get() as usize).saturating_sub(bytes));
        if self.queue.get() == Queue::None && self.state.get() == State::Open {
            self.queue.set(Queue::Taken);
            self.windows.taken.borrow_mut().push(self.clone());
        }
    }

    /// The response is over, or no longer wanted.
    pub(crate) fn end(self: &Rc<Self>) {
        let Windows { responses, lent, taken, waiting, .. } = &*self.windows;
        self.close();
        self.set_held(0);
        responses.set(responses.get() - 1);
        lent.set(lent.get() - self.lent.take());
        match self.queue.replace(Queue::None) {
            Queue::None => {}
            Queue::Taken => taken.borrow_mut().retain(|it| !Rc::ptr_eq(it, self)),
            Queue::Waiting => waiting.borrow_mut().retain(|it| !Rc::ptr_eq(it, self)),
        }
        self.windows.serve();
    }

    fn set_held(&self, bytes: usize) {
        let ahead = &self.windows.ahead;
        ahead.set(ahead.get() - self.held.get() as usize + bytes);
        self.held.set(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn unread(&self) -> u32 {
        let unread = self.unread.borrow().as_ref().map_or(0, |unread| unread.load(Relaxed));
        u32::try_from(unread).unwrap_or(u32::MAX)
    }

    fn outstanding(&self) -> u32 {
        self.left.get().saturating_add(self.held.get()).saturating_add(self.unread())
    }

    /// The bytes by which it is to be larger: a third of its size at least, since frames cost, too,
    /// and no more than the backend has to send. A window that is about used up is too small.
    fn wanted(&self) -> u32 {
        let (size, left, outstanding) = (self.size.get(), self.left.get(), self.outstanding());
        if self.state.get() != State::Open || outstanding > size / 3 * 2 {
            return 0;
        }
        let to_come =
            self.length.get().zip(self.came.get()).map(|(length, came)| length.saturating_sub(came));
        let wanted = match to_come {
            _ if left > size / 4 => size,
            Some(_) => u32::MAX,
            None => size.saturating_mul(GROWTH).max(FIRST),
        };
        let most = if self.windows.is_alone() { self.windows.shared + SMALLEST } else { LARGE };
        let to_come = to_come.map_or(u32::MAX, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        wanted.min(most).saturating_sub(outstanding).min(to_come.saturating_sub(left))
    }

    fn enlarge(&self, more: u32) {
        let due = self.due.replace(self.due.get() + more);
        self.left.set(self.left.get() + more);
        self.size.set(self.outstanding());
        if due == 0 && self.state.get() == State::Open {
            self.connection.streams.borrow_mut().push(self.stream);
            self.connection.wake();
        }
    }
}

// === impl Enlarged ===

impl Enlarged {
    pub(crate) fn take(&self) -> Vec<u32> {
        self.streams.take()
    }

    pub(crate) fn set_task(&self, waker: &Waker) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    pub(crate) fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u32 = HTTP2 + SMALLEST;

    fn begin(windows: &Rc<Windows>, count: u32) -> Vec<Rc<Window>> {
        let connection = Rc::default();
        let begin = |stream| {
            let window = Window::begin(windows, &connection, stream);
            window.open();
            window
        };
        (0..count).map(begin).collect()
    }

    fn left(window: &Window) -> u32 {
        window.left.get()
    }

    /// The backend sends so many bytes, and the client asks for them.
    fn take(window: &Rc<Window>, bytes: u32) {
        assert!(window.used(bytes));
        window.hold(bytes as usize);
        window.taken(bytes as usize);
    }

    fn take_all(windows: &[Rc<Window>]) {
        windows.iter().for_each(|window| take(window, left(window)));
    }

    /// Bytes that the backends may have in memory.
    fn total(windows: &[Rc<Window>]) -> u32 {
        windows.iter().map(|window| window.outstanding()).sum()
    }

    #[test]
    fn a_response_by_itself_may_come_to_have_everything() {
        let windows = Windows::http2();
        let one = begin(&windows, 1);
        let sizes = (0..3).map(|_| {
            let before = left(&one[0]);
            take_all(&one);
            windows.renew();
            before
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [FIRST, FIRST * 4, ALL]);
        let one = begin(&Windows::http1(), 1);
        assert_eq!(left(&one[0]), HTTP1 + SMALLEST);
    }

    #[test]
    fn a_response_that_is_slow_in_coming_keeps_its_window() {
        let windows = Windows::http2();
        let one = begin(&windows, 1);
        for _ in 0..100 {
            take(&one[0], 3 << 10);
            windows.renew();
            assert!((FIRST / 2..=FIRST).contains(&left(&one[0])), "{}", left(&one[0]));
        }
    }

    #[test]
    fn what_is_not_written_is_not_renewed() {
        let windows = Windows::http1();
        let one = begin(&windows, 1);
        let unread = Arc::new(AtomicUsize::new(HTTP1 as usize));
        one[0].count_unread(unread.clone());
        take_all(&one);
        windows.renew();
        assert_eq!(left(&one[0]), 0);
        unread.store(0, Relaxed);
        windows.renew();
        assert_eq!(left(&one[0]), HTTP1 + SMALLEST);
    }

    #[test]
    fn a_piece_that_is_taken_in_parts_leaves_nothing_for_others() {
        let windows = Windows::http2();
        let one = begin(&windows, 1);
        for _ in 0..2 {
            take_all(&one);
            windows.renew();
        }
        let all = left(&one[0]);
        assert_eq!(all, ALL);
        assert!(one[0].used(all));
        one[0].hold(all as usize);
        one[0].count_unread(Arc::new(AtomicUsize::new(3 << 10)));
        one[0].taken(0);
        windows.renew();
        assert_eq!(windows.free(), 0);
        assert_eq!(left(&begin(&windows, 1)[0]), SMALLEST);
    }

    #[test]
    fn no_more_is_asked_for_than_was_announced() {
        let windows = Windows::http2();
        let two = begin(&windows, 2);
        two.iter().for_each(|it| it.announce(Some(u64::from(FIRST) + 5)));
        two[1].pad();
        take_all(&two);
        windows.renew();
        assert_eq!((left(&two[0]), left(&two[1])), (5, LARGE));
        take(&two[0], 5);
        windows.renew();
        assert_eq!(left(&two[0]), 0);
    }

    #[test]
    fn many_responses_have_large_windows_in_turn() {
        let windows = Windows::http2();
        let all = begin(&windows, 100);
        let at_first = total(&all);
        assert!(at_first <= HTTP2 / 4 + 100 * SMALLEST, "{at_first}: there is some for those that are read");
        let mut grants = vec![0; all.len()];
        for _ in 0..200 {
            let before: Vec<_> = all.iter().map(|it| left(it)).collect();
            take_all(&all);
            windows.renew();
            assert!(total(&all) <= HTTP2 + 100 * SMALLEST);
            for (count, window) in grants.iter_mut().zip(&all) {
                *count += u32::from(left(window) > 0);
                assert!(left(window) == 0 || left(window) >= FIRST, "{before:?}");
            }
        }
        assert!(grants.iter().all(|count| (3..=8).contains(count)), "{grants:?}");
        all.iter().for_each(Window::end);
        assert_eq!((windows.responses.get(), windows.lent.get(), windows.ahead()), (0, 0, 0));
        assert!(windows.waiting.borrow().is_empty() && windows.taken.borrow().is_empty());
    }

    #[test]
    fn a_response_that_is_read_goes_on_beside_those_that_are_not() {
        let windows = Windows::http2();
        let (unread, read) = (begin(&windows, 99), begin(&windows, 1));
        // They are read at first, until all that is shared is with them.
        for _ in 0..10 {
            take_all(&unread);
            windows.renew();
        }
        for window in &unread {
            let more = left(window);
            assert!(window.used(more));
            window.hold(more as usize);
        }
        for _ in 0..10 {
            take_all(&read);
            windows.renew();
            if left(&read[0]) == 0 {
                windows.sweep();
                windows.sweep();
            }
            assert!(left(&read[0]) >= SMALLEST);
        }
        assert!(total(&unread) + total(&read) <= HTTP2 + 100 * SMALLEST);
        take(&read[0], left(&read[0]));
        windows.renew();
        assert!(left(&read[0]) >= SMALLEST, "it does not wait each time");
    }
}
