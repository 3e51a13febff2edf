//! ListenerPolicies with the kernel programs: who is refused where, and what is said and counted of
//! it.
#![cfg(test)]

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_netns_tests::{CLIENT_INTERFACE, GATEWAY_OF_STREAMS, Scenario, VIP};
use portcullis_testbed::{Agent, Datapath, until};

const SOON: Duration = Duration::from_secs(60);
/// For an answer that does not come.
const NONE: Duration = Duration::from_millis(300);
/// For one that does.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn denied_clients_are_dropped_by_the_guard_and_refused_without_it() {
    let scenario = Scenario::without_configuration("denied").unwrap();
    fs::write(scenario.config().join("gateway.yaml"), GATEWAY_OF_STREAMS).unwrap();
    let socket = scenario.datagrams_at_backends("10.2.0.2:5353").unwrap();
    thread::spawn(move || answer(&socket));
    let agent = scenario.launch_with(Datapath::Ebpf).unwrap().start().unwrap();
    until(SOON, || ask(&scenario, NONE).map_err(|error| anyhow::anyhow!("{error}"))).unwrap();
    let open = connect(&scenario, LONG).unwrap();

    configure(&scenario, "deny: [10.1.0.0/24]");
    let guarded = format!("xdp on {CLIENT_INTERFACE}");
    until(SOON, || says(&agent, &guarded)).unwrap();
    assert_eq!(ask(&scenario, NONE), Err(ErrorKind::WouldBlock), "nothing answers");
    assert_eq!(connect(&scenario, NONE).unwrap_err(), ErrorKind::TimedOut, "nothing answers");
    assert!(count(&agent, "dropped-denied-client") >= 2.0);
    assert_eq!(count(&agent, "refused-denied-client"), 0.0, "none came that far");
    let enforced = "portcullis_terms_enforced{terms=\"clients\",enforced_by=\"xdp\"}";
    assert_eq!(agent.metric(enforced).unwrap(), 2.0);
    assert!(open.take_error().unwrap().is_none(), "what was open goes on");
    drop(agent);

    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.interface = "none".to_owned();
    let agent = launch.start().unwrap();
    until(SOON, || says(&agent, "the packet guard is not asked for (--interface)")).unwrap();
    assert_eq!(ask(&scenario, LONG), Err(ErrorKind::ConnectionRefused));
    assert_eq!(connect(&scenario, LONG).unwrap_err(), ErrorKind::ConnectionRefused);
    assert!(count(&agent, "refused-denied-client") >= 2.0);

    configure(&scenario, "deny: [10.1.0.3]");
    until(SOON, || ask(&scenario, NONE).map_err(|error| anyhow::anyhow!("{error}"))).unwrap();
    connect(&scenario, LONG).unwrap();
}

