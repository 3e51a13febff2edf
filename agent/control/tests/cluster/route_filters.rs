//! RouteFilters that an API server refuses, so that no agent ever sees them, and those next to them
//! that it takes.

use serde_json::{Value, json};

use crate::schema::{self, Row};

fn path(pattern: &str, substitution: &str) -> Value {
    json!({"type": "PathRewrite", "pathRewrite": {"pattern": pattern, "substitution": substitution}})
}

fn response(fields: Value) -> Value {
    json!({"type": "DirectResponse", "directResponse": fields})
}

fn headers(fields: Value) -> Value {
    json!({"type": "RequestHeaders", "requestHeaders": fields})
}

fn field(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn fields(number: usize) -> Vec<Value> {
    (0..number).map(|at| field(&format!("x-{at}"), "v")).collect()
}

/// One object that is taken, and one next to it that is not, with the words of its refusal.
fn rows() -> Vec<Row> {
    let long = |bytes: usize| format!("/{}", "a".repeat(bytes - 1));
    vec![
        ("spec.type", path("/", "/"), json!({"type": "Mirror"})),
        ("pathRewrite must be given with type PathRewrite", path("/", "/"), json!({"type": "PathRewrite"})),
        (
            "pathRewrite must be given with type PathRewrite, and with no other",
            response(json!({"statusCode": 200})),
            json!({"type": "DirectResponse", "directResponse": {"statusCode": 200},
                "pathRewrite": {"pattern": "/", "substitution": "/"}}),
        ),
        (
            "directResponse must be given with type DirectResponse",
            response(json!({"statusCode": 200})),
            json!({"type": "DirectResponse"}),
        ),
        (
            "requestHeaders must be given with type RequestHeaders",
            headers(json!({"set": fields(1)})),
            json!({"type": "RequestHeaders", "responseHeaders": {"set": fields(1)}}),
        ),
        (
            "responseHeaders must be given with type ResponseHeaders",
            json!({"type": "ResponseHeaders", "responseHeaders": {"add": fields(1)}}),
            json!({"type": "ResponseHeaders", "requestHeaders": {"set": fields(1)}}),
        ),
        ("spec.pathRewrite.pattern", path(&long(1024), "/"), path(&long(1025), "/")),
        ("spec.pathRewrite.pattern", path("/", "/"), path("", "/")),
        ("spec.pathRewrite.substitution", path("/", &long(1024)), path("/", &long(1025))),
        ("spec.pathRewrite.substitution", path("/(?P<a>.*)", "/${a}$1$$%20"), path("/", "/a?b=c")),
        ("spec.pathRewrite.substitution", path("(/.*)", "$1"), path("/", "a")),
        ("spec.pathRewrite.substitution", path("/", "/a~b"), path("/", "/a b")),
        (
            "spec.directResponse.statusCode",
            response(json!({"statusCode": 200})),
            response(json!({"statusCode": 199})),
        ),
        (
            "spec.directResponse.statusCode",
            response(json!({"statusCode": 599})),
            response(json!({"statusCode": 600})),
        ),
        (
            "spec.directResponse.statusCode: Required",
            response(json!({"statusCode": 418})),
            response(json!({})),
        ),
        (
            "responses of status 204, 205 and 304 have no body",
            response(json!({"statusCode": 204})),
            response(json!({"statusCode": 204, "body": ""})),
        ),
        (
            "spec.directResponse.body",
            response(json!({"statusCode": 200, "body": "é".repeat(2048)})),
            response(json!({"statusCode": 200, "body": "x".repeat(4097)})),
        ),
        (
            "spec.directResponse.contentType",
            response(json!({"statusCode": 200, "contentType": "text/html; charset=utf-8"})),
            response(json!({"statusCode": 200, "contentType": "text/html\n"})),
        ),
        ("needs one of set and add", headers(json!({"add": fields(1)})), headers(json!({}))),
        ("spec.requestHeaders.set", headers(json!({"set": fields(16)})), headers(json!({"set": fields(17)}))),
        ("spec.requestHeaders.add", headers(json!({"add": fields(16)})), headers(json!({"add": fields(17)}))),
        (
            "spec.requestHeaders.set[1]: Duplicate",
            headers(json!({"set": [field("a", "1")], "add": [field("b", "1")]})),
            headers(json!({"set": [field("a", "1"), field("a", "2")]})),
        ),
        (
            "spec.requestHeaders.set[0].name",
            headers(json!({"set": [field("X-A_b.c", "1")]})),
            headers(json!({"set": [field("a b", "1")]})),
        ),
        (
            "spec.requestHeaders.set[0].value",
            headers(json!({"set": [field("a", &"v".repeat(4096))]})),
            headers(json!({"set": [field("a", &"v".repeat(4097))]})),
        ),
    ]
}

/// By its manifests, in the words of those who copy them.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_takes_what_the_documentation_shows() {
    const PAGE: &str = include_str!("../../../../docs/route-filter.md");
    const EXAMPLE: &str = include_str!("../../../../examples/route-filter/route-filter.yaml");
    schema::take_what_is_shown("RouteFilter", PAGE, EXAMPLE, 5).await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_api_server_refuses_filters_that_mean_nothing() {
    schema::tell_apart("RouteFilter", rows()).await;
}

/// The schema as a directory of manifests has it says the same.
#[test]
fn a_directory_refuses_the_same() {
    use portcullis_api::admission::{Admission, admit};
    let admitted = |spec: &Value| {
        admit(json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
            "metadata": {"name": "own"}, "spec": spec}))
    };
    for (words, fine, wrong) in rows() {
        assert!(matches!(admitted(&fine), Admission::Admitted { .. }), "{fine}: {:?}", admitted(&fine));
        match admitted(&wrong) {
            Admission::Refused(refusal) => {
                let told = refusal.reasons.iter().any(|reason| reason.contains(words));
                assert!(told, "{wrong}: {:?}", refusal.reasons);
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
}
