//! A second agent in the network namespace of a first one: it ends and says why, and no request of
//! the first fails.
#![cfg(test)]

use std::os::unix::fs::symlink;

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

    // With all the same arguments, with an admin socket, and with a pin directory of its own.
    let (scratch, pins) =
        (scenario.file("second"), launch.pins.with_file_name(format!("portcullis-{test}-second")));
    let apart = Launch { scratch: scratch.clone(), ..launch.clone() };
    for second in [launch.clone(), apart.clone(), Launch { pins: pins.clone(), ..apart.clone() }] {
        let said = second.spawn().unwrap().refusal().unwrap();
        assert!(said.contains(&pid) && said.contains("stop it first"), "{said}");
    }
    // Let run beside the first one, but with its admin socket, or its pin directory.
    let beside = |second: &Launch| {
        let arguments = [second.arguments.clone(), vec!["--beside-others".into()]].concat();
        Launch { arguments, ..second.clone() }.spawn().unwrap().refusal().unwrap()
    };
    let said = beside(&Launch { pins: pins.clone(), ..launch.clone() });
    assert!(said.contains(&pid) && said.contains("--admin-socket"), "{said}");
    if datapath == Datapath::Ebpf {
        let said = beside(&apart);
        assert!(said.contains(&pid) && said.contains("--pin-dir"), "{said}");
        let alias = scenario.file("pins");
        symlink(&launch.pins, &alias).unwrap();
        let said = beside(&Launch { pins: alias, ..apart });
        assert!(said.contains(&pid) && said.contains("--pin-dir"), "{said}");
    }
    assert!(!pins.exists(), "nothing is made for an agent that does not run");

    let served = scenario.request("https://shop.example.com/").send().unwrap();
    assert_eq!(served.status, 200, "{served:?}");
    load.finish().unwrap();
}

/// Two agents that are told to may share a node, but no port.
#[test]
fn ordinary_sockets_are_not_bound_beside_those_of_another_agent() {
    let scenario = Scenario::new("two-ports").unwrap();
    let launch = scenario.launch_with(Datapath::Userspace).unwrap();
    let first = launch.clone().start().unwrap();
    let connections = scenario.request("https://shop.example.com/").with(&["-H", "Connection: close"]);
    let load = connections.repeat(scenario.file("load")).unwrap();
    let (scratch, pins) = (scenario.file("second"), scenario.file("pins"));
    let arguments = [launch.arguments.clone(), vec!["--beside-others".into()]].concat();
    let second = Launch { scratch, pins, arguments, ..launch }.spawn().unwrap();
    let expected = format!("process {} (portcullis) listens on", first.pid());
    let said = || {
        let status = second.status("Gateway", "infra", "edge")?;
        anyhow::ensure!(status.contains("another process listens on"), "{status}");
        Ok(())
    };
    portcullis_testbed::until(std::time::Duration::from_secs(60), said).unwrap();
    assert_eq!(second.log().matches(&expected).count(), 2, "each port once: {}", second.log());
    load.finish().unwrap();
    drop(first);
    let taken_over = || {
        let answer = scenario.request("https://shop.example.com/").send()?;
        anyhow::ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    portcullis_testbed::until(std::time::Duration::from_secs(60), taken_over).unwrap();
}
