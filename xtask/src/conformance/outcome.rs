//! What the suite said: the verbose output of a Go test, in which every conformance test is a subtest of one test, as it is made
//! for the program test2json.

use std::time::Duration;

/// What test2json takes for a line of the test runner's own.
const MARK: char = '\u{16}';

/// The Go test that holds all others.
const ROOT: &str = "TestConformance";

#[derive(Default, Debug)]
pub(crate) struct Outcome {
    passed: Vec<String>,
    failed: Vec<String>,
    skipped: Vec<String>,
    /// Whether the suite as a whole failed, its set-up included.
    root_failed: bool,
    duration: Duration,
}

impl Outcome {
    /// Takes one line of output. Returns what to show of it: the result of one conformance test, or of a failed part of one.
    pub(crate) fn read(&mut self, line: &str) -> Option<String> {
        let (verdict, name) = result(line)?;
        if name == ROOT {
            self.root_failed = verdict == "FAIL";
            return None;
        }
        let test = name.strip_prefix(ROOT)?.strip_prefix('/')?;
        let is_part = test.contains('/');
        match verdict {
            "FAIL" => self.failed.push(test.to_owned()),
            "SKIP" if !is_part => self.skipped.push(test.to_owned()),
            "PASS" if !is_part => self.passed.push(test.to_owned()),
            _ => return None,
        }
        (verdict != "SKIP")
            .then(|| line.trim_start_matches([MARK, '-', ' ']).replace(ROOT, "").replace(" /", " "))
    }

    /// A suite that fails outside of any test has failed all the same.
    pub(crate) fn finish(&mut self, succeeded: bool, duration: Duration) {
        self.root_failed |= !succeeded;
        self.duration = duration;
        if self.root_failed && self.failed.is_empty() {
            self.failed.push("the suite's set-up".to_owned());
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    /// The summary. Its last line is what CI looks for.
    pub(crate) fn print(&self) {
        println!("conformance: {} skipped, {:.0} s", self.skipped.len(), self.duration.as_secs_f32());
        for test in &self.failed {
            println!("FAILED {test}");
        }
        println!("{} passed, {} failed", self.passed.len(), self.failures());
    }

    /// Tests, not their parts.
    fn failures(&self) -> usize {
        self.failed.iter().filter(|test| !test.contains('/')).count()
    }
}

/// `--- PASS: TestConformance/Name (0.00s)`, marked and indented or not → verdict and name.
fn result(line: &str) -> Option<(&str, &str)> {
    let (verdict, rest) = line.trim_start_matches([MARK, ' ']).strip_prefix("--- ")?.split_once(": ")?;
    Some((verdict, rest.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "\
=== RUN   TestConformance
    conformance.go:62: Running conformance tests with:
=== RUN   TestConformance/HTTPRouteMatching
--- FAIL: TestConformance (9.00s)
    --- FAIL: TestConformance/HTTPRouteMatching (4.00s)
        --- PASS: TestConformance/HTTPRouteMatching/0_request_to_/ (1.00s)
        --- FAIL: TestConformance/HTTPRouteMatching/1_request_to_/v2 (3.00s)
    --- PASS: TestConformance/GatewayModifyListeners (2.00s)
        --- PASS: TestConformance/GatewayModifyListeners/should_be_able_to_add (1.00s)
    --- SKIP: TestConformance/UDPRoute (0.00s)
FAIL
";

    fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| drop(outcome.read(line)));
        outcome
    }

    #[test]
    fn tests_are_counted_and_failed_parts_named() {
        let outcome = read(RUN);
        assert_eq!(outcome.passed, ["GatewayModifyListeners"]);
        assert_eq!(outcome.failed, ["HTTPRouteMatching", "HTTPRouteMatching/1_request_to_/v2"]);
        assert_eq!(outcome.skipped, ["UDPRoute"]);
        assert_eq!(outcome.failures(), 1);
        assert!(!outcome.is_success());
    }

    #[test]
    fn a_result_is_shown_without_the_root() {
        let mut outcome = Outcome::default();
        let shown = outcome.read("\u{16}--- PASS: TestConformance/GatewayModifyListeners (2.00s)");
        assert_eq!(shown.as_deref(), Some("PASS: GatewayModifyListeners (2.00s)"));
    }

    #[test]
    fn failing_before_any_test_is_a_failure() {
        let mut outcome = read("--- FAIL: TestConformance (61.00s)\n");
        outcome.finish(false, Duration::ZERO);
        assert_eq!(outcome.failures(), 1);
        assert!(!outcome.is_success());
    }

    #[test]
    fn running_nothing_is_no_success() {
        let mut outcome = read("");
        outcome.finish(true, Duration::ZERO);
        assert!(!outcome.is_success());
    }
}
