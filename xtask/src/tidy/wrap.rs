//! `cargo xtask tidy --wrap`: comments and documents with a line that is too wide are filled anew,
//! paragraph by paragraph. Code blocks, tables and headings stay as they are.

use super::prose::COLUMNS;

/// A line that is nothing but comment, or any line of a document.
struct Line<'a> {
    /// Indentation, marker and space of a comment.
    prefix: &'a str,
    text: &'a str,
}

/// The comments of Rust and Go, or of what has them after a `#`.
pub(super) fn comments(text: &str, marker: &str) -> String {
    let markers: &[&str] = if marker == "#" { &["#"] } else { &["///", "//!", "//"] };
    wrap(text, |line| comment(line, markers))
}

/// Markdown.
pub(super) fn document(text: &str) -> String {
    wrap(text, |line| line.strip_suffix('\n').map(|text| Line { prefix: "", text }))
}

fn wrap<'a>(text: &'a str, line_of: impl Fn(&'a str) -> Option<Line<'a>>) -> String {
    let mut wrapped = String::with_capacity(text.len());
    let mut paragraph: Vec<Line<'a>> = Vec::new();
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        let Some(comment) = line_of(line) else {
            fill(&mut paragraph, &mut wrapped);
            is_code = false;
            wrapped += line;
            continue;
        };
        let is_fence = comment.text.trim_start().starts_with("```");
        if is_fence || is_code || is_verbatim(comment.text) {
            fill(&mut paragraph, &mut wrapped);
            is_code ^= is_fence;
            wrapped += line;
            continue;
        }
        if begins(&paragraph, &comment) {
            fill(&mut paragraph, &mut wrapped);
        }
        paragraph.push(comment);
    }
    fill(&mut paragraph, &mut wrapped);
    wrapped
}

fn comment<'a>(line: &'a str, markers: &[&str]) -> Option<Line<'a>> {
    let line = line.strip_suffix('\n')?;
    let code = line.trim_start();
    let marker = markers.iter().find(|marker| code.starts_with(**marker))?;
    let at = line.len() - code.len() + marker.len();
    match line[at..].strip_prefix(' ') {
        Some(text) => Some(Line { prefix: &line[..=at], text }),
        None => line[at..].is_empty().then_some(Line { prefix: line, text: "" }),
    }
}

fn is_verbatim(text: &str) -> bool {
    text.is_empty()
        || text.starts_with(['|', '#', '=', '-']) && !text.starts_with("- ")
        || text.starts_with("    ")
}

fn is_item(text: &str) -> bool {
    let text = text.trim_start();
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with("- ") || text.starts_with("* ") || number.len() < text.len() && number.starts_with(". ")
}

fn begins(paragraph: &[Line<'_>], line: &Line<'_>) -> bool {
    is_item(line.text) || paragraph.last().is_some_and(|last| last.prefix != line.prefix)
}

/// Writes a paragraph, and empties it.
fn fill(paragraph: &mut Vec<Line<'_>>, wrapped: &mut String) {
    let Some(first) = paragraph.first() else { return };
    let width = |line: &Line<'_>| line.prefix.chars().count() + line.text.chars().count();
    if paragraph.iter().all(|line| width(line) <= COLUMNS) {
        for line in paragraph.drain(..) {
            *wrapped += &format!("{}{}\n", line.prefix, line.text);
        }
        return;
    }
    let first_word = first.text.trim_start();
    let indent = first.text.len() - first_word.len();
    let marker = if is_item(first_word) { first_word.find(' ').unwrap_or(0) + 1 } else { 0 };
    let text = paragraph.iter().map(|line| line.text.trim()).collect::<Vec<_>>().join(" ");
    let prefix = first.prefix;
    let mut line = format!("{prefix}{}", " ".repeat(indent));
    let mut is_first = true;
    for word in words(&text) {
        let is_full = line.chars().count() + 1 + word.chars().count() > COLUMNS;
        // A dash or a number there would begin an item.
        if is_full && !is_first && !is_item(&format!("{word} ")) && !word.starts_with('#') {
            *wrapped += &line;
            wrapped.push('\n');
            line = format!("{prefix}{}", " ".repeat(indent + marker));
        } else if !is_first {
            line.push(' ');
        }
        line += word;
        is_first = false;
    }
    *wrapped += &line;
    wrapped.push('\n');
    paragraph.clear();
}

/// Texts between spaces; code in backticks is one word.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut begin, mut is_code) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '`' => is_code = !is_code,
            ' ' if !is_code => {
                words.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    words.push(&text[begin..]);
    words.retain(|word| !word.is_empty());
    // Backticks without an end.
    if is_code { text.split_whitespace().collect() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_paragraphs_are_filled() {
        let long = "word ".repeat(25);
        let text = format!("fn f() {{}}\n    /// {}\n    /// end\n", long.trim_end());
        let wrapped = comments(&text, "//");
        assert!(wrapped.lines().all(|line| line.chars().count() <= COLUMNS), "{wrapped}");
        assert!(wrapped.ends_with("word word end\n"), "{wrapped}");
        assert_eq!(comments(&wrapped, "//"), wrapped);
    }

    #[test]
    fn comments_after_a_hash_are_filled() {
        let long = "word ".repeat(25);
        let wrapped = comments(&format!("#!/bin/sh\n# {}\nfalse\n", long.trim_end()), "#");
        assert!(wrapped.starts_with("#!/bin/sh\n# word"), "{wrapped}");
        assert!(wrapped.contains("\n# word") && wrapped.ends_with("word\nfalse\n"), "{wrapped}");
    }

    #[test]
    fn items_hang_and_code_stays() {
        let long = "word ".repeat(25);
        let long = long.trim_end();
        let text = format!("//! - {long}\n//! - b\n//!\n//! ```\n//! {long}\n//! ```\n");
        let wrapped = comments(&text, "//");
        assert!(wrapped.starts_with("//! - word"), "{wrapped}");
        assert!(wrapped.contains("\n//!   word"), "{wrapped}");
        assert!(wrapped.ends_with(&format!("\n//! - b\n//!\n//! ```\n//! {long}\n//! ```\n")), "{wrapped}");
    }

    #[test]
    fn documents_are_filled() {
        let long = "word ".repeat(25);
        let long = long.trim_end();
        let table = format!("| {long} |\n");
        let text = format!("# A\n\n- {long}\n  end\n\n{table}\n  {long}\n");
        let wrapped = document(&text);
        assert!(wrapped.starts_with("# A\n\n- word"), "{wrapped}");
        assert!(wrapped.contains(&format!(" word end\n\n{table}\n  word")), "{wrapped}");
        assert_eq!(document(&wrapped), wrapped);
    }

    #[test]
    fn narrow_comments_are_left_alone() {
        let text = "// a\n//   b\nlet x = 1; // c\n//\n//! d\n";
        assert_eq!(comments(text, "//"), text);
    }
}
