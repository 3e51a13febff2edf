//! `cargo xtask tidy --wrap`: comments with a line that is too wide are filled anew, paragraph by
//! paragraph. Code blocks, tables and headings stay as they are.

use super::prose::COLUMNS;

/// A line that is nothing but comment.
struct Line<'a> {
    /// Indentation and marker.
    prefix: &'a str,
    text: &'a str,
}

pub(super) fn wrap(text: &str) -> String {
    let mut wrapped = String::with_capacity(text.len());
    let mut paragraph: Vec<Line<'_>> = Vec::new();
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        let Some(comment) = comment(line) else {
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

fn comment(line: &str) -> Option<Line<'_>> {
    let line = line.strip_suffix('\n')?;
    let code = line.trim_start();
    let marker = ["///", "//!", "//"].into_iter().find(|marker| code.starts_with(marker))?;
    let at = line.len() - code.len() + marker.len();
    let text = line[at..].strip_prefix(' ').or(line[at..].is_empty().then_some(""))?;
    Some(Line { prefix: &line[..at], text })
}

fn is_verbatim(text: &str) -> bool {
    text.is_empty()
        || text.starts_with(['|', '#', '=', '-']) && !text.starts_with("- ")
        || text.starts_with("    ")
}

fn is_item(text: &str) -> bool {
    let number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.starts_with("- ") || text.starts_with("* ") || number.len() < text.len() && number.starts_with(". ")
}

fn begins(paragraph: &[Line<'_>], line: &Line<'_>) -> bool {
    is_item(line.text) || paragraph.last().is_some_and(|last| last.prefix != line.prefix)
}

/// Writes a paragraph, and empties it.
fn fill(paragraph: &mut Vec<Line<'_>>, wrapped: &mut String) {
    let Some(first) = paragraph.first() else { return };
    let width = |line: &Line<'_>| line.prefix.chars().count() + 1 + line.text.chars().count();
    if paragraph.iter().all(|line| width(line) <= COLUMNS) {
        for line in paragraph.drain(..) {
            *wrapped += &format!("{} {}\n", line.prefix, line.text);
        }
        return;
    }
    let hang = if is_item(first.text) { first.text.find(' ').unwrap_or(0) + 1 } else { 0 };
    let text = paragraph.iter().map(|line| line.text.trim()).collect::<Vec<_>>().join(" ");
    let prefix = first.prefix;
    let mut line = prefix.to_owned();
    let mut is_first = true;
    for word in words(&text) {
        let is_full = line.chars().count() + 1 + word.chars().count() > COLUMNS;
        // A dash or a number there would begin an item.
        if is_full && !is_first && !is_item(&format!("{word} ")) && !word.starts_with('#') {
            *wrapped += &line;
            wrapped.push('\n');
            line = format!("{prefix}{}", " ".repeat(hang));
        }
        line.push(' ');
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
        let wrapped = wrap(&text);
        assert!(wrapped.lines().all(|line| line.chars().count() <= COLUMNS), "{wrapped}");
        assert!(wrapped.ends_with("word word end\n"), "{wrapped}");
        assert_eq!(wrap(&wrapped), wrapped);
    }

    #[test]
    fn items_hang_and_code_stays() {
        let long = "word ".repeat(25);
        let long = long.trim_end();
        let text = format!("//! - {long}\n//! - b\n//!\n//! ```\n//! {long}\n//! ```\n");
        let wrapped = wrap(&text);
        assert!(wrapped.starts_with("//! - word"), "{wrapped}");
        assert!(wrapped.contains("\n//!   word"), "{wrapped}");
        assert!(wrapped.ends_with(&format!("\n//! - b\n//!\n//! ```\n//! {long}\n//! ```\n")), "{wrapped}");
    }

    #[test]
    fn narrow_comments_are_left_alone() {
        let text = "// a\n//   b\nlet x = 1; // c\n//\n//! d\n";
        assert_eq!(wrap(text), text);
    }
}
