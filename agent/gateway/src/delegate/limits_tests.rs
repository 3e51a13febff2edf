//! The bounds of a family: how many children and combinations it keeps, and whose share they come
//! out of.

use serde_json::{Value, json};

use super::family_tests::{
    Granting, World, bind_all, child_of, open, prefix, printed, refusal, route, serve, shop, to,
};
use super::*;
use crate::Reason;

#[test]
fn too_many_children_are_refused_the_youngest_first() {
    let parent = shop(json!([{"allowedRoutes": {}}]));
    let children: Vec<_> = (0..MOST_CHILDREN_OF_A_RULE + 1)
        .map(|at| {
            route(
                &format!("gw/c{at:04}"),
                json!({"parentRefs": child_of("gw/parent", None),
            "rules": [{"matches": prefix(&format!("/{at}")), "backendRefs": to("x")}]}),
            )
        })
        .collect();
    let family = bind_all(&parent, &children);
    assert_eq!(family.children.iter().filter(|child| child.is_bound()).count(), MOST_CHILDREN_OF_A_RULE);
    assert_eq!(refusal(&family, "c0256").reason, Reason::LimitExceeded);
    assert_eq!(family.parent_conditions(|_| true)[0].reason, "PartiallyAttached");
    assert!(printed(&family).iter().all(|object| object["spec"]["rules"].as_array().unwrap().len() <= 16));
}

