//! Paths that changed, and the time from which it is safe to look at each. A writer that closed its
//! file is done; one that has only written may still be at it, and a file that vanished may be
//! about to be replaced, as editors do: those rest a while. Kept per path, newest state only, so
//! that no storm of events grows anything. Knows no clock: callers give it the time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rest of a file that is open for writing or gone; an editor's rename dance takes a few
/// milliseconds.
const REST: Duration = Duration::from_millis(20);
/// A writer that never pauses does not put off reading for ever.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// A change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Closed after writing, or moved here: complete.
    Complete,
    /// Written to, created, removed or moved away: wait and see.
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
}

// === impl Touches ===

impl Touches {
    pub(crate) fn touch(&mut self, path: PathBuf, touch: Touch, now: Instant) {
        let first = self.paths.get(&path).map_or(now, |due| due.first);
        self.paths.insert(path, Due::new(first, touch, now));
    }

    pub(crate) fn sweep(&mut self, touch: Touch, now: Instant) {
        let first = self.sweep.map_or(now, |due| due.first);
        self.sweep = Some(Due::new(first, touch, now));
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
    fn new(first: Instant, touch: Touch, now: Instant) -> Self {
        let at = match touch {
            Touch::Complete => now,
            Touch::Unsettled => (now + REST).min(first + LONGEST_REST),
        };
        Self { first, at }
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
    fn an_open_or_missing_file_rests() {
        let (mut touches, now) = (Touches::default(), Instant::now());
        touches.touch("a".into(), Touch::Complete, now);
        touches.touch("a".into(), Touch::Unsettled, now + MS);
        assert_eq!(taken(&mut touches, now + 2 * MS), 0);
        assert_eq!(taken(&mut touches, now + MS + REST), 1);
    }

    #[test]
    fn a_writer_that_never_pauses_is_read_nevertheless() {
        let (mut touches, start) = (Touches::default(), Instant::now());
        for step in 0..60 {
            touches.touch("a".into(), Touch::Unsettled, start + step * 10 * MS);
        }
        assert_eq!(taken(&mut touches, start + LONGEST_REST), 1);
    }
}
