//! Rust source as rules look at it: code without comments, strings and tests, or comments alone.
//! Not a parser; what it gets wrong is what nobody writes.

/// The same text with comments and the contents of strings blank; lines keep their numbers.
pub(super) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string(rest),
            'r' if !code.ends_with(|c: char| c.is_alphanumeric() || c == '_') => {
                raw_string(rest).unwrap_or(0)
            }
            '\'' => character(rest),
            _ => 0,
        };
        if skip == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..skip].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skip..];
        }
    }
    code
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

/// Code before the first module of tests; they are last in a file.
pub(super) fn without_tests(code: &str) -> String {
    let mut end = code.len();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let rest = &code[at + "#[cfg(test)]".len()..];
        let declared = rest.find("mod ").map(|mod_at| &rest[mod_at..]);
        // `mod tests {`, not `mod tests;`.
        if declared.is_some_and(|rest| {
            rest.find('{').is_some_and(|open| rest.find(';').is_none_or(|end| open < end))
        }) {
            end = at;
            break;
        }
    }
    code[..end].to_owned()
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
}
