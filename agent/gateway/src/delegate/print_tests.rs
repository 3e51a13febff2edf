//! Families that do not fit into one object, or whose names are taken: what is printed is valid,
//! and serves the same.

use std::collections::BTreeSet;

use portcullis_api::admission::{Admission, admit};
use portcullis_api::{Change, Object, Objects};
use portcullis_model::RouteTable;
use serde_json::{Value, json};

use super::family_tests::{
    Get, Granting, World, answer, bind_all, child_of, get, open, parsed, prefix, refusal, route, table, to,
};
use super::*;
use crate::{Grants, Reason};

/// The printed routes as an API server takes them, and the world with the printed grants.
pub(super) fn applied(family: &Family, taken: &[&str], mut world: World) -> (Vec<Arc<ParsedRoute>>, World) {
    let (mut names, grants) = (names(taken), Grants::new(&world.objects));
    let mut objects = family.objects(&mut names, grants);
    objects.extend(family.grants(&mut names, grants));
    objects.extend(copied_filters(&mut names, &world.objects));
    let (mut seen, mut applied) = (BTreeSet::new(), Vec::new());
    for object in objects {
        let key = format!("{} {}", object["kind"], object["metadata"]);
        assert!(seen.insert(key), "{} twice", object["metadata"]);
        match admit(object) {
            Admission::Admitted { object, unknown_fields } => {
                assert!(unknown_fields.is_empty(), "{unknown_fields:?}");
                applied.extend(crate::route::parse(&object).map(Arc::new));
                world.apply(object);
            }
            other => panic!("{other:?}"),
        }
    }
    // No Gateway accepts such a route.
    applied.retain(|route| route.refusal().is_none());
    (applied, world)
}

fn applied_alone(family: &Family) -> Vec<Arc<ParsedRoute>> {
    applied(family, &[], World::new(Granting::None)).0
}

fn names(taken: &[&str]) -> Names {
    Names::new(taken.iter().map(|name| {
        let (kind, name) = name.split_once(' ').unwrap_or(("HTTPRoute", name));
        let (namespace, name) = name.split_once('/').unwrap();
        ObjectKey::new(Kind::of("gateway.networking.k8s.io", kind).unwrap(), ObjectName::new(namespace, name))
    }))
}

fn printed_names(family: &Family, taken: &[&str]) -> Vec<String> {
    let objects = family.objects(&mut names(taken), Grants::new(&Objects::default()));
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// A parent with a child for each of `hosts`, which it takes in this order.
fn with_hosts(name: &str, hosts: &[&str]) -> Arc<Family> {
    let parent = route(
        name,
        json!({"parentRefs": [{"name": "edge"}], "rules": [{"matches": prefix("/"), "allowedRoutes": open()}]}),
    );
    let child = |(at, host): (usize, &&str)| {
        let spec = json!({"parentRefs": child_of(name, None), "hostnames": [host],
            "rules": [{"matches": prefix("/a"), "backendRefs": to(&format!("b{at}"))}]});
        route(&format!("gw/c{at}"), spec)
    };
    bind_all(&parent, &hosts.iter().enumerate().map(child).collect::<Vec<_>>())
}

fn same_answers(served: &RouteTable, printed: &RouteTable, requests: &[Get<'_>]) {
    for request in requests {
        let (served, printed) = (answer(served, request), answer(printed, request));
        assert_eq!(served, printed, "{} {}", request.host, request.path);
    }
}

#[test]
fn hostnames_that_one_route_cannot_have_go_to_several() {
    let of_parent = (0..15).map(|at| format!("x{at}.com")).chain(["*.org".to_owned()]);
    let of_child = (0..15).map(|at| format!("y{at}.org")).chain(["*.com".to_owned()]);
    let (of_parent, of_child): (Vec<_>, Vec<_>) = (of_parent.collect(), of_child.collect());
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}], "hostnames": of_parent,
            "rules": [{"matches": prefix("/a"), "allowedRoutes": {}}, {"matches": prefix("/b"), "backendRefs": to("own")}]}),
    );
    let child = route(
        "gw/c",
        json!({"parentRefs": child_of("gw/parent", None), "hostnames": of_child,
            "rules": [{"backendRefs": to("child")}]}),
    );
    let family = bind_all(&parent, &[child]);
    let (printed, world) = applied(&family, &[], World::new(Granting::None));
    let lengths: Vec<_> = printed.iter().map(|route| route.hostnames.len()).collect();
    assert_eq!(lengths, [16, 14, 16]);
    let hosts = ["x0.com", "x14.com", "y0.org", "y14.org", "z.org", "z.com"];
    let requests = hosts.iter().flat_map(|host| ["/a", "/b"].map(|path| Get { host, ..get(path) }));
    same_answers(&table(family.routes(), &world), &table(&printed, &world), &requests.collect::<Vec<_>>());
}

