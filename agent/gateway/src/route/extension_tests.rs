use portcullis_model::Substituted;
use serde_json::{Value, json};

use super::*;

fn compiled(spec: Value) -> Result<Extension, String> {
    let filter = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
        "metadata": {"name": "f"}, "spec": spec});
    let filter: RouteFilter = serde_json::from_value(filter).unwrap();
    compile(&filter).map(|compiled| compiled.extension).map_err(|fault| fault.message)
}

fn rewrite(pattern: &str, substitution: &str) -> Result<Extension, String> {
    compiled(json!({"type": "PathRewrite",
        "pathRewrite": {"pattern": pattern, "substitution": substitution}}))
}

#[test]
fn paths_are_made_of_groups_and_text() {
    for (pattern, substitution, path, expected) in [
        ("/shop(/|$)(.*)", "/$2", "/shop/cart/1", "/cart/1"),
        ("/shop(/|$)(.*)", "/$2", "/shop", "/"),
        ("/v[0-9]+(?P<rest>/.*)", "/api${rest}", "/v12/x", "/api/x"),
        ("/(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)", "/$10$1", "/abcdefghij", "/ja"),
        (r"/(\w+)", "/$$${1}%20", "/x", "/$x%20"),
        ("(/.*)", "$1", "/x", "/x"),
        ("/.*", "/new$0", "/x", "/new/x"),
        ("(?i)/A", "/b", "/a", "/b"),
    ] {
        let Ok(Extension::Path(substituted)) = rewrite(pattern, substitution) else {
            panic!("{pattern} {substitution}: {:?}", rewrite(pattern, substitution))
        };
        assert_eq!(substituted.apply(path, 100), Substituted::To(expected.to_owned()), "{pattern}");
    }
}

#[test]
fn what_makes_no_path_is_refused() {
    let long = "a".repeat(1025);
    for (pattern, substitution, told) in [
        ("(", "/", "pathRewrite: pattern: regular expression \"(\" cannot be used: unclosed group"),
        ("a)|(b", "/", "unopened group"),
        ("^app/(.*)", "/$1", "pathRewrite: pattern: regular expression \"^app/(.*)\" matches no path"),
        ("(?=a)", "/", "look-around"),
        ("((((a{99}){99}){99}){99})", "/", "too complex: it compiles to more than 8 KiB"),
        (&"(".repeat(500), "/", "cannot be used"),
        (&format!("/{}", "(.*)".repeat(200)), "/", "too complex"),
        (&long, "/", "pattern: value is 1025 bytes long; at most 1024 are allowed"),
        ("/", &format!("/{long}"), "substitution: value is 1026 bytes long"),
        ("/(.*)", "/$2", "substitution: the pattern has no group \"2\"; there are $0 to $1"),
        ("/(?P<a>.*)", "/${b}", "no group \"b\"; there are $0 to $1, and ${a}"),
        ("/", "/$", "behind $ comes a number"),
        ("/", "/${", "behind $ comes a number"),
        ("/", "/${}", "behind $ comes a number"),
        ("/", "/$a", "behind $ comes a number"),
        ("/", "x", "must start with /"),
        ("/", "/a?b=c", "has a character that no path can have"),
        ("/", "/a#b", "has a character that no path can have"),
        ("/", "/a b", "has a character that no path can have"),
        ("/", "/é", "has a character that no path can have"),
        ("/(..)", "/%$1", "has a character that no path can have"),
        ("/", "/../b", "must not contain /../"),
        ("/", "/a/..", "must not end with /. or /.."),
        ("/(.*)", "/a//$1", "must not contain //"),
    ] {
        let message = rewrite(pattern, substitution).unwrap_err();
        assert!(message.contains(told), "{pattern} {substitution}: {message}");
    }
}

#[test]
fn responses_have_a_status_and_perhaps_a_body() {
    let response = |spec: Value| compiled(json!({"type": "DirectResponse", "directResponse": spec}));
    for (spec, status, content_type, body) in [
        (json!({"statusCode": 503}), 503, None, ""),
        (json!({"statusCode": 200, "body": "up"}), 200, Some(TEXT), "up"),
        (
            json!({"statusCode": 404, "body": "{}", "contentType": "application/json"}),
            404,
            Some("application/json"),
            "{}",
        ),
        (json!({"statusCode": 204, "body": ""}), 204, None, ""),
    ] {
        let Ok(Extension::Response(response)) = response(spec.clone()) else { panic!("{spec}") };
        assert_eq!((response.status.as_u16(), &*response.body), (status, body), "{spec}");
        let shown = response.content_type.as_ref().map(|value| value.to_str().unwrap());
        assert_eq!(shown, content_type, "{spec}");
    }
    for (spec, told) in [
        (json!({"statusCode": 199}), "directResponse: statusCode is 199: write 200 to 599"),
        (json!({"statusCode": 600}), "statusCode is 600"),
        (json!({"statusCode": -200}), "statusCode is -200"),
        (json!({"statusCode": 204, "body": "x"}), "a response of status 204 has no body"),
        (json!({"statusCode": 304, "body": "x"}), "a response of status 304 has no body"),
        (json!({"statusCode": 200, "body": "x".repeat(4097)}), "body: value is 4097 bytes long"),
        (json!({"statusCode": 200, "contentType": "a\r\nb: c"}), "contentType: the value has a control"),
    ] {
        let message = response(spec.clone()).unwrap_err();
        assert!(message.contains(told), "{spec}: {message}");
    }
}

