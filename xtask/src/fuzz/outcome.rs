//! The outcome of a run of libFuzzer, as its log has it.

use std::fmt;

pub(super) const HEADING: &str = "target             executions  a second  coverage before  after  verdict";

pub(super) struct Outcome {
    pub(super) target: String,
    pub(super) log: String,
    executions: u64,
    rate: u64,
    /// Edges that the files reached with which it began, and that all reach now.
    coverage: (u64, u64),
    /// The file with the bytes that break something.
    pub(super) crash: Option<String>,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn read(target: &str, log: &str, text: &str) -> Self {
        let after = |what: &str, line: &str| {
            line.split_once(what).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
        };
        let last = |what: &str| text.lines().rev().find_map(|line| after(what, line)).unwrap_or(0);
        let begin =
            text.lines().filter(|line| line.contains("INITED")).find_map(|line| after(" cov: ", line));
        let crash = text.lines().find_map(|line| line.split_once("Test unit written to "));
        Self {
            target: target.to_owned(),
            log: log.to_owned(),
            executions: last("stat::number_of_executed_units: "),
            rate: last("stat::average_exec_per_sec: "),
            coverage: (begin.unwrap_or(0), last(" cov: ")),
            crash: crash.map(|(_, file)| file.trim().to_owned()),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, executions, rate, coverage: (before, after), .. } = self;
        let verdict = if self.crash.is_some() { "FAILED" } else { "ok" };
        write!(f, "{target:<18} {executions:>10} {rate:>9} {before:>16} {after:>6}  {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
#13\tINITED cov: 120 ft: 130 corp: 7/90b exec/s: 0 rss: 40Mb
#900\tNEW    cov: 133 ft: 150 corp: 8/99b lim: 4 exec/s: 450 rss: 41Mb L: 9/9 MS: 1 CopyPart-
==7== ERROR: libFuzzer: deadly signal
artifact_prefix='target/fuzz/path-'; Test unit written to target/fuzz/path-crash-0123
stat::number_of_executed_units: 901
stat::average_exec_per_sec:     450
";

    #[test]
    fn logs_say_what_came_of_it() {
        let outcome = Outcome::read("path", "path.log", LOG);
        assert_eq!(outcome.crash.as_deref(), Some("target/fuzz/path-crash-0123"));
        assert_eq!(
            outcome.to_string(),
            "path                      901       450              120    133  FAILED"
        );
        let fine = Outcome::read("path", "path.log", LOG.split("==7==").next().unwrap());
        assert!(fine.crash.is_none() && fine.to_string().ends_with("ok"));
    }
}
