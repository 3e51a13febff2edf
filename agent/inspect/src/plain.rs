//! Text of others, as it may be shown on a terminal.

use std::borrow::Cow;

/// The text with characters that a terminal obeys, or that change the order of others, written as
/// escapes: `\u{1b}`, `\n`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let pieces = text.chars().map(|c| match is_obeyed(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    Cow::Owned(pieces.collect())
}

/// Control characters, those that turn the direction of text, and those that are not seen: a name
/// with one looks like another name. The page has the same.
pub fn is_obeyed(c: char) -> bool {
    let hides = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}');
    let tags = matches!(c, '\u{e0000}'..='\u{e007f}');
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || hides || tags || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_obeyed_is_escaped() {
        for (text, expected) in [
            ("Gateway ä → \"x\" \\n", "Gateway ä → \"x\" \\n"),
            ("\x1b]0;t\x07", "\\u{1b}]0;t\\u{7}"),
            ("a\r\n\tb", "a\\r\\n\\tb"),
            ("\u{9b}31m\x7f", "\\u{9b}31m\\u{7f}"),
            ("\u{202e}abc\u{2066}", "\\u{202e}abc\\u{2066}"),
            ("a\u{200b}b\u{ad}\u{61c}", "a\\u{200b}b\\u{ad}\\u{61c}"),
            ("\u{feff}\u{e0041}", "\\u{feff}\\u{e0041}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }
}
