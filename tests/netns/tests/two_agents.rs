//! A second agent in the network namespace of a first one: it ends and says why, and no request of
//! the first fails.
#![cfg(test)]

use portcullis_netns_tests::Scenario;
use portcullis_testbed::{Datapath, Launch};

#[test]
fn a_second_agent_costs_the_first_nothing_with_kernel_programs() {
    refused_in_time("two-ebpf", Datapath::Ebpf);
}

#[test]
fn a_second_agent_costs_the_first_nothing_with_ordinary_sockets() {
    refused_in_time("two-sockets", Datapath::Userspace);
}

fn refused_in_time(test: &str, datapath: Datapath) {
    let scenario = Scenario::new(test).unwrap();
    let launch = scenario.launch_with(datapath).unwrap();
    let first = launch.clone().start().unwrap();
    let pid = format!("process {} (portcullis)", first.pid());
    let connections = scenario.request("https://shop.example.com/").with(&["-H", "Connection: close"]);
    let load = connections.repeat(scenario.file("load")).unwrap();

    // With all the same arguments, and with an admin socket of its own.
    for scratch in [launch.scratch.clone(), scenario.file("second")] {
        let said = Launch { scratch, ..launch.clone() }.spawn().unwrap().refusal().unwrap();
        assert!(said.contains(&pid) && said.contains("stop it first"), "{said}");
    }
    // With a pin directory of its own as well, but the first one's admin socket.
    let pins = launch.pins.with_file_name(format!("portcullis-{test}-second"));
    let second = Launch { pins: pins.clone(), ..launch.clone() };
    let said = second.spawn().unwrap().refusal().unwrap();
    assert!(said.contains(&pid) && said.contains("--admin-socket"), "{said}");
    assert!(!pins.exists(), "nothing is made for an agent that does not run");

    let served = scenario.request("https://shop.example.com/").send().unwrap();
    assert_eq!(served.status, 200, "{served:?}");
    load.finish().unwrap();
}

/// Two agents with pin directories of their own may share a node, but no port.
#[test]
fn ordinary_sockets_are_not_bound_beside_those_of_another_agent() {
    let scenario = Scenario::new("two-ports").unwrap();
    let launch = scenario.launch_with(Datapath::Userspace).unwrap();
    let first = launch.clone().start().unwrap();
    let connections = scenario.request("https://shop.example.com/").with(&["-H", "Connection: close"]);
    let load = connections.repeat(scenario.file("load")).unwrap();
    let (scratch, pins) = (scenario.file("second"), scenario.file("pins"));
    let second = Launch { scratch, pins, ..launch }.spawn().unwrap();
    let expected = format!("process {} (portcullis) listens on", first.pid());
    let said = || {
        let status = second.status("Gateway", "infra", "edge")?;
        anyhow::ensure!(status.contains("another process listens on"), "{status}");
        Ok(())
    };
    portcullis_testbed::until(std::time::Duration::from_secs(10), said).unwrap();
    assert_eq!(second.log().matches(&expected).count(), 2, "each port once: {}", second.log());
    load.finish().unwrap();
    drop(first);
    let taken_over = || {
        let answer = scenario.request("https://shop.example.com/").send()?;
        anyhow::ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    portcullis_testbed::until(std::time::Duration::from_secs(15), taken_over).unwrap();
}