/// 64 alternatives below 64: the third child would be one too many.
#[test]
fn too_many_combinations_are_refused() {
    let alternatives = |prefix: &str| {
        let matched = |at| json!({"path": {"type": "PathPrefix", "value": format!("/{prefix}{at}")}});
        (0..64).map(matched).collect::<Value>()
    };
    let parent = shop(json!([{"matches": alternatives("p"), "allowedRoutes": {}}]));
    let child = |name: &str| {
        let rules = json!([{"matches": alternatives(name), "backendRefs": to(name)}]);
        route(&format!("gw/{name}"), json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let children = ["a", "b", "c"].map(child);
    let family = bind_all(&parent, &children);
    assert_eq!(refusal(&family, "c").reason, Reason::LimitExceeded);
    assert_eq!(family.children.iter().filter(|child| child.is_bound()).count(), 2);
    assert_eq!(
        (serve(&family, "/p63/b63"), serve(&family, "/p63/c63")),
        ("gw/b:80".to_owned(), "404".to_owned())
    );
    // With room for it, it binds; what is known makes no difference.
    let world = World::new(Granting::None);
    let fewer = bind(&parent, &children[1..], &world, Some(&family));
    assert!(fewer.children.iter().all(|child| child.is_bound()));
    assert_eq!(printed(&fewer), printed(&bind_all(&parent, &children[1..])));
    let again = bind(&parent, &children, &world, Some(&fewer));
    assert_eq!((printed(&again), &again.children), (printed(&family), &family.children));
}

/// 16 rules with 8 matches each, as one object of 9 KiB: below as many of the parent's that is more
/// than all children together may come to.
fn of_128_matches(name: &str, delegates: bool) -> Value {
    let matched = |rule, at| json!({"path": {"type": "PathPrefix", "value": format!("/{name}{rule}-{at}")}});
    let rule = |rule| {
        let matches: Vec<_> = (0..8).map(|at| matched(rule, at)).collect();
        if delegates {
            json!({"matches": matches, "allowedRoutes": open()})
        } else {
            json!({"matches": matches, "backendRefs": to("x")})
        }
    };
    (0..16).map(rule).collect()
}

/// The matches that a family keeps in memory, bound or not.
fn kept(family: &Family) -> usize {
    let items = family.pairs.iter().flat_map(|pair| pair.rules()).flat_map(|(_, items)| items);
    items.map(|item| item.draft.matches.len()).sum()
}

/// A namespace full of refused children costs nothing that is kept, and takes no room from a
/// younger child of another namespace.
#[test]
fn a_hostile_namespace_costs_what_is_bound() {
    let parent = shop(of_128_matches("p", true));
    let child = |name: &str, rules: Value| {
        route(name, json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let mut children: Vec<_> =
        (0..40).map(|at| child(&format!("evil/c{at}"), of_128_matches(&format!("c{at}"), false))).collect();
    children.push(child("shop/good", json!([{"matches": prefix("/good"), "backendRefs": to("good")}])));
    let family = bind_all(&parent, &children);
    assert_eq!(kept(&family), 128);
    assert_eq!(serve(&family, "/p0-0/good"), "shop/good:80");
    let refusals = (0..40).map(|at| refusal(&family, &format!("c{at}")).reason);
    assert!(refusals.into_iter().all(|reason| reason == Reason::LimitExceeded));
}

/// Nor do children that are bound: where there is not room for all, each namespace has its share,
/// and what is known makes no difference.
#[test]
fn a_namespace_of_many_children_takes_no_room_from_others() {
    let parent = shop(json!([
        {"matches": prefix("/a"), "allowedRoutes": open()},
        {"matches": prefix("/b"), "allowedRoutes": open()},
    ]));
    let child = |name: &str, rules: Value| {
        route(name, json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let evil = |at: usize| child(&format!("evil/c{at:03}"), of_128_matches(&format!("c{at}"), false));
    let small = |name: &str, at: usize| {
        child(name, json!([{"matches": prefix(&format!("/{at}")), "backendRefs": to("x")}]))
    };
    let older: Vec<_> = (0..MOST_COMBINATIONS / (2 * 128)).map(evil).collect();
    let full = bind_all(&parent, &older);
    assert!(full.children.iter().all(|child| child.is_bound()));
    let mut children = older;
    children.push(child("shop/good", of_128_matches("good", false)));
    let family = bind(&parent, &children, &World::new(Granting::None), Some(&full));
    assert_eq!(serve(&family, "/b/good15-7"), "shop/x:80");
    let refused: Vec<_> = family.children.iter().filter(|child| !child.is_bound()).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refusal(&family, "c031").reason, Reason::LimitExceeded);
    assert_eq!(family.children, bind_all(&parent, &children).children);

    // The children of a rule are counted by namespace.
    let mut children: Vec<_> =
        (0..MOST_CHILDREN_OF_A_RULE).map(|at| small(&format!("evil/c{at:03}"), at)).collect();
    children.push(small("shop/good", 1000));
    assert_eq!(serve(&bind_all(&parent, &children), "/a/1000"), "shop/x:80");
}

/// Combinations count by what they take in memory.
#[test]
fn long_conditions_count_for_more() {
    let headers: Vec<_> =
        (0..16).map(|at| json!({"name": format!("x-{at}"), "value": "v".repeat(4096)})).collect();
    let parent = shop(json!([{"matches": of_128_matches("p", true)[0]["matches"], "allowedRoutes": open()}]));
    let matches: Vec<_> = (0..16)
        .map(|at| json!({"path": {"type": "PathPrefix", "value": format!("/{at}")}, "headers": headers}))
        .collect();
    let child = |name: &str| {
        let rules = json!([{"matches": matches, "backendRefs": to("x")}]);
        route(name, json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let family = bind_all(&parent, &[child("gw/a")]);
    assert_eq!(refusal(&family, "a").reason, Reason::LimitExceeded);
}

/// Children in conflict are tried only as often as their own namespace has a right to.
#[test]
fn conflicts_of_a_namespace_are_tried_within_a_limit_of_its_own() {
    let parent = shop(json!([{"matches": of_128_matches("p", true)[0]["matches"], "allowedRoutes": open()}]));
    let conflict = |at: usize| {
        let mut rules = of_128_matches(&format!("c{at}"), false);
        rules[15]["matches"][7]["path"]["type"] = json!("RegularExpression");
        route(&format!("evil/c{at:03}"), json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let tried = MOST_COMBINATIONS_IN_VAIN / (8 * 128);
    let mut children: Vec<_> = (0..=tried).map(conflict).collect();
    let good = |name| {
        route(
            name,
            json!({"parentRefs": child_of("gw/parent", None),
        "rules": [{"matches": prefix("/good"), "backendRefs": to("good")}]}),
        )
    };
    children.extend([good("evil/good"), good("shop/good")]);
    let family = bind_all(&parent, &children);
    assert_eq!(refusal(&family, &format!("c{:03}", tried - 1)).reason, Reason::Conflicted);
    assert_eq!(refusal(&family, &format!("c{tried:03}")).reason, Reason::LimitExceeded);
    let bound: Vec<_> = family
        .children
        .iter()
        .filter(|child| child.is_bound())
        .map(|child| child.child.name.to_string())
        .collect();
    assert_eq!(bound, ["shop/good"]);
    assert_eq!(kept(&family), 8);
}
