//! Names of the objects that come out.

use serde_json::json;

use crate::{documents, ingress, portcullis, text};

/// Names of hosts and Ingresses that lead to the same names of objects, more hosts than an object
/// takes, and a name as long as names are.
#[test]
fn names_are_those_of_one_object_whatever_the_order() {
    let secure = |name: &str, hosts: &[String], annotations: &[(&str, &str)]| {
        let mut object = ingress("shop", name, &hosts[0], ("/", "Prefix"), annotations);
        let rule = object["spec"]["rules"][0].clone();
        let rules = hosts.iter().map(|host| {
            let mut rule = rule.clone();
            rule["host"] = json!(host);
            rule
        });
        object["spec"]["rules"] = rules.collect();
        object["spec"]["tls"] = json!([{"hosts": hosts, "secretName": "tls"}]);
        object
    };
    let host = |name: &str| vec![format!("{name}.example.com")];
    let many: Vec<_> = (0..150).map(|number| format!("h{number}.example.com")).collect();
    let www = [("from-to-www-redirect", "true")];
    let mut objects = vec![
        secure("app", &host("app"), &www),
        secure("app-again", &host("app"), &www),
        secure("app-www", &host("b"), &www),
        secure("app-to-https", &host("c"), &[]),
        secure("many", &many, &[]),
        secure("many-2", &host("d"), &[]),
        secure(&"l".repeat(253), &host("e"), &[("rewrite-target", "/$1")]),
        secure("wild", &host("*"), &[]),
        secure("any", &["any.example.com".to_owned()], &[]),
        secure("one-ca", &host("f"), &[("auth-tls-secret", "a-b")]),
        secure("other-ca", &host("g"), &[("auth-tls-secret", "a")]),
    ];
    let forth = portcullis(&["convert", "-"], &documents(&objects));
    assert_eq!(forth.status.code(), Some(0), "{}", text(&forth.stderr));
    objects.reverse();
    let back = portcullis(&["convert", "-"], &documents(&objects));
    assert_eq!((text(&forth.stdout), text(&forth.stderr)), (text(&back.stdout), text(&back.stderr)));
    let checked = text(&portcullis(&["check", "-f", "-"], &text(&forth.stdout)).stdout);
    assert!(!checked.contains("Refused") && !checked.contains("DefinedTwice"), "{checked}");
    assert!(!checked.contains("Conflicted"), "{checked}");
}

/// An object of the input that has a name keeps it, and what is written has another.
#[test]
fn names_of_the_input_are_not_written_again() {
    let denied = [("whitelist-source-range", "192.0.2.1"), ("rewrite-target", "/new")];
    let object = ingress("shop", "app", "app.example.com", ("/old", "Prefix"), &denied);
    let given = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": {}});
    let objects = [
        object,
        given("TrafficPolicy", "portcullis.dev/v1alpha1", "app"),
        given("RouteFilter", "portcullis.dev/v1alpha1", "app-rewrite"),
        given("HTTPRoute", "gateway.networking.k8s.io/v1", "app"),
    ];
    let written = text(&portcullis(&["convert", "-", "-o", "json"], &documents(&objects)).stdout);
    let written: Vec<serde_json::Value> = serde_json::from_str(&written).unwrap();
    let name = |kind: &str| {
        let is_it = |object: &&serde_json::Value| object["kind"] == kind;
        written.iter().find(is_it).unwrap()["metadata"]["name"].as_str().unwrap().to_owned()
    };
    assert!(name("TrafficPolicy").starts_with("app-") && name("HTTPRoute").starts_with("app-"));
    assert_ne!(name("RouteFilter"), "app-rewrite");
    let policy = written.iter().find(|object| object["kind"] == "TrafficPolicy").unwrap();
    assert_eq!(policy["spec"]["targetRefs"][0]["name"], *name("HTTPRoute"));
}
