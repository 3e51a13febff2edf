//! Links between documents lead to files and sections that exist, files that documents name are
//! there, and the site has all pages.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use portcullis_testbed::workspace;

use super::prose::is_document;
use super::{File, Problem};
use crate::book;

/// Folders of the repository that documents name files in.
const FOLDERS: &[&str] =
    &["agent", "bench", "common", "deploy", "docs", "ebpf", "examples", "tests", "xtask"];

pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let documents = || files.iter().filter(|file| is_document(file));
    let sections: HashMap<_, _> =
        documents().map(|file| (file.path.as_str(), sections(&file.text))).collect();
    let mut problems: Vec<_> = documents().flat_map(broken).collect();
    problems.extend(documents().flat_map(|file| without_section(file, &sections)));
    problems.extend(missing_pages(files));
    problems
}

/// Pages that the site would lack; those of forms are none.
fn missing_pages(files: &[File]) -> Vec<Problem> {
    let contents = files.iter().find(|file| file.path == book::CONTENTS);
    let listed = contents.map(|file| book::pages(&file.text)).unwrap_or_default();
    let is_page =
        |file: &&File| is_document(file) && file.path != book::CONTENTS && !file.path.starts_with(".github/");
    let missing = files.iter().filter(is_page).filter(|file| !listed.contains(&file.path));
    missing.map(|file| Problem(format!("{} does not list {}", book::CONTENTS, file.path))).collect()
}

/// Links to sections that are not there.
fn without_section(file: &File, sections: &HashMap<&str, HashSet<String>>) -> Vec<Problem> {
    let text = without_blocks(&file.text);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let links = links.filter(|link| !link.contains("://"));
    let mut problems = Vec::new();
    for (path, section) in links.filter_map(|link| link.split_once('#')) {
        let target = if path.is_empty() { Some(file.path.clone()) } else { book::resolved(&file.path, path) };
        let known = target.as_deref().and_then(|target| sections.get(target));
        if known.is_some_and(|known| !known.contains(section)) {
            let problem = format!("{} links to {path}#{section}, a section that does not exist", file.path);
            problems.push(Problem(problem));
        }
    }
    problems
}

/// Names of a document's sections, as GitHub and mdBook make them of headings.
fn sections(text: &str) -> HashSet<String> {
    let mut names = HashSet::new();
    for line in without_blocks(text).lines() {
        let heading = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'));
        let Some(heading) = heading else { continue };
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let name: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let mut numbered = name.clone();
        let mut number = 0;
        while !names.insert(numbered.clone()) {
            number += 1;
            numbered = format!("{name}-{number}");
        }
    }
    names
}

/// Lines of code blocks are left empty.
fn without_blocks(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
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
    fn links_lead_to_sections() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let target = "# A `b`, c\n```\n# no\n```\n## A b c\n";
        let names = sections(target);
        assert_eq!(names, HashSet::from(["a-b-c".to_owned(), "a-b-c-1".to_owned()]));
        let sections = HashMap::from([("docs/a.md", names)]);
        let links = |text: &str| without_section(&file("docs/b/b.md", text), &sections).len();
        assert_eq!(links("[a](../a.md#a-b-c) [b](../a.md#no) [c](https://a.example/#x)"), 1);
        assert_eq!(links("```\n[b](../a.md#no)\n```\n"), 0);
    }

    #[test]
    fn the_site_has_all_pages() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [file("docs/SUMMARY.md", "[A](a.md)"), file("docs/a.md", ""), file("docs/b.md", "")];
        let problems = missing_pages(&files);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].0.ends_with("does not list docs/b.md"), "{problems:?}");
    }

    #[test]
    fn finds_files_that_are_named() {
        let text =
            "In `agent/a.rs` and `deploy/crds`, not `a.rs`, `tests/<case>`, `http/a.rs` or agent/b.rs.";
        assert_eq!(named(text).collect::<Vec<_>>(), ["agent/a.rs", "deploy/crds"]);
    }
}
