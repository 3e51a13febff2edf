//! `docs/performance.md`: what a benchmark wrote there lies between marks with the benchmark's
//! name.

use std::fs;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;

const DOCUMENT: &str = "docs/performance.md";

/// Replaces what the document says of a benchmark's last run.
pub(super) fn replace(benchmark: &str, text: &str) -> Result<()> {
    update(benchmark, |_| text.to_owned())
}

/// Replaces what the document says of a benchmark by what is made of it.
pub(super) fn update(benchmark: &str, revise: impl FnOnce(&str) -> String) -> Result<()> {
    let path = workspace::root().join(DOCUMENT);
    let document = revised(&fs::read_to_string(&path)?, benchmark, revise)?;
    Ok(fs::write(path, document)?)
}

fn revised(document: &str, benchmark: &str, revise: impl FnOnce(&str) -> String) -> Result<String> {
    let (begin, end) =
        (format!("<!-- bench {benchmark}: begin -->\n"), format!("<!-- bench {benchmark}: end -->"));
    let lost = |mark: &str| format!("{DOCUMENT} has lost its mark {}", mark.trim_end());
    let (before, rest) = document.split_once(&begin).with_context(|| lost(&begin))?;
    let (old, after) = rest.split_once(&end).with_context(|| lost(&end))?;
    Ok(format!("{before}{begin}{}{end}{after}", revise(old)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_benchmarks_own_part_changes() {
        let document = |part| {
            format!(
                "a\n<!-- bench http: begin -->\n{part}<!-- bench http: end -->\n<!-- bench scale: begin -->\n"
            )
        };
        let new = revised(&document("old\n"), "http", |old| old.replace("old", "new"));
        assert_eq!(new.unwrap(), document("new\n"));
        assert!(revised(&document(""), "scale", str::to_owned).is_err());
    }
}
