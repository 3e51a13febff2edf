use serde_json::{Value, json};

use super::*;
use crate::Fault;

fn parse(filters: Value) -> (RuleFilters, Vec<Fault>) {
    let mut faults = Vec::new();
    let filters: Vec<HttpRouteFilter> = serde_json::from_value(filters).unwrap();
    let route = std::sync::Arc::new(ObjectName::new("shop", "r"));
    let rule = RuleId { kind: "HTTPRoute", route, index: 0, name: None, parent: None };
    (RuleFilters::parse(&filters, &rule, &mut faults), faults)
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
fn requests_say_what_is_theirs_to_say() {
    let host = |action: &str| json!({action: [{"name": "Host", "value": "a.example"}]});
    for (edit, told) in [
        (host("set"), ""),
        (host("add"), "header host is in each request once"),
        (json!({"remove": ["host"]}), "header host is in each request once"),
        (json!({"set": [{"name": "X-Forwarded-Proto", "value": "https"}], "remove": ["client-cert"]}), ""),
        (
            json!({"set": [{"name": "Client-Cert", "value": ":AA==:"}]}),
            "says whose certificate a client has shown",
        ),
        (json!({"add": [{"name": "ssl_client_verify", "value": "SUCCESS"}]}), "choose another name"),
        (
            json!({"add": [{"name": "X_Forwarded-For", "value": "1"}]}),
            "reads as x-forwarded-for at some backends",
        ),
    ] {
        let (filters, faults) =
            parse(json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": edit}]));
        let message = faults.first().map(|fault| fault.message.clone()).unwrap_or_default();
        assert!(message.contains(told) && message.is_empty() == told.is_empty(), "{edit}: {message}");
        assert_eq!(filters.filters.len(), usize::from(told.is_empty()), "{edit}");
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
        (json!({"type": "RequestMirror"}), Reason::UnsupportedValue),
        (json!({"type": "Later"}), Reason::UnsupportedValue),
        (json!({"type": "URLRewrite"}), Reason::UnsupportedValue),
        (json!({"type": "CORS"}), Reason::UnsupportedValue),
        (json!({"type": "ExtensionRef"}), Reason::InvalidKind),
    ] {
        let (_, faults) = parse(json!([filter]));
        assert_eq!(faults.iter().map(|fault| fault.reason).collect::<Vec<_>>(), [reason], "{filter}");
    }
}

#[test]
fn cors_has_its_defaults() {
    let (filters, faults) = parse(json!([{"type": "CORS", "cors": {}}]));
    assert_eq!(faults, []);
    let [Filter::Cors(cors)] = &filters.filters[..] else { panic!("{filters:?}") };
    let expected =
        json!({"origins": [], "credentials": "Withheld", "methods": null, "headers": null, "maxAge": 5});
    assert_eq!(json!(cors), expected);
}

#[test]
fn cors_is_compiled_field_by_field() {
    for (cors, field, expected) in [
        (json!({"allowOrigins": ["*"]}), "origins", json!("*")),
        (
            json!({"allowOrigins": ["https://Foo.com", "http://*.bar.com:8080", "https://*"]}),
            "origins",
            json!(["https://foo.com", "http://*.bar.com:8080", "https://*"]),
        ),
        (json!({"allowCredentials": true}), "credentials", json!("Allowed")),
        (json!({"allowCredentials": false}), "credentials", json!("Withheld")),
        (json!({"allowMethods": ["*"]}), "methods", json!("*")),
        (json!({"allowMethods": ["GET", "PUT"]}), "methods", json!("GET, PUT")),
        (json!({"allowHeaders": ["*"]}), "headers", json!("*")),
        (json!({"allowHeaders": ["X-A", "x-b"]}), "headers", json!("X-A, x-b")),
        (json!({"exposeHeaders": ["X-A", "x-b"]}), "expose", json!("X-A, x-b")),
        (json!({"exposeHeaders": ["*"]}), "expose", json!("*")),
        (json!({"exposeHeaders": ["*"], "allowCredentials": true}), "expose", Value::Null),
        (json!({"exposeHeaders": ["*", "a"], "allowCredentials": true}), "expose", json!("a")),
        (json!({"maxAge": 3600}), "maxAge", json!(3600)),
    ] {
        let (filters, faults) = parse(json!([{"type": "CORS", "cors": cors}]));
        assert_eq!(faults, [], "{cors}");
        let [Filter::Cors(compiled)] = &filters.filters[..] else { panic!("{filters:?}") };
        assert_eq!(json!(compiled).get(field).cloned().unwrap_or_default(), expected, "{cors}");
    }
}

#[test]
fn cors_that_cannot_be_is_refused() {
    for (cors, words) in [
        (json!({"allowOrigins": ["*", "https://a.com"]}), "* stands for all of them"),
        (json!({"allowOrigins": ["a.com"]}), "is no origin"),
        (json!({"allowOrigins": ["https://a.com/"]}), "is no origin"),
        (json!({"allowOrigins": ["https://*a.com"]}), "is no origin"),
        (json!({"allowOrigins": ["null"]}), "is no origin"),
        (json!({"allowMethods": ["GET", "*"]}), "* stands for all of them"),
        (json!({"allowMethods": ["GET, PUT"]}), "is not a name"),
        (json!({"allowHeaders": ["a", "*"]}), "* stands for all of them"),
        (json!({"allowHeaders": ["a\r\nb"]}), "is not a name"),
        (json!({"exposeHeaders": [""]}), "is not a name"),
        (json!({"maxAge": 0}), "is less than 1"),
        (json!({"maxAge": -1}), "is less than 1"),
    ] {
        let (filters, faults) = parse(json!([{"type": "CORS", "cors": cors}]));
        let [fault] = &faults[..] else { panic!("{cors}: {faults:?}") };
        assert!(fault.message.starts_with("filters[0]: cors: "), "{}", fault.message);
        assert!(fault.message.contains(words) && filters.filters.is_empty(), "{cors}: {}", fault.message);
    }
    let (_, faults) = parse(json!([{"type": "CORS", "cors": {}}, {"type": "CORS", "cors": {}}]));
    assert!(faults[0].message.contains("only once"), "{faults:?}");
}

#[test]
fn mirrors_have_their_shares_and_limits() {
    let mirror = |fields: Value| {
        let mut filter = json!({"backendRef": {"name": "m", "port": 80}});
        filter.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        parse(json!([{"type": "RequestMirror", "requestMirror": filter}]))
    };
    for (fields, share) in [
        (json!({}), "1 of 1"),
        (json!({"percent": 0}), "0 of 100"),
        (json!({"percent": 100}), "100 of 100"),
        (json!({"fraction": {"numerator": 5}}), "5 of 100"),
        (json!({"fraction": {"numerator": 1, "denominator": 3}}), "1 of 3"),
    ] {
        let (filters, faults) = mirror(fields.clone());
        assert!(faults.is_empty(), "{fields}: {faults:?}");
        assert_eq!(filters.mirrors[0].share.to_string(), share, "{fields}");
        assert_eq!(&*filters.mirrors[0].owner, "shop");
    }
    for wrong in [
        json!({"percent": 101}),
        json!({"percent": -1}),
        json!({"fraction": {"numerator": 2, "denominator": 1}}),
        json!({"fraction": {"numerator": 0, "denominator": 0}}),
        json!({"percent": 1, "fraction": {"numerator": 1}}),
        json!({"backendRef": {"name": "m", "port": 0}}),
    ] {
        let (filters, faults) = mirror(wrong.clone());
        let reasons: Vec<_> = faults.iter().map(|fault| fault.reason).collect();
        assert_eq!(
            (filters.mirrors.len(), reasons.as_slice()),
            (0, &[Reason::UnsupportedValue][..]),
            "{wrong}"
        );
    }
}

#[test]
fn white_space_around_a_value_is_no_part_of_it() {
    for (written, expected) in [("a", "a"), (" a b\t", "a b"), (" ", ""), ("é", "é")] {
        assert_eq!(header_value(written).unwrap(), expected.as_bytes(), "{written:?}");
    }
    assert!(header_value("a\n").is_err());
}
