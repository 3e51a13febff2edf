//! nginx' order of a host's paths, kept by the lengths of expressions.

use std::cmp::{Ordering, Reverse};

use serde_json::{Value, json};

use super::super::ingress::PathKind;
use super::Style;

/// Characters of an expression.
const LONGEST: usize = 1024;

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

/// A match, in nginx' order.
pub(in crate::convert) struct Asked<'m> {
    pub path: &'m mut Value,
    /// Answered 503, as are all of its Ingress: among such the order is no matter.
    pub is_closed: bool,
}

/// Has each of these expressions be longer than those behind it that may take the same: HTTPRoutes
/// ask the longest first. `None` if one of them would be longer than expressions are; none is
/// changed then.
pub(in crate::convert) fn keep_order(matches: Vec<Asked<'_>>) -> Option<()> {
    let expressions = matches.into_iter().filter(|it| it.path["type"] == "RegularExpression");
    let mut behind: Vec<(String, usize, bool)> = Vec::new();
    let mut kept = Vec::new();
    for asked in expressions.collect::<Vec<_>>().into_iter().rev() {
        let text = asked.path["value"].as_str().unwrap_or_default().to_owned();
        let begin = literal_begin(&text);
        let may_meet = |(other, _, is_closed): &&(String, usize, bool)| {
            !(*is_closed && asked.is_closed) && (begin.starts_with(other) || other.starts_with(&begin))
        };
        let least = behind.iter().filter(may_meet).map(|(_, length, _)| length + 1).max().unwrap_or(0);
        let text = padded(text, least)?;
        behind.push((begin, text.len(), asked.is_closed));
        kept.push((asked.path, text));
    }
    kept.into_iter().for_each(|(path, text)| path["value"] = json!(text));
    Some(())
}

/// Of this length at least, by an expression that changes nothing but the length.
fn padded(text: String, least: usize) -> Option<String> {
    if text.len() >= least {
        return Some(text);
    }
    let nothing = "|".repeat(least.saturating_sub(text.len() + "(?:)".len()));
    let padded = format!("{text}(?:{nothing})");
    (padded.len() <= LONGEST).then_some(padded)
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
            assert!(
                keep_order(all.iter_mut().map(|path| Asked { path, is_closed: false }).collect()).is_some()
            );
            all.iter().map(|path| path["value"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["(?i)/admin/.", "(?i)/[a-z]+/.*"]), ["(?i)/admin/.(?:)", "(?i)/[a-z]+/.*"]);
        assert_eq!(kept(&["(?i)/a/.*", "(?i)/bcd/.*"]), ["(?i)/a/.*", "(?i)/bcd/.*"], "they never meet");
        assert_eq!(kept(&["/a", "/[a-z]+"]), ["/a(?:||)", "/[a-z]+"]);
    }
}
