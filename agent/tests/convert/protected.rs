//! Protection: all that kept requests out keeps them out.

use serde_json::{Value, json};

use crate::served::{get, serve_input};
use crate::{cases, documents, ingress, input, portcullis, service, text};

#[test]
fn nothing_that_kept_requests_out_is_passed_over_in_silence() {
    let input = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: broken, namespace: shop}
spec: {rules: nonsense}
---
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: old, namespace: shop}
spec: {backend: {serviceName: a, servicePort: 80}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: limited, namespace: shop, annotations: {nginx.ingress.kubernetes.io/limit-connections: "5"}}
spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: controller, namespace: ingress-nginx}
data: {global-auth-url: "http://auth/verify", enable-modsecurity: "false"}
"#;
    let converted = portcullis(&["convert", "-"], input);
    assert_eq!(converted.status.code(), Some(1));
    let told = text(&converted.stderr);
    for (name, what) in [
        ("shop/broken", "spec.rules is no list"),
        ("shop/old", "apiVersion is extensions/v1beta1"),
        ("shop/limited", "UNPROTECTED"),
        ("ingress-nginx/controller", "UNPROTECTED"),
    ] {
        let mut lines = told.lines().filter(|line| line.starts_with(name));
        assert!(lines.any(|line| line.contains(what)), "{name}: {told}");
    }
    assert!(!told.contains("enable-modsecurity") && !text(&converted.stdout).contains("name: old"), "{told}");
}

/// `ImplementationSpecific` is `Prefix` in ingress-nginx: of two, the older has the path.
#[test]
fn a_path_of_no_kind_is_a_prefix_of_segments() {
    let (host, regex) = ("shared.example.com", "regex.example.com");
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let specific = "ImplementationSpecific";
    let mut objects = vec![
        ingress("a", "admin", host, ("/admin", specific), &denied),
        ingress("a", "limit", host, ("/a", specific), &[("limit-rps", "1000")]),
        ingress("a", "other", regex, ("/admin", specific), &denied),
        ingress("z", "evil", host, ("/admin", "Prefix"), &[]),
        ingress("z", "evil-too", regex, ("/admin", "Prefix"), &[]),
        ingress("z", "expression", regex, ("/x(y)", specific), &[("use-regex", "true")]),
        ingress("z", "rest", host, ("/", "Prefix"), &[]),
    ];
    let names = [("a", "admin"), ("a", "limit"), ("a", "other"), ("z", "evil"), ("z", "evil-too")];
    let services = [&names[..], &[("z", "expression"), ("z", "rest")]].concat();
    objects.extend(services.iter().map(|(namespace, name)| service(namespace, name)));
    let services: Vec<_> = services.into_iter().map(|(namespace, name)| (namespace, name, name)).collect();
    let agent = serve_input(&documents(&objects), &services);
    for (host, path, end) in [
        (host, "/a", "limit"),
        (host, "/a/b", "limit"),
        (host, "/abc", "rest"),
        (host, "/adminx", "rest"),
        (regex, "/xy", "expression"),
    ] {
        let answer = get(&agent, host, path, "");
        assert!(answer.ends_with(end), "{path}: {answer}");
    }
    for (host, path) in [(host, "/admin"), (host, "/admin/x"), (regex, "/admin"), (regex, "/admin/x")] {
        let answer = get(&agent, host, path, "");
        assert!(answer.starts_with("http/1.1 403 "), "{host}{path}: {answer}");
    }
}

/// A path that is protected is so at the other names of its host, and no wider host has its
/// requests.
#[test]
fn other_names_are_protected_as_well() {
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let mut objects = vec![
        ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[("server-alias", "alias.example.net")]),
        ingress("shop", "admin", "app.example.com", ("/admin", "Prefix"), &denied),
        ingress("shop", "narrow", "narrow.example.com", ("/in", "Prefix"), &denied),
        ingress("shop", "wide", "*.example.com", ("/", "Prefix"), &[]),
        ingress(
            "zoo",
            "evil",
            "evil.example.net",
            ("/admin", "Prefix"),
            &[("server-alias", "alias.example.net")],
        ),
    ];
    let services =
        [("shop", "app"), ("shop", "admin"), ("shop", "narrow"), ("shop", "wide"), ("zoo", "evil")];
    objects.extend(services.map(|(namespace, name)| service(namespace, name)));
    let agent = serve_input(&documents(&objects), &services.map(|(namespace, name)| (namespace, name, name)));
    for (host, path, status) in [
        ("app.example.com", "/admin", "403"),
        ("alias.example.net", "/admin", "403"),
        ("alias.example.net", "/", "200"),
        ("narrow.example.com", "/in", "403"),
        ("narrow.example.com", "/other", "403"),
        ("x.example.com", "/other", "200"),
    ] {
        let answer = get(&agent, host, path, "");
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{host}{path}: {answer}");
    }
}

