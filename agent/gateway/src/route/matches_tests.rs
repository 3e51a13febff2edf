use serde_json::{Value, json};

use super::*;
use crate::Fault;

fn parse(matched: Value) -> Result<RouteMatch, Fault> {
    http(&serde_json::from_value(matched).unwrap())
}

#[test]
fn an_empty_match_is_the_root_prefix() {
    let matched = parse(json!({})).unwrap();
    assert!(matches!(&matched.path, PathMatch::Prefix(prefix) if prefix.is_empty()));
}

#[test]
fn paths_that_normalising_would_change_are_refused() {
    for value in [
        "", "a", "/a//b", "/./a", "/../a", "/a/..", "/a/.", "/a%2Fb", "/a%2fb", "/a#b", "/a?b", "/ä", "/a%2",
        "/%zz",
    ] {
        let fault = parse(json!({"path": {"type": "Exact", "value": value}})).unwrap_err();
        assert_eq!(fault.reason, crate::Reason::UnsupportedValue, "{value}");
        assert!(fault.message.starts_with("path: "), "{}", fault.message);
    }
    assert!(parse(json!({"path": {"value": format!("/{}", "a".repeat(1024))}})).is_err());
    for value in ["/", "/a/", "/a.b/c~d", "/a%20b", "/.a/..b"] {
        assert!(parse(json!({"path": {"value": value}})).is_ok(), "{value}");
    }
}

#[test]
fn of_equal_names_the_first_wins() {
    let matched = parse(json!({
        "headers": [{"name": "Version", "value": "1"}, {"name": "version", "value": "2"}],
        "queryParams": [{"name": "q", "value": "1"}, {"name": "Q", "value": "2"}, {"name": "q", "value": "3"}]}));
    let matched = matched.unwrap();
    assert_eq!(matched.headers.len(), 1);
    assert!(matched.headers[0].0 == "version" && matched.headers[0].1.matches(b"1"));
    assert_eq!(matched.query.len(), 2);
}

#[test]
fn unknown_types_methods_and_names_are_refused() {
    for (matched, part) in [
        (json!({"path": {"type": "Glob", "value": "/*"}}), "path: type \"Glob\" is unknown"),
        (json!({"headers": [{"type": "Prefix", "name": "a", "value": "b"}]}), "header a: type \"Prefix\""),
        (json!({"headers": [{"name": ":path", "value": "b"}]}), "\":path\" is no header name"),
        (
            json!({"queryParams": [{"type": "RegularExpression", "name": "a", "value": "("}]}),
            "query parameter a: ",
        ),
        (json!({"method": "get"}), "method \"get\" is unknown"),
    ] {
        let fault = parse(matched).unwrap_err();
        assert!(fault.message.contains(part), "{}", fault.message);
    }
}
