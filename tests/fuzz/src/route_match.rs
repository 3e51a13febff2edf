//! Requests, and rules with a tenant's regular expressions: whatever both are, the rule that takes
//! a request is the first whose conditions hold for a second, plain reader of the same request, and
//! an expression means what it does to the library that it was rewritten for.
//!
//! The bytes are rules, one a line, an empty line, and the request. A rule is `=`, `^` or `~` (an
//! exact path, a prefix, an expression), the path, and behind tabs expressions for the field `x-v`
//! and the parameter `q`.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use portcullis_gateway::fuzzing::{path_match, path_with_groups, value_match};
use portcullis_model::{
    Action, Entry, Failure, HostPattern, ObjectName, PathMatch, PathTable, Precedence, RouteMatch,
    RouteOrigin, RouteTable, Rule, RuleId, Timeouts,
};
use portcullis_proxy::fuzzing::{Routed, routed};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ast::ErrorKind;
use regex_syntax::ast::parse::Parser;

const FIELD: HeaderName = HeaderName::from_static("x-v");
const PARAMETER: &str = "q";
const MOST_RULES: usize = 8;

/// A rule by the reader here.
struct Plain<'r> {
    path: PlainPath<'r>,
    field: Option<&'r str>,
    parameter: Option<&'r str>,
    precedence: Precedence,
}

/// The outcome of conditions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    No,
    /// It takes all of Unicode to say.
    InUnicode,
    Yes,
}

