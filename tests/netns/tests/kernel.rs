//! What the kernel programs do for a node, with packets from outside.
#![cfg(test)]

use std::time::Duration;

use portcullis_netns_tests::Scenario;
use portcullis_testbed::{Agent, until};

#[test]
fn a_port_nobody_listens_on_is_dropped_and_counted() {
    let scenario = Scenario::new("drop").unwrap();
    let agent = scenario.start_agent().unwrap();
    assert_eq!(dropped(&agent), 0.0);

    let answer = scenario.request("http://shop.example.com:81/").with(&["--max-time", "2"]).send().unwrap();
    assert_eq!(answer.code, Some(28), "dropped, not refused: {answer:?}");
    assert!(dropped(&agent) >= 1.0);
    let served = scenario.request("http://shop.example.com/").send().unwrap();
    assert_eq!(served.status, 301, "{served:?}");
}

#[test]
fn a_crashed_agents_programs_are_adopted() {
    let scenario = Scenario::new("adopt").unwrap();
    let first = scenario.start_agent().unwrap();
    assert!(!first.log().contains("(adopted)"), "{}", first.log());
    let launch = first.crash().unwrap();

    let refused = scenario.request("http://shop.example.com/").send().unwrap();
    assert_eq!(refused.code, Some(7), "no agent, no socket: refused at once: {refused:?}");
    let second = launch.start().unwrap();
    assert!(second.log().contains("(adopted)"), "{}", second.log());
    let served = || {
        let answer = scenario.request("https://shop.example.com/").send()?;
        anyhow::ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    until(Duration::from_secs(5), served).unwrap();
}

fn dropped(agent: &Agent) -> f64 {
    agent.metric("portcullis_datapath_verdicts_total{reason=\"dropped-no-listener\"").unwrap()
}
