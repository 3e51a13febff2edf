//! TCP and UDP listeners that an agent has the kernel forward: beside user space, through restarts
//! and take-overs.
#![cfg(test)]

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use portcullis_netns_tests::{GATEWAY_OF_STREAMS, Scenario, VIP};
use portcullis_testbed::{Agent, Datapath, Launch, until};

#[test]
fn the_kernel_forwards_beside_user_space_and_without_an_agent() {
    let (scenario, launch) = world("forward");
    let socket = scenario.datagrams_at_backends("10.2.0.2:5353").unwrap();
    thread::spawn(move || answer(&socket));
    let agent = launch.start().unwrap();
    until(Duration::from_secs(60), || shows(&agent, "tcp/10.9.0.1:5432: kernel")).unwrap_or_else(|error| {
        panic!("{error}\n{}\n{}", agent.get("/config").unwrap_or_default(), agent.log())
    });
    shows(&agent, "udp/10.9.0.1:53: kernel").unwrap();
    let (mut open, datagrams) = (connect(&scenario), datagrams(&scenario));
    get(&mut open);
    let seen = (ask(&datagrams), ask(&datagrams)).1;
    assert!(seen.starts_with("10.2.0.1:6"), "the node, and a port for flows: {seen}");
    assert_eq!(forwarded(&agent), 2.0);
    let by_user_space = "l4_server_connections_total";
    assert!(!agent.get("/metrics").unwrap().lines().any(|line| line.starts_with(by_user_space)));

    // No agent.
    let launch = agent.crash().unwrap();
    get(&mut open);
    assert_eq!(ask(&datagrams), seen);
    get(&mut connect(&scenario));

    // The next one, and one that takes over from it.
    let agent = launch.start().unwrap();
    get(&mut open);
    let next = Launch { scratch: scenario.file("next"), ..take_over(&scenario) }.spawn().unwrap();
    agent.wait_succeeded().unwrap();
    let mut agent = next;
    agent.wait_ready().unwrap();
    get(&mut open);
    assert_eq!(ask(&datagrams), seen);

    // A setting that needs user space: what is open goes on.
    let before = forwarded(&agent);
    configure(&scenario, &with_access_log());
    let said = "tcp/10.9.0.1:5432: user space: the Gateway writes an access log";
    until(Duration::from_secs(60), || shows(&agent, said))
        .unwrap_or_else(|error| panic!("{error}\n{}", agent.get("/config").unwrap_or_default()));
    get(&mut open);
    get(&mut connect(&scenario));
    assert_eq!(forwarded(&agent), before);
    let moved = "listener tcp at tcp/10.9.0.1:5432 moves from the kernel (nothing needs user space) to user space \
                 (the Gateway writes an access log)";
    assert_eq!(agent.log().matches(moved).count(), 1, "{}", agent.log());

    // Without forwarding, the next agent's connections are user space's, and flows end in time.
    let mut launch = agent.crash().unwrap();
    configure(&scenario, GATEWAY_OF_STREAMS);
    launch.arguments = without_forwarding(launch.arguments);
    let agent = launch.start().unwrap();
    get(&mut open);
    get(&mut connect(&scenario));
    assert_eq!(forwarded(&agent), before);
    shows(&agent, "--forwarding is off").unwrap();
    until(Duration::from_secs(60), || logs(&agent, "forwarded in the kernel has ended")).unwrap();
    open.write_all(b"GET / HTTP/1.1\r\nHost: app\r\n\r\n").unwrap();
    assert!(open.read(&mut [0]).is_err(), "the node resets it");
}

/// As an update that switches it off.
#[test]
fn connections_of_another_version_have_the_time_to_end_without_forwarding() {
    let (scenario, launch) = world("forward-off");
    let agent = launch.start().unwrap();
    until(Duration::from_secs(60), || shows(&agent, "tcp/10.9.0.1:5432: kernel")).unwrap();
    let mut open = connect(&scenario);
    get(&mut open);
    assert_eq!(forwarded(&agent), 1.0);
    let mut launch = agent.crash().unwrap();
    let mut versions = fs::read_dir(&launch.pins).unwrap();
    fs::rename(versions.next().unwrap().unwrap().path(), launch.pins.join("v0")).unwrap();
    launch.arguments = without_forwarding(launch.arguments);
    let agent = launch.start().unwrap();
    until(Duration::from_secs(60), || logs(&agent, "1 open flows of an earlier agent")).unwrap();
    get(&mut open);
    get(&mut connect(&scenario));
    assert_eq!(forwarded(&agent), 0.0, "user space has it");
    until(Duration::from_secs(60), || logs(&agent, "has ended, and 1 open flows with it")).unwrap();
    open.write_all(b"GET / HTTP/1.1\r\nHost: app\r\n\r\n").unwrap();
    assert!(open.read(&mut [0]).is_err(), "the node resets it");
}

