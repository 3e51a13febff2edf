//! The bytes that backends of HTTP/2 may be ahead of a client: a window for each response, as large
//! as its connection's others leave it.

use std::cell::Cell;
use std::rc::Rc;

/// The smallest window, which every response has.
pub(crate) const SMALLEST: u32 = 1 << 10;
const LARGEST: u32 = 16 << 10;
/// Bytes that the responses of a client's connection have together, beyond the smallest windows.
const SHARED: u32 = 64 << 10;

/// Of a client's connection.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    responses: Cell<u32>,
    /// Bytes of [`SHARED`] that responses have.
    lent: Cell<u32>,
}

/// Of a response.
#[derive(Debug)]
pub(crate) struct Window {
    windows: Rc<Windows>,
    lent: Cell<u32>,
}

// === impl Window ===

impl Window {
    pub(crate) fn begin(windows: &Rc<Windows>) -> Self {
        windows.responses.set(windows.responses.get() + 1);
        Self { windows: windows.clone(), lent: Cell::new(0) }
    }

    /// Its size from now on: an equal share, or what is left. Responses that were there before give
    /// back what they have more when they ask; those that are not taken do not ask.
    pub(crate) fn size(&self) -> u32 {
        let Windows { responses, lent } = &*self.windows;
        let others = lent.get() - self.lent.get();
        let share = (SHARED / responses.get()).min(LARGEST - SMALLEST).min(SHARED - others);
        lent.set(others + share);
        self.lent.set(share);
        SMALLEST + share
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let Windows { responses, lent } = &*self.windows;
        responses.set(responses.get() - 1);
        lent.set(lent.get() - self.lent.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_responses_have_large_windows() {
        let windows = Rc::<Windows>::default();
        let few: Vec<_> = (0..4).map(|_| Window::begin(&windows)).collect();
        assert_eq!(few.iter().map(Window::size).collect::<Vec<_>>(), [LARGEST; 4]);
    }

    #[test]
    fn many_responses_share_however_they_come_and_go() {
        let windows = Rc::<Windows>::default();
        let mut all = Vec::new();
        for _ in 0..100 {
            let window = Window::begin(&windows);
            window.size();
            all.push(window);
        }
        assert!(windows.lent.get() <= SHARED);
        assert_eq!(all[99].size(), SMALLEST, "the first ones have everything, and do not ask");
        let sizes: Vec<_> = all.iter().map(Window::size).collect();
        assert_eq!(sizes, [SMALLEST + SHARED / 100; 100]);
        all.truncate(1);
        assert_eq!((all[0].size(), windows.lent.get()), (LARGEST, LARGEST - SMALLEST));
        all.clear();
        assert_eq!((windows.responses.get(), windows.lent.get()), (0, 0));
    }
}
