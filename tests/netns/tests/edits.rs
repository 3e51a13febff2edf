//! Edits of the directory while clients are served.
#![cfg(test)]

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use portcullis_netns_tests::Scenario;
use portcullis_testbed::{quickstart, until};

const ROUNDS: u32 = 60;

#[test]
fn no_request_fails_while_everything_else_is_edited() {
    let scenario = Scenario::new("edits").unwrap();
    let agent = scenario.start_agent().unwrap();
    let kinds = [
        ("h1", ["--http1.1"].as_slice()),
        ("h2", &["--http2"]),
        ("close", &["--http1.1", "--header", "Connection: close"]),
    ];
    let load = kinds.map(|(name, arguments)| {
        let request = scenario.request("https://shop.example.com/load").with(arguments);
        request.repeat(scenario.file(name)).unwrap()
    });
    for round in 1..=ROUNDS {
        edit_route(&scenario, round).unwrap();
        quickstart::write_secrets(&scenario.config(), &scenario.authority).unwrap();
        edit_listener(&scenario, round).unwrap();
        let visible = || {
            let answer = scenario.request("https://blog.example.com/posts/1").send()?;
            ensure!(answer.text.contains(&format!("x-round: {round}\r")), "{answer:?}");
            Ok(())
        };
        until(Duration::from_secs(60), visible).unwrap();
    }
    let answered = scenario.shop.requests();
    for load in load {
        load.finish().unwrap_or_else(|error| panic!("{error:#}; the agent's log:\n{}", agent.log()));
    }
    assert!(answered > 300, "the load was no load: {answered} requests");
}

/// The blog's answers carry the round's number.
fn edit_route(scenario: &Scenario, round: u32) -> Result<()> {
    let path = scenario.config().join("blog.yaml");
    let text = fs::read_to_string(&path)?;
    let now = format!("- name: X-Round\n                value: \"{round}\"");
    let before = if round == 1 {
        "- name: X-Team\n                value: blog".to_owned()
    } else {
        format!("- name: X-Round\n                value: \"{}\"", round - 1)
    };
    ensure!(text.contains(&before), "no {before} in {text}");
    Ok(fs::write(path, text.replace(&before, &now))?)
}

/// A listener of a third team comes, moves from port to port, and goes.
fn edit_listener(scenario: &Scenario, round: u32) -> Result<()> {
    let path = scenario.config().join("third.yaml");
    if round.is_multiple_of(3) {
        return Ok(fs::remove_file(path)?);
    }
    let port = 9000 + round;
    let listener_set = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{name: third, namespace: shop}}\n\
         spec:\n  parentRef: {{name: edge, namespace: infra}}\n  listeners:\n  \
         - {{name: http, port: {port}, protocol: HTTP}}\n"
    );
    Ok(fs::write(path, listener_set)?)
}