/// Each with a word of the line that says so.
#[test]
fn what_may_be_weaker_is_closed() {
    let host = "app.example.com";
    let of = |annotations: &[(&str, &str)]| vec![ingress("shop", "app", host, ("/", "Prefix"), annotations)];
    let beside = |annotations: &[(&str, &str)], other: Value| [of(annotations), vec![other]].concat();
    let users = [("auth-type", "basic"), ("auth-secret", "users")];
    let look_around = ingress(
        "shop",
        "look",
        host,
        ("/((?!public).*)", "ImplementationSpecific"),
        &[users.as_slice(), &[("use-regex", "true")]].concat(),
    );
    let mut old = ingress("shop", "old", host, ("/admin", "Prefix"), &users);
    old["apiVersion"] = json!("networking.k8s.io/v1beta1");
    let mut classified = ingress("shop", "other", "other.example.com", ("/", "Prefix"), &[]);
    classified["spec"]["ingressClassName"] = json!("internal");
    let mut host_is_number = ingress("shop", "number", host, ("/", "Prefix"), &[]);
    host_is_number["spec"]["rules"][0]["host"] = json!(12);
    let mut forgotten = ingress("shop", "forgotten", host, ("/", "Prefix"), &[]);
    forgotten["metadata"]["annotations"]["nginx.ingress.kubernetes.io/enable-modsecurity"] = json!(true);
    let elsewhere = ingress("evil", "sso", "sso.example.com", ("/", "Prefix"), &[]);
    let mut without_host = ingress("shop", "app", host, ("/", "Prefix"), &[("auth-tls-secret", "ca")]);
    without_host["spec"] = json!({
        "ingressClassName": "nginx",
        "defaultBackend": {"service": {"name": "app", "port": {"number": 80}}},
        "tls": [{"secretName": "tls"}],
    });
    let taken = ingress(
        "evil",
        "taken",
        host,
        ("/oauth2/auth(x)", "ImplementationSpecific"),
        &[("use-regex", "true")],
    );
    let cases = [
        (of(&[("auth-url", "https://$host/oauth2/auth")]), "what it is to protect"),
        (beside(&[("auth-url", "https://$host/oauth2/auth")], taken), "is an expression that may take it"),
        (of(&[("auth-url", "http://auth.infra.svc/?allowed_groups=a")]), "it has a query"),
        (beside(&[("auth-url", "https://sso.example.com/check")], elsewhere), "another namespace"),
        (of(&[("auth-proxy-set-headers", "shop/fields")]), "who is allowed"),
        (of(&[("auth-tls-secret", "bank/tls")]), "a grant would let Gateways of shop"),
        (of(&[("configuration-snippet", "more_clear_headers Server; deny all;")]), "deny all"),
        (of(&[("limit-rps", "many")]), "no number of requests"),
        (of(&[("whitelist-source-range", ",")]), "no range"),
        (
            of(&[("whitelist-source-range", "10.0.0.1"), ("allowlist-source-range", "10.0.0.0/8")]),
            "other ranges",
        ),
        (of(&[("rewrite-target", "/public/$host")]), "variables of nginx"),
        (of(&[("backend-protocol", "FCGI")]), "is not spoken"),
        (beside(&[], look_around), "look-around"),
        (beside(&[], old), "its hosts are closed"),
        (beside(&[], host_is_number), "host is no text"),
        (of(&[("auth-url", "http://auth.infra.svc/a b")]), "TrafficPolicy shop/app"),
        (vec![without_host], "no host that could ask"),
        (vec![forgotten], "ModSecurity"),
        (vec![classified], "may be another controller's"),
    ];
    for (objects, what) in cases {
        let converted = portcullis(&["convert", "-"], &documents(&objects));
        let told = text(&converted.stderr);
        let line = told.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {told}"));
        assert!(line.contains("CLOSED"), "{line}");
        assert_eq!(converted.status.code(), Some(1), "{what}");
        assert!(!text(&converted.stdout).contains("kind: ReferenceGrant"), "{what}");
        // No request reaches the application.
        let routed = text(&converted.stdout).contains("backendRefs:\n    - name: app");
        assert!(!routed || what == "host is no text", "{what}: {}", text(&converted.stdout));
    }
}

