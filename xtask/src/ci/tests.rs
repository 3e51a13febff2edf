//! Runs all tests and adds up what the test runners say.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use portcullis_testbed::workspace;

use super::warnings::linting_cargo;

const LAST_LINES: usize = 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
}

pub(super) fn run(tally: &mut Tally) -> Result<()> {
    tally.follow(&mut cargo_test()?)
}

/// With twice as many tests at a time as there are processors: most of them wait, for time-outs
/// and for what must not happen.
fn cargo_test() -> Result<Command> {
    let threads = 2 * thread::available_parallelism()?.get();
    let mut cargo = linting_cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    cargo.env("RUST_TEST_THREADS", threads.to_string());
    Ok(cargo)
}

/// The proxy's tests once more, with the HTTP library for all of HTTP/1.
pub(super) fn run_with_http1_by_library(tally: &mut Tally) -> Result<()> {
    // By name: for a package alone, its dependencies would be built anew with fewer features.
    let mut cargo = cargo_test()?;
    cargo.env("PORTCULLIS_HTTP1", "library");
    for name in test_files(&workspace::root().join("agent/proxy/tests"))? {
        cargo.arg("--test").arg(name);
    }
    tally.follow(&mut cargo)
}

/// The names of a package's integration tests: files, and directories that have a `main.rs`.
fn test_files(directory: &Path) -> Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let is_test =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists();
        names.extend(path.file_stem().filter(|_| is_test).map(OsStr::to_owned));
    }
    names.sort();
    Ok(names)
}

impl Tally {
    /// Runs a command that runs tests, prints its output as it comes, and counts.
    pub(super) fn follow(&mut self, command: &mut Command) -> Result<()> {
        let failed = self.failed;
        let (mut names, mut said) = (Vec::new(), FailuresOutput::default());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run tests")?;
        let output = child.stdout.take().context("a test runner without output")?;
        let errors = child.stderr.take().context("a test runner without errors")?;
        let errors = thread::spawn(move || last_words(errors));
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            self.add(&line);
            names.extend(failure(&line).map(str::to_owned));
            said.take(&line);
        }
        let last_words = errors.join().unwrap_or_default();
        if child.wait()?.success() {
            return Ok(());
        }
        match self.failed - failed {
            0 => bail!("no test failed, but they did not compile, start or end:\n{last_words}"),
            failed => bail!("{failed} tests failed: {}{}", names.join(", "), said.text),
        }
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

/// The test that a runner's line says to have failed: `test NAME ... FAILED` of cargo's, `FAILED
/// NAME (0.3 s)` and what is wrong of ours.
fn failure(line: &str) -> Option<&str> {
    let cargos = || line.strip_prefix("test ")?.strip_suffix(" ... FAILED");
    line.strip_prefix("FAILED ").map(str::trim_start).or_else(cargos)
}

/// The words of the tests that failed, as cargo's runner repeats them, without their backtraces: by
/// the end of `ci` they are thousands of lines away.
#[derive(Default)]
struct FailuresOutput {
    text: String,
    lines_left: usize,
}

impl FailuresOutput {
    fn take(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.lines_left = LAST_LINES;
        } else if ["failures:", "stack backtrace:"].contains(&line) {
            self.lines_left = 0;
        }
        if self.lines_left > 0 && !line.is_empty() {
            self.lines_left -= 1;
            self.text.push('\n');
            self.text.push_str(line);
        }
    }
}

/// Passes on what a command says of errors, and returns the end of it: much may be printed
/// after it.
fn last_words(errors: ChildStderr) -> String {
    let mut last = VecDeque::new();
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        eprintln!("{line}");
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    Vec::from(last).join("\n")
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

    #[test]
    fn repeats_what_failed_tests_said() {
        let mut said = FailuresOutput::default();
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
            thread 'b' (7) panicked at b.rs:1:2:\n3 is not 4\nstack backtrace:\n   0: main\n\n\n\
            failures:\n    b\n";
        output.lines().for_each(|line| said.take(line));
        assert_eq!(said.text, "\n---- b stdout ----\nthread 'b' (7) panicked at b.rs:1:2:\n3 is not 4");
    }

    #[test]
    fn names_what_failed() {
        assert_eq!(failure("test steer::refuses ... FAILED"), Some("steer::refuses"));
        assert_eq!(
            failure("FAILED no VIP is left (0.1 s): on node-2"),
            Some("no VIP is left (0.1 s): on node-2")
        );
        for other in
            ["test steer::refuses ... ok", "test result: FAILED. 3 passed; 2 failed", "ok     FAILED"]
        {
            assert_eq!(failure(other), None);
        }
    }
}
