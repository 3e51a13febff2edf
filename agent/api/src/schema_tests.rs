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
fn every_rule_of_the_crds_compiles() {
    fn check(schema: &Schema) -> usize {
        for rule in &schema.rules {
            rule.compile().unwrap_or_else(|error| panic!("{rule:?}: {error}"));
        }
        let inner = schema.properties.values();
        let inner = inner.chain(schema.items.as_deref()).chain(schema.additional_properties.as_deref());
        schema.rules.len() + inner.map(check).sum::<usize>()
    }
    let schemas = Schemas::embedded().kinds.values().flat_map(|d| d.versions.values());
    assert!(schemas.map(check).sum::<usize>() > 400);
}

/// Logs and pages have them, too, and there are credentials among values.
#[test]
fn messages_leave_out_values_of_fields_and_parameters() {
    let filter = |name: &str, value: &str| {
        let set = json!({"set": [{"name": "authorization", "value": value}]});
        route(json!({"filters": [{"type": name, "requestHeaderModifier": set}]}))
    };
    let matched = |kind: &str, value: &str| {
        let pair = json!({"type": "Exact", "name": "token", "value": value, "more": {}});
        route(json!({"matches": [{kind: [pair]}]}))
    };
    let long = "secret".repeat(1000);
    for (object, place) in [
        (filter("RequestHeaderModifier", "secret "), "filters[0].requestHeaderModifier.set[0].value: "),
        (filter("URLRewrite", "secret"), "filters[0]: "),
        (matched("headers", ""), "matches[0].headers[0].value: "),
        (matched("queryParams", &long), "matches[0].queryParams[0].value: "),
    ] {
        let messages = messages("HTTPRoute", object);
        assert!(
            !messages.is_empty() && messages.iter().all(|message| !message.contains("secret")),
            "{messages:?}"
        );
        assert!(messages.iter().any(|message| message.contains(place)), "{messages:?}");
    }
    let other =
        messages("HTTPRoute", route(json!({"matches": [{"path": {"type": "Exact", "value": "shown"}}]})));
    assert!(other.iter().any(|message| message.contains("shown")), "{other:?}");
}

