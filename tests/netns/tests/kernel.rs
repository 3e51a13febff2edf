//! The kernel programs at work on a node, with packets from outside.
#![cfg(test)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_netns_tests::{Scenario, VIP};
use portcullis_testbed::{Agent, Datapath, until};

#[test]
fn packets_to_a_port_without_listener_are_dropped_and_counted() {
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
    until(Duration::from_secs(60), served).unwrap();
}

#[test]
fn connections_wait_for_an_agent_that_crashed() {
    let scenario = Scenario::new("hold").unwrap();
    for datapath in [Datapath::Ebpf, Datapath::Userspace] {
        let mut launch = scenario.launch_with(datapath).unwrap();
        launch.arguments.extend(["--syn-hold", "60"].map(Into::into));
        let mut agent = launch.start().unwrap();
        for _ in 0..3 {
            let launch = agent.crash().unwrap();
            let (answer, waited, started, next) = thread::scope(|scope| {
                let begun = Instant::now();
                let request = scenario.request("http://shop.example.com/").with(&["--max-time", "120"]);
                let request = scope.spawn(move || request.send());
                let next = launch.start().unwrap();
                let started = begun.elapsed();
                (request.join().unwrap().unwrap(), begun.elapsed(), started, next)
            });
            assert_eq!((answer.code, answer.status), (Some(0), 301), "{answer:?}");
            // The client's kernel asks again after one second, and after twice as long each time.
            assert!(waited < 3 * started + Duration::from_secs(3), "{waited:?}, {started:?} for the agent");
            agent = next;
        }
    }
}

#[test]
fn an_agent_without_programs_detaches_those_of_the_last_one() {
    let scenario = Scenario::new("fallback").unwrap();
    let mut launch = scenario.start_agent().unwrap().crash().unwrap();
    launch.datapath = Datapath::Userspace;
    let agent = launch.start().unwrap();
    assert!(agent.log().contains("detached what an earlier agent left"), "{}", agent.log());
    edit(&scenario, "port: 80\n", "port: 81\n");
    until(Duration::from_secs(60), || answers(&scenario, "http://shop.example.com:81/", 301)).unwrap();
}

#[test]
fn a_vip_that_somebody_takes_away_comes_back() {
    let scenario = Scenario::new("restore").unwrap();
    let agent = scenario.start_agent().unwrap();
    scenario.ip_on_node(&["address", "del", &format!("{VIP}/32"), "dev", "lo"]).unwrap();
    // That it was gone is in the log alone: it may be back before a client can see.
    let said = format!("VIP {VIP} was removed from lo, and is added again");
    until(Duration::from_secs(60), || {
        anyhow::ensure!(agent.log().contains(&said), "{}", agent.log());
        Ok(())
    })
    .unwrap();
    until(Duration::from_secs(60), || answers(&scenario, "http://shop.example.com/", 301)).unwrap();
    assert_eq!(agent.log().matches(&said).count(), 1, "{}", agent.log());
}

#[test]
fn a_vip_stays_until_open_responses_have_ended() {
    let scenario = Scenario::new("parting").unwrap();
    let agent = scenario.start_agent().unwrap();
    let answer = scenario.shop.hold();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| scenario.request("https://shop.example.com/").send());
        until_the_backend_has_it(&scenario);
        fs::remove_file(scenario.config().join("gateway.yaml")).unwrap();
        let deleted = || {
            anyhow::ensure!(agent.log().contains("is no longer served on"), "{}", agent.log());
            Ok(())
        };
        until(Duration::from_secs(60), deleted).unwrap();
        drop(answer);
        let answered = waiting.join().unwrap().unwrap();
        assert_eq!(answered.status, 200, "{answered:?}");
    });
    let gone = || {
        anyhow::ensure!(!scenario.is_local(VIP)?, "the VIP is still there");
        Ok(())
    };
    until(Duration::from_secs(60), gone).unwrap();
}