#[test]
fn more_header_actions_than_a_filter_can_have_are_a_conflict() {
    let edit = |prefix: &str, count: usize| {
        let headers = (0..count).map(|at| json!({"name": format!("{prefix}{at}"), "value": "1"}));
        json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": headers.collect::<Vec<_>>()}}])
    };
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}],
        "rules": [{"matches": prefix("/s"), "filters": edit("p", 10), "allowedRoutes": {}}]}),
    );
    let child = |name: &str, count| {
        let rule = json!({"matches": prefix("/c"), "filters": edit("c", count), "backendRefs": to("b")});
        route(&format!("gw/{name}"), json!({"parentRefs": child_of("gw/parent", None), "rules": [rule]}))
    };
    let family = bind_all(&parent, &[child("fits", 6), child("over", 7)]);
    applied_alone(&family);
    assert_eq!(refusal(&family, "over").reason, Reason::Conflicted);
    assert!(
        refusal(&family, "over").message.contains("at most 16 headers"),
        "{:?}",
        refusal(&family, "over")
    );
    assert!(family.children.iter().any(|child| child.is_bound()));
}

#[test]
fn more_filters_than_a_rule_can_have_are_a_conflict() {
    let extensions = |count: usize| {
        let extension = json!({"group": "example.com", "kind": "Later", "name": "l"});
        vec![json!({"type": "ExtensionRef", "extensionRef": extension}); count]
    };
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}],
        "rules": [{"matches": prefix("/s"), "filters": extensions(9), "allowedRoutes": {}}]}),
    );
    let child = route(
        "gw/c",
        json!({"parentRefs": child_of("gw/parent", None),
        "rules": [{"filters": extensions(8), "backendRefs": to("b")}]}),
    );
    let family = bind_all(&parent, &[child]);
    applied_alone(&family);
    assert_eq!(refusal(&family, "c").reason, Reason::Conflicted);
}

/// An invalid rule of the parent that is the only one of its part: as it was written, no Gateway
/// would accept the printed route, and its requests would be answered 404.
#[test]
fn an_invalid_rule_is_printed_as_one_that_fails() {
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}], "rules": [
            {"matches": prefix("/a"), "allowedRoutes": open()},
            {"name": "bad", "matches": [{"path": {"type": "PathPrefix", "value": "/b"}}, {"path": {"type": "RegularExpression", "value": "("}}],
             "backendRefs": to("own")}]}),
    );
    let child = route(
        "gw/c",
        json!({"parentRefs": child_of("gw/parent", None), "hostnames": ["www.example.com"],
        "rules": [{"backendRefs": to("child")}]}),
    );
    let (family, world) = (bind_all(&parent, &[child]), World::new(Granting::None));
    let (served, printed) = (table(family.routes(), &world), table(&applied_alone(&family), &world));
    assert_eq!(answer(&printed, &get("/b")), "500");
    same_answers(&served, &printed, &["/", "/a", "/b", "/("].map(get));
}

#[test]
fn nothing_is_printed_for_a_parent_that_is_not_accepted() {
    let invalid = json!([{"path": {"type": "RegularExpression", "value": "("}}]);
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}], "rules": [{"matches": invalid, "allowedRoutes": {}}]}),
    );
    assert!(applied_alone(&bind_all(&parent, &[])).is_empty());
}