#[test]
fn a_younger_ingress_passes_on_no_connections_of_a_host() {
    let mut bank = ingress("bank", "bank", "bank.example.com", ("/", "Prefix"), &[]);
    bank["spec"]["tls"] = json!([{"hosts": ["bank.example.com"], "secretName": "tls"}]);
    bank["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    let passed = [("ssl-passthrough", "true")];
    let mut evil = ingress("evil", "evil", "bank.example.com", ("/evil", "Prefix"), &passed);
    evil["metadata"]["creationTimestamp"] = json!("2024-01-01T00:00:00Z");
    let written = text(&portcullis(&["convert", "-"], &documents(&[evil, bank])).stdout);
    assert!(!written.contains("TLSRoute") && written.contains("protocol: HTTPS"), "{written}");
}

/// Over TLS, a wildcard's listener would have had the requests, and its routes.
#[test]
fn a_host_without_a_certificate_is_protected_at_the_listener_of_a_wider_one() {
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let admin = ingress("shop", "admin", "admin.example.com", ("/", "Prefix"), &denied);
    let mut wide = ingress("wide", "wide", "*.example.com", ("/", "Prefix"), &[]);
    wide["spec"]["tls"] = json!([{"hosts": ["*.example.com"], "secretName": "wildcard"}]);
    let output = portcullis(&["convert", "-", "-o", "json"], &documents(&[admin, wide])).stdout;
    let objects: Vec<Value> = serde_json::from_slice(&output).unwrap();
    let of = |kind: &str, namespace: &str| {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["namespace"] == namespace;
        objects.iter().find(is_it).unwrap()
    };
    let parents = &of("HTTPRoute", "shop")["spec"]["parentRefs"];
    assert_eq!(parents[1]["sectionName"], "any.example.com", "{parents}");
    let namespaces = &of("ListenerSet", "wide")["spec"]["listeners"][0]["allowedRoutes"]["namespaces"];
    let values = &namespaces["selector"]["matchExpressions"][0]["values"];
    assert_eq!(*values, json!(["shop", "wide"]), "{namespaces}");
}

#[test]
fn what_protects_is_applied_before_what_it_protects() {
    for case in cases() {
        let written = text(&portcullis(&["convert", "-"], &input(&case)).stdout);
        let policy = written.rfind("\nkind: TrafficPolicy").unwrap_or(0);
        let route = written.find("\nkind: HTTPRoute").unwrap_or(usize::MAX);
        assert!(policy < route, "{}", case.display());
    }
}

/// Of an object that is there twice no one is believed, and which comes first changes nothing.
#[test]
fn an_ingress_that_is_there_twice_is_closed() {
    let open = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    let denied = [("denylist-source-range", "127.0.0.1")];
    let denying = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &denied);
    let of = |objects: &[Value]| {
        let output = portcullis(&["convert", "-"], &documents(objects));
        (text(&output.stdout), text(&output.stderr), output.status.code())
    };
    let both = of(&[open.clone(), denying.clone()]);
    assert_eq!(both, of(&[denying, open.clone()]));
    assert!(both.1.contains("in the input twice") && both.2 == Some(1), "{both:?}");
    assert_eq!(of(&[open.clone(), open.clone()]).2, of(&[open]).2);
}

