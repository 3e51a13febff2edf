//! Server names that are read on a node's interface, and connections for those without listener.
#![cfg(test)]

use std::fs;
use std::time::{Duration, Instant};

use portcullis_netns_tests::{CLIENT_INTERFACE, Scenario};
use portcullis_testbed::{Agent, Datapath};

#[test]
fn unknown_names_are_reset_above_their_rate_and_others_served() {
    unknown_names_are_reset(&Scenario::new("names").unwrap());
}

#[test]
fn unknown_names_are_reset_and_others_served_with_syn_cookies() {
    let scenario = Scenario::new("cookies").unwrap();
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2")?)).unwrap();
    unknown_names_are_reset(&scenario);
    let output = scenario.command_on_node("nstat").args(["-asz", "TcpExtSyncookiesRecv"]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let received = output.split_whitespace().skip_while(|word| *word != "TcpExtSyncookiesRecv").nth(1);
    assert!(received.unwrap().parse::<u32>().unwrap() >= 8, "{output}");
}

fn unknown_names_are_reset(scenario: &Scenario) {
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--name-interface", CLIENT_INTERFACE, "--unknown-names", "1"].map(Into::into));
    let agent = launch.start().unwrap();
    assert!(agent.log().contains(&format!("names on {CLIENT_INTERFACE} (attached)")), "{}", agent.log());

    let status = agent.get("/listeners").unwrap();
    assert!(status.contains("1 connections a second and port for names that no listener has"), "{status}");

    // As often as a second takes that gives none back: a busy machine needs longer for some.
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    while outcomes.len() < 4 || !outcomes.contains(&true) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{outcomes:?}");
        let unknown = scenario.request("https://unknown.invalid/").send().unwrap();
        let known = scenario.request("https://shop.example.com/").send().unwrap();
        assert_eq!(known.status, 200, "{known:?}");
        outcomes.push(unknown.text.contains("reset"));
    }
    let all = outcomes.len() as f64;
    assert!(count(&agent, "hello-known-name") >= all);
    assert_eq!(count(&agent, "hello-unknown-name") + count(&agent, "hello-unknown-refused"), all);
    assert_eq!(count(&agent, "hello-unknown-refused") as usize, outcomes.iter().filter(|it| **it).count());
}

#[test]
fn a_rate_of_unknown_names_is_without_effect_where_none_are_read() {
    let scenario = Scenario::new("unnamed").unwrap();
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--unknown-names", "1"].map(Into::into));
    let agent = launch.start().unwrap();
    let log = agent.log();
    assert!(log.contains("--unknown-names 1 is without effect: no interface is named"), "{log}");
    let status = agent.get("/listeners").unwrap();
    assert!(
        status.contains("--unknown-names 1 is without effect: names are read on no interface"),
        "{status}"
    );
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let scenario = Scenario::new("unread").unwrap();
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--name-interface", "later0"].map(Into::into));
    let agent = launch.start().unwrap();
    let metric = "portcullis_interface_unread{interface=\"later0\",reason=\"no-interface\"}";
    assert_eq!(agent.metric(metric).unwrap(), 1.0);
    let served = scenario.request("https://shop.example.com/").send().unwrap();
    assert_eq!(served.status, 200, "{served:?}");
}

fn count(agent: &Agent, reason: &str) -> f64 {
    agent.metric(&format!("portcullis_datapath_verdicts_total{{reason=\"{reason}\"}}")).unwrap()
}
