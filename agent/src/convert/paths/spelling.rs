//! The spellings that requests may have of a path: nginx asks decoded ones, and HTTPRoutes those
//! that come.

/// Characters that requests may have as they are or encoded, which nginx takes for the same.
const RESERVED: &str = "!$&'()*+,;=:@";

/// True of a path that requests may spell in two ways.
pub(in crate::convert) fn has_two_spellings(path: &str) -> bool {
    path.contains(|c| RESERVED.contains(c))
}

/// An expression of this text, in each of its spellings.
pub(super) fn either(text: &str) -> String {
    text.chars().map(|c| if RESERVED.contains(c) { both(c) } else { escaped(&c.to_string()) }).collect()
}

fn both(c: char) -> String {
    format!("(?:{}|{})", escaped(&c.to_string()), percent_encoded(c))
}

/// An expression: the letters of its digits may be large or small.
fn percent_encoded(c: char) -> String {
    let digits = format!("{:02X}", u32::from(c));
    let digit = |c: char| {
        if c.is_ascii_digit() { c.to_string() } else { format!("[{c}{}]", c.to_ascii_lowercase()) }
    };
    format!("%{}", digits.chars().map(digit).collect::<String>())
}

/// An expression of nginx, which asks decoded paths: it takes their other spelling, too.
pub(super) fn spelled(pattern: &str) -> String {
    let mut text = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c) if RESERVED.contains(c) => text += &both(c),
                other => text.extend(std::iter::once('\\').chain(other)),
            },
            '[' => text += &spelled_class(&mut chars),
            // Of a group, what says of which kind it is; of a repetition, how often.
            '(' if chars.peek() == Some(&'?') => {
                text.push('(');
                text += &through(&mut chars, ":)=!>");
            }
            '{' => {
                text.push('{');
                text += &through(&mut chars, "}");
            }
            '(' | ')' | '*' | '+' | '$' => text.push(c),
            '%' => text += "%25",
            c if RESERVED.contains(c) => text += &both(c),
            c => text.push(c),
        }
    }
    text
}

/// The characters up to one of these, and that.
fn through(chars: &mut impl Iterator<Item = char>, ends: &str) -> String {
    let mut text = String::new();
    for c in chars {
        text.push(c);
        if ends.contains(c) {
            break;
        }
    }
    text
}

/// A class behind its bracket. One of characters that are not to be there has no other spelling of
/// them.
fn spelled_class(chars: &mut impl Iterator<Item = char>) -> String {
    let (mut class, mut others) = (String::from("["), Vec::new());
    while let Some(c) = chars.next() {
        class.push(c);
        match c {
            '\\' => {
                class.extend(chars.next().inspect(|c| others.extend(RESERVED.contains(*c).then_some(*c))))
            }
            ']' if class.len() > 2 && class != "[^]" => break,
            c => others.extend(RESERVED.contains(c).then_some(c)),
        }
    }
    if class.starts_with("[^") || others.is_empty() {
        return class;
    }
    let others: String = others.iter().map(|c| format!("|{}", percent_encoded(*c))).collect();
    format!("(?:{class}{others})")
}

/// True of an expression that requests, which have such characters encoded, would never meet.
pub(in crate::convert) fn is_encoded_in_requests(path: &str) -> bool {
    !path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// As requests have it; nginx has it decoded. HTTPRoutes take nothing else.
pub(super) fn encoded(path: &str) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte);
    path.bytes()
        .map(|byte| if stays(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

pub(in crate::convert) fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| ("\\.+*?()|[]{}^$".contains(c)).then_some('\\').into_iter().chain([c]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_take_the_other_spelling_of_reserved_characters() {
        for (pattern, expected) in [
            ("/api/v1:(batch|all)", "/api/v1(?::|%3[Aa])(batch|all)"),
            (r"/c\+\+/(?:x|y)+", r"/c(?:\+|%2[Bb])(?:\+|%2[Bb])/(?:x|y)+"),
            ("/a{1,3}/[^:]/[ab:]", "/a{1,3}/[^:]/(?:[ab:]|%3[Aa])"),
            (r"/(?P<n>@)\d", r"/(?P<n>(?:@|%40))\d"),
            ("/a/(.*)$", "/a/(.*)$"),
        ] {
            assert_eq!(spelled(pattern), expected);
        }
    }
}