/// Each is protected there, beside an application that is open: nginx decodes paths, asks the
/// longest text first, of equal ones the greater, and reads switches as Go does.
#[test]
fn what_nginx_would_protect_is_protected() {
    let (yes, regex) = (("use-regex", "True"), ("use-regex", "true"));
    let denied = ("denylist-source-range", "0.0.0.0/0");
    let of = |name: &str, path: &str, kind: &str, annotations: &[(&str, &str)]| {
        ingress("shop", name, &format!("{}.example.com", &name[1..]), (path, kind), annotations)
    };
    let objects = [
        of("aspelled", "/", "Prefix", &[]),
        of("bspelled", "/v1:admin", "Prefix", &[denied]),
        of("cspelled", "/@me", "Exact", &[denied]),
        of("aexpression", "/", "Prefix", &[]),
        of("bexpression", "/c\\+/(x|y)", "ImplementationSpecific", &[denied, yes]),
        of("aequal", "/[a-z]+/", "ImplementationSpecific", &[regex]),
        of("bequal", "/admin/.", "ImplementationSpecific", &[denied, regex]),
        of("aalternative", "/static|/assets", "ImplementationSpecific", &[regex]),
        of("balternative", "/static/private/", "ImplementationSpecific", &[denied, regex]),
        of("alost", "/a/b", "Exact", &[]),
        of("blost", "/a", "Prefix", &[denied]),
        of("clost", "/a", "Prefix", &[regex]),
    ];
    let services = [("shop", "aspelled"), ("shop", "aexpression"), ("shop", "aequal")];
    let services = services.map(|(namespace, name)| service(namespace, name));
    let input = documents(&[&objects[..], &services].concat());
    let agent = serve_input(&input, &[]);
    for (host, paths) in [
        ("spelled", &["/v1:admin", "/v1%3Aadmin/a", "/v1%3aadmin", "/@me", "/%40me"][..]),
        ("expression", &["/c+/x", "/c%2B/y/a", "/C%2b/x"]),
        ("equal", &["/admin/x"]),
        ("alternative", &["/static/private/key"]),
        ("lost", &["/a/b/c", "/a"]),
    ] {
        for path in paths {
            let answer = get(&agent, &format!("{host}.example.com"), path, "");
            assert!(answer.starts_with("http/1.1 403 "), "{host}{path}: {answer}");
        }
    }
}

/// A rule that is dropped alone would leave its paths to another Ingress.
#[test]
fn a_rule_of_several_that_is_not_taken_closes_its_host() {
    let open = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    let regex = [("use-regex", "true"), ("denylist-source-range", "0.0.0.0/0")];
    let mut staff = ingress(
        "shop",
        "staff",
        "app.example.com",
        ("/admin/(?!public).*", "ImplementationSpecific"),
        &regex,
    );
    let mut other = staff["spec"]["rules"][0]["http"]["paths"][0].clone();
    other["path"] = json!("/reports/.*");
    staff["spec"]["rules"][0]["http"]["paths"].as_array_mut().unwrap().push(other);
    let converted = portcullis(&["convert", "-"], &documents(&[open, staff]));
    let told = text(&converted.stderr);
    assert!(told.lines().any(|line| line.contains("CLOSED") && line.contains("look-around")), "{told}");
    assert!(!text(&converted.stdout).contains("backendRefs"), "{}", text(&converted.stdout));
}

/// Without the Secret nothing says that the certificate is for the other host, too.
#[test]
fn a_host_that_a_certificate_may_be_for_is_told_of() {
    let redirected = [("ssl-redirect", "true")];
    let mut object = ingress("shop", "app", "b.example.com", ("/", "Prefix"), &redirected);
    object["spec"]["tls"] = json!([{"hosts": ["example.com"], "secretName": "wild"}]);
    let told = text(&portcullis(&["convert", "-"], &documents(&[object.clone()])).stderr);
    assert!(told.lines().any(|line| line.contains("UNPROTECTED") && line.contains("Secret wild")), "{told}");
    let certificate = rcgen::generate_simple_self_signed(vec!["*.example.com".to_owned()]).unwrap();
    let data = json!({"tls.crt": certificate.cert.pem(), "tls.key": certificate.signing_key.serialize_pem()});
    let metadata = json!({"name": "wild", "namespace": "shop"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "stringData": data});
    let written = text(&portcullis(&["convert", "-"], &documents(&[object, secret])).stdout);
    assert!(written.contains("hostname: b.example.com") && written.contains("name: wild"), "{written}");
}

/// Each with a word of the line that says so.
#[test]
fn what_would_not_do_the_same_is_closed() {
    let of = |annotations: &[(&str, &str)]| {
        vec![ingress("shop", "app", "app.example.com", ("/a", "Prefix"), annotations)]
    };
    let beside = |mut objects: Vec<Value>, object: Value| {
        objects.push(object);
        objects
    };
    let mut unclassified = of(&[]);
    unclassified[0]["spec"].as_object_mut().unwrap().remove("ingressClassName");
    let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "nginx"},
        "spec": {"controller": "k8s.io/ingress-nginx"}});
    let mut external = service("shop", "app");
    external["spec"]["type"] = json!("ExternalName");
    let users = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users", "namespace": "shop"},
        "stringData": {"htpasswd": "ann:{SHA}a"}});
    let basic = [("auth-type", "basic"), ("auth-secret", "users")];
    for (objects, what) in [
        (beside(unclassified, class), "it has no class"),
        (beside(of(&[]), external), "ExternalName"),
        (beside(of(&basic), users), "no key auth"),
        (of(&[("rewrite-target", "/x//y")]), "RouteFilter shop/app-rewrite"),
    ] {
        let converted = portcullis(&["convert", "-"], &documents(&objects));
        let told = text(&converted.stderr);
        let line = told.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {told}"));
        assert!(line.contains("CLOSED"), "{line}");
        assert!(!text(&converted.stdout).contains("backendRefs"), "{what}: {}", text(&converted.stdout));
    }
}

