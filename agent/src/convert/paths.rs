//! Paths as ingress-nginx matches them, as matches of HTTPRoutes.

mod order;
mod rewrites;
mod spelling;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ingress::PathKind;
pub(super) use order::{Asked, keep_order};
pub(super) use rewrites::rewrite;
use spelling::{either, encoded, spelled};
pub(super) use spelling::{escaped, has_two_spellings, is_encoded_in_requests};

/// The form in which a host's paths are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// Expressions that take what nginx' prefixes take, of which the longer goes first.
    Ordered,
    /// nginx' own expressions, in any case.
    Expressions,
}

/// The host that a path is of.
pub(super) struct Whole<'a> {
    pub style: Style,
    /// The path itself is an expression, not one because of another path.
    pub is_expression: bool,
    /// Paths of the host that are `Exact`.
    pub exact: &'a BTreeSet<String>,
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
            // nginx has two for a prefix, of which one is for what is below, and that one alone
            // where the path is there.
            let is_below = kind == PathKind::Prefix && !whole.is_expression && whole.exact.contains(path);
            let below = || format!("{}/", text.trim_end_matches('/'));
            vec![if is_below { expression(&below()) } else { expression(text) }]
        }
        (Style::Ordered, PathKind::Exact) if has_two_spellings(path) => {
            vec![path_match("RegularExpression", &either(&encoded(path)))]
        }
        (Style::Plain | Style::Ordered, PathKind::Exact) => vec![path_match("Exact", &encoded(path))],
        (Style::Plain, PathKind::Prefix) => vec![path_match("PathPrefix", &encoded(path))],
        (Style::Ordered, PathKind::Prefix) => {
            let text = either(&encoded(path.trim_end_matches('/')));
            vec![path_match("RegularExpression", &format!("{text}(?:/.*)?"))]
        }
    }
}

pub(super) fn all() -> Value {
    path_match("PathPrefix", "/")
}

fn path_match(kind: &str, value: &str) -> Value {
    json!({"type": kind, "value": value})
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, kind: PathKind, style: Style) -> Vec<Value> {
        matches(path, kind, &Whole { style, is_expression: false, exact: &BTreeSet::new() })
    }

    #[test]
    fn paths_are_written_as_requests_have_them() {
        let of = |path, kind| of(path, kind, Style::Plain);
        assert_eq!(of("/x y{}", PathKind::Exact), [path_match("Exact", "/x%20y%7B%7D")]);
        assert_eq!(of("/ä/%C3", PathKind::Prefix), [path_match("PathPrefix", "/%C3%A4/%25C3")]);
        assert_eq!(of("/ad.min", PathKind::Prefix), [path_match("PathPrefix", "/ad.min")]);
    }

    /// Of expressions the longer goes first: nginx' order of prefixes has to be that of lengths.
    #[test]
    fn ordered_expressions_have_the_order_of_prefixes() {
        let of = |path, kind| of(path, kind, Style::Ordered)[0]["value"].as_str().map(str::to_owned);
        assert_eq!(of("/ad.min", PathKind::Prefix).as_deref(), Some(r"/ad\.min(?:/.*)?"));
        let length = |path, kind| of(path, kind).map_or(0, |text| text.len());
        for (first, second) in [
            (("/a/b", PathKind::Prefix), ("/a", PathKind::Prefix)),
            (("/a:b", PathKind::Prefix), ("/a", PathKind::Prefix)),
        ] {
            assert!(length(first.0, first.1) > length(second.0, second.1), "{first:?} {second:?}");
        }
    }

    #[test]
    fn expressions_take_what_begins_with_them_in_any_case() {
        let expression = path_match("RegularExpression", "(?i)/a.*");
        let exact = of("/a", PathKind::Exact, Style::Expressions);
        assert_eq!(exact[..], *std::slice::from_ref(&expression));
        assert_eq!(of("/a", PathKind::Prefix, Style::Expressions), [expression]);
        let exact = BTreeSet::from(["/a".to_owned()]);
        let whole = Whole { style: Style::Expressions, is_expression: false, exact: &exact };
        let below = path_match("RegularExpression", "(?i)/a/.*");
        assert_eq!(matches("/a", PathKind::Prefix, &whole), [below]);
    }
}
