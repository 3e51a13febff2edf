//! The line about each annotation: none becomes anything that is not written.

use serde_json::{Value, json};

use crate::{documents, ingress, portcullis, text};

/// The line about an annotation of shop/app, without the names: outcome and text.
fn told_of<'a>(told: &'a str, annotation: &str) -> Vec<&'a str> {
    let own = told.lines().filter_map(|line| line.strip_prefix("shop/app")?.trim_start().split_once(' '));
    own.filter(|(subject, _)| *subject == annotation).map(|(_, rest)| rest.trim_start()).collect()
}

/// Each is a part of another annotation, and nothing without it, or beside another value of it.
#[test]
fn what_is_a_part_of_another_annotation_becomes_nothing_alone() {
    let cases = [
        (vec![("canary-weight", "20")], "canary: true"),
        (vec![("canary-by-header-value", "new"), ("canary-by-header", "X")], "canary-by-header"),
        (vec![("session-cookie-name", "route")], "affinity: cookie"),
        (vec![("auth-tls-verify-client", "on")], "auth-tls-secret"),
        (vec![("auth-response-headers", "X-User")], "auth-url"),
        (vec![("permanent-redirect-code", "308")], "permanent-redirect"),
        (vec![("proxy-ssl-secret", "shop/ca"), ("backend-protocol", "HTTP")], "backend-protocol: HTTPS"),
        (vec![("proxy-ssl-verify", "off"), ("backend-protocol", "GRPC")], "backend-protocol: HTTPS"),
        (vec![("cors-max-age", "600"), ("enable-cors", "false")], "enable-cors: true"),
        (vec![("limit-burst-multiplier", "3")], "limit-rps or limit-rpm"),
    ];
    for (annotations, whole) in cases {
        let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &annotations);
        let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
        let of_part = told_of(&told, annotations[0].0);
        let wanted = format!("without effect without {whole}");
        assert!(
            matches!(of_part[..], [it] if it.starts_with("not needed") && it.contains(&wanted)),
            "{told}"
        );
    }
}

/// Of a closed Ingress there are a route that answers 503, and what redirects to it.
#[test]
fn nothing_becomes_what_is_not_written() {
    let all = [
        ("proxy-body-size", "8m"),
        ("limit-rps", "5"),
        ("enable-cors", "true"),
        ("cors-max-age", "600"),
        ("affinity", "cookie"),
        ("load-balance", "round_robin"),
        ("enable-opentelemetry", "true"),
        ("rewrite-target", "/new"),
    ];
    let closing = [("server-snippet", "deny all;")];
    let mut without_port = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    without_port["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["port"] =
        json!({"name": "http"});
    let both = [all.as_slice(), &closing].concat();
    let closed = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &both);
    let other = ingress("shop", "other", "app.example.com", ("/other", "Prefix"), &closing);
    let open = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    for objects in [vec![without_port], vec![closed], vec![open.clone(), other]] {
        let converted = portcullis(&["convert", "-"], &documents(&objects));
        let (written, told) = (text(&converted.stdout), text(&converted.stderr));
        assert!(told.contains("CLOSED"), "{told}");
        assert!(!told.contains("became") && !told.contains("maxRequestBody"), "{told}");
        for (annotation, _) in all {
            let lines = told_of(&told, annotation);
            assert!(lines.iter().all(|it| it.starts_with("lost")) && !lines.is_empty(), "{told}");
        }
        let kinds = ["TrafficPolicy", "BackendPolicy", "PathRewrite"];
        assert!(!kinds.iter().any(|kind| written.contains(kind)), "{written}");
    }
    let told = text(&portcullis(&["convert", "-"], &documents(&[open])).stderr);
    assert!(told_of(&told, "proxy-body-size")[0].starts_with("became"), "{told}");
}

/// Rules that redirect have no other filter, and no field.
#[test]
fn beside_a_redirect_filters_become_nothing() {
    let beside = [
        ("enable-cors", "true"),
        ("configuration-snippet", "more_clear_headers Server;"),
        ("affinity", "cookie"),
        ("proxy-read-timeout", "5"),
        ("rewrite-target", "/new"),
    ];
    let redirect = [("permanent-redirect", "https://a.example$request_uri")];
    let all = [redirect.as_slice(), &beside].concat();
    let object = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &all);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    for (annotation, _) in beside {
        let lines = told_of(&told, annotation);
        assert!(matches!(lines[..], [it] if it.starts_with("lost")), "{told}");
    }
    assert!(told_of(&told, "permanent-redirect")[0].starts_with("differs"), "{told}");
}