#[test]
fn the_kernel_programs_say_what_becomes_of_connections_if_asked() {
    let scenario = Scenario::new("kernel-log").unwrap();
    let silent = scenario.start_agent().unwrap();
    answers(&scenario, "http://shop.example.com/", 301).unwrap();
    assert!(!silent.log().contains("connection to port"), "{}", silent.log());
    let mut launch = silent.crash().unwrap();
    launch.arguments.extend(["--log", "info,portcullis_ebpf=trace"].map(Into::into));
    let agent = launch.start().unwrap();
    answers(&scenario, "http://shop.example.com/", 301).unwrap();
    let said = || {
        anyhow::ensure!(agent.log().contains("connection to port 80: steered"), "{}", agent.log());
        Ok(())
    };
    until(Duration::from_secs(60), said).unwrap();
}

/// Behind both ports of the Gateway.
const SHOP: &str = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: infra}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: shop, port: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: infra}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, namespace: infra, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.2.0.2], conditions: {ready: true}}]
";

/// The packet guard drops what goes to ports without listener, but not what belongs to open
/// connections.
#[test]
fn a_request_that_has_begun_outlives_its_listener() {
    let scenario = Scenario::without_configuration("listener").unwrap();
    let configure = |gateway: &str| {
        let gateway = gateway.replace("0.0.0.0", VIP) + SHOP;
        fs::write(scenario.config().join("gateway.yaml"), gateway).unwrap();
    };
    configure(EVERYWHERE);
    let agent = scenario.start_agent().unwrap();
    let mut stream = scenario.client.enter(|| Ok(TcpStream::connect((VIP, 8080))?)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut begun = [0; 25];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 100 Continue\r\n\r\n");

    configure(&EVERYWHERE.replace("    - {name: other, port: 8080, protocol: HTTP}\n", ""));
    let gone = || {
        anyhow::ensure!(agent.log().contains("is no longer served on"), "{}", agent.log());
        Ok(())
    };
    until(Duration::from_secs(60), gone).unwrap();
    let refused = scenario.client.enter(|| Ok(TcpStream::connect((VIP, 8080))?)).unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");
    stream.write_all(b"body").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

fn answers(scenario: &Scenario, url: &str, status: u16) -> anyhow::Result<()> {
    let answer = scenario.request(url).with(&["--max-time", "10"]).send()?;
    anyhow::ensure!(answer.status == status, "{answer:?}");
    Ok(())
}

fn edit(scenario: &Scenario, from: &str, to: &str) {
    let path = scenario.config().join("gateway.yaml");
    let before = fs::read_to_string(&path).unwrap();
    assert!(before.contains(from), "{before}");
    fs::write(path, before.replace(from, to)).unwrap();
}

fn until_the_backend_has_it(scenario: &Scenario) {
    let under_way = || {
        anyhow::ensure!(scenario.shop.requests() == 1, "the backend has no request");
        Ok(())
    };
    until(Duration::from_secs(60), under_way).unwrap();
}

/// Connections that have begun are finished; new ones are refused at once and may try elsewhere.
#[test]
fn a_draining_agent_refuses_connections() {
    let scenario = Scenario::new("drain").unwrap();
    let agent = scenario.start_agent().unwrap();
    let answer = scenario.shop.hold();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| scenario.request("https://shop.example.com/").send());
        until_the_backend_has_it(&scenario);
        let ending = scope.spawn(|| agent.terminate());
        let refused = || {
            let answer = scenario.request("http://shop.example.com/").send()?;
            anyhow::ensure!(answer.code == Some(7), "{answer:?}");
            Ok(())
        };
        until(Duration::from_secs(60), refused).unwrap();
        assert!(!ending.is_finished(), "it ended before the response");
        drop(answer);
        let answered = waiting.join().unwrap().unwrap();
        assert_eq!(answered.status, 200, "{answered:?}");
        assert!(ending.join().unwrap().unwrap().success());
    });
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
fn a_port_of_the_node_stays_with_its_process() {
    let scenario = Scenario::without_configuration("ports").unwrap();
    fs::write(scenario.config().join("gateway.yaml"), EVERYWHERE).unwrap();
    let server = scenario.server_on_node("sshd", "10.1.0.1:8080").unwrap();
    let agent = scenario.start_agent().unwrap();
    let status = |port: u16| {
        let mut curl = scenario.client.command("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20"]);
        let output = curl.arg(format!("http://10.1.0.1:{port}/")).output()?;
        anyhow::Ok(String::from_utf8(output.stdout)?)
    };
    assert_eq!((status(80).unwrap(), status(8080).unwrap()), ("404".to_owned(), "200".to_owned()));
    // It is told after the traffic.
    let is_theirs = || {
        let said = agent.status("Gateway", "infra", "edge")?;
        anyhow::ensure!(said.contains("another process of the node listens on port 8080"), "{said}");
        Ok(())
    };
    until(Duration::from_secs(60), is_theirs).unwrap();
    drop(server);
    let is_ours = || {
        let status = status(8080)?;
        anyhow::ensure!(status == "404", "{status}");
        Ok(())
    };
    until(Duration::from_secs(60), is_ours).unwrap();
}

