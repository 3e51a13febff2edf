//! Programs of others at the hooks that the agent uses, as a cluster's network has them: there
//! before it, come later, gone again.
#![cfg(test)]

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis_netns_tests::foreign::{Cgroup, ForeignLink, ForeignProgram, Hook, Kind, index};
use portcullis_netns_tests::{CLIENT_INTERFACE, GATEWAY_OF_STREAMS, Scenario, VIP};
use portcullis_testbed::{Agent, Datapath, Launch, until};

/// The node's interface towards the backends.
const BACK_INTERFACE: &str = "back";

/// Verdicts of tcx and tc (linux/pkt_cls.h), of XDP and of sk_lookup (linux/bpf.h).
const NEXT: i32 = -1;
const ACCEPT: i32 = 0;
const XDP_PASS: i32 = 2;
const SK_DROP: i32 = 0;
const SK_PASS: i32 = 1;

/// Moments at which another program comes.
#[derive(Clone, Copy, Debug)]
enum Comes {
    BeforeTheAgent,
    AfterTheAgent,
}

/// One that has the last word about packets (as those of Cilium: `TC_ACT_OK`), or not.
#[test]
fn connections_are_steered_and_names_read_beside_programs_of_tcx() {
    for verdict in [NEXT, ACCEPT] {
        for comes in [Comes::BeforeTheAgent, Comes::AfterTheAgent] {
            let scenario = Scenario::new("tcx").unwrap();
            let foreign = ForeignProgram::load(Kind::Classifier(verdict)).unwrap();
            let early = matches!(comes, Comes::BeforeTheAgent).then(|| everywhere(&scenario, &foreign));
            let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
            launch.arguments.extend(["--name-interface", CLIENT_INTERFACE].map(Into::into));
            let agent = launch.start().unwrap();
            let links = early.unwrap_or_else(|| everywhere(&scenario, &foreign));

            served(&scenario).unwrap();
            let case = format!("{verdict}, {comes:?}");
            assert_eq!(verdicts(&agent, "hello-known-name"), 1.0, "{case}: {}", agent.log());
            assert!(verdicts(&agent, "steered") >= 1.0, "{case}");
            assert!(foreign.count().unwrap() > 0, "{case}: it still sees packets");

            // It is neither taken off by the agent's end, nor does the agent miss it.
            drop(agent);
            still_counts(&scenario, &foreign);
            let agent = scenario.start_agent().unwrap();
            served(&scenario).unwrap();
            drop(links);
            served(&scenario).unwrap();
            drop(agent);
        }
    }
}

/// As Cilium before 1.16, and Calico: programs as classifiers of traffic control.
#[test]
fn connections_are_steered_and_names_read_beside_classifiers() {
    let scenario = Scenario::new("clsact").unwrap();
    let foreign = ForeignProgram::load(Kind::Classifier(ACCEPT)).unwrap();
    let pins = portcullis_testbed::pin_directory("netns-foreign-clsact");
    let _pin = classify(&scenario, &foreign, &pins);
    let before = filters(&scenario);
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--name-interface", CLIENT_INTERFACE].map(Into::into));
    let agent = launch.start().unwrap();
    served(&scenario).unwrap();
    assert_eq!(verdicts(&agent, "hello-known-name"), 1.0, "{}", agent.log());
    assert!(foreign.count().unwrap() > 0);
    drop(agent);
    still_counts(&scenario, &foreign);
    assert_eq!(filters(&scenario), before);
}

/// A program that brings packets to pods past the hooks on their way would have backends see
/// addresses that are not translated: with it user space forwards, and what is open goes on.
#[test]
fn streams_are_forwarded_by_user_space_while_others_have_programs_there() {
    let scenario = Scenario::without_configuration("streams").unwrap();
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)).unwrap();
    fs::write(scenario.config().join("gateway.yaml"), GATEWAY_OF_STREAMS).unwrap();
    let interface = scenario.on_node(|| index(BACK_INTERFACE)).unwrap();
    let pod = "10.2.0.2".parse().unwrap();
    let foreign = ForeignProgram::load(Kind::ClassifierToPeer { pod, interface }).unwrap();
    let monitor = ForeignProgram::load(Kind::Classifier(NEXT)).unwrap();
    let attach = |program: &ForeignProgram, hook| scenario.on_node(|| program.attach(hook)).unwrap();

    // There before the agent.
    let link = attach(&foreign, Hook::TcxIngress(CLIENT_INTERFACE));
    let agent = forwarding(&scenario).start().unwrap();
    let said = format!("user space: another program has packets of {CLIENT_INTERFACE} by tcx");
    shows(&agent, &said).unwrap();
    assert_eq!(agent.log().matches("user space serves it").count(), 1, "{}", agent.log());
    answers(&mut connect(&scenario));
    assert_eq!(verdicts(&agent, "forwarded"), 0.0);
    let counted = "portcullis_l4_frontends{mechanism=\"userspace\",reason=\"foreign-program\"}";
    assert_eq!(agent.metric(counted).unwrap(), 2.0);
    let told = "by no interface: another program has packets of front by tcx";
    assert!(status(&agent).contains(told), "{}", status(&agent));

    // Gone.
    drop(link);
    until(Duration::from_secs(15), || shows(&agent, "tcp/10.9.0.1:5432: kernel")).unwrap();
    let mut open = connect(&scenario);
    answers(&mut open);
    assert_eq!(verdicts(&agent, "forwarded"), 1.0);

    // Another one comes, and lets packets through: what is open goes on.
    let link = attach(&monitor, Hook::TcxEgress(BACK_INTERFACE));
    let said = format!("user space: another program has packets of {BACK_INTERFACE} by tcx");
    until(Duration::from_secs(15), || shows(&agent, &said)).unwrap();
    answers(&mut open);
    assert!(monitor.count().unwrap() > 0);
    answers(&mut connect(&scenario));
    assert_eq!(verdicts(&agent, "forwarded"), 1.0, "the new one is user space's");
    drop(link);
    until(Duration::from_secs(15), || shows(&agent, "tcp/10.9.0.1:5432: kernel")).unwrap();

    // One of traffic control.
    let pins = portcullis_testbed::pin_directory("netns-foreign-streams");
    let _pin = classify(&scenario, &monitor, &pins);
    let said = format!("user space: another program has packets of {CLIENT_INTERFACE} by tc (cls_bpf)");
    until(Duration::from_secs(15), || shows(&agent, &said)).unwrap();
    answers(&mut connect(&scenario));
    answers(&mut open);
}

