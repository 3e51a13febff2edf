//! Results of the suite, from the verbose output of a Go test, in which every conformance test is a
//! subtest of one test, as it is made for the program test2json.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::time::Duration;

/// Marks a line of the test runner's own for test2json.
const MARK: char = '\u{16}';

/// The Go test that holds all others.
const ROOT: &str = "TestConformance";

/// Of one run of the suite or of several: what an earlier one has tested is not counted again,
/// unless it fails now.
#[derive(Default, Debug)]
pub(crate) struct Outcome {
    passed: BTreeSet<String>,
    /// Tests, and the parts of them that failed.
    failed: Vec<String>,
    /// With the feature that is missing; empty: an option left it out.
    skipped: BTreeMap<String, String>,
    run: Run,
    duration: Duration,
}

#[derive(Default, Debug)]
struct Run {
    name: String,
    /// True if the suite as a whole failed, its set-up included.
    failed: bool,
    failed_before: usize,
    /// Tests of earlier runs.
    known: BTreeSet<String>,
    /// Tests that passed in this one, also if they had before.
    passed: BTreeSet<String>,
}

impl Outcome {
    /// Of a run of the suite; `name` says which.
    pub(crate) fn begin(&mut self, name: &str) {
        let tests = self.failed.iter().filter(|test| !test.contains('/')).chain(&self.passed);
        let known = tests.cloned().collect();
        let failed_before = self.failed.len();
        self.run = Run { name: name.to_owned(), failed_before, known, ..Run::default() };
    }

    pub(crate) fn has_begun(&self) -> bool {
        !self.run.name.is_empty()
    }

    /// Takes one line of output. Returns what to show of it: the result of one conformance test, or
    /// of a failed part of one.
    pub(crate) fn read(&mut self, line: &str) -> Option<String> {
        if let Some((test, feature)) = missing(line) {
            self.skip(test, feature);
        }
        let (verdict, name) = result(line)?;
        if name == ROOT {
            self.run.failed = verdict == "FAIL";
            return None;
        }
        let test = name.strip_prefix(ROOT)?.strip_prefix('/')?;
        let is_new = match verdict {
            "FAIL" => self.fail(test),
            "PASS" if !test.contains('/') => self.pass(test),
            "SKIP" if !test.contains('/') => self.skip(test, ""),
            _ => false,
        };
        is_new.then(|| line.trim_start_matches([MARK, '-', ' ']).replace(ROOT, "").replace(" /", " "))
    }

    fn fail(&mut self, test: &str) -> bool {
        self.passed.remove(test);
        self.skipped.remove(test);
        let is_new = self.failed.iter().all(|known| known != test);
        self.failed.extend(is_new.then(|| test.to_owned()));
        is_new
    }

    fn pass(&mut self, test: &str) -> bool {
        self.skipped.remove(test);
        self.run.passed.insert(test.to_owned());
        !self.run.known.contains(test) && self.passed.insert(test.to_owned())
    }

    /// Never shown. A later run may have what an earlier one missed, and miss something else.
    fn skip(&mut self, test: &str, feature: &str) -> bool {
        if !self.run.known.contains(test) {
            let known = self.skipped.entry(test.to_owned()).or_default();
            if !feature.is_empty() {
                feature.clone_into(known);
            }
        }
        false
    }

    /// A suite that fails outside of any test has failed all the same.
    pub(crate) fn finish(&mut self, status: ExitStatus, duration: Duration) {
        self.duration += duration;
        let failed = self.run.failed || !status.success();
        if failed && self.failed.len() == self.run.failed_before {
            self.failed.push(format!("the suite's set-up or end ({})", self.run.name));
        }
    }

