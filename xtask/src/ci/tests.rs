//! Runs all tests and adds up what the test runners say.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use portcullis_testbed::workspace;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

pub(super) fn run(tally: &mut Tally) -> Result<()> {
    tally.follow(workspace::cargo().args(["test", "--workspace", "--locked", "--no-fail-fast"]))
}

impl Tally {
    /// Runs a command that runs tests, prints its output as it comes, and counts.
    pub(super) fn follow(&mut self, command: &mut Command) -> Result<()> {
        let failed = self.failed;
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run tests")?;
        let output = child.stdout.take().context("a test runner without output")?;
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            self.add(&line);
        }
        if !child.wait()?.success() {
            bail!("{} tests failed, or did not compile or start", self.failed - failed);
        }
        Ok(())
    }

    /// Takes a test runner's last line into account: `test result: ok. 3 passed; 0 failed; …` of
    /// cargo's, and `3 passed, 0 failed` of ours.
    fn add(&mut self, line: &str) {
        let cargos = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "));
        for count in cargos.map_or(line, |(_, counts)| counts).split([';', ',']).map(str::trim_start) {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse::<u64>().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse::<u64>().unwrap_or(0),
                _ => return,
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
        tally.add("4 passed, 1 failed");
        for other in ["test result of something else", "FAILED 7 passed", "GatewayStaticAddresses, 7 failed"]
        {
            tally.add(other);
        }
        assert_eq!(tally, Tally { passed: 19, failed: 3 });
    }
}