/// In the driver or in the generic hook: an interface has room for one.
#[test]
fn a_program_of_xdp_is_left_alone_and_the_guard_follows_it() {
    for hook in [Hook::XdpNative(CLIENT_INTERFACE), Hook::XdpGeneric(CLIENT_INTERFACE)] {
        let scenario = Scenario::new("xdp").unwrap();
        let foreign = ForeignProgram::load(Kind::Xdp(XDP_PASS)).unwrap();
        let link = scenario.on_node(|| foreign.attach(hook)).unwrap();
        let agent = scenario.start_agent().unwrap();
        served(&scenario).unwrap();
        still_counts(&scenario, &foreign);
        let unguarded = "portcullis_interface_unguarded{interface=\"front\",reason=\"foreign-program\"}";
        assert_eq!(agent.metric(unguarded).unwrap(), 1.0, "{hook:?}");
        let warned = agent.log().matches("no packet guard on front").count();
        assert_eq!(warned, 1, "{hook:?}: {}", agent.log());
        let said = status(&agent);
        assert!(said.contains("cannot attach guard to front"), "{hook:?}: {said}");
        // Refused, not dropped.
        assert_eq!(to_no_listener(&scenario), Some(7), "{hook:?}");

        drop(link);
        let guarded = || {
            anyhow::ensure!(
                agent.log().contains("what kept the packet guard from front is gone"),
                "{}",
                agent.log()
            );
            Ok(())
        };
        until(Duration::from_secs(15), guarded).unwrap();
        assert_eq!(to_no_listener(&scenario), Some(28), "{hook:?}: dropped");
        // The other one cannot come back as long as the guard is there, and is told so.
        let refused = scenario.on_node(|| foreign.attach(hook).map(drop)).unwrap_err();
        assert!(
            format!("{refused:#}").contains("busy") || format!("{refused:#}").contains("exists"),
            "{refused:#}"
        );
        served(&scenario).unwrap();
    }
}

/// Other programs run in the order in which they came; of sockets the last one chosen counts, and
/// a refusal only where none was chosen (Documentation/bpf/prog_sk_lookup.rst).
#[test]
fn connections_are_steered_beside_programs_of_sk_lookup() {
    for verdict in [SK_PASS, SK_DROP] {
        for comes in [Comes::BeforeTheAgent, Comes::AfterTheAgent] {
            let scenario = Scenario::new("lookup").unwrap();
            let foreign = ForeignProgram::load(Kind::SkLookup(verdict)).unwrap();
            let attach = || scenario.on_node(|| foreign.attach(Hook::SkLookup)).unwrap();
            let early = matches!(comes, Comes::BeforeTheAgent).then(attach);
            let agent = scenario.start_agent().unwrap();
            let link = early.unwrap_or_else(attach);
            served(&scenario).unwrap();
            assert!(foreign.count().unwrap() > 0, "{verdict}, {comes:?}");
            assert!(verdicts(&agent, "steered") >= 1.0, "{verdict}, {comes:?}");
            drop(agent);
            let before = foreign.count().unwrap();
            assert_eq!(to_no_listener(&scenario), Some(7));
            assert!(foreign.count().unwrap() > before, "it stays");
            drop(link);
        }
    }
}