#[test]
fn parts_have_names_of_their_own() {
    let family = with_hosts("gw/web", &["a.com", "b.com", "c.com"]);
    assert_eq!(printed_names(&family, &[]), ["web", "web-e0001", "web-e0002"]);
    let foreign = ["other/web-e0001", "GRPCRoute gw/web-e0001", "gw/wea-e0001"];
    assert_eq!(printed_names(&family, &foreign), ["web", "web-e0001", "web-e0002"]);
    assert_eq!(printed_names(&family, &["gw/web-e0001"]), ["web", "web--e0001", "web--e0002"]);
    assert_eq!(printed_names(&family, &["gw/web---a", "gw/web2"]), ["web", "web----e0001", "web----e0002"]);

    let longest = "w".repeat(253);
    let family = with_hosts(&format!("gw/{longest}"), &["a.com", "b.com"]);
    let names = printed_names(&family, &[&format!("gw/{longest}")]);
    assert!(names.iter().all(|name| name.len() <= 253 && *name != longest), "{names:?}");
    assert!(names.is_sorted() && names[0] != names[1], "{names:?}");
    applied_alone(&family);
}

/// "The whole counts as one route of the parent's age and name" (docs/delegation.md): no other
/// route comes between two of its parts, and none between the printed ones.
#[test]
fn no_other_route_comes_between_parts() {
    let family = with_hosts("gw/web", &["a.com", "b.com"]);
    for (name, expected) in [("gw/web-a", "gw/b1:80"), ("gw/web---a", "gw/b1:80"), ("gw/we", "gw/other:80")] {
        let other = route(
            name,
            json!({"parentRefs": [{"name": "edge"}], "hostnames": ["b.com"],
            "rules": [{"matches": prefix("/a"), "backendRefs": to("other")}]}),
        );
        let served: Vec<_> = family.routes().cloned().chain([other.clone()]).collect();
        let (printed, world) = applied(&family, &[name], World::new(Granting::None));
        let printed: Vec<_> = printed.into_iter().chain([other]).collect();
        let request = Get { host: "b.com", ..get("/a") };
        assert_eq!(answer(&table(&served, &world), &request), expected, "{name}");
        assert_eq!(answer(&table(&printed, &world), &request), expected, "{name}, printed");
    }
}