#[test]
fn headers_are_made_of_variables_and_text() {
    let spec = json!({"set": [{"name": "X-Client", "value": "${client.address}:${client.port} costs $$1"}],
        "add": [{"name": "x-route", "value": "${route.namespace}/${route.name}"}]});
    let Ok(Extension::RequestHeaders(headers)) =
        compiled(json!({"type": "RequestHeaders", "requestHeaders": spec}))
    else {
        panic!("not compiled")
    };
    let (name, template) = &headers.set[0];
    assert_eq!(name, "x-client");
    let value = template.filled(|variable| match variable {
        Variable::ClientAddress => "192.0.2.1",
        _ => "?",
    });
    assert_eq!(value, "192.0.2.1:? costs $1");
    assert_eq!(template.to_string(), "${client.address}:${client.port} costs $$1");
    assert_eq!(headers.names().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-client", "x-route"]);
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let field = |name: &str, value: &str| json!({"name": name, "value": value});
    let many: Vec<_> = (0..17).map(|at| field(&format!("x-{at}"), "v")).collect();
    for (spec, told) in [
        (json!({"set": [field("a b", "v")]}), "responseHeaders: set: \"a b\" is no header name"),
        (json!({"set": [field("Content-Length", "${client.port}")]}), "belongs to the connection"),
        (json!({"add": [field("transfer-encoding", "chunked")]}), "belongs to the connection"),
        (json!({"set": [field("CDN-Loop", "x")]}), "cdn-loop is what loops are noticed by"),
        (
            json!({"set": [field("a", "${claim.sub}")]}),
            "a: claims cannot be filled in: RouteFilters know none",
        ),
        (json!({"set": [field("a", "${client}")]}), "a: there is no such variable; there are client."),
        (json!({"set": [field("a", "Basic ${s3cret: s3cret}")]}), "a: there is no such variable"),
        (json!({"set": [field("a", "${claim.s3cret}")]}), "a: claims cannot be filled in"),
        (json!({"set": [field("a", "$1")]}), "there is no such variable"),
        (json!({"set": [field("a", "$a")]}), "behind $ comes"),
        (json!({"set": [field("a", "x\r\ny: z")]}), "a: the value has a control character"),
        (json!({"set": [field("a", &"x".repeat(4097))]}), "a: value is 4097 bytes long"),
        (json!({"set": [field("a", "1")], "add": [field("A", "2")]}), "header a is given more than once"),
        (json!({"add": many}), "add: 17 headers; at most 16 are allowed"),
        (json!({}), "neither set nor add"),
    ] {
        let spec = json!({"type": "ResponseHeaders", "responseHeaders": spec});
        let message = compiled(spec.clone()).unwrap_err();
        assert!(message.contains(told) && !message.contains("s3cret"), "{spec}: {message}");
    }
}

#[test]
fn the_site_that_a_backend_serves_is_not_a_templates_to_name() {
    let fields = json!({"set": [{"name": "HOST", "value": "${request.path}"}]});
    let message = compiled(json!({"type": "RequestHeaders", "requestHeaders": fields})).unwrap_err();
    assert!(message.contains("requestHeaders: header host") && message.contains("URLRewrite"), "{message}");
    let fields = json!({"add": [{"name": "host", "value": "a.example"}]});
    assert!(compiled(json!({"type": "RequestHeaders", "requestHeaders": fields})).is_err());
}

#[test]
fn a_filter_is_of_one_type() {
    let (response, path) = (json!({"statusCode": 200}), json!({"pattern": "/", "substitution": "/"}));
    for (spec, told) in [
        (json!({"type": "Mirror"}), "type \"Mirror\" is unknown: use PathRewrite, DirectResponse"),
        (json!({"type": "PathRewrite"}), "pathRewrite is missing"),
        (json!({"type": "PathRewrite", "directResponse": response}), "pathRewrite is missing"),
        (
            json!({"type": "PathRewrite", "pathRewrite": path, "directResponse": response}),
            "only the field of its type may be given",
        ),
    ] {
        let message = compiled(spec.clone()).unwrap_err();
        assert!(message.contains(told), "{spec}: {message}");
    }
}