/// In a host of expressions, that of `/` is the implicit `/` first, which takes all.
#[test]
fn an_exact_root_takes_no_host_of_expressions() {
    let host = "app.example.com";
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let mut evil = ingress("zoo", "evil", host, ("/", "Exact"), &[("use-regex", "true")]);
    let mut other = evil["spec"]["rules"][0]["http"]["paths"][0].clone();
    (other["path"], other["pathType"]) = (json!("/zz9"), json!("Prefix"));
    evil["spec"]["rules"][0]["http"]["paths"].as_array_mut().unwrap().push(other);
    let objects = [
        ingress("shop", "app", host, ("/", "Prefix"), &denied),
        evil,
        service("shop", "app"),
        service("zoo", "evil"),
    ];
    let agent = serve_input(&documents(&objects), &[("shop", "app", "app"), ("zoo", "evil", "evil")]);
    for path in ["/", "/secret"] {
        let answer = get(&agent, host, path, "");
        assert!(answer.starts_with("http/1.1 403 "), "{path}: {answer}");
    }
    assert!(get(&agent, host, "/zz9", "").ends_with("evil"));
}

/// As in ingress-nginx, that of a host is its first Ingress', and that of all hosts one without
/// rules, of which neither expressions nor rewrites are.
#[test]
fn a_default_backend_takes_nothing_of_another() {
    let denied = [("whitelist-source-range", "192.0.2.1"), ("rewrite-target", "/$1")];
    let backend = |name: &str| json!({"service": {"name": name, "port": {"number": 80}}});
    let mut all = ingress("shop", "all", "", ("/", "Prefix"), &denied);
    all["spec"] = json!({"ingressClassName": "nginx", "defaultBackend": backend("all")});
    let mut anywhere = ingress("zoo", "anywhere", "", ("/pub", "Exact"), &[]);
    anywhere["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    anywhere["spec"]["defaultBackend"] = backend("anywhere");
    let app = ingress("bank", "app", "app.example.com", ("/a", "Prefix"), &denied[..1]);
    let mut late = ingress("zoo", "late", "app.example.com", ("/b", "Prefix"), &[]);
    late["spec"]["defaultBackend"] = backend("late");
    let mut objects = vec![all, anywhere, app, late];
    let services = [("shop", "all"), ("zoo", "anywhere"), ("bank", "app"), ("zoo", "late")];
    objects.extend(services.map(|(namespace, name)| service(namespace, name)));
    let input = documents(&objects);
    let told = text(&portcullis(&["convert", "-"], &input).stderr);
    for line in ["zoo/anywhere  spec.defaultBackend", "zoo/late      spec.defaultBackend"] {
        assert!(told.contains(line), "{told}");
    }
    let agent = serve_input(&input, &services.map(|(namespace, name)| (namespace, name, name)));
    for (host, path, end) in [
        ("any.example.org", "/x", None),
        ("any.example.org", "/public/secret", None),
        ("any.example.org", "/pub", Some("anywhere")),
        ("app.example.com", "/a", None),
        ("app.example.com", "/b", Some("late")),
        ("app.example.com", "/zzz", None),
    ] {
        let answer = get(&agent, host, path, "");
        assert_eq!(end.is_none(), answer.starts_with("http/1.1 40"), "{host}{path}: {answer}");
        assert!(end.is_none_or(|end| answer.ends_with(end)), "{host}{path}: {answer}");
    }
}

#[test]
fn what_protects_and_has_no_path_is_alarming() {
    let open = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let taken = ingress("zoo", "taken", "app.example.com", ("/", "Prefix"), &denied);
    let converted = portcullis(&["convert", "-"], &documents(&[open, taken]));
    let told = text(&converted.stderr);
    let line = told.lines().find(|line| line.contains("whitelist-source-range"));
    assert!(line.is_some_and(|line| line.contains("UNPROTECTED")), "{told}");
    assert_eq!(converted.status.code(), Some(1));
}

/// The fields may be a secret of theirs.
#[test]
fn fields_are_copied_of_no_other_namespace() {
    let fields = [("custom-headers", "victim/settings")];
    let object = ingress("zoo", "evil", "evil.example.com", ("/", "Prefix"), &fields);
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "victim"},
        "data": {"password": "hunter2"}});
    let converted = portcullis(&["convert", "-"], &documents(&[object, settings]));
    let (written, told) = (text(&converted.stdout), text(&converted.stderr));
    assert!(!written.contains("hunter2") && told.contains("CLOSED"), "{written}{told}");
}

