//! A dependency is a decision: each direct one has a line in `docs/dependencies.md`, and each line
//! is of a dependency.

use std::collections::BTreeSet;

use super::metadata::Package;
use super::{File, Problem};

const LIST: &str = "docs/dependencies.md";

pub(super) fn problems(packages: &[Package], files: &[File]) -> Vec<Problem> {
    let used: BTreeSet<_> =
        packages.iter().flat_map(|package| &package.external).map(String::as_str).collect();
    let list = files.iter().find(|file| file.path == LIST);
    let listed = list.map(|file| listed(&file.text)).unwrap_or_default();
    let missing = used.difference(&listed);
    let missing =
        missing.map(|name| Problem(format!("{LIST} has no line for `{name}`: what for, why this one")));
    missing.chain(stale(&listed, &used)).collect()
}

fn stale(listed: &BTreeSet<&str>, used: &BTreeSet<&str>) -> Vec<Problem> {
    let stale = listed.difference(used);
    stale
        .map(|name| Problem(format!("{LIST} has a line for `{name}`, which nothing uses any more")))
        .collect()
}

/// The names in the first column of the tables.
fn listed(text: &str) -> BTreeSet<&str> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.flat_map(|(names, _)| names.split("`, `")).collect()
}