enum PlainPath<'r> {
    Exact(&'r str),
    Prefix(&'r str),
    Regex(&'r str),
}

pub(crate) fn run(bytes: &[u8]) {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\n\n") else { return };
    let Ok(rules) = std::str::from_utf8(&bytes[..end]) else { return };
    let (mut plain, mut entries) = (Vec::new(), Vec::new());
    for (at, line) in rules.lines().take(MOST_RULES).enumerate() {
        if let Some((rule, entry)) = rule(line, at) {
            plain.push((at, rule));
            entries.push(entry);
        }
    }
    let mut table = RouteTable::default();
    table.insert(&HostPattern::Any, Arc::new(PathTable::new(entries)));
    let Some(request) = routed(&bytes[end + 2..], &table) else { return };
    if request.is_over_time {
        return;
    }
    plain.sort_by(|(_, one), (_, other)| one.precedence.cmp(&other.precedence));
    for (at, rule) in &plain {
        let held = rule.held(&request);
        // Only the library knows.
        if held == Held::InUnicode {
            return;
        }
        if held == Held::Yes {
            let (found, prefix) = request.found.unwrap_or((usize::MAX, String::new()));
            assert_eq!(found, *at, "of {rules:?} for {:?}", request.path);
            let expected = match rule.path {
                PlainPath::Prefix(prefix) => prefix.trim_end_matches('/'),
                PlainPath::Exact(_) | PlainPath::Regex(_) => "",
            };
            assert_eq!(prefix, expected);
            return;
        }
    }
    assert_eq!(request.found, None, "of {rules:?} for {:?}", request.path);
}

/// `None` if it is refused.
fn rule(line: &str, at: usize) -> Option<(Plain<'_>, Entry)> {
    let mut parts = line.split('\t');
    let (kind, path) = parts.next()?.split_once(' ')?;
    let [field, parameter] = [(); 2].map(|()| parts.next().filter(|pattern| !pattern.is_empty()));
    let (path, compiled) = match kind {
        "=" if path.starts_with('/') => (PlainPath::Exact(path), PathMatch::Exact(path.into())),
        "^" if path.starts_with('/') => (PlainPath::Prefix(path), PathMatch::prefix(path)),
        "~" => {
            groups(path);
            (PlainPath::Regex(path), path_match(path).inspect(|_| understood(path))?)
        }
        _ => return None,
    };
    let value = |pattern: Option<&str>| match pattern {
        Some(pattern) => Some(vec![value_match(pattern).inspect(|_| understood(pattern))?]),
        None => Some(Vec::new()),
    };
    let matches = RouteMatch {
        path: compiled,
        method: None,
        headers: value(field)?.into_iter().map(|value| (FIELD, value)).collect(),
        query: value(parameter)?.into_iter().map(|value| (PARAMETER.into(), value)).collect(),
    };
    let name = Arc::new(ObjectName::new("tenant", "route"));
    let origin = RouteOrigin { created: 0, name: name.clone() };
    let precedence = Precedence::of(&matches, &origin, at, 0);
    let id = RuleId { kind: "HTTPRoute", route: name, index: at, name: None, parent: None };
    let failure = Failure { status: StatusCode::NOT_FOUND, reason: "none".into() };
    let rule = Rule {
        id: Arc::new(id),
        filters: Vec::new(),
        action: Action::Fail(failure),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        policy: None,
    };
    let entry = Entry { precedence: precedence.clone(), matches: Arc::new(matches), rule: Arc::new(rule) };
    Some((Plain { path, field, parameter, precedence }, entry))
}

/// Fails if the owner wrote no expression, and it became one; but for a hyphen behind a class,
/// which is one to RE2 and to us (`[\w-.]`).
fn understood(pattern: &str) {
    let Err(error) = Parser::new().parse(pattern) else { return };
    let behind = pattern[error.span().end.offset..].trim_start();
    let is_hyphen = matches!(error.kind(), ErrorKind::ClassRangeLiteral) && behind.starts_with('-');
    assert!(is_hyphen, "{pattern:?} is compiled: {error}");
}

/// An expression with groups has those that were written, for all of a path.
fn groups(pattern: &str) {
    let Some(compiled) = path_with_groups(pattern) else { return };
    understood(pattern);
    let Some(reference) = reference(pattern) else { return };
    assert_eq!(compiled.captures_len(), reference.captures_len(), "groups of {pattern:?}");
    for path in ["/", "/a/b", "/a1/_-", "/%20", ""] {
        let of = |regex: &Regex| {
            let found = regex.captures(path.as_bytes())?;
            Some(found.iter().map(|group| group.map(|group| group.range())).collect::<Vec<_>>())
        };
        assert_eq!(of(&compiled), of(&reference), "{pattern:?} for {path:?}");
    }
}

/// The expression as it was written, by the library's own meaning of `\d`, `\w` and `\s` in ASCII.
/// `None` if that could mean something else without Unicode, even in ASCII text.
fn reference(pattern: &str) -> Option<Regex> {
    let has_escapes = ["\\x", "\\u", "\\U"].iter().any(|escape| pattern.contains(escape));
    if has_escapes || !pattern.is_ascii() {
        return None;
    }
    RegexBuilder::new(&format!("^(?:{pattern})$")).unicode(false).build().ok()
}

// === impl Plain ===

impl Plain<'_> {
    fn held(&self, request: &Routed) -> Held {
        let path = &*request.path;
        let held = |holds| if holds { Held::Yes } else { Held::No };
        let of_path = match self.path {
            PlainPath::Exact(exact) => held(path == exact),
            PlainPath::Prefix(prefix) => {
                let prefix = prefix.trim_end_matches('/');
                held(path == prefix || path.starts_with(&format!("{prefix}/")))
            }
            PlainPath::Regex(pattern) => matched(pattern, Some(path.as_bytes())),
        };
        let values: Vec<_> = request.fields.get_all(FIELD).iter().map(HeaderValue::as_bytes).collect();
        let value = (!values.is_empty()).then(|| values.join(&b','));
        let parameter = request.query.as_deref().and_then(parameter);
        let of_values = [(self.field, value), (self.parameter, parameter)]
            .map(|(pattern, value)| pattern.map_or(Held::Yes, |pattern| matched(pattern, value.as_deref())));
        // All of them have to; it is known that they do not if one is known not to.
        of_values.into_iter().fold(of_path, Ord::min)
    }
}

fn matched(pattern: &str, value: Option<&[u8]>) -> Held {
    match (value, reference(pattern)) {
        (None, _) => Held::No,
        (Some(value), Some(reference)) if value.is_ascii() => match reference.is_match(value) {
            true => Held::Yes,
            false => Held::No,
        },
        (Some(_), _) => Held::InUnicode,
    }
}

/// The first value of the parameter (URL standard, "application/x-www-form-urlencoded parsing").
fn parameter(query: &str) -> Option<Vec<u8>> {
    query.split('&').filter(|pair| !pair.is_empty()).find_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name) == PARAMETER.as_bytes()).then(|| decoded(value))
    })
}

fn decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut decoded = Vec::new();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let escaped =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        rest = behind;
        decoded.push(match (first, escaped) {
            (b'%', Some(byte)) => {
                rest = &behind[2..];
                byte
            }
            (b'+', _) => b' ',
            (byte, _) => *byte,
        });
    }
    decoded
}
