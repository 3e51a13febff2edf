//! Paths as ingress-nginx matches them, as matches of HTTPRoutes, and what `rewrite-target` makes
//! of them.

use serde_json::{Value, json};

use super::ingress::PathKind;

/// The form in which a host's paths are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Expressions,
}

/// Of paths that go on in the segment in which a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breadth {
    Segments,
    /// They are taken as before, since what protects the text protects them.
    Kept,
}

/// The matches of a path. In a host with regular expressions all paths are such, in any case, and
/// the longer text goes first, as HTTPRoutes order expressions.
pub(super) fn matches(path: &str, kind: PathKind, style: Style, breadth: Breadth) -> Vec<Value> {
    if path == "/" && kind != PathKind::Exact {
        return vec![path_match("PathPrefix", "/")];
    }
    if style == Style::Expressions {
        return vec![path_match("RegularExpression", &format!("(?i){}.*", path.trim_start_matches('^')))];
    }
    match kind {
        PathKind::Exact => vec![path_match("Exact", &encoded(path))],
        PathKind::Text if breadth == Breadth::Kept && !path.ends_with('/') => {
            // What begins with this text and goes on in the same segment is protected, too.
            vec![
                path_match("PathPrefix", &encoded(path)),
                path_match("RegularExpression", &format!("{}[^/].*", escaped(&encoded(path)))),
            ]
        }
        PathKind::Prefix | PathKind::Text => vec![path_match("PathPrefix", &encoded(path))],
    }
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

fn escaped(text: &str) -> String {
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
    let pattern = format!("(?i){path}{}", if complete { "" } else { ".*" });
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
        assert!(of("/a", "/$host").is_err());
        assert!(of("/a", "/b?c=$1").is_err());
        assert_eq!(groups(r"/\((a)(?:b)[(](c)"), 2);
    }

    #[test]
    fn paths_are_written_as_requests_have_them() {
        let of = |path, kind| matches(path, kind, Style::Plain, Breadth::Segments);
        assert_eq!(of("/x y{}", PathKind::Exact), [path_match("Exact", "/x%20y%7B%7D")]);
        assert_eq!(of("/ä/%C3", PathKind::Prefix), [path_match("PathPrefix", "/%C3%A4/%C3")]);
    }

    #[test]
    fn what_is_protected_is_not_narrower_than_it_was() {
        let of = |breadth| matches("/ad.min", PathKind::Text, Style::Plain, breadth);
        assert_eq!(of(Breadth::Segments), [path_match("PathPrefix", "/ad.min")]);
        assert_eq!(of(Breadth::Kept)[1], path_match("RegularExpression", r"/ad\.min[^/].*"));
        assert_eq!(
            matches("/a", PathKind::Exact, Style::Expressions, Breadth::Segments),
            [path_match("RegularExpression", "(?i)/a.*")]
        );
    }
}