/// One for each rule of its own form: what breaks it, and what it says. The rest of the object is
/// right.
#[test]
fn rules_are_evaluated() {
    let listener = |more: Value| {
        let mut listener = json!({"name": "a", "port": 80, "protocol": "HTTP"});
        more.as_object().unwrap().iter().for_each(|(name, value)| listener[name] = value.clone());
        gateway(json!({"gatewayClassName": "c", "listeners": [listener]}))
    };
    let filters = |filters: Value| route(json!({"filters": filters}));
    let path =
        |r#type: &str, value: &str| route(json!({"matches": [{"path": {"type": r#type, "value": value}}]}));
    let parents = |parents: Value| {
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"},
            "spec": {"parentRefs": parents}})
    };
    let set = json!({"requestHeaderModifier": {"set": [{"name": "a", "value": "b"}]}});
    let modifier = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["a"]}});
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"hostname": "a.example"}});
    let auth = json!({"externalAuth": {"protocol": "HTTP", "backendRef": {"name": "a", "port": 1}}});
    let mistyped = |mut filter: Value, r#type: &str| {
        filter["type"] = json!(r#type);
        json!([filter])
    };
    let addresses = json!([{"value": "10.0.0.1"}, {"value": "10.0.0.1"}]);
    let secret = json!({"certificateRefs": [{"name": "a"}]});
    for (object, message) in [
        (listener(json!({"tls": secret})), "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']"),
        (
            listener(json!({"protocol": "HTTPS", "tls": {"mode": "Passthrough"}})),
            "tls mode must be Terminate for protocol HTTPS",
        ),
        (
            listener(json!({"protocol": "HTTPS", "tls": {}})),
            "certificateRefs or options must be specified when mode is Terminate",
        ),
        (
            listener(json!({"protocol": "TCP", "hostname": "a.example"})),
            "hostname must not be specified for protocols ['TCP', 'UDP']",
        ),
        (
            gateway(json!({"gatewayClassName": "c", "listeners": [
                {"name": "a", "port": 80, "protocol": "HTTP"}, {"name": "b", "port": 80, "protocol": "HTTP"}]})),
            "Combination of port, protocol and hostname must be unique for each listener",
        ),
        (
            gateway(json!({"gatewayClassName": "c", "addresses": addresses})),
            "IPAddress values must be unique",
        ),
        (
            gateway(json!({"gatewayClassName": "c", "addresses": [{"type": "Hostname", "value": "A_b"}]})),
            "Hostname value must be empty or contain only valid characters",
        ),
        (
            gateway(json!({"gatewayClassName": "c", "addresses": [{"routability": "a.k8s.io/b"}]})),
            "k8s.io and its subdomains are reserved",
        ),
        (
            gateway(json!({"gatewayClassName": "c", "infrastructure": {"labels": {"-": "a"}}})),
            "Label keys must be in the form of an optional DNS subdomain prefix",
        ),
        (
            parents(json!([{"name": "a"}, {"name": "a"}])),
            "sectionName or port must be unique when parentRefs includes 2 or more references",
        ),
        (
            parents(
                json!([{"name": "a", "namespace": "b"}, {"name": "a", "namespace": "b", "sectionName": "c"}]),
            ),
            "sectionName or port must be specified when parentRefs includes 2 or more references",
        ),
        (route(json!({"backendRefs": [{"name": "a"}]})), "Must have port for Service reference"),
        (
            route(json!({"filters": [redirect], "backendRefs": [{"name": "a", "port": 1}]})),
            "RequestRedirect filter must not be used together with backendRefs",
        ),
        (filters(json!([modifier, modifier])), "RequestHeaderModifier filter cannot be repeated"),
        (
            filters(json!([redirect, {"type": "URLRewrite", "urlRewrite": {"hostname": "b.example"}}])),
            "May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite",
        ),
        (
            filters(mistyped(set, "ResponseHeaderModifier")),
            "filter.requestHeaderModifier must be nil if the filter.type is not RequestHeaderModifier",
        ),
        (
            filters(mistyped(auth, "RequestHeaderModifier")),
            "filter.externalAuth must be nil if the filter.type is not ExternalAuth",
        ),
        (
            filters(json!([{"type": "ExtensionRef"}])),
            "filter.extensionRef must be specified for ExtensionRef filter.type",
        ),
        (
            filters(json!([{"type": "URLRewrite",
                "urlRewrite": {"path": {"type": "ReplaceFullPath", "replacePrefixMatch": "/"}}}])),
            "replaceFullPath must be specified when type is set to 'ReplaceFullPath'",
        ),
        (
            route(
                json!({"matches": [{"path": {"type": "Exact", "value": "/a"}}], "filters": [{"type": "URLRewrite",
                "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}]}),
            ),
            "When using URLRewrite filter with path.replacePrefixMatch, exactly one PathPrefix match",
        ),
        (path("Exact", "a"), "value must be an absolute path and start with '/'"),
        (path("PathPrefix", "/a//b"), "must not contain '//'"),
        (path("PathPrefix", "/a/.."), "must not end with '/..'"),
        (path("Exact", "/a%2fb"), "must not contain '%2f'"),
        (path("Exact", "/ä"), "must only contain valid characters"),
        (
            route(json!({"timeouts": {"request": "1s", "backendRequest": "1m"}})),
            "backendRequest timeout cannot be longer than request timeout",
        ),
        (
            route(json!({"sessionPersistence": {"type": "Cookie"}})),
            "cookie must be specified for Cookie type",
        ),
    ] {
        let told = messages("HTTPRoute", object.clone());
        let told = if object["kind"] == "Gateway" { messages("Gateway", object.clone()) } else { told };
        assert!(told.iter().any(|line| line.contains(message)), "{object}\n{told:?}\n{message}");
    }
}

#[test]
fn rules_are_for_objects_of_the_right_shape() {
    let told = messages("HTTPRoute", route(json!({"backendRefs": [{"name": "a", "port": "x"}]})));
    assert_eq!(told, ["spec.rules[0].backendRefs[0].port: Invalid value: \"x\": must be of type integer"]);
}

#[test]
fn what_only_a_change_can_break_is_not_judged() {
    let mut class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "c"}, "spec": {"controllerName": "example.com/c"}});
    assert_eq!(review("GatewayClass", &mut class), Review::default());
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
            "spec.rules[0].matches[0].headers[0].value: Invalid value: (left out): must be of type string",
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
        [r#"spec.addresses[0].value: Invalid value: "nowhere": must be of format ipv4 or ipv6"#]
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