#[test]
fn grants_have_names_of_their_own() {
    let family = |parent: &str, kind: &str| {
        let (namespace, name) = parent.split_once('/').unwrap();
        let manifest = |namespace: &str, name: &str, spec: Value| {
            parsed(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"namespace": namespace, "name": name, "generation": 1}, "spec": spec}))
        };
        let own = json!({"parentRefs": [{"name": "edge"}], "rules": [{"allowedRoutes": open()}]});
        let reference = json!([{"kind": kind, "namespace": namespace, "name": name}]);
        let child = json!({"parentRefs": reference, "rules": [{"backendRefs": to("s")}]});
        bind_all(&manifest(namespace, name, own), &[manifest("shop", "c", child)])
    };
    let families = [
        family("infra/a-web", "HTTPRoute"),
        family("infra-a/web", "HTTPRoute"),
        family("infra/a-web", "GRPCRoute"),
        family(&format!("infra/{}", "w".repeat(253)), "HTTPRoute"),
    ];
    let mut names = names(&["ReferenceGrant shop/infra-a-web"]);
    let (objects, mut grants) = (Objects::default(), Vec::new());
    for family in &families {
        grants.extend(family.grants(&mut names, Grants::new(&objects)));
    }
    let names: Vec<_> = grants.iter().map(|grant| grant["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["infra-a-web-2", "infra-a-web-3", "infra-a-web-4"]);
    assert_eq!(names[3].len(), 253);
    for grant in grants {
        assert!(matches!(admit(grant.clone()), Admission::Admitted { .. }), "{grant}");
    }
}

#[test]
fn a_grant_names_no_more_services_than_it_can() {
    let parent =
        route("gw/parent", json!({"parentRefs": [{"name": "edge"}], "rules": [{"allowedRoutes": open()}]}));
    let backends: Vec<_> = (0..16).map(|at| json!({"name": format!("s{at}"), "port": 80})).collect();
    let rules = json!([{"matches": prefix("/a"), "backendRefs": backends}, {"backendRefs": to("last")}]);
    let child = route("shop/c", json!({"parentRefs": child_of("gw/parent", None), "rules": rules}));
    let family = bind_all(&parent, &[child]);
    let grants = family.grants(&mut Names::default(), Grants::new(&Objects::default()));
    let lengths: Vec<_> = grants.iter().map(|grant| grant["spec"]["to"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [16, 1]);
    applied_alone(&family);
}

/// In the parent's namespace, where the route is printed, a child's reference would have rights
/// that the child has not, and lack those that it has.
#[test]
fn what_a_child_may_not_refer_to_is_not_printed_as_what_the_parent_may() {
    let backends = |names: &[&str]| {
        let references = names.iter().map(|name| {
            let (namespace, name) = name.split_once('/').unwrap();
            json!({"namespace": namespace, "name": name, "port": 80})
        });
        references.collect::<Value>()
    };
    let rule = |path: &str, names: &[&str]| json!({"matches": prefix(path), "backendRefs": backends(names)});
    let parent = route(
        "gw/parent",
        json!({"parentRefs": [{"name": "edge"}], "rules": [
            {"matches": prefix("/s"), "allowedRoutes": open()}, rule("/own", &["shop/cart"])]}),
    );
    let spec = |rules: Value| json!({"parentRefs": child_of("gw/parent", None), "rules": rules});
    let rules = [
        rule("/parents", &["gw/web"]),
        rule("/third", &["third/db"]),
        rule("/some", &["gw/web", "shop/cart"]),
        rule("/other", &["other/db"]),
    ];
    let child = route("shop/c", spec(json!(rules)));
    // What is printed for this one must not help the other to a right.
    let twin = route("twin/c", spec(json!([rule("/twin", &["other/db"]), rule("/cart", &["shop/cart"])])));
    let family = bind_all(&parent, &[child, twin]);
    let granting = || World::new(Granting::None).granting(&[("gw", "third"), ("shop", "other")]);
    let (printed, world) = applied(&family, &[], granting());
    let (served, printed) = (table(family.routes(), &granting()), table(&printed, &world));
    for (path, expected) in [
        ("/s/parents", "500"),
        ("/s/third", "500"),
        ("/s/some", "500"),
        ("/s/other", "other/db:80"),
        ("/s/twin", "500"),
        ("/s/cart", "500"),
        ("/own", "500"),
    ] {
        assert_eq!(answer(&served, &get(path)), expected, "{path}");
        assert_eq!(answer(&printed, &get(path)), expected, "{path}, printed");
    }
}

/// Their targets would be open where the printed routes are applied.
#[test]
fn policies_on_children_and_on_rules_for_them_are_left_behind() {
    let rules = json!([{"name": "below", "matches": prefix("/a"), "allowedRoutes": open()},
        {"name": "own", "matches": prefix("/b"), "backendRefs": to("b")}]);
    let parent = route("gw/web", json!({"parentRefs": [{"name": "edge"}], "rules": rules}));
    let rules = json!([{"name": "pay", "backendRefs": to("c")}]);
    let child = route("gw/c", json!({"parentRefs": child_of("gw/web", None), "rules": rules}));
    let left_behind = |family: &Family, route: &str, rule: Option<&str>| {
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route, "sectionName": rule});
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "TrafficPolicy",
            "metadata": {"name": "p", "namespace": "gw"}, "spec": {"targetRefs": [target]}});
        let mut objects = Objects::default();
        objects.apply(Change::Set(Object::from_json(policy).unwrap().unwrap()));
        let printed = family.objects(&mut Names::default(), Grants::new(&objects));
        family.policies_left_behind(&printed, &objects)
    };
    let one = bind_all(&parent, &[child]);
    for (route, rule, is_left) in [
        ("web", None, false),
        ("web", Some("own"), false),
        ("web", Some("below"), true),
        ("c", None, true),
        ("c", Some("pay"), true),
        ("other", None, false),
    ] {
        assert_eq!(!left_behind(&one, route, rule).is_empty(), is_left, "{route} {rule:?}");
    }
    let [line] = left_behind(&one, "c", Some("pay")).try_into().unwrap();
    let expected = "TrafficPolicy gw/p holds for HTTPRoute gw/c rule pay, and not for what is printed of it here (HTTPRoute gw/web rules[0]):";
    assert!(line.starts_with(expected), "{line}");
    let several = with_hosts("gw/web", &["a.example", "b.example"]);
    let [line] = left_behind(&several, "web", None).try_into().unwrap();
    assert!(line.contains("(HTTPRoute gw/web-e0001 rules[0])"), "{line}");
}
