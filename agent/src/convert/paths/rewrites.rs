//! `rewrite-target`, as the `pathRewrite` of a RouteFilter.

use serde_json::{Value, json};

use super::spelling::spelled;
use super::{alternatives, from_the_begin};

/// `pathRewrite` of a RouteFilter: as nginx does it, the whole path is replaced, whatever follows
/// what the expression matches.
pub(in crate::convert) fn rewrite(path: &str, target: &str) -> Result<Value, String> {
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
}
