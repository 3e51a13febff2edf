//! nginx' order of a host's paths, kept by the lengths of expressions.

use std::cmp::{Ordering, Reverse};

use serde_json::{Value, json};

use super::super::ingress::PathKind;
use super::Style;

/// An expression that changes nothing but the length.
const NOTHING: &str = "(?:)";

impl Style {
    /// The order in which nginx asks the paths of a host: of expressions as they are written, of
    /// others by what they take.
    pub(in crate::convert) fn order(self, a: (&str, PathKind), b: (&str, PathKind)) -> Ordering {
        if self == Self::Expressions {
            return b.0.len().cmp(&a.0.len()).then_with(|| b.0.cmp(a.0));
        }
        let rank = |(path, kind): (&str, PathKind)| (Reverse(path.trim_end_matches('/').len()), kind);
        rank(a).cmp(&rank(b))
    }
}

/// Has each of these expressions be longer than those behind it that may take the same: HTTPRoutes
/// ask the longest first.
pub(in crate::convert) fn keep_order<'m>(matches: impl Iterator<Item = &'m mut Value>) {
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

#[cfg(test)]
mod tests {
    use super::super::path_match;
    use super::*;

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
}
