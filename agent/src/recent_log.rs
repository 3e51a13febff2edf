//! The first and the latest lines of the log, for those who have the agent and not its standard
//! error: how the agent began is of interest however much it has said since.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// In bytes, of the first lines of a run. A line has a few hundred.
const FIRST: usize = 16 << 10;
/// In bytes, of the latest lines behind them.
const LATEST: usize = 240 << 10;

/// The longest line that is kept whole.
const LONGEST: usize = 4 << 10;

static LINES: Mutex<Lines> = Mutex::new(Lines::new());

#[derive(Debug)]
struct Lines {
    first: String,
    latest: VecDeque<String>,
    /// Of the latest.
    bytes: usize,
    /// Lines between the first and the latest that are not kept.
    missing: usize,
}

/// A writer of one line.
struct Writer;

/// A writer of each line. It gets none below INFO, which have details of requests.
pub(crate) fn writer() -> impl for<'w> MakeWriter<'w> + Send + Sync + 'static {
    || Writer
}

/// The oldest first.
pub(crate) fn text() -> String {
    lines().text()
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
        Self { first: String::new(), latest: VecDeque::new(), bytes: 0, missing: 0 }
    }

    fn push(&mut self, line: &str) {
        let kept = &line[..line.floor_char_boundary(LONGEST)];
        let line = match kept.len() < line.len() {
            true => format!("{kept}{} … (cut)\n", if is_open(kept) { "\"" } else { "" }),
            false => line.to_owned(),
        };
        // Once one is among the latest, no shorter one comes before it.
        if self.latest.is_empty() && self.first.len() + line.len() <= FIRST {
            return self.first.push_str(&line);
        }
        self.bytes += line.len();
        self.latest.push_back(line);
        while self.bytes > LATEST {
            self.bytes -= self.latest.pop_front().map_or(0, |oldest| oldest.len());
            self.missing += 1;
        }
    }

    fn text(&self) -> String {
        let mut text = self.first.clone();
        if self.missing > 0 {
            text += &format!("… ({} lines are missing here)\n", self.missing);
        }
        text.extend(self.latest.iter().map(String::as_str));
        text
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
            assert!(lines.text().ends_with(end), "{lines:?}");
        }
    }

    #[test]
    fn the_first_and_the_latest_lines_are_kept_within_bounds() {
        let mut lines = Lines::new();
        lines.push(&"ä".repeat(LONGEST));
        assert!(lines.first.ends_with("ä … (cut)\n") && lines.first.len() < LONGEST + 20, "{lines:?}");
        (0..10_000).for_each(|number| lines.push(&format!("line {number} {}\n", "a".repeat(100))));
        let kept: usize = lines.latest.iter().map(String::len).sum();
        assert_eq!(kept, lines.bytes);
        assert!((LATEST - 200..=LATEST).contains(&kept), "{kept}");
        assert!((FIRST - 200..=FIRST).contains(&lines.first.len()), "{}", lines.first.len());
        let text = lines.text();
        let numbers = text.lines().filter(|line| line.starts_with("line ")).count();
        assert_eq!(numbers + lines.missing, 10_000);
        assert!(text.contains(&format!("\n… ({} lines are missing here)\nline ", lines.missing)));
        assert!(text.contains("\nline 0 ") && lines.latest.back().unwrap().starts_with("line 9999 "));
    }
}