#[test]
fn a_canary_beside_a_closed_path_becomes_nothing() {
    let closed = ingress("shop", "main", "app.example.com", ("/", "Prefix"), &[("server-snippet", "a b;")]);
    let canary = [("canary", "true"), ("canary-weight", "20")];
    let canary = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &canary);
    let told = text(&portcullis(&["convert", "-"], &documents(&[closed, canary])).stderr);
    for annotation in ["canary", "canary-weight"] {
        let lines = told_of(&told, annotation);
        assert!(matches!(lines[..], [it] if it.starts_with("lost")), "{told}");
    }
}

#[test]
fn a_redirect_to_tls_that_is_closed_becomes_nothing() {
    let forced = [("force-ssl-redirect", "true")];
    let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &forced);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    let lines = told_of(&told, "force-ssl-redirect");
    assert!(matches!(lines[..], [it] if it.starts_with("CLOSED")), "{told}");
}

/// A limit is of each target of a policy, where it was of an Ingress.
#[test]
fn a_limit_that_becomes_several_is_told_of() {
    let mut limited = ingress("shop", "app", "a.example.com", ("/", "Prefix"), &[("limit-rpm", "10")]);
    let mut other = limited["spec"]["rules"][0].clone();
    other["host"] = json!("b.example.com");
    let both = |rule: Value| json!([limited["spec"]["rules"][0], rule]);
    let (same, mut different) = (both(other.clone()), other);
    different["http"]["paths"][0]["path"] = json!("/b");
    let different = both(different);
    for (rules, status) in [(same, 0), (different, 1)] {
        limited["spec"]["rules"] = rules;
        let converted = portcullis(&["convert", "-"], &documents(std::slice::from_ref(&limited)));
        let told = text(&converted.stderr);
        assert_eq!(converted.status.code(), Some(status), "{told}");
        assert_eq!(told.contains("UNPROTECTED"), status == 1, "{told}");
    }
}

/// F5's controller has other annotations, and the class `nginx`, too.
#[test]
fn annotations_of_another_controller_are_named_once() {
    let mut object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    for annotation in ["nginx.org/rewrites", "nginx.org/server-snippets", "nginx.com/jwt-realm"] {
        object["metadata"]["annotations"][annotation] = json!("a");
    }
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    for prefix in ["nginx.org/*", "nginx.com/*"] {
        let lines: Vec<_> = told.lines().filter(|line| line.contains(prefix)).collect();
        assert!(matches!(lines[..], [line] if line.contains("lost") && line.contains("F5")), "{told}");
    }
}

/// Without TLS, all of the host is redirected; with it, connections are passed on.
#[test]
fn where_all_is_passed_on_nothing_becomes_of_requests() {
    let annotations = [("ssl-passthrough", "true"), ("app-root", "/home"), ("rewrite-target", "/new")];
    let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &annotations);
    let converted = portcullis(&["convert", "-"], &documents(&[object]));
    let (written, told) = (text(&converted.stdout), text(&converted.stderr));
    assert!(written.contains("kind: TLSRoute") && !written.contains("kind: RouteFilter"), "{written}");
    for annotation in ["app-root", "rewrite-target"] {
        let lines = told_of(&told, annotation);
        assert!(matches!(lines[..], [it] if it.starts_with("not needed")), "{told}");
    }
}

#[test]
fn of_two_redirects_the_temporal_one_is_done() {
    let both =
        [("permanent-redirect", "https://b.example.com"), ("temporal-redirect", "https://a.example.com")];
    let object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &both);
    let converted = portcullis(&["convert", "-"], &documents(&[object]));
    let (written, told) = (text(&converted.stdout), text(&converted.stderr));
    assert!(written.contains("statusCode: 302") && !written.contains("b.example.com"), "{written}");
    assert!(told_of(&told, "permanent-redirect")[0].starts_with("not needed"), "{told}");
}

#[test]
fn a_canary_of_no_kind_goes_beside_a_prefix() {
    let main = ingress("shop", "main", "app.example.com", ("/", "Prefix"), &[]);
    let canary = [("canary", "true"), ("canary-weight", "20")];
    let canary = ingress("shop", "app", "app.example.com", ("/", "ImplementationSpecific"), &canary);
    let told = text(&portcullis(&["convert", "-"], &documents(&[main, canary])).stderr);
    assert!(told_of(&told, "canary")[0].starts_with("became"), "{told}");
}

/// The second would have had the header's requests of another path's.
#[test]
fn a_canary_goes_beside_its_kind_of_path_alone() {
    let main = ingress("shop", "main", "app.example.com", ("/a", "Exact"), &[]);
    let canary = [("canary", "true"), ("canary-weight", "20")];
    let canary = ingress("shop", "app", "app.example.com", ("/a", "Prefix"), &canary);
    let told = text(&portcullis(&["convert", "-"], &documents(&[main, canary])).stderr);
    assert!(told_of(&told, "canary")[0].starts_with("lost"), "{told}");
}