#[test]
fn annotations_of_another_prefix_are_told_of() {
    let mut object = ingress("shop", "app", "app.example.com", ("/", "Prefix"), &[]);
    for name in ["custom.io/whitelist-source-range", "ingress.kubernetes.io/ssl-redirect", "custom.io/else"] {
        object["metadata"]["annotations"][name] = json!("192.0.2.1");
    }
    let converted = portcullis(&["convert", "-"], &documents(&[object]));
    let told = text(&converted.stderr);
    let line = |name: &str| told.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(line("custom.io/whitelist-source-range").contains("UNPROTECTED"), "{told}");
    assert!(line("ingress.kubernetes.io/ssl-redirect").contains("lost"), "{told}");
    assert!(line("custom.io/else").is_empty(), "{told}");
    assert_eq!(converted.status.code(), Some(1));
}

/// Such a host has no path, and a wider one has none of its requests.
#[test]
fn a_host_without_paths_is_of_no_wider_host() {
    let wide = ingress("shop", "wide", "*.example.com", ("/", "Prefix"), &[]);
    let mut none = ingress("zoo", "none", "other.example.net", ("/", "Prefix"), &[]);
    none["spec"]["rules"].as_array_mut().unwrap().push(json!({"host": "x.example.com"}));
    let objects = [wide, none, service("shop", "wide"), service("zoo", "none")];
    let agent = serve_input(&documents(&objects), &[("shop", "wide", "wide"), ("zoo", "none", "none")]);
    for (host, status) in [("x.example.com", 404), ("y.example.com", 200), ("other.example.net", 200)] {
        let answer = get(&agent, host, "/", "");
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{host}: {answer}");
    }
}

/// Of expressions so many that no lengths keep their order, those of the namespace that brings
/// them.
#[test]
fn many_expressions_close_those_who_bring_them() {
    let host = "app.example.com";
    let denied = [("whitelist-source-range", "192.0.2.1")];
    for (count, is_closed) in [(200, false), (1100, true)] {
        let app = ingress("shop", "app", host, ("/zzzzzzzz/admin", "Prefix"), &denied);
        let mut evil = ingress("zoo", "evil", host, ("/", "Prefix"), &[("use-regex", "true")]);
        let path = evil["spec"]["rules"][0]["http"]["paths"][0].clone();
        let paths = (0..count).map(|number| {
            let mut path = path.clone();
            path["path"] = json!(format!("/(p{number:04})"));
            path
        });
        evil["spec"]["rules"][0]["http"]["paths"] = paths.collect();
        let converted = portcullis(&["convert", "-"], &documents(&[app, evil]));
        let (written, told) = (text(&converted.stdout), text(&converted.stderr));
        let closed: Vec<_> = told.lines().filter(|line| line.contains("  CLOSED ")).collect();
        assert_eq!(!closed.is_empty(), is_closed, "{told}");
        assert!(closed.iter().all(|line| line.starts_with("zoo/evil")), "{told}");
        assert!(written.contains("backendRefs:\n    - name: app\n"), "{told}");
    }
}

/// Expressions take a path in any case; of equal length, nginx asks the greater text first.
#[test]
fn a_path_in_another_case_takes_none_that_is_asked_before_it() {
    let host = "app.example.com";
    let denied = [("whitelist-source-range", "192.0.2.1")];
    let mut evil = ingress("zoo", "evil", host, ("/Admin", "Prefix"), &[("use-regex", "true")]);
    evil["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    let app = ingress("shop", "app", host, ("/admin", "Prefix"), &denied);
    let objects = [evil, app, service("zoo", "evil"), service("shop", "app")];
    let agent = serve_input(&documents(&objects), &[("zoo", "evil", "evil"), ("shop", "app", "app")]);
    for path in ["/admin", "/Admin/x"] {
        let answer = get(&agent, host, path, "");
        assert!(answer.starts_with("http/1.1 403 "), "{path}: {answer}");
    }
}