#[test]
fn a_node_that_does_not_route_leaves_it_to_user_space() {
    let (scenario, launch) = world("forward-host");
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "0")?)).unwrap();
    let agent = launch.start().unwrap();
    let said = "user space: net.ipv4.ip_forward is 0 on this node";
    until(Duration::from_secs(60), || shows(&agent, said)).unwrap();
    get(&mut connect(&scenario));
    assert_eq!(forwarded(&agent), 0.0);
}

/// Backends' answers to them would be taken for those of flows.
#[test]
fn a_node_whose_own_connections_may_have_the_ports_of_flows_leaves_it_to_user_space() {
    let (scenario, launch) = world("forward-ports");
    let set = |name, value| {
        scenario.on_node(|| Ok(fs::write(format!("/proc/sys/net/ipv4/{name}"), value)?)).unwrap();
    };
    set("ip_local_port_range", "1024 65535");
    let agent = launch.start().unwrap();
    let said = "user space: connections of the node itself may have ports 1024-65535";
    until(Duration::from_secs(60), || shows(&agent, said)).unwrap();
    get(&mut connect(&scenario));
    assert_eq!(forwarded(&agent), 0.0);
    let launch = agent.crash().unwrap();
    set("ip_local_reserved_ports", "61000-65535");
    let agent = launch.start().unwrap();
    until(Duration::from_secs(60), || shows(&agent, "tcp/10.9.0.1:5432: kernel")).unwrap();
}

fn world(test: &str) -> (Scenario, Launch) {
    let scenario = Scenario::without_configuration(test).unwrap();
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)).unwrap();
    configure(&scenario, GATEWAY_OF_STREAMS);
    let launch = forwarding(&scenario);
    (scenario, launch)
}

fn forwarding(scenario: &Scenario) -> Launch {
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    // The guard is not needed here.
    launch.interface = "none".to_owned();
    launch.arguments.extend(["--forwarding", "auto", "--drain-timeout", "3"].map(Into::into));
    launch
}

fn without_forwarding(arguments: Vec<OsString>) -> Vec<OsString> {
    arguments.into_iter().map(|it| if it == "auto" { "off".into() } else { it }).collect()
}

fn take_over(scenario: &Scenario) -> Launch {
    let mut launch = forwarding(scenario);
    launch.arguments.push("--take-over".into());
    launch
}

fn configure(scenario: &Scenario, text: &str) {
    let partial = scenario.file("partial.yaml");
    fs::write(&partial, text).unwrap();
    fs::rename(partial, scenario.config().join("gateway.yaml")).unwrap();
}

fn with_access_log() -> String {
    let parameters = "
---
apiVersion: portcullis.dev/v1alpha1
kind: GatewayParameters
metadata: {name: logging, namespace: infra}
spec: {accessLog: {}}
";
    let reference = "  infrastructure: {parametersRef: {group: portcullis.dev, kind: GatewayParameters, name: logging}}\n";
    let class = "  gatewayClassName: portcullis\n";
    GATEWAY_OF_STREAMS.replace(class, &format!("{class}{reference}")) + parameters
}

fn shows(agent: &Agent, text: &str) -> anyhow::Result<()> {
    // YAML quotes what has colons.
    let config = agent.get("/config")?.replace(['"', '\''], "");
    anyhow::ensure!(config.contains(text), "{config}");
    Ok(())
}

fn logs(agent: &Agent, text: &str) -> anyhow::Result<()> {
    let log = agent.log();
    anyhow::ensure!(log.contains(text), "{log}");
    Ok(())
}

fn forwarded(agent: &Agent) -> f64 {
    agent.metric("portcullis_datapath_verdicts_total{reason=\"forwarded\"}").unwrap_or(0.0)
}

fn connect(scenario: &Scenario) -> TcpStream {
    let stream = scenario.client.enter(|| Ok(TcpStream::connect((VIP, 5432))?)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// An exchange with the backend, after which the connection stays open.
fn get(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: app\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "it has ended");
        answer.extend(&buffer[..length]);
    }
    let head = String::from_utf8_lossy(&answer).into_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut left = length.unwrap().trim().parse::<usize>().unwrap() - (answer.len() - at);
    while left > 0 {
        left -= stream.read(&mut buffer).unwrap();
    }
}

fn datagrams(scenario: &Scenario) -> UdpSocket {
    let socket = scenario.client.enter(|| Ok(UdpSocket::bind("0.0.0.0:0")?)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.connect((VIP, 53)).unwrap();
    socket
}

/// The client as the backend sees it.
fn ask(socket: &UdpSocket) -> String {
    socket.send(b"who").unwrap();
    let mut answer = [0; 100];
    let length = socket.recv(&mut answer).unwrap();
    String::from_utf8(answer[..length].to_vec()).unwrap()
}

/// As long as the test's process lives.
fn answer(socket: &UdpSocket) {
    socket.set_read_timeout(None).unwrap();
    let mut question = [0; 100];
    while let Ok((_, peer)) = socket.recv_from(&mut question) {
        let _ = socket.send_to(peer.to_string().as_bytes(), peer);
    }
}
