use serde_json::{Value, json};

use super::*;
use crate::Fault;

fn parse(filters: Value) -> (RuleFilters, Vec<Fault>) {
    let mut faults = Vec::new();
    let filters: Vec<HttpRouteFilter> = serde_json::from_value(filters).unwrap();
    (RuleFilters::parse(&filters, &mut faults), faults)
}

#[test]
fn header_edits_are_compiled_with_the_first_of_equal_names() {
    let (filters, faults) = parse(json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {
        "set": [{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}],
        "add": [{"name": "B", "value": "b, c"}], "remove": ["C", "c"]}}]));
    assert!(faults.is_empty());
    let Filter::RequestHeaders(edit) = &filters.filters[0] else { panic!("{filters:?}") };
    assert_eq!(edit.set, [(HeaderName::from_static("x-a"), HeaderValue::from_static("1"))]);
    assert_eq!(edit.remove, ["c"]);
}

#[test]
fn header_edits_that_cannot_be_are_refused() {
    for edit in [
        json!({"set": [{"name": "a", "value": "1"}], "remove": ["A"]}),
        json!({"set": [{"name": "a b", "value": "1"}]}),
        json!({"set": [{"name": "a", "value": "1\r\nb: 2"}]}),
        json!({"add": [{"name": "Transfer-Encoding", "value": "chunked"}]}),
        json!({"remove": ["Connection"]}),
    ] {
        let (filters, faults) =
            parse(json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": edit}]));
        assert_eq!((filters.filters.len(), faults.len()), (0, 1), "{edit}");
    }
}

#[test]
fn redirects_have_their_defaults_and_limits() {
    let redirect = |value: Value| parse(json!([{"type": "RequestRedirect", "requestRedirect": value}]));
    let (filters, _) = redirect(json!({"scheme": "https", "hostname": "Www.Example.com", "port": 8443}));
    let compiled = filters.redirect.unwrap();
    assert_eq!((compiled.status.as_u16(), compiled.hostname.as_deref()), (302, Some("www.example.com")));
    for wrong in [
        json!({"scheme": "ftp"}),
        json!({"hostname": "*.example.com"}),
        json!({"port": 0}),
        json!({"statusCode": 200}),
        json!({"path": {"type": "Append"}}),
        json!({"path": {"type": "ReplaceFullPath"}}),
        json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": "a"}}),
        json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": "/a b"}}),
    ] {
        let (filters, faults) = redirect(wrong.clone());
        assert!(filters.redirect.is_none() && faults.len() == 1, "{wrong}");
    }
}

#[test]
fn what_is_not_served_is_never_skipped() {
    for (filter, reason) in [
        (
            json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "m"}}}),
            Reason::UnsupportedValue,
        ),
        (json!({"type": "Later"}), Reason::UnsupportedValue),
        (json!({"type": "URLRewrite"}), Reason::UnsupportedValue),
        (json!({"type": "ExtensionRef"}), Reason::InvalidKind),
    ] {
        let (_, faults) = parse(json!([filter]));
        assert_eq!(faults.iter().map(|fault| fault.reason).collect::<Vec<_>>(), [reason], "{filter}");
    }
}
