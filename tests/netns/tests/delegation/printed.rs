//! "A user could save the generated Ephemeral route config to my-foo-route.yaml, remove the parent
//! and child routes from the cluster, then load my-foo-route.yaml into the cluster, and the system
//! would accept and deploy it as a valid config."

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::family::Family;

#[test]
fn the_printed_route_alone_serves_the_same() {
    for (test, case, hosts, paths) in [
        (
            "printed-main",
            "spec-main-example",
            ["www.example.com", "example.com"].as_slice(),
            [
                "/",
                "/store",
                "/store/images",
                "/store/cart/1",
                "/store/login",
                "/api/login",
                "/api/account",
                "/api/cart",
            ]
            .as_slice(),
        ),
        (
            "printed-two",
            "spec-multiple-gateways-same-class",
            &[
                "testdomain.example.com",
                "subdomain.example.com",
                "other.example.com",
                "subdomain.example.com:81",
            ],
            &["/", "/x"],
        ),
        (
            "printed-hosts",
            "bind-7-hostnames",
            &["www.example.com", "a.shop.example.com", "b.shop.example.com", "api.example.com"],
            &["/", "/one", "/all", "/never"],
        ),
        (
            "printed-headers",
            "user-09-headers-and-queries",
            &["www.example.com"],
            &["/", "/?q=1", "/a?q=1", "/?q=2"],
        ),
        (
            "printed-parts",
            "printed-in-parts",
            &["x0.com", "x14.com", "y0.org", "y14.org", "z.org", "z.com"],
            &["/", "/a/1", "/b", "/c", "/d"],
        ),
    ] {
        compare(test, case, hosts, paths).unwrap_or_else(|error| panic!("{case}: {error:#}"));
    }
}

fn compare(test: &str, case: &str, hosts: &[&str], paths: &[&str]) -> Result<()> {
    let mut family = Family::start(test, case)?;
    let urls: Vec<_> =
        hosts.iter().flat_map(|host| paths.iter().map(move |path| format!("http://{host}{path}"))).collect();
    let before = answers(&family, &urls)?;
    ensure!(
        before.iter().any(|(_, answer)| answer.parse::<u16>().is_err()),
        "no backend serves anything: {before:?}"
    );
    replace_family(&family)?;
    family.restart()?;
    assert_eq!(answers(&family, &urls)?, before, "{case}");
    Ok(())
}

/// With and without a header that some rules ask for.
fn answers(family: &Family, urls: &[String]) -> Result<Vec<(String, String)>> {
    let mut answers = Vec::new();
    for url in urls {
        for headers in [&[][..], &["magic: test", "x: v1", "z: 1"]] {
            answers.push((format!("{url} {headers:?}"), family.ask(url, headers)?));
        }
    }
    Ok(answers)
}

/// The printed objects in place of parents and children; other routes stay.
fn replace_family(family: &Family) -> Result<()> {
    let config = family.scenario.config();
    let directory = config.to_str().context("a path")?;
    let printed = family.scenario.portcullis(&["check", "-f", directory, "--show", "ephemeral"])?;
    let file = config.join("family.yaml");
    let written = fs::read_to_string(&file)?;
    // Children refer to parents, and parents to children or to what they allow.
    let is_of_family = |document: &str| {
        document.contains("\nkind: HTTPRoute\n")
            && ["{kind: HTTPRoute", " kind: HTTPRoute", "allowedRoutes:"]
                .iter()
                .any(|it| document.contains(it))
    };
    let others: Vec<_> = written.split("\n---\n").filter(|document| !is_of_family(document)).collect();
    fs::write(config.join("printed.yaml"), printed)?;
    Ok(fs::write(file, others.join("\n---\n"))?)
}
