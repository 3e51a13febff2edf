//! Comments and documents that read well: a doc comment opens with a noun phrase or a verb, and no
//! line of a comment or document is too wide for two files next to each other.

use super::{File, Problem};

pub(super) const COLUMNS: usize = 100;

/// A doc comment that opens with one of these is a clause, and no name of the thing.
const OPENINGS: &[&str] = &[
    "What",
    "Whether",
    "Which",
    "Who",
    "Whoever",
    "Whose",
    "How",
    "When",
    "Where",
    "Why",
    "That",
    "Since when",
];

pub(super) fn openings(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_written(file)) {
        let mut before = "";
        for (number, line) in file.text.lines().map(str::trim_start).enumerate() {
            let is_first = !before.starts_with("//");
            let opening = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
            if let Some(text) = opening.filter(|_| is_first)
                && OPENINGS.iter().any(|word| begins_with(text, word))
            {
                let problem = format!("{}:{}: name the thing instead: {line}", file.path, number + 1);
                problems.push(Problem(problem));
            }
            before = line;
        }
    }
    problems
}

fn begins_with(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '\''))
}

/// The marker of comments in a file that is written by people.
pub(super) fn marker(file: &File) -> Option<&'static str> {
    let extension = file.path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        _ if is_kept(&file.path) => None,
        "rs" if is_written(file) => Some("//"),
        "go" => Some("//"),
        "yaml" | "toml" | "tpl" | "sh" => Some("#"),
        _ => file.text.starts_with("#!").then_some("#"),
    }
}

/// CRDs have the Gateway API's comments; the inputs of golden files, and what comes out of them,
/// stay as they are.
const KEPT: &[&str] =
    &["deploy/crds/", "agent/gateway/tests/cases/", "agent/gateway/tests/stories/", "agent/tests/check/"];

pub(super) fn is_kept(path: &str) -> bool {
    KEPT.iter().any(|folder| path.starts_with(folder))
}

pub(super) fn wide_lines(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        let Some(marker) = marker(file) else { continue };
        for (number, line) in file.text.lines().enumerate() {
            let text = line.trim_start();
            let is_table = text.trim_start_matches(['/', '!', '#', ' ']).starts_with('|');
            let is_comment = text.starts_with(marker) && !is_table && !text.contains("://");
            if is_comment && line.chars().count() > COLUMNS {
                let number = number + 1;
                problems
                    .push(Problem(format!("{}:{number}: a comment is over {COLUMNS} columns", file.path)));
            }
        }
    }
    problems
}

/// Lines of Markdown; tables, code and addresses are as wide as they are.
pub(super) fn wide_documents(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| is_document(file)) {
        let mut is_code = false;
        // Indented code begins after an empty line; what is indented besides is of a list.
        let mut may_be_indented = true;
        for (number, line) in file.text.lines().enumerate() {
            let text = line.trim_start();
            let is_fence = text.starts_with("```");
            is_code ^= is_fence;
            let is_indented = may_be_indented && line.starts_with("    ") && !text.starts_with(['-', '*']);
            may_be_indented = is_indented || text.is_empty();
            let is_free = is_code || is_fence || is_indented || text.starts_with('|');
            if line.chars().count() > COLUMNS && !is_free && !line.contains("://") {
                let number = number + 1;
                problems.push(Problem(format!("{}:{number}: a line is over {COLUMNS} columns", file.path)));
            }
        }
    }
    problems
}

pub(super) fn is_document(file: &File) -> bool {
    file.path.ends_with(".md")
}

/// By people, in Rust.
pub(super) fn is_written(file: &File) -> bool {
    file.path.ends_with(".rs") && !file.text.starts_with("// Generated")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> [File; 1] {
        [File { path: "a.rs".to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn clauses_do_not_open_a_comment() {
        assert_eq!(openings(&file("/// What it is.\nfn f() {}")).len(), 1);
        assert_eq!(openings(&file("    //! Whether, and why.")).len(), 1);
        assert!(openings(&file("/// It is\n/// What it is.\n// Whose it is")).is_empty());
        assert!(openings(&file("/// Whole trees.")).is_empty());
    }

    #[test]
    fn documents_have_a_width() {
        let wide = "x".repeat(COLUMNS + 1);
        let document = |text: String| wide_documents(&[File { path: "a.md".to_owned(), text }]);
        assert_eq!(document(format!("# A\n\n- {wide}\n")).len(), 1);
        assert_eq!(document(format!("- a\n  - b\n    {wide}\n\n    - {wide}\n")).len(), 2);
        let free = format!("| {wide} |\n\n    {wide}\n\n```\n{wide}\n```\n\nhttps://{wide}\n");
        assert!(document(free).is_empty());
    }

    #[test]
    fn comments_have_a_width() {
        let wide = "x".repeat(COLUMNS);
        assert_eq!(wide_lines(&file(&format!("fn f() {{}}\n    // {wide}"))).len(), 1);
        let other = |path: &str, text: String| wide_lines(&[File { path: path.to_owned(), text }]).len();
        assert_eq!(other("a.yaml", format!("a: 1\n  # {wide}\nb: {wide}")), 1);
        assert_eq!(other("a.go", format!("// {wide}")), 1);
        assert_eq!(other("run", format!("#!/bin/sh\n# {wide}")), 1);
        assert_eq!(other("deploy/crds/a.yaml", format!("# {wide}")), 0);
        assert!(
            wide_lines(&file(&format!("let s = \"{wide}\";\n// https://{wide}\n//! | {wide} |"))).is_empty()
        );
    }
}
