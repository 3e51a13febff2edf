//! Tests and features of a release of the suite, as `tests/cluster/conformance/inventory_test.go`
//! prints them, and those that one has and an older one has not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use portcullis_testbed::command;

/// The Go test that prints one, and its file, which is compiled into every release.
const ROOT: &str = "TestInventory";
pub(super) const FILE: &str = "tests/cluster/conformance/inventory_test.go";

/// The feature of tests that cannot run here.
const MESH: &str = "Mesh";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    features: BTreeSet<String>,
    /// With the features that they need.
    tests: BTreeMap<String, BTreeSet<String>>,
}

/// Names and tests of gateways that one release of the suite has and an older one has not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Tests of a new name, with the features that they need.
    tests: BTreeMap<String, BTreeSet<String>>,
    /// Tests that the older one has, and that need a feature of which it does not know.
    changed: BTreeMap<String, BTreeSet<String>>,
    known_before: BTreeSet<String>,
}

impl Inventory {
    pub(super) fn of(suite: &Path) -> Result<Self> {
        let mut print = Command::new(suite);
        print.arg(format!("-test.run=^{ROOT}$"));
        let printed = command::output(&mut print)?;
        Self::parse(&printed).with_context(|| format!("the inventory of {}", suite.display()))
    }

    fn parse(printed: &str) -> Result<Self> {
        let (mut features, mut tests) = (BTreeSet::new(), BTreeMap::new());
        for line in printed.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            match (words.next().as_deref(), words.next()) {
                (Some("feature"), Some(name)) => drop(features.insert(name)),
                (Some("test"), Some(name)) => drop(tests.insert(name, words.collect())),
                _ => {}
            }
        }
        if features.is_empty() || tests.is_empty() {
            bail!("there are {} features and {} tests in it", features.len(), tests.len());
        }
        Ok(Self { features, tests })
    }

    pub(super) fn since(self, older: Self) -> News {
        let of_gateways = self.tests.into_iter().filter(|(_, needs)| !needs.contains(MESH));
        let (mut changed, tests): (BTreeMap<_, _>, BTreeMap<_, _>) =
            of_gateways.partition(|(name, _)| older.tests.contains_key(name));
        changed.retain(|_, needs| !needs.is_subset(&older.features));
        News { tests, changed, known_before: older.features }
    }
}

impl News {
    /// The names of all tests that have to pass.
    pub(super) fn tests(&self) -> impl Iterator<Item = &str> {
        self.tests.keys().chain(self.changed.keys()).map(String::as_str)
    }

    /// Those of them that the older suite does not have in any form.
    pub(super) fn count(&self) -> usize {
        self.tests.len()
    }

    /// Features among these that the older suite does not know.
    pub(super) fn features<'a>(&'a self, claimed: &'a BTreeSet<String>) -> Vec<&'a str> {
        claimed.difference(&self.known_before).map(String::as_str).collect()
    }

    /// Those of them that no test needs: what is claimed by them nothing proves.
    pub(super) fn unproven<'a>(&'a self, claimed: &'a BTreeSet<String>) -> Vec<&'a str> {
        let needs = |feature: &str| {
            self.tests.values().chain(self.changed.values()).any(|needs| needs.contains(feature))
        };
        self.features(claimed).into_iter().filter(|feature| !needs(feature)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLDER: &str = "\
feature Gateway
feature HTTPRoute
feature HTTPRouteRetry
feature Mesh
test HTTPRouteSimple Gateway HTTPRoute
test HTTPRouteRetry Gateway HTTPRoute HTTPRouteRetry
PASS
";

    const NEWER: &str = "\
feature Gateway
feature GatewayListenerFilters
feature HTTPRoute
feature HTTPRouteRetryCodes
feature Mesh
test HTTPRouteSimple Gateway HTTPRoute
test HTTPRouteRetry Gateway HTTPRoute HTTPRouteRetryCodes
test HTTPRouteRuleOrder Gateway HTTPRoute
test MeshGRPCRouteRequestHeaderModifier Mesh
PASS
";

    fn news() -> News {
        Inventory::parse(NEWER).unwrap().since(Inventory::parse(OLDER).unwrap())
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn new_tests_are_those_of_new_names_and_of_new_features() {
        assert_eq!(news().tests().collect::<Vec<_>>(), ["HTTPRouteRuleOrder", "HTTPRouteRetry"]);
        assert_eq!(news().count(), 1);
    }

    #[test]
    fn a_new_feature_without_a_test_is_unproven() {
        let claimed = set(&["Gateway", "HTTPRouteRetry", "GatewayListenerFilters", "HTTPRouteRetryCodes"]);
        assert_eq!(news().features(&claimed), ["GatewayListenerFilters", "HTTPRouteRetryCodes"]);
        assert_eq!(news().unproven(&claimed), ["GatewayListenerFilters"]);
        assert_eq!(news().unproven(&set(&["Invented"])), ["Invented"]);
    }

    #[test]
    fn a_suite_that_says_nothing_has_no_inventory() {
        assert!(Inventory::parse("PASS\n").is_err());
    }
}