/// Beside a DNS server of the node that would share its port with any process of its user.
const NAME_SERVER: &str = "
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
    - {name: dns, port: 53, protocol: UDP}
    - {name: other, port: 54, protocol: UDP}
";

#[test]
fn datagrams_to_a_port_of_the_node_stay_with_its_process() {
    for datapath in [Datapath::Ebpf, Datapath::Userspace] {
        let scenario = Scenario::without_configuration("datagrams").unwrap();
        fs::write(scenario.config().join("gateway.yaml"), NAME_SERVER).unwrap();
        let server = scenario.datagrams_on_node("10.1.0.1:53").unwrap();
        let agent = scenario.launch_with(datapath).unwrap().start().unwrap();
        let client = scenario.client.enter(|| Ok(UdpSocket::bind("0.0.0.0:0")?)).unwrap();
        for text in ["1", "2", "3", "4"] {
            client.send_to(text.as_bytes(), "10.1.0.1:53").unwrap();
            let mut buffer = [0; 16];
            let length = server.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
        }
        let is_theirs = || {
            let said = agent.status("Gateway", "infra", "edge")?;
            anyhow::ensure!(said.contains("another process listens on UDP 10.1.0.1:53"), "{said}");
            anyhow::ensure!(!said.contains("UDP 10.1.0.1:54"), "{said}");
            Ok(())
        };
        until(Duration::from_secs(60), is_theirs).unwrap();
        drop(server);
        let is_ours = || {
            let said = agent.status("Gateway", "infra", "edge")?;
            anyhow::ensure!(!said.contains("another process"), "{said}");
            Ok(())
        };
        until(Duration::from_secs(60), is_ours).unwrap();
        let _again = scenario.datagrams_on_node("10.1.0.1:53").unwrap();
        until(Duration::from_secs(60), is_theirs).unwrap();
    }
}

#[test]
fn a_crashed_agent_holds_no_port_of_another_process() {
    let scenario = Scenario::without_configuration("theirs").unwrap();
    fs::write(scenario.config().join("gateway.yaml"), EVERYWHERE).unwrap();
    let _server = scenario.server_on_node("sshd", "10.1.0.1:8080").unwrap();
    for datapath in [Datapath::Ebpf, Datapath::Userspace] {
        let mut launch = scenario.launch_with(datapath).unwrap();
        launch.arguments.extend(["--syn-hold", "60"].map(Into::into));
        let _crashed = launch.start().unwrap().crash().unwrap();
        let code = |port: u16, seconds: &str| {
            let mut curl = scenario.client.command("curl");
            curl.args(["-s", "-o", "/dev/null", "--max-time", seconds, &format!("http://10.1.0.1:{port}/")]);
            curl.status().unwrap().code()
        };
        assert_eq!((code(8080, "20"), code(80, "2")), (Some(0), Some(28)), "the other one's, and its own");
    }
}

fn dropped(agent: &Agent) -> f64 {
    agent.metric("portcullis_datapath_verdicts_total{reason=\"dropped-no-listener\"").unwrap()
}
