//! Characters that terminals, and readers of lines, obey instead of showing them.

/// Control characters, those that turn the direction of text, and those that are not seen: a name
/// with one looks like another name. The page has the same.
pub fn is_obeyed(c: char) -> bool {
    let hides = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}');
    let tags = matches!(c, '\u{e0000}'..='\u{e007f}');
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || hides || tags || turns || matches!(c, '\u{2028}' | '\u{2029}')
}
