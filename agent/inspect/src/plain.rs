//! Text of others, as it may be shown on a terminal.

use std::borrow::Cow;

use portcullis_model::is_obeyed;

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
