//! Paths as ingress-nginx matches them, as matches of HTTPRoutes, and what `rewrite-target` makes
//! of them.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ingress::PathKind;

/// The form in which a host's paths are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// Expressions that take what nginx' prefixes take, of which the longer goes first.
    Ordered,
    /// nginx' own expressions, in any case.
    Expressions,
}

/// Characters that requests may have as they are or encoded, which nginx takes for the same.
const RESERVED: &str = "!$&'()*+,;=:@";

/// An expression that changes nothing but the length.
const NOTHING: &str = "(?:)";

/// The host that a path is of.
pub(super) struct Whole<'a> {
    pub style: Style,
    /// The path itself is an expression, not one because of another path.
    pub is_expression: bool,
    /// Kinds in which the host has the path.
    pub beside: &'a BTreeSet<PathKind>,
}

/// The matches of a path. In a host with regular expressions all paths are such, in any case, and
/// the longer text goes first, as HTTPRoutes order expressions.
pub(super) fn matches(path: &str, kind: PathKind, whole: &Whole<'_>) -> Vec<Value> {
    if path == "/" && kind != PathKind::Exact {
        return vec![all()];
    }
    match (whole.style, kind) {
        (Style::Expressions, _) => {
            let text = path.trim_start_matches('^');
            let expression = |text: &str| {
                path_match("RegularExpression", &format!("(?i){}.*", from_the_begin(&spelled(text))))
            };
            if kind != PathKind::Prefix || whole.is_expression || whole.beside.len() == 1 {
                return vec![expression(text)];
            }
            // As nginx has it: one for what is below, and one for the path, unless it is there.
            let below = expression(&format!("{}/", text.trim_end_matches('/')));
            if whole.beside.contains(&PathKind::Exact) { vec![below] } else { vec![below, expression(text)] }
        }
        (Style::Ordered, PathKind::Exact) if has_two_spellings(path) => {
            vec![path_match("RegularExpression", &either(&encoded(path)))]
        }
        (Style::Plain | Style::Ordered, PathKind::Exact) => vec![path_match("Exact", &encoded(path))],
        (Style::Plain, PathKind::Prefix | PathKind::Text) => vec![path_match("PathPrefix", &encoded(path))],
        // Of two that take the same path the longer text wins, and of one text the prefix of
        // segments: what follows the texts is of lengths that keep it so.
        (Style::Ordered, PathKind::Text) if !path.ends_with('/') => {
            vec![path_match("RegularExpression", &format!("{}(?:.*)?", either(&encoded(path))))]
        }
        (Style::Ordered, PathKind::Prefix | PathKind::Text) => {
            let text = either(&encoded(path.trim_end_matches('/')));
            vec![path_match("RegularExpression", &format!("{text}(?:/.*)?"))]
        }
    }
}

impl Style {
    /// The order in which nginx asks the paths of a host: of expressions as they are written, of
    /// others by what they take.
    pub(super) fn order(self, a: (&str, PathKind), b: (&str, PathKind)) -> Ordering {
        if self == Self::Expressions {
            return b.0.len().cmp(&a.0.len()).then_with(|| b.0.cmp(a.0));
        }
        let rank = |(path, kind): (&str, PathKind)| (Reverse(path.trim_end_matches('/').len()), kind);
        rank(a).cmp(&rank(b))
    }
}

/// Has each of these expressions be longer than those behind it that may take the same: HTTPRoutes
/// ask the longest first.
pub(super) fn keep_order<'m>(matches: impl Iterator<Item = &'m mut Value>) {
    let expressions = matches.filter(|path| path["type"] == "RegularExpression");
    let mut behind: Vec<(String, usize)> = Vec::new();
    for path in expressions.collect::<Vec<_>>().into_iter().rev() {
        let mut text = path["value"].as_str().unwrap_or_default().to_owned();
        let begin = literal_begin(&text);
        let may_meet = |(other, _): &&(String, usize)| begin.starts_with(other) || other.starts_with(&begin);
        let least = behind.iter().filter(may_meet).map(|(_, length)| length + 1).max().unwrap_or(0);
        while text.len() < least {
            text += NOTHING;
        }
        behind.push((begin, text.len()));
        path["value"] = json!(text);
    }
}

