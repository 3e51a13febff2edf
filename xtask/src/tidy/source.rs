//! Rust source as rules look at it: code without comments, strings and tests, or comments alone.
//! Not a parser; what it gets wrong is not written here.

use std::ops::Range;

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// The same text with comments and the contents of strings blank; lines keep their numbers.
pub(super) fn code(text: &str) -> String {
    only(Part::Code, text)
}

/// The same text with all but comments blank; lines keep their numbers.
pub(super) fn comments(text: &str) -> String {
    only(Part::Comment, text)
}

fn only(wanted: Part, text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for (part, text) in parts(text) {
        match part {
            _ if part == wanted => kept.push_str(text),
            _ => kept.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
        }
    }
    kept
}

/// The whole text, in order.
fn parts(text: &str) -> Vec<(Part, &str)> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (part, length) = match c {
            '/' if rest.starts_with("//") => (Part::Comment, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                (Part::Comment, rest.find("*/").map_or(rest.len(), |end| end + 2))
            }
            '"' => (Part::Literal, string(rest)),
            'r' if !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
                (Part::Literal, raw_string(rest).unwrap_or(0))
            }
            '\'' => (Part::Literal, character(rest)),
            _ => (Part::Code, 0),
        };
        if length == 0 {
            at += c.len_utf8();
            continue;
        }
        parts.extend([(Part::Code, &text[begin..at]), (part, &rest[..length])]);
        at += length;
        begin = at;
    }
    parts.push((Part::Code, &text[begin..]));
    parts
}

/// Length of a string that begins here.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// Length of a raw string, if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = &text[1..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |at| 1 + hashes + 1 + at + end.len()))
}

/// Length of a character, or 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            text[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 3)
        }
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

/// Code with what is for tests only blank; lines keep their numbers.
pub(super) fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    for item in test_items(code).into_iter().rev() {
        let lines = "\n".repeat(code[item.clone()].matches('\n').count());
        kept.replace_range(item, &lines);
    }
    kept
}

/// Items for tests only, with the attribute that says so.
pub(super) fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        if items.last().is_none_or(|item| item.end <= at) {
            items.push(at..at + item_length(&code[at..]));
        }
    }
    items
}

/// Length of the item that begins here with its attributes: it ends with a semicolon or a brace, or
/// with what it is in.
fn item_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return at;
        }
        if depth == 0 && [';', '}'].contains(&c) {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blank() {
        assert_eq!(code("a // b\nc /* d */ e").split_whitespace().collect::<Vec<_>>(), ["a", "c", "e"]);
        let text = "f(\"a \\\" b\", r#\"c \" d\"#, '\\'', '\"', x) 'life: e";
        assert_eq!(code(text).split_whitespace().collect::<String>(), "f(,,,,x)'life:e");
    }

    #[test]
    fn comments_are_what_is_no_code_and_no_string() {
        let text = "a(\"// b\") // c \"d\"\ne /* f */ '\"' // g";
        assert_eq!(comments(text).split_whitespace().collect::<String>(), "//c\"d\"/*f*///g");
        assert_eq!(comments(text).lines().count(), 2);
    }

    #[test]
    fn what_is_for_tests_is_blank_and_nothing_else() {
        let text = "a;\n#[cfg(test)]\nuse b::{c, d};\ne;\n#[cfg(test)]\n#[allow(f)]\nmod g {\n h { i } }\nj { #[cfg(test)] k: l }";
        let kept = without_tests(text);
        assert_eq!(kept.split_whitespace().collect::<String>(), "a;;e;j{}");
        assert_eq!(kept.lines().count(), text.lines().count());
    }
}