    /// Takes it for a failure that a test did not run at all in the present run.
    pub(crate) fn demand<'a>(&mut self, tests: impl Iterator<Item = &'a str>) {
        for test in tests.filter(|test| !self.run.passed.contains(*test)).collect::<Vec<_>>() {
            self.fail(test);
        }
    }

    /// Something that no test finds.
    pub(crate) fn fault(&mut self, what: String) {
        self.failed.push(what);
    }

    pub(crate) fn is_success(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    /// The summary. Its last line is what CI looks for.
    pub(crate) fn print(&self) {
        println!("conformance: {:.0} s; {}", self.duration.as_secs_f32(), self.skips());
        for test in &self.failed {
            println!("FAILED {test}");
        }
        println!("{} passed, {} failed", self.passed.len(), self.failures());
    }

    /// The features that would have to be claimed, and for how many more tests each.
    fn skips(&self) -> String {
        let mut features = BTreeMap::<&str, usize>::new();
        for feature in self.skipped.values() {
            *features.entry(feature).or_default() += 1;
        }
        let by_option = features.remove("").unwrap_or_default();
        let list: Vec<_> = features.iter().map(|(feature, tests)| format!("{feature} {tests}")).collect();
        let unclaimed = self.skipped.len() - by_option;
        let mut text = format!("{unclaimed} skipped, of features that are not claimed");
        if !list.is_empty() {
            text = format!("{text}: {}", list.join(", "));
        }
        if by_option > 0 { format!("{text}; {by_option} left out by option") } else { text }
    }

    /// Tests, not their parts.
    fn failures(&self) -> usize {
        self.failed.iter().filter(|test| !test.contains('/')).count()
    }
}

/// `Skipping Name: suite does not support Feature` → name and feature.
fn missing(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once("Skipping ")?;
    let (test, feature) = rest.split_once(": suite does not support ")?;
    Some((test, feature.trim_end()))
}

/// `--- PASS: TestConformance/Name (0.00s)`, marked and indented or not → verdict and name.
fn result(line: &str) -> Option<(&str, &str)> {
    let (verdict, rest) = line.trim_start_matches([MARK, ' ']).strip_prefix("--- ")?.split_once(": ")?;
    Some((verdict, rest.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

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
    conformance.go:56: Skipping UDPRoute: suite does not support UDPRoute
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
        assert_eq!(outcome.passed, BTreeSet::from(["GatewayModifyListeners".to_owned()]));
        assert_eq!(outcome.failed, ["HTTPRouteMatching", "HTTPRouteMatching/1_request_to_/v2"]);
        assert_eq!(outcome.skips(), "1 skipped, of features that are not claimed: UDPRoute 1");
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
        outcome.finish(ExitStatus::from_raw(1 << 8), Duration::ZERO);
        assert_eq!(outcome.failures(), 1);
        assert!(!outcome.is_success());
    }

    const SECOND: &str = "\
    --- PASS: TestConformance/HTTPRouteMatching (4.00s)
    --- FAIL: TestConformance/GatewayModifyListeners (2.00s)
    --- PASS: TestConformance/UDPRoute (0.00s)
";

    #[test]
    fn a_second_run_adds_what_it_tests_first_and_every_failure() {
        let mut outcome = read(RUN);
        outcome.begin("GATEWAY-UDP");
        let shown: Vec<_> = SECOND.lines().filter_map(|line| outcome.read(line)).collect();
        assert_eq!(shown, ["FAIL: GatewayModifyListeners (2.00s)", "PASS: UDPRoute (0.00s)"]);
        assert_eq!(outcome.passed, BTreeSet::from(["UDPRoute".to_owned()]));
        assert_eq!((outcome.failures(), outcome.skipped.len()), (2, 0));
    }

    #[test]
    fn what_is_demanded_fails_unless_it_passes_in_this_run() {
        let mut outcome = read("    --- PASS: TestConformance/HTTPRouteRetry (1.00s)\n");
        outcome.begin("of a newer suite");
        outcome.read("    --- PASS: TestConformance/HTTPRouteRuleOrder (1.00s)");
        outcome.demand(["HTTPRouteRetry", "HTTPRouteRuleOrder", "GatewayNameMaximumLength"].into_iter());
        assert_eq!(outcome.failed, ["HTTPRouteRetry", "GatewayNameMaximumLength"]);
        assert_eq!(outcome.passed, BTreeSet::from(["HTTPRouteRuleOrder".to_owned()]));
    }

    #[test]
    fn running_nothing_is_no_success() {
        let mut outcome = read("");
        outcome.finish(ExitStatus::default(), Duration::ZERO);
        assert!(!outcome.is_success());
    }
}
