//! An agent that starts takes over from the one that serves, under load: no request fails, and no
//! connection is refused.
#![cfg(test)]

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use portcullis_netns_tests::{Load, Scenario};
use portcullis_testbed::{Datapath, Launch};

const SHOP: &str = "https://shop.example.com/";
const CLOSE: [&str; 2] = ["-H", "Connection: close"];

#[test]
fn no_request_fails_when_agents_with_kernel_programs_take_over_from_each_other() {
    take_over_under_load("hand-ebpf", [Datapath::Ebpf, Datapath::Ebpf]);
}

#[test]
fn no_request_fails_when_agents_with_ordinary_sockets_take_over_from_each_other() {
    take_over_under_load("hand-sockets", [Datapath::Userspace, Datapath::Userspace]);
}

#[test]
fn no_request_fails_when_the_datapath_changes_with_the_agent() {
    take_over_under_load("hand-both", [Datapath::Ebpf, Datapath::Userspace]);
}

fn take_over_under_load(test: &str, datapaths: [Datapath; 2]) {
    let scenario = Scenario::new(test).unwrap();
    let mut agent = scenario.launch_with(datapaths[0]).unwrap().start().unwrap();
    let launch = scenario.launch_with(datapaths[0]).unwrap();
    let loads = loads(&scenario);
    for turn in 1..=6 {
        let before = scenario.shop.requests();
        // With another number of cores each time; with an admin socket of its own, or the same.
        let scratch = match turn % 3 {
            0 => launch.scratch.clone(),
            _ => scenario.file(&format!("agent{turn}")),
        };
        let datapath = datapaths[turn % 2];
        let cores = (1 + turn % 3).to_string();
        let next = with(&launch, &["--take-over", "--cores", &cores]);
        let mut next = Launch { scratch, datapath, ..next }.spawn().unwrap();
        agent.wait_succeeded().unwrap();
        next.wait_ready().unwrap();
        agent = next;
        let goes_on = || {
            let answered = scenario.shop.requests() - before;
            anyhow::ensure!(answered > 100, "{answered} requests");
            Ok(())
        };
        portcullis_testbed::until(Duration::from_secs(20), goes_on).unwrap();
    }
    loads.into_iter().for_each(|load| load.finish().unwrap());
    let log = agent.log();
    assert!(log.contains("took over from the agent that served"), "{log}");
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

#[test]
fn an_agent_that_cannot_take_over_costs_the_other_nothing() {
    let scenario = Scenario::new("hand-not").unwrap();
    let launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    let first = launch.clone().start().unwrap();
    let loads = loads(&scenario);
    let apart = Launch { scratch: scenario.file("second"), ..launch.clone() };

    // Of another installation.
    fs::create_dir(scenario.file("elsewhere")).unwrap();
    let other = Launch { config: scenario.file("elsewhere"), ..with(&apart, &["--take-over"]) };
    let said = other.spawn().unwrap().refusal().unwrap();
    assert!(said.contains("hands nothing over: it belongs to directory"), "{said}");

    // It may not use the kernel programs.
    let unable = Launch { pins: scenario.file("no-bpf"), ..with(&apart, &["--take-over"]) };
    let said = unable.spawn().unwrap().refusal().unwrap();
    assert!(said.contains("cannot use the kernel programs"), "{said}");

    // It is not told to.
    let said = apart.clone().spawn().unwrap().refusal().unwrap();
    assert!(said.contains("stop it first"), "{said}");

    loads.into_iter().for_each(|load| load.finish().unwrap());
    let next = with(&apart, &["--take-over"]).spawn().unwrap();
    first.wait_succeeded().unwrap();
    drop(next);
}

/// Clients that keep their connection, and one that makes a new one for each request.
fn loads(scenario: &Scenario) -> Vec<Load> {
    let request = |arguments: &[&'static str]| scenario.request(SHOP).with(arguments);
    let forms: [(&str, &[&str]); 3] = [("http1", &["--http1.1"]), ("http2", &["--http2"]), ("close", &CLOSE)];
    forms.map(|(name, form)| request(form).repeat(scenario.file(name)).unwrap()).into()
}

fn with(launch: &Launch, arguments: &[&str]) -> Launch {
    let more = arguments.iter().map(OsString::from);
    Launch { arguments: launch.arguments.iter().cloned().chain(more).collect(), ..launch.clone() }
}
