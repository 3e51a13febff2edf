//! `docs/conditions.md` has a row for every reason, in order, and with it every condition that some
//! golden case gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use portcullis_gateway::{ConditionType, Reason};

const PAGE: &str = include_str!("../../../../docs/conditions.md");

#[test]
fn the_page_lists_the_reasons() {
    let mut reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    reasons.sort_unstable();
    let listed: Vec<_> = rows().map(|(reason, _)| reason).collect();
    assert_eq!(listed, reasons);
}

#[test]
fn the_page_knows_the_conditions_of_every_reason() {
    let rows: BTreeMap<_, _> = rows().collect();
    let said = crate::cases::cases()
        .into_iter()
        .flat_map(|case| conditions(&fs::read_to_string(case.join("status.yaml")).unwrap()));
    let missing: BTreeSet<_> = said
        .filter(|(reason, condition)| {
            !rows.get(&**reason).is_some_and(|row| row.contains(&format!("`{condition}`")))
        })
        .collect();
    assert!(missing.is_empty(), "docs/conditions.md lacks {missing:?}");
}

/// Reason, and the cell with its conditions.
fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
}

/// `Accepted: "False Invalid @1: …"` as `Invalid` and `Accepted=False`.
fn conditions(status: &str) -> Vec<(String, String)> {
    let read = |line: &str| {
        let (r#type, rest) = line.trim().split_once(": ")?;
        let mut words = rest.trim_start_matches('"').split([' ', '"']);
        let (holds, reason) = (words.next()?, words.next()?);
        let is_condition = ConditionType::ALL.iter().any(|known| known.as_str() == r#type);
        is_condition.then(|| (reason.to_owned(), format!("{}={holds}", r#type)))
    };
    status.lines().filter_map(read).collect()
}
