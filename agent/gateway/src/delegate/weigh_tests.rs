//! Weights between children that `backendRefs` name: the split that requests meet.

use portcullis_model::{Action, BackendTarget};
use serde_json::{Value, json};

use super::family_tests::{Granting, World, bind_all, child_of, get, route, table, to};
use super::*;

/// A parent with these references to children, in this order.
fn listing(children: &[(&str, u32)]) -> Arc<ParsedRoute> {
    let references = children.iter().map(|(name, weight)| {
        json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name, "weight": weight})
    });
    let rules = json!([{"backendRefs": references.collect::<Vec<_>>()}]);
    route("gw/parent", json!({"parentRefs": [{"name": "edge"}], "rules": rules}))
}

fn child(name: &str, rule: Value) -> Arc<ParsedRoute> {
    route(&format!("gw/{name}"), json!({"parentRefs": child_of("gw/parent", None), "rules": [rule]}))
}

fn simple(name: &str) -> Arc<ParsedRoute> {
    child(name, json!({"backendRefs": to(name)}))
}

/// Weight and name of each backend that a request to `/` may come to; or the status of a failure.
fn shares(family: &Family) -> String {
    let table = table(family.routes(), &World::new(Granting::None));
    match &table.find(&get("/")).unwrap().rule.action {
        Action::Fail(failure) => failure.status.as_str().to_owned(),
        Action::Redirect(_) => "redirect".to_owned(),
        Action::Respond(_) => "response".to_owned(),
        Action::Forward(split) => {
            let share = split.backends().iter().map(|backend| match &backend.target {
                BackendTarget::Known(name) => format!("{} {name}", backend.weight),
                BackendTarget::Respond(_) => format!("{} response", backend.weight),
                BackendTarget::Invalid(failure) => format!("{} {}", backend.weight, failure.status.as_str()),
            });
            share.collect::<Vec<_>>().join(", ")
        }
    }
}

fn hints(family: &Family) -> Vec<(&str, usize)> {
    family.children.iter().map(|child| (&*child.child.name.name, child.hints.len())).collect()
}

#[test]
fn the_order_of_conditions_does_not_matter() {
    let header = |name: &str| json!({"name": name, "value": "1"});
    let (one, other) = (json!({"headers": [header("X"), header("y")]}), json!({"method": "GET"}));
    let turned = json!({"headers": [header("Y"), header("x")]});
    let family = bind_all(
        &listing(&[("a", 9), ("b", 1)]),
        &[
            child("a", json!({"matches": [one, other], "backendRefs": to("a")})),
            child("b", json!({"matches": [other, turned], "backendRefs": to("b")})),
        ],
    );
    assert_eq!(shares(&family), "9 gw/a:80, 1 gw/b:80");
}

/// They are two rules with the same matches, of which the first takes the requests; the other
/// child's owner is told.
#[test]
fn other_time_outs_keep_rules_apart() {
    let late = json!({"timeouts": {"request": "1s"}, "backendRefs": to("b")});
    let family = bind_all(&listing(&[("a", 9), ("b", 1)]), &[simple("a"), child("b", late)]);
    assert_eq!(shares(&family), "1 gw/a:80");
    assert_eq!(hints(&family), [("a", 0), ("b", 1)]);
}

/// As many backends as a rule can have; whose do not fit are told.
#[test]
fn sixteen_backends_share_requests() {
    let names: Vec<_> = (10..28).map(|at| format!("c{at}")).collect();
    let listed: Vec<_> = names.iter().take(16).map(|name| (name.as_str(), 1)).collect();
    // Two children of the first sixteen bring two backends each.
    let two = |name: &str| {
        let backends = json!([{"name": name, "port": 80}, {"name": "more", "port": 80}]);
        child(name, json!({"backendRefs": backends}))
    };
    let children: Vec<_> = listed
        .iter()
        .enumerate()
        .map(|(at, (name, _))| if at < 2 { two(name) } else { simple(name) })
        .collect();
    let family = bind_all(&listing(&listed), &children);
    assert_eq!(shares(&family).split(", ").count(), 16);
    let told: Vec<_> = hints(&family).into_iter().filter(|(_, hints)| *hints > 0).collect();
    assert_eq!(told, [("c24", 1), ("c25", 1)]);
}

#[test]
fn names_come_before_all() {
    for order in [["*", "b"], ["b", "*"]] {
        let weights = order.map(|name| (name, if name == "*" { 1 } else { 8 }));
        let family = bind_all(&listing(&weights), &[simple("a"), simple("b")]);
        assert_eq!(shares(&family), "1 gw/a:80, 8 gw/b:80");
    }
}

/// Its share goes to the others; alone, it fails as in a route of its own.
#[test]
fn a_child_whose_backends_have_weight_0_has_no_share() {
    let zero = |name: &str| child(name, json!({"backendRefs": [{"name": name, "port": 80, "weight": 0}]}));
    let parent = listing(&[("a", 9), ("b", 1)]);
    assert_eq!(shares(&bind_all(&parent, &[zero("a"), simple("b")])), "1 gw/b:80");
    assert_eq!(shares(&bind_all(&parent, &[simple("a"), zero("b")])), "9 gw/a:80");
    assert_eq!(shares(&bind_all(&parent, &[zero("a"), zero("b")])), "500");
}

#[test]
fn a_refused_child_has_no_share() {
    let refused = child("b", json!({"matches": [{"path": {"type": "RegularExpression", "value": "("}}]}));
    let family = bind_all(&listing(&[("a", 9), ("b", 1)]), &[simple("a"), refused]);
    assert_eq!(shares(&family), "1 gw/a:80");
}

/// The time for many rules of one child that cannot be told apart is not that of all pairs.
#[test]
fn equal_rules_of_one_child_stay_apart() {
    let rules = vec![json!({"backendRefs": to("a")}); 16];
    let a = route("gw/a", json!({"parentRefs": child_of("gw/parent", None), "rules": rules}));
    let family = bind_all(&listing(&[("a", 9), ("b", 1)]), &[a, simple("b")]);
    assert_eq!(shares(&family), "9 gw/a:80, 1 gw/b:80");
    assert_eq!(family.routes().map(|route| route.rules.len()).sum::<usize>(), 16);
}

/// Sums of weights without a common factor, whose least common multiple no number can hold.
#[test]
fn ratios_hold_whatever_the_weights_are() {
    let child = |name: &str, weights: [u32; 4]| {
        let to = |(at, weight)| json!({"name": format!("{name}{at}"), "port": 80, "weight": weight});
        let backends: Vec<_> = weights.into_iter().enumerate().map(to).collect();
        child(name, json!({"backendRefs": backends}))
    };
    let family = bind_all(
        &listing(&[("a", 1_000_000), ("b", 1), ("c", 1_000_000), ("d", 1_000_000)]),
        &[
            child("a", [1_000_000, 1_000_000, 1_000_000, 999_983]),
            child("b", [1_000_000, 1_000_000, 999_979, 999_961]),
            child("c", [1_000_000, 999_959, 999_953, 999_931]),
            child("d", [1, 0, 0, 0]),
        ],
    );
    let shares = shares(&family);
    let weights: Vec<u64> =
        shares.split(", ").map(|share| share.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(weights[12..], [1_000_000], "{shares}");
    assert!(
        weights[..4].iter().chain(&weights[8..12]).all(|weight| weight.abs_diff(250_000) < 20),
        "{shares}"
    );
    assert!(weights[4..8].iter().all(|weight| *weight == 1), "{shares}");
}
