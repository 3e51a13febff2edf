//! `docs/performance.md`: what a benchmark wrote there lies between marks with the benchmark's
//! name; it may have sections.

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

/// The document's text of a benchmark.
pub(super) fn read(benchmark: &str) -> Result<String> {
    let document = fs::read_to_string(workspace::root().join(DOCUMENT))?;
    let (_, text, _) = parts(&document, benchmark)?;
    Ok(text.to_owned())
}

fn revised(document: &str, benchmark: &str, revise: impl FnOnce(&str) -> String) -> Result<String> {
    let (before, old, after) = parts(document, benchmark)?;
    Ok(format!("{before}{}{after}", revise(old)))
}

/// A benchmark's text between all that comes before and after it, marks included.
fn parts<'a>(document: &'a str, benchmark: &str) -> Result<(&'a str, &'a str, &'a str)> {
    let (begin, end) =
        (format!("<!-- bench {benchmark}: begin -->\n"), format!("<!-- bench {benchmark}: end -->"));
    let lost = |mark: &str| format!("{DOCUMENT} has lost its mark {}", mark.trim_end());
    let from = document.find(&begin).with_context(|| lost(&begin))? + begin.len();
    let length = document[from..].find(&end).with_context(|| lost(&end))?;
    let (before, rest) = document.split_at(from);
    let (text, after) = rest.split_at(length);
    Ok((before, text, after))
}

/// The line above a section, with the empty lines around it.
pub(super) fn title_line(title: &str) -> String {
    format!("\n### {title}\n")
}

/// From a title to the next.
pub(super) fn section(report: &str, title: &str) -> Option<String> {
    let title = title_line(title);
    let (_, rest) = report.split_once(&title)?;
    let body = rest.split_once("\n### ").map_or(rest, |(body, _)| body);
    Some(format!("{title}{body}"))
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