#[test]
fn a_service_that_two_speak_to_in_two_ways_is_told_of() {
    let grpc = ingress("shop", "app", "a.example.com", ("/", "Prefix"), &[("backend-protocol", "GRPC")]);
    let mut other = ingress("shop", "other", "b.example.com", ("/", "Prefix"), &[]);
    other["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("app");
    let told = text(&portcullis(&["convert", "-"], &documents(&[grpc, other])).stderr);
    let line = told.lines().find(|line| line.starts_with("shop/other"));
    assert!(line.is_some_and(|line| line.contains("one policy holds for a Service")), "{told}");
}

#[test]
fn what_is_no_ingress_by_its_kind_is_told_of() {
    let mut object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    object["kind"] = json!("ingress");
    let mut nameless = object.clone();
    nameless.as_object_mut().unwrap().remove("kind");
    for (object, what) in [(object, "write kind: Ingress"), (nameless, "has no kind")] {
        let converted = portcullis(&["convert", "-"], &documents(&[object]));
        let told = text(&converted.stderr);
        assert!(told.contains(what) && told.contains("no Ingress in the input"), "{told}");
        assert_eq!(converted.status.code(), Some(1), "{told}");
    }
    let converted = portcullis(&["convert", "-"], &documents(&[crate::service("shop", "app")]));
    assert!(text(&converted.stderr).contains("no Ingress in the input"));
}

/// A host has the aliases of its first Ingress that has any.
#[test]
fn a_second_ingress_adds_no_alias() {
    let alias = |name: &str, path: &str, alias: &str| {
        ingress("shop", name, "app.example.com", (path, "Prefix"), &[("server-alias", alias)])
    };
    let objects = [alias("aaa", "/", "one.example.net"), alias("app", "/q", "two.example.net")];
    let converted = portcullis(&["convert", "-"], &documents(&objects));
    let (written, told) = (text(&converted.stdout), text(&converted.stderr));
    assert!(written.contains("one.example.net") && !written.contains("two.example.net"), "{written}");
    assert!(told_of(&told, "server-alias")[0].starts_with("lost"), "{told}");
}

/// In ingress-nginx the server for all other hosts comes first, and has the alias.
#[test]
fn an_alias_beside_a_rule_without_host_differs() {
    let alias = [("server-alias", "alias.example.net")];
    let mut object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &alias);
    let told = |object: &Value| {
        let told = text(&portcullis(&["convert", "-"], &documents(std::slice::from_ref(object))).stderr);
        told_of(&told, "server-alias").concat()
    };
    assert!(told(&object).starts_with("became"), "{}", told(&object));
    let mut rest = object["spec"]["rules"][0].clone();
    rest.as_object_mut().unwrap().remove("host");
    object["spec"]["rules"].as_array_mut().unwrap().push(rest);
    assert!(told(&object).starts_with("differs"), "{}", told(&object));
}

/// ingress-nginx has it beside the Service.
#[test]
fn a_canary_beside_one_path_of_several_differs() {
    let mut main = ingress("shop", "main", "app.example.com", ("/", "Prefix"), &[]);
    let mut other = main["spec"]["rules"][0]["http"]["paths"][0].clone();
    other["path"] = json!("/api");
    main["spec"]["rules"][0]["http"]["paths"].as_array_mut().unwrap().push(other);
    let canary = [("canary", "true"), ("canary-weight", "20")];
    let canary = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &canary);
    let told = text(&portcullis(&["convert", "-"], &documents(&[main, canary])).stderr);
    assert!(told_of(&told, "canary").iter().any(|it| it.starts_with("differs")), "{told}");
}

#[test]
fn paths_that_nginx_reads_otherwise_are_told_of() {
    for (path, what) in [("/a/", "without its last /"), ("/a%20b", "%25")] {
        let object = ingress("shop", "app", "app.example.com", (path, "Prefix"), &[]);
        let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
        assert!(told_of(&told, path).iter().any(|it| it.contains(what)), "{told}");
    }
}

/// The paths that no route can have are closed with their host, of which nothing else is said.
#[test]
fn lines_are_about_what_is_there() {
    let object =
        ingress("shop", "app", "app.example.com", ("//admin", "Prefix"), &[("limit-connections", "0")]);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object])).stderr);
    assert!(told.contains("CLOSED") && !told.contains("its backend is no Service"), "{told}");
    assert!(told_of(&told, "limit-connections")[0].starts_with("not needed"), "{told}");
}
