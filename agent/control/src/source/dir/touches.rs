//! Paths that changed, and the time from which it is safe to look at each. A writer that closed its
//! file is done; one that has only written is still at it, and is waited for; a file that vanished
//! may be about to be replaced, as editors do, and rests a while. Kept per path, newest state only,
//! so that no storm of events grows anything. Knows no clock: callers give it the time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rest of a file that is empty or gone; an editor's rename dance takes a few milliseconds.
const REST: Duration = Duration::from_millis(20);
/// A file that comes and goes all the time does not put off reading for ever.
const LONGEST_REST: Duration = Duration::from_millis(500);
/// A file that was written to and not closed: its writer may wait for something itself, or have no
/// intention to close it.
const LONGEST_WRITE: Duration = Duration::from_secs(30);

/// A change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Closed after writing, or moved here: complete.
    Complete,
    /// Written to or truncated: open until it is closed.
    Written,
    /// Created, removed or moved away: wait and see.
    Unsettled,
}

/// Paths that are to be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub paths: Vec<PathBuf>,
    /// Directories changed, or events were lost: compare everything with the disk.
    pub sweep: bool,
    /// Read everything again, changed or not.
    pub reread: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Touches {
    paths: BTreeMap<PathBuf, Due>,
    sweep: Option<Due>,
    reread: bool,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    first: Instant,
    at: Instant,
    touch: Touch,
}

// === impl Touches ===

impl Touches {
    pub(crate) fn touch(&mut self, path: PathBuf, touch: Touch, now: Instant) {
        let due = Due::after(self.paths.get(&path), touch, now);
        self.paths.insert(path, due);
    }

    /// True while the file's writer is waited for.
    pub(crate) fn is_open(&self, path: &Path) -> bool {
        self.paths.get(path).is_some_and(|due| due.touch == Touch::Written)
    }

    pub(crate) fn sweep(&mut self, touch: Touch, now: Instant) {
        self.sweep = Some(Due::after(self.sweep.as_ref(), touch, now));
    }

    pub(crate) fn reread(&mut self) {
        self.reread = true;
    }

    /// The time when something will be ready, if anything was touched.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let paths = self.paths.values().chain(&self.sweep).map(|due| due.at);
        paths.chain(self.reread.then_some(now)).min()
    }

    /// Takes out what is ready.
    pub(crate) fn take(&mut self, now: Instant) -> Ready {
        let paths = self.paths.extract_if(.., |_, due| due.at <= now).map(|(path, _)| path).collect();
        let sweep = self.sweep.take_if(|due| due.at <= now).is_some();
        Ready { paths, sweep, reread: std::mem::take(&mut self.reread) }
    }
}

// === impl Due ===

impl Due {
    fn after(before: Option<&Self>, touch: Touch, now: Instant) -> Self {
        let first = before.map_or(now, |due| due.first);
        let at = match (touch, before) {
            (Touch::Complete, _) => now,
            // Only closing it ends that, or time.
            (_, Some(before)) if before.touch == Touch::Written => return *before,
            (Touch::Written, _) => now + LONGEST_WRITE,
            (Touch::Unsettled, _) => (now + REST).min(first + LONGEST_REST),
        };
        Self { first, at, touch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn taken(touches: &mut Touches, now: Instant) -> usize {
        touches.take(now).paths.len()
    }

    #[test]
    fn a_closed_file_is_ready_at_once() {
        let (mut touches, now) = (Touches::default(), Instant::now());
        touches.touch("a".into(), Touch::Unsettled, now);
        touches.touch("a".into(), Touch::Complete, now + MS);
        assert_eq!(touches.due(now), Some(now + MS));
        assert_eq!(taken(&mut touches, now + MS), 1);
        assert_eq!(touches.due(now), None);
    }

    #[test]
    fn an_open_file_is_waited_for_until_it_is_closed() {
        let (mut touches, now) = (Touches::default(), Instant::now());
        touches.touch("a".into(), Touch::Unsettled, now);
        touches.touch("a".into(), Touch::Written, now + MS);
        touches.touch("a".into(), Touch::Unsettled, now + 2 * MS);
        assert!(touches.is_open("a".as_ref()) && !touches.is_open("b".as_ref()));
        assert_eq!(taken(&mut touches, now + 9000 * MS), 0);
        touches.touch("a".into(), Touch::Complete, now + 9000 * MS);
        assert!(!touches.is_open("a".as_ref()));
        assert_eq!(taken(&mut touches, now + 9000 * MS), 1);
    }

    #[test]
    fn a_file_that_is_never_closed_is_read_nevertheless() {
        let (mut touches, start) = (Touches::default(), Instant::now());
        for step in 0..60 {
            touches.touch("a".into(), Touch::Written, start + step * 499 * MS);
        }
        assert_eq!(taken(&mut touches, start + LONGEST_WRITE - MS), 0);
        assert_eq!(taken(&mut touches, start + LONGEST_WRITE), 1);
    }

    #[test]
    fn a_missing_file_rests() {
        let (mut touches, now) = (Touches::default(), Instant::now());
        touches.touch("a".into(), Touch::Complete, now);
        touches.touch("a".into(), Touch::Unsettled, now + MS);
        assert_eq!(taken(&mut touches, now + 2 * MS), 0);
        assert_eq!(taken(&mut touches, now + MS + REST), 1);
    }

    #[test]
    fn a_file_that_comes_and_goes_is_read_nevertheless() {
        let (mut touches, start) = (Touches::default(), Instant::now());
        for step in 0..60 {
            touches.touch("a".into(), Touch::Unsettled, start + step * 10 * MS);
        }
        assert_eq!(taken(&mut touches, start + LONGEST_REST), 1);
    }
}
