use serde_json::{Value, json};

use super::*;

fn review(kind: &str, object: &mut Value) -> Review {
    Schemas::embedded().get("gateway.networking.k8s.io", kind).unwrap().versions["v1"].review(object)
}

fn messages(kind: &str, mut object: Value) -> Vec<String> {
    review(kind, &mut object).violations.iter().map(Violation::to_string).collect()
}

fn route(rule: Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"},
           "spec": {"rules": [rule]}})
}

fn gateway(spec: Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": spec})
}

#[test]
fn every_crd_is_embedded_with_its_scope_and_versions() {
    let schemas = Schemas::embedded();
    for (kind, namespaced, served) in [
        ("GatewayClass", false, "v1, v1beta1"),
        ("Gateway", true, "v1, v1beta1"),
        ("ListenerSet", true, "v1"),
        ("HTTPRoute", true, "v1, v1beta1"),
        ("GRPCRoute", true, "v1"),
        ("ReferenceGrant", true, "v1, v1beta1"),
    ] {
        let definition = schemas.get("gateway.networking.k8s.io", kind).unwrap();
        assert_eq!((definition.namespaced, definition.served().as_str()), (namespaced, served), "{kind}");
    }
}

#[test]
fn every_pattern_of_the_crds_compiles() {
    fn check(schema: &Schema) {
        if let Some(pattern) = &schema.pattern {
            assert!(Regex::new(&pattern.text).is_ok(), "{}", pattern.text);
        }
        schema.properties.values().for_each(check);
        schema.items.as_deref().into_iter().chain(schema.additional_properties.as_deref()).for_each(check);
    }
    Schemas::embedded().kinds.values().flat_map(|d| d.versions.values()).for_each(check);
}

#[test]
fn defaults_are_those_of_the_api_server() {
    let mut object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"},
        "spec": {"parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [{"name": "s", "port": 80}]}]}});
    assert_eq!(review("HTTPRoute", &mut object), Review::default());
    assert_eq!(
        object["spec"],
        json!({
            "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"}],
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{"group": "", "kind": "Service", "name": "s", "port": 80, "weight": 1}],
            }],
        })
    );
}

#[test]
fn violations_name_the_api_path() {
    for (object, message) in [
        (
            route(json!({"matches": [{}, {"path": {"value": "x".repeat(1025)}}]})),
            "spec.rules[0].matches[1].path.value: Too long: 1025 characters, at most 1024 are allowed",
        ),
        (
            route(json!({"matches": [{"method": "get"}]})),
            r#"spec.rules[0].matches[0].method: Unsupported value: "get": supported values: "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH""#,
        ),
        (
            route(json!({"backendRefs": [{"name": "s", "port": 70000}]})),
            "spec.rules[0].backendRefs[0].port: Invalid value: 70000: should be less than or equal to 65535",
        ),
        (route(json!({"backendRefs": [{"port": 80}]})), "spec.rules[0].backendRefs[0].name: Required value"),
        (
            route(json!({"matches": [{"headers": [{"name": "a", "value": 1}]}]})),
            "spec.rules[0].matches[0].headers[0].value: Invalid value: 1: must be of type string",
        ),
        (
            route(
                json!({"matches": [{"headers": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}]}),
            ),
            r#"spec.rules[0].matches[0].headers[1]: Duplicate value: {"name":"a"}"#,
        ),
        (
            route(json!({"timeouts": {"request": "1 second"}})),
            r#"spec.rules[0].timeouts.request: Invalid value: "1 second": should match '^([0-9]{1,5}(h|m|s|ms)){1,4}$'"#,
        ),
    ] {
        assert_eq!(messages("HTTPRoute", object), [message]);
    }
}

#[test]
fn an_address_of_type_ip_address_must_be_one() {
    let with_address = |value: &str| {
        let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
        gateway(
            json!({"gatewayClassName": "c", "listeners": listeners, "addresses": [{"type": "IPAddress", "value": value}]}),
        )
    };
    assert_eq!(messages("Gateway", with_address("192.0.2.1")), [""; 0]);
    assert_eq!(
        messages("Gateway", with_address("nowhere")),
        [
            r#"spec.addresses[0]: Invalid value: {"type":"IPAddress","value":"nowhere"}: must validate one and only one schema (oneOf)"#
        ]
    );
}

#[test]
fn unknown_fields_are_dropped_and_reported() {
    let mut object = route(json!({"machtes": [], "name": null}));
    let review = review("HTTPRoute", &mut object);
    assert_eq!(review.unknown_fields, ["spec.rules[0].machtes"]);
    assert_eq!(review.violations, []);
    assert!(object["spec"]["rules"][0].get("machtes").is_none());
}

#[test]
fn maps_with_free_keys_are_checked_by_value() {
    let object = gateway(json!({
        "gatewayClassName": "c", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        "infrastructure": {"labels": {"a": 1}},
    }));
    assert_eq!(
        messages("Gateway", object),
        ["spec.infrastructure.labels[a]: Invalid value: 1: must be of type string"]
    );
}