/// By the kernel, as long as nothing has to look at connections; then by user space, and why.
#[test]
fn the_part_that_serves_a_listener_follows_its_policy() {
    let scenario = Scenario::without_configuration("served-by").unwrap();
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)).unwrap();
    fs::write(scenario.config().join("gateway.yaml"), GATEWAY_OF_STREAMS).unwrap();
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--forwarding", "auto"].map(Into::into));
    let agent = launch.start().unwrap();
    let frontends = |labels: &str| agent.metric(&format!("portcullis_l4_frontends{{{labels}}}"));
    until(SOON, || says(&agent, r#""servedBy":{"by":"kernel","why":"nothing needs user space"}"#)).unwrap();
    says(&agent, r#""steeredBy":{"by":"tcx","why":"what it leaves comes by sk_lookup"}"#).unwrap();
    assert_eq!(frontends("mechanism=\"kernel\",reason=\"\"").unwrap(), 2.0);
    configure(&scenario, "connections: {perSecond: 100}");
    let why = "a ListenerPolicy says which clients are let in";
    until(SOON, || says(&agent, &format!(r#""servedBy":{{"by":"user space (splice)","why":"{why}"}}"#)))
        .unwrap();
    says(&agent, &format!(r#""servedBy":{{"by":"user space (UDP)","why":"{why}"}}"#)).unwrap();
    says(&agent, r#""budgets":{"by":"user space, at accept""#).unwrap();
    assert_eq!(frontends("mechanism=\"userspace\",reason=\"listener-policy\"").unwrap(), 2.0);
    assert_eq!(frontends("mechanism=\"kernel\",reason=\"\"").unwrap(), 0.0);
}

/// Of one budget: what the kernel refuses, what user space refuses, and what is let in.
#[test]
fn connections_over_a_budget_are_counted_once_wherever_they_are_refused() {
    const LEAST: usize = 12;
    for (test, by, place) in [
        ("budget-kernel", "kernel", "tc on front"),
        ("budget-userspace", "userspace", "the kernel is not asked to read names (--name-interface)"),
    ] {
        let scenario = Scenario::new(test).unwrap();
        let policy = "
apiVersion: portcullis.dev/v1alpha1
kind: ListenerPolicy
metadata: {name: few, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: ListenerSet, name: shop, sectionName: https}]
  connections: {perSecond: 1, burst: 2}
";
        fs::write(scenario.config().join("policy.yaml"), policy).unwrap();
        let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
        if by == "kernel" {
            launch.arguments.extend(["--name-interface", CLIENT_INTERFACE].map(Into::into));
        }
        let agent = launch.start().unwrap();
        until(SOON, || says(&agent, place)).unwrap();
        // Until some are refused: a busy machine may take longer for one than the budget.
        let (begun, mut answers) = (Instant::now(), Vec::new());
        let served = loop {
            answers.push(scenario.request("https://shop.example.com/").send().unwrap().status);
            let served = answers.iter().filter(|status| **status == 200).count();
            if answers.len() >= LEAST && answers.len() - served > 2 {
                break served;
            }
            assert!(begun.elapsed() < 3 * SOON, "{answers:?}");
        };
        let requests = answers.len();
        let other = scenario.request("https://blog.example.com/posts").send().unwrap();
        assert_eq!(other.status, 200, "{other:?}");
        assert!((2..requests).contains(&served), "{answers:?}");

        let labels = "parent_kind=\"ListenerSet\",parent=\"shop/shop\",listener=\"https\"";
        let taken = agent.metric(&format!("network_server_budget_taken_total{{{labels}}}")).unwrap();
        let refused = |by: &str| {
            let labels = format!("{labels},enforced_by=\"{by}\"");
            agent.metric(&format!("network_server_budget_refused_total{{{labels}}}")).unwrap()
        };
        assert_eq!(taken as usize, served);
        assert_eq!((refused("kernel") + refused("userspace")) as usize, requests - served);
        // The two buckets fill by clocks of their own: one may be empty an instant before the
        // other.
        assert!(refused(by) as usize >= requests - served - 2, "{by}: {}", refused(by));
        if by == "kernel" {
            assert_eq!(refused("kernel"), count(&agent, "hello-over-budget"));
        }
    }
}

/// By the first packet where no listener of the port permits it, and else by the name that it asks
/// for.
#[test]
fn a_client_of_one_name_is_refused_at_the_other_and_one_of_none_at_once() {
    let scenario = Scenario::new("common-clients").unwrap();
    // By different lists, of which a part is common.
    configure_at(&scenario, "ListenerSet", "shop/shop", "deny: [10.1.0.0/24]");
    configure_at(&scenario, "ListenerSet", "blog/blog", "deny: [192.0.2.0/24, 10.1.0.2]");
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.interface = "none".to_owned();
    launch.arguments.extend(["--name-interface", CLIENT_INTERFACE].map(Into::into));
    let agent = launch.start().unwrap();
    assert_eq!(connect_to(&scenario, 443, LONG).unwrap_err(), ErrorKind::ConnectionRefused);
    assert_eq!(count(&agent, "refused-denied-client"), 1.0);
    let (shop, blog) = ("https://shop.example.com/", "https://blog.example.com/posts");
    for url in [shop, blog] {
        assert_eq!(scenario.request(url).send().unwrap().code, Some(7), "refused: {url}");
    }

    configure_at(&scenario, "ListenerSet", "blog/blog", "deny: [192.0.2.0/24, 10.1.0.3]");
    until(SOON, || connect_to(&scenario, 443, NONE).map_err(|error| anyhow::anyhow!("{error}"))).unwrap();
    let refused = count(&agent, "refused-denied-client");
    for denied in 1..=3 {
        assert_eq!(scenario.request(blog).send().unwrap().status, 200);
        let answer = scenario.request(shop).send().unwrap();
        assert!(answer.text.contains("reset"), "{answer:?}");
        assert_eq!(count(&agent, "hello-denied-client"), f64::from(denied));
    }
    assert_eq!(count(&agent, "refused-denied-client"), refused);
    let common = "after the ClientHello; whom no listener of the port permits: sk_lookup";
    says(
        &agent,
        &format!("{{\"by\":\"tc on {CLIENT_INTERFACE}\",\"why\":\"elsewhere user space, {common}\"}}"),
    )
    .unwrap();
}

fn configure(scenario: &Scenario, terms: &str) {
    configure_at(scenario, "Gateway", "infra/edge", terms);
}

fn configure_at(scenario: &Scenario, kind: &str, target: &str, terms: &str) {
    let (namespace, name) = target.split_once('/').unwrap();
    let policy = format!(
        "
apiVersion: portcullis.dev/v1alpha1
kind: ListenerPolicy
metadata: {{name: clients, namespace: {namespace}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: {kind}, name: {name}}}]
  {terms}
"
    );
    let partial = scenario.file("partial.yaml");
    fs::write(&partial, policy).unwrap();
    fs::rename(partial, scenario.config().join(format!("policy-of-{name}.yaml"))).unwrap();
}

/// Looks for a text in what `portcullis status listeners` shows.
fn says(agent: &Agent, text: &str) -> anyhow::Result<()> {
    let status = agent.get("/listeners")?;
    anyhow::ensure!(status.contains(text), "{text}: {status}");
    Ok(())
}

fn count(agent: &Agent, reason: &str) -> f64 {
    agent.metric(&format!("portcullis_datapath_verdicts_total{{reason=\"{reason}\"}}")).unwrap()
}

fn connect(scenario: &Scenario, within: Duration) -> Result<TcpStream, ErrorKind> {
    connect_to(scenario, 5432, within)
}

fn connect_to(scenario: &Scenario, port: u16, within: Duration) -> Result<TcpStream, ErrorKind> {
    let address = SocketAddr::new(VIP.parse().unwrap(), port);
    let connected = scenario.client.enter(|| Ok(TcpStream::connect_timeout(&address, within)));
    connected.unwrap().map_err(|error| error.kind())
}

/// Sends a datagram from a port of its own, and waits for an answer or an error.
fn ask(scenario: &Scenario, within: Duration) -> Result<(), ErrorKind> {
    let socket = scenario.client.enter(|| Ok(UdpSocket::bind("0.0.0.0:0")?)).unwrap();
    socket.set_read_timeout(Some(within)).unwrap();
    socket.connect((VIP, 53)).unwrap();
    socket.send(b"who").unwrap();
    socket.recv(&mut [0; 100]).map(drop).map_err(|error| error.kind())
}

/// As long as the test's process lives.
fn answer(socket: &UdpSocket) {
    socket.set_read_timeout(None).unwrap();
    let mut question = [0; 100];
    while let Ok((_, peer)) = socket.recv_from(&mut question) {
        let _ = socket.send_to(b"you", peer);
    }
}
