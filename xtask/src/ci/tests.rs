//! Runs all tests and adds up what the test runners say.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::agent;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

/// Prints the output as it comes.
pub(super) fn run(tally: &mut Tally) -> Result<()> {
    let mut cargo = agent::cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]).stdout(Stdio::piped());
    let mut child = cargo.spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        tally.add(&line);
    }
    if !child.wait()?.success() {
        bail!("{} tests failed, or did not compile", tally.failed);
    }
    Ok(())
}

impl Tally {
    /// Takes a test runner's last line into account: `test result: ok. 3 passed; 0 failed; …`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse::<u64>().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse::<u64>().unwrap_or(0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod cases {
    use super::*;

    #[test]
    fn adds_up_what_runners_say() {
        let mut tally = Tally::default();
        tally.add(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s",
        );
        tally.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        tally.add("test result of something else");
        assert_eq!(tally, Tally { passed: 15, failed: 2 });
    }
}