/// The text with which all begins that an expression of [`matches`] takes.
fn literal_begin(expression: &str) -> String {
    let text = expression.trim_start_matches("(?i)");
    let mut begin = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c) if !c.is_ascii_alphanumeric() => begin.push(c),
                _ => break,
            },
            '?' | '*' | '{' => {
                begin.pop();
                break;
            }
            '(' | '[' | '.' | '+' | '$' | '^' | '|' => break,
            c => begin.push(c.to_ascii_lowercase()),
        }
    }
    begin
}

/// True of a path that requests may spell in two ways.
pub(super) fn has_two_spellings(path: &str) -> bool {
    path.contains(|c| RESERVED.contains(c))
}

/// An expression of this text, in each of its spellings.
fn either(text: &str) -> String {
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
fn spelled(pattern: &str) -> String {
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
pub(super) fn is_encoded_in_requests(path: &str) -> bool {
    !path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// nginx puts `^` in front, which binds the first alternative only.
fn from_the_begin(text: &str) -> String {
    let mut alternatives = alternatives(text).into_iter();
    let first = alternatives.next().unwrap_or_default();
    let rest: String = alternatives.map(|other| format!("|.*{other}")).collect();
    if rest.is_empty() { text.to_owned() } else { format!("(?:{first}{rest})") }
}

/// Those that are in no group.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut all, mut begin, mut depth, mut in_class) = (Vec::new(), 0, 0_usize, false);
    let mut chars = pattern.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => {
                all.push(&pattern[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    all.push(&pattern[begin..]);
    all
}

pub(super) fn all() -> Value {
    path_match("PathPrefix", "/")
}

/// As requests have it; Ingresses may have it decoded. HTTPRoutes take nothing else.
fn encoded(path: &str) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@%".contains(&byte);
    path.bytes()
        .map(|byte| if stays(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn path_match(kind: &str, value: &str) -> Value {
    json!({"type": kind, "value": value})
}

pub(super) fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| ("\\.+*?()|[]{}^$".contains(c)).then_some('\\').into_iter().chain([c]))
        .collect()
}

/// `pathRewrite` of a RouteFilter: as nginx does it, the whole path is replaced, whatever follows
/// what the expression matches.
pub(super) fn rewrite(path: &str, target: &str) -> Result<Value, String> {
    if !target.starts_with('/') || target.contains(['?', '#', ' ']) {
        return Err("it is more than a path: use a filter RequestRedirect, or have the application take it"
            .to_owned());
    }
    let path = path.trim_start_matches('^');
    let complete = ["(.*)", ".*", "$"].iter().any(|end| path.ends_with(end));
    let complete = complete && alternatives(path).len() == 1;
    let pattern = format!("(?i){}{}", from_the_begin(&spelled(path)), if complete { "" } else { ".*" });
    Ok(json!({"pattern": pattern, "substitution": substitution(target, groups(path))?}))
}

/// `$1` is nginx' form, too; but `$1a` would be a group of that name here.
fn substitution(target: &str, groups: u32) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), target);
    while let Some((before, after)) = rest.split_once('$') {
        text += before;
        let Some(group) = after.chars().next().and_then(|c| c.to_digit(10)) else {
            return Err("it has variables of nginx: there are none in paths".to_owned());
        };
        rest = &after[1..];
        // nginx has nothing for a group that the expression lacks.
        if group <= groups && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            text += &format!("${{{group}}}");
        } else if group <= groups {
            text += &format!("${group}");
        }
    }
    Ok(text + rest)
}

/// Number of groups that capture.
fn groups(pattern: &str) -> u32 {
    let (mut count, mut chars, mut in_class) = (0, pattern.chars().peekable(), false);
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && chars.peek() != Some(&'?') => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_have_groups_as_nginx_has() {
        let of = |path, target| {
            rewrite(path, target).map(|it| (it["pattern"].clone(), it["substitution"].clone()))
        };
        assert_eq!(of("/a(/|$)(.*)", "/$2"), Ok((json!("(?i)/a(/|$)(.*)"), json!("/$2"))));
        assert_eq!(of("/a/([0-9]+)", "/b/$1/c"), Ok((json!("(?i)/a/([0-9]+).*"), json!("/b/$1/c"))));
        assert_eq!(of("/a/(.*)", "/v$1x$2"), Ok((json!("(?i)/a/(.*)"), json!("/v${1}x"))));
        let both = json!("(?i)(?:/a/(x|y)|.*/b[|]).*");
        assert_eq!(of("/a/(x|y)|/b[|]", "/$1"), Ok((both, json!("/$1"))));
        assert!(of("/a", "/$host").is_err());
        assert!(of("/a", "/b?c=$1").is_err());
        assert_eq!(groups(r"/\((a)(?:b)[(](c)"), 2);
    }

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

    #[test]
    fn what_nginx_asks_first_is_longer() {
        let kept = |all: &[&str]| {
            let mut all: Vec<_> = all.iter().map(|text| path_match("RegularExpression", text)).collect();
            keep_order(all.iter_mut());
            all.iter().map(|path| path["value"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["(?i)/admin/.", "(?i)/[a-z]+/.*"]), ["(?i)/admin/.(?:)", "(?i)/[a-z]+/.*"]);
        assert_eq!(kept(&["(?i)/a/.*", "(?i)/bcd/.*"]), ["(?i)/a/.*", "(?i)/bcd/.*"], "they never meet");
    }

    fn of(path: &str, kind: PathKind, style: Style) -> Vec<Value> {
        let beside = BTreeSet::from([kind]);
        matches(path, kind, &Whole { style, is_expression: false, beside: &beside })
    }

    #[test]
    fn paths_are_written_as_requests_have_them() {
        let of = |path, kind| of(path, kind, Style::Plain);
        assert_eq!(of("/x y{}", PathKind::Exact), [path_match("Exact", "/x%20y%7B%7D")]);
        assert_eq!(of("/ä/%C3", PathKind::Prefix), [path_match("PathPrefix", "/%C3%A4/%C3")]);
        assert_eq!(of("/ad.min", PathKind::Text), [path_match("PathPrefix", "/ad.min")]);
    }

    /// Of expressions the longer goes first: nginx' order of prefixes has to be that of lengths.
    #[test]
    fn ordered_expressions_have_the_order_of_prefixes() {
        let of = |path, kind| of(path, kind, Style::Ordered)[0]["value"].as_str().map(str::to_owned);
        assert_eq!(of("/ad.min", PathKind::Text).as_deref(), Some(r"/ad\.min(?:.*)?"));
        let length = |path, kind| of(path, kind).map_or(0, |text| text.len());
        for (first, second) in [
            (("/a", PathKind::Prefix), ("/a", PathKind::Text)),
            (("/ab", PathKind::Prefix), ("/a", PathKind::Text)),
            (("/ab", PathKind::Text), ("/a", PathKind::Text)),
            (("/a/b", PathKind::Text), ("/a", PathKind::Prefix)),
            (("/a/b", PathKind::Prefix), ("/a", PathKind::Prefix)),
        ] {
            assert!(length(first.0, first.1) > length(second.0, second.1), "{first:?} {second:?}");
        }
    }

    #[test]
    fn expressions_take_what_begins_with_them_in_any_case() {
        let expression = path_match("RegularExpression", "(?i)/a.*");
        let exact = of("/a", PathKind::Exact, Style::Expressions);
        assert_eq!(exact[..], *std::slice::from_ref(&expression));
        let beside = BTreeSet::from([PathKind::Prefix, PathKind::Text]);
        let whole = Whole { style: Style::Expressions, is_expression: false, beside: &beside };
        let below = path_match("RegularExpression", "(?i)/a/.*");
        assert_eq!(matches("/a", PathKind::Prefix, &whole), [below, expression]);
    }
}
