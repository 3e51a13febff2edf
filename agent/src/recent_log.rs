//! The latest lines of the log, for those who have the agent and not its standard error.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::MakeWriterExt;

/// In bytes. A line has a few hundred.
const MOST: usize = 256 << 10;

/// The longest line that is kept whole.
const LONGEST: usize = 4 << 10;

static LINES: Mutex<Lines> = Mutex::new(Lines::new());

#[derive(Debug)]
struct Lines {
    lines: VecDeque<String>,
    /// Of all of them.
    bytes: usize,
}

/// A writer of one line.
struct Writer;

/// Details of requests are not kept, which lines below INFO have.
pub(crate) fn writer() -> impl for<'w> MakeWriter<'w> + Send + Sync + 'static {
    (|| Writer).with_max_level(Level::INFO)
}

/// The oldest first.
pub(crate) fn text() -> String {
    lines().lines.iter().map(String::as_str).collect()
}

fn lines() -> MutexGuard<'static, Lines> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl io::Write for Writer {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        lines().push(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Lines ===

impl Lines {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), bytes: 0 }
    }

    fn push(&mut self, line: &str) {
        let kept = &line[..line.floor_char_boundary(LONGEST)];
        let line = match kept.len() < line.len() {
            true => format!("{kept}{} … (cut)\n", if is_open(kept) { "\"" } else { "" }),
            false => line.to_owned(),
        };
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > MOST {
            self.bytes -= self.lines.pop_front().map_or(0, |oldest| oldest.len());
        }
    }
}

/// True within quotes, which are closed where a line is cut: a report tells values by them.
fn is_open(text: &str) -> bool {
    let (mut is_open, mut is_escaped) = (false, false);
    for c in text.chars() {
        is_open ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
    }
    is_open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_closed_where_a_line_is_cut() {
        for (line, end) in [("a \"\"", "aaa … (cut)\n"), ("a \"", "aaa\" … (cut)\n")] {
            let mut lines = Lines::new();
            lines.push(&format!("{line}{}", "a".repeat(LONGEST)));
            assert!(lines.lines[0].ends_with(end), "{lines:?}");
        }
    }

    #[test]
    fn the_latest_lines_are_kept_within_bounds() {
        let mut lines = Lines::new();
        lines.push(&"ä".repeat(LONGEST));
        assert!(lines.lines[0].ends_with("ä … (cut)\n") && lines.bytes < LONGEST + 20, "{lines:?}");
        (0..10_000).for_each(|number| lines.push(&format!("line {number} {}\n", "a".repeat(100))));
        let kept: usize = lines.lines.iter().map(String::len).sum();
        assert_eq!(kept, lines.bytes);
        assert!((MOST - 200..=MOST).contains(&kept), "{kept}");
        assert!(lines.lines[0].starts_with("line 7"), "{}", lines.lines[0]);
        assert!(lines.lines.back().unwrap().starts_with("line 9999 "));
    }
}