/// As the load balancing of sockets by Cilium (`bpf_sock.c`): what the agent connects to is
/// another's to choose, as for any process of the node.
#[test]
fn the_agent_connects_by_way_of_programs_of_its_cgroup() {
    const NOWHERE: &str = "10.2.0.200";
    let scenario = Scenario::new("connect").unwrap();
    let shop = scenario.config().join("shop.yaml");
    let manifest = fs::read_to_string(&shop).unwrap();
    fs::write(&shop, manifest.replace("- 10.2.0.2\n", &format!("- {NOWHERE}\n"))).unwrap();
    let cgroup = Cgroup::create("connect").unwrap();
    let to = "10.2.0.2:8080".parse().unwrap();
    let foreign = ForeignProgram::load(Kind::Connect4 { from: NOWHERE.parse().unwrap(), to }).unwrap();
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.through = [cgroup.prefix(), launch.through].concat();
    let agent = launch.start().unwrap();
    let _link = foreign.attach(Hook::Connect4(cgroup.path())).unwrap();
    let answer = scenario.request("https://shop.example.com/").send().unwrap();
    assert_eq!(answer.status, 200, "{answer:?}\n{}", agent.log());
    assert!(foreign.count().unwrap() > 0);
}

/// On all hooks of tcx of both interfaces.
fn everywhere(scenario: &Scenario, program: &ForeignProgram) -> Vec<ForeignLink> {
    let attach = || {
        let hooks = [CLIENT_INTERFACE, BACK_INTERFACE].map(|it| [Hook::TcxIngress(it), Hook::TcxEgress(it)]);
        hooks.into_iter().flatten().map(|hook| program.attach(hook)).collect()
    };
    scenario.on_node(attach).unwrap()
}

/// Pins a program and has `tc` put it before both directions of the interface towards clients.
fn classify(scenario: &Scenario, program: &ForeignProgram, pins: &std::path::Path) -> Pinned {
    let pinned = Pinned(pins.to_owned());
    let path = pins.join("classifier");
    program.pin(&path).unwrap();
    let tc = |arguments: &str| {
        let mut command = scenario.command_on_node("tc");
        let output = command.args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    tc(&format!("qdisc add dev {CLIENT_INTERFACE} clsact"));
    for direction in ["ingress", "egress"] {
        tc(&format!(
            "filter add dev {CLIENT_INTERFACE} {direction} bpf direct-action object-pinned {}",
            path.display()
        ));
    }
    pinned
}

/// A directory of pins, removed when dropped.
struct Pinned(std::path::PathBuf);

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn filters(scenario: &Scenario) -> Vec<String> {
    let show = |direction| {
        let mut command = scenario.command_on_node("tc");
        let output = command.args(["filter", "show", "dev", CLIENT_INTERFACE, direction]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    ["ingress", "egress"].map(show).into()
}

/// The quickstart over HTTP and HTTPS.
fn served(scenario: &Scenario) -> anyhow::Result<()> {
    for (url, status) in [("http://shop.example.com/", 301), ("https://shop.example.com/", 200)] {
        let answer = scenario.request(url).with(&["--max-time", "5"]).send()?;
        anyhow::ensure!(answer.status == status, "{url}: {answer:?}");
    }
    Ok(())
}

/// curl's exit code for a port of the VIP without listener: 7 refused, 28 no answer.
fn to_no_listener(scenario: &Scenario) -> Option<i32> {
    let request = scenario.request("http://shop.example.com:81/").with(&["--max-time", "2"]);
    request.send().unwrap().code
}

fn still_counts(scenario: &Scenario, program: &ForeignProgram) {
    let before = program.count().unwrap();
    let _ = to_no_listener(scenario);
    assert!(program.count().unwrap() > before, "it is still attached");
}

fn forwarding(scenario: &Scenario) -> Launch {
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.interface = "none".to_owned();
    launch.arguments.extend(["--forwarding", "auto"].map(Into::into));
    // As a pod's: programs of others are listed without SYS_ADMIN.
    let few = "-all,+bpf,+net_admin,+perfmon,+net_bind_service";
    launch.through.extend(["setpriv", "--bounding-set", few].map(Into::into));
    launch
}

fn shows(agent: &Agent, text: &str) -> anyhow::Result<()> {
    // YAML quotes what has colons.
    let config = agent.get("/config")?.replace(['"', '\''], "");
    anyhow::ensure!(config.contains(text), "{config}");
    Ok(())
}

/// The output of `portcullis status`.
fn status(agent: &Agent) -> String {
    let output = agent.asking("status").output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn verdicts(agent: &Agent, reason: &str) -> f64 {
    agent.metric(&format!("portcullis_datapath_verdicts_total{{reason=\"{reason}\"}}")).unwrap_or(0.0)
}

fn connect(scenario: &Scenario) -> TcpStream {
    let address: SocketAddr = format!("{VIP}:5432").parse().unwrap();
    let connected =
        scenario.client.enter(|| Ok(TcpStream::connect_timeout(&address, Duration::from_secs(5))?));
    let stream = connected.unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// An exchange with the backend, after which the connection stays open.
fn answers(stream: &mut TcpStream) {
    let mut connection = portcullis_testbed::Connection::new(stream, "app");
    let answer = connection.get("/").unwrap();
    assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
}
