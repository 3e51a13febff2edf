//! Links between documents lead somewhere, and files that documents name are there.

use std::path::Path;

use portcullis_testbed::workspace;

use super::{File, Problem};

/// Folders of the repository that documents name files in.
const FOLDERS: &[&str] =
    &["agent", "bench", "common", "deploy", "docs", "ebpf", "examples", "tests", "xtask"];

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    files.iter().filter(|file| file.path.ends_with(".md")).flat_map(broken).collect()
}

fn broken(file: &File) -> Vec<Problem> {
    let directory = workspace::root().join(Path::new(&file.path).parent().unwrap_or(Path::new("")));
    let links = targets(&file.text).filter(|target| !directory.join(target).exists());
    let links = links.map(|target| Problem(format!("{} links to {target}, which does not exist", file.path)));
    let named = named(&file.text).filter(|path| !workspace::root().join(path).exists());
    let named = named.map(|path| Problem(format!("{} names {path}, which does not exist", file.path)));
    links.chain(named).collect()
}

/// Files that a Markdown text links to.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let paths = links.filter_map(|(target, _)| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains("://") && !path.contains(char::is_whitespace))
}

/// Paths in backticks from the repository's root; patterns are none.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    spans.filter(move |span| {
        span.chars().all(is_path) && span.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_targets() {
        let text = "See [a](docs/a.md#part), [b](https://example.com/x), [c](#here) and [d](../d).";
        assert_eq!(targets(text).collect::<Vec<_>>(), ["docs/a.md", "../d"]);
    }

    #[test]
    fn finds_files_that_are_named() {
        let text =
            "In `agent/a.rs` and `deploy/crds`, not `a.rs`, `tests/<case>`, `http/a.rs` or agent/b.rs.";
        assert_eq!(named(text).collect::<Vec<_>>(), ["agent/a.rs", "deploy/crds"]);
    }
}
