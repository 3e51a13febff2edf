//! `docs/datapath.md` has a row for every reason, in order, and no other.

use portcullis_common::abi::{MAX_CORES, MAX_GROUPS};
use portcullis_common::reason::Reason;

const PAGE: &str = include_str!("../../docs/datapath.md");

#[test]
fn the_page_lists_the_reasons() {
    let rows =
        Reason::ALL.iter().map(|reason| format!("| `{}` | {} |\n", reason.label(), reason.description()));
    let table: String = rows.collect();
    let expected = format!("| reason | meaning |\n|---|---|\n{table}\n");
    assert!(PAGE.contains(&expected), "put this into docs/datapath.md:\n{expected}");
}

#[test]
fn the_page_knows_the_layout_of_sockets() {
    assert_eq!((MAX_CORES, MAX_GROUPS), (256, 8), "docs/datapath.md says so");
}
