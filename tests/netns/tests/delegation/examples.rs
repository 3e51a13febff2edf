//! The specification's examples: every URL reaches the backend that the text says, and what must
//! not match does not.

use crate::family::Family;

#[test]
fn the_main_example() {
    let family = Family::start("main", "spec-main-example").unwrap();
    for (path, headers, answer) in [
        ("/store/images", [].as_slice(), "image-service"),
        ("/store/images/a/b.png", &[], "image-service"),
        ("/store/cart", &[], "cart-service"),
        ("/store/login", &[], "auth-service"),
        ("/store/account/me", &[], "account-service"),
        ("/api/login", &[], "auth-service"),
        ("/api/account", &[], "account-service"),
        ("/", &["magic: test"], "pre-prod-web-service"),
        ("/anything", &["magic: test"], "pre-prod-web-service"),
        // A longer path goes before a header.
        ("/store/cart", &["magic: test"], "cart-service"),
        ("/", &["magic: other"], "404"),
        ("/", &[], "404"),
        ("/store", &[], "404"),
        ("/store/imagesx", &[], "404"),
        ("/images", &[], "404"),
        ("/cart", &[], "404"),
        ("/login", &[], "404"),
        ("/account", &[], "404"),
        ("/api", &[], "404"),
        // The store's child is not included there.
        ("/api/cart", &[], "404"),
        ("/api/images", &[], "404"),
        ("/store/../api/login", &[], "auth-service"),
    ] {
        let url = format!("http://www.example.com{path}");
        assert_eq!(
            family.ask(&url, &[headers, &["X-As-Written: yes"]].concat()).unwrap(),
            answer,
            "{path} {headers:?}"
        );
    }
    assert_eq!(family.ask("http://example.com/store/cart", &[]).unwrap(), "404", "another host");
}

/// "This results in the filter being added to each RouteRule in the child route".
#[test]
fn the_main_examples_filter_is_added_to_the_children_of_its_rule() {
    let family = Family::start("filter", "spec-main-example").unwrap();
    for (path, added) in [
        ("/store/images", true),
        ("/store/cart", true),
        ("/store/login", true),
        ("/store/account", true),
        ("/api/login", false),
        ("/api/account", false),
    ] {
        let answer = family.get(&format!("http://www.example.com{path}?fields"), &[]).unwrap();
        assert_eq!(answer.text.contains("my-source: store"), added, "{path}: {answer:?}");
    }
}

#[test]
fn two_gateways_of_one_class() {
    let family = Family::start("one-class", "spec-multiple-gateways-same-class").unwrap();
    for (url, answer) in [
        ("http://testdomain.example.com/", "foo-svc"),
        ("http://testdomain.example.com/any/where", "foo-svc"),
        ("http://other.example.com/", "default-svc"),
        ("http://subdomain.example.com/", "default-svc"),
        ("http://example.com/", "404"),
        // gateway-b takes the parent and not the child.
        ("http://subdomain.example.com:81/", "default-svc"),
        ("http://testdomain.example.com:81/", "404"),
    ] {
        assert_eq!(family.ask(url, &[]).unwrap(), answer, "{url}");
    }
}

#[test]
fn two_gateways_of_two_classes() {
    let family = Family::start("two-classes", "spec-multiple-gateways-different-classes").unwrap();
    for (url, answer) in [
        ("http://testdomain.example.com/", "foo-svc"),
        ("http://other.example.com/", "default-svc"),
        // The other controller's Gateway is none of ours.
        ("http://subdomain.example.com:81/", "0"),
    ] {
        assert_eq!(family.ask(url, &[]).unwrap(), answer, "{url}");
    }
}
