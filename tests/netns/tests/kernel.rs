//! What the kernel programs do for a node, with packets from outside.
#![cfg(test)]

use std::fs;
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

/// On the node's own addresses, with its port 8080 taken.
const EVERYWHERE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: portcullis}
spec: {controllerName: portcullis.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  gatewayClassName: portcullis
  addresses: [{type: IPAddress, value: 0.0.0.0}]
  listeners:
    - {name: http, port: 80, protocol: HTTP}
    - {name: other, port: 8080, protocol: HTTP}
";

#[test]
fn a_port_of_the_node_is_taken_from_nobody() {
    let scenario = Scenario::without_configuration("ports").unwrap();
    fs::write(scenario.config().join("gateway.yaml"), EVERYWHERE).unwrap();
    let server = scenario.server_on_node("sshd", "10.1.0.1:8080").unwrap();
    let agent = scenario.start_agent().unwrap();
    let status = |port: u16| {
        let mut curl = scenario.client.command("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "5"]);
        let output = curl.arg(format!("http://10.1.0.1:{port}/")).output()?;
        anyhow::Ok(String::from_utf8(output.stdout)?)
    };
    assert_eq!((status(80).unwrap(), status(8080).unwrap()), ("404".to_owned(), "200".to_owned()));
    let said = agent.status("Gateway", "infra", "edge").unwrap();
    assert!(said.contains("another process of the node listens on port 8080"), "{said}");
    drop(server);
    let is_ours = || {
        let status = status(8080)?;
        anyhow::ensure!(status == "404", "{status}");
        Ok(())
    };
    until(Duration::from_secs(15), is_ours).unwrap();
}

fn dropped(agent: &Agent) -> f64 {
    agent.metric("portcullis_datapath_verdicts_total{reason=\"dropped-no-listener\"").unwrap()
}
