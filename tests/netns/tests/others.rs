//! The very programs of Cilium and of Calico beside an agent, compiled from their Go modules. Their
//! agents do not run: maps are as empty as these programs find them before. It needs Go, clang-19,
//! llvm-19 and make, and takes minutes the first time:
//! `cargo test -p portcullis-netns-tests --test others -- --ignored`.
#![cfg(test)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portcullis_netns_tests::foreign::{Cgroup, Hook, programs_at};
use portcullis_netns_tests::{CLIENT_INTERFACE, GATEWAY_OF_STREAMS, Scenario, VIP};
use portcullis_testbed::{Agent, Connection, Datapath, command, go, pin_directory, until, workspace};

const CILIUM: &str = "github.com/cilium/cilium@v1.18.4";
/// The newest commit that the module proxy has: releases of Calico are no versions of its module.
const CALICO: &str = "github.com/projectcalico/calico@v1.11.0-cni-plugin.0.20250813170300-a0db560f0520";

const BACK_INTERFACE: &str = "back";

/// Programs of the node's interfaces, and of pods'.
#[test]
#[ignore = "compiles Cilium's programs, with a compiler that nothing else needs"]
fn beside_cilium_by_tcx() {
    let objects = cilium();
    for (from, to, object) in [
        ("cil_from_netdev", "cil_to_netdev", "bpf_host.o"),
        ("cil_from_container", "cil_to_container", "bpf_lxc.o"),
    ] {
        let scenario = Scenario::new("cilium").unwrap();
        let places =
            |interface: &str| [format!("{from}=ingress:{interface}"), format!("{to}=egress:{interface}")];
        let places = places(CLIENT_INTERFACE);
        let theirs = Others::start(&scenario, "cilium", &objects.join(object), &places);
        let hooks = [Hook::TcxIngress(CLIENT_INTERFACE), Hook::TcxEgress(CLIENT_INTERFACE)];
        let programs = || hooks.map(|hook| scenario.on_node(|| programs_at(hook)).unwrap());
        let before = programs();
        let agent = with_names(&scenario);
        let beside = programs();
        assert_eq!(beside[0].len(), 2, "{beside:?}");
        assert_eq!(beside[0][1..], before[0], "ours, then theirs");
        assert_eq!(beside[1], before[1]);
        match object {
            "bpf_host.o" => assert_served(&scenario, &agent),
            // No packet comes past a program of pods that has no policy for the pod.
            _ => assert_ne!(
                scenario.request("http://shop.example.com/").with(&["--max-time", "2"]).send().unwrap().code,
                Some(0)
            ),
        }
        drop(agent);
        // The kernel takes ours off when it has closed the last descriptor.
        let are_alone = || {
            anyhow::ensure!(programs() == before, "{:?}", programs());
            Ok(())
        };
        until(Duration::from_secs(10), are_alone).unwrap();
        drop(theirs);
    }
}

/// In the driver, as for their acceleration of node ports.
#[test]
#[ignore = "compiles Cilium's programs, with a compiler that nothing else needs"]
fn beside_cilium_by_xdp() {
    let scenario = Scenario::new("cilium-xdp").unwrap();
    let places = [format!("cil_xdp_entry=xdp:{CLIENT_INTERFACE}")];
    let theirs = Others::start(&scenario, "cilium", &cilium().join("bpf_xdp.o"), &places);
    let agent = scenario.start_agent().unwrap();
    assert!(agent.log().contains("no packet guard on front"), "{}", agent.log());
    assert_served(&scenario, &agent);
    drop((agent, theirs));
}

/// The load balancing of sockets, for the agent's own connections.
#[test]
#[ignore = "compiles Cilium's programs, with a compiler that nothing else needs"]
fn beside_cilium_in_the_agents_cgroup() {
    let scenario = Scenario::new("cilium-sock").unwrap();
    let cgroup = Cgroup::create("cilium-sock").unwrap();
    let places = [format!("cil_sock4_connect=connect4:{}", cgroup.path().display())];
    let theirs = Others::start(&scenario, "cilium", &cilium().join("bpf_sock.o"), &places);
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.through = [cgroup.prefix(), launch.through].concat();
    let agent = launch.start().unwrap();
    assert_served(&scenario, &agent);
    drop((agent, theirs));
}

/// Streams, which the kernel would forward if it were alone.
#[test]
#[ignore = "compiles Cilium's programs, with a compiler that nothing else needs"]
fn streams_beside_cilium() {
    let scenario = Scenario::without_configuration("cilium-streams").unwrap();
    scenario.on_node(|| Ok(fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)).unwrap();
    fs::write(scenario.config().join("gateway.yaml"), GATEWAY_OF_STREAMS).unwrap();
    let places = [
        format!("cil_from_netdev=ingress:{CLIENT_INTERFACE}"),
        format!("cil_to_netdev=egress:{BACK_INTERFACE}"),
    ];
    let theirs = Others::start(&scenario, "cilium", &cilium().join("bpf_host.o"), &places);
    let agent = scenario.start_agent().unwrap();
    let connected = scenario
        .client
        .enter(|| Ok(TcpStream::connect_timeout(&format!("{VIP}:5432").parse()?, Duration::from_secs(5))?));
    let answer = connected.and_then(|stream| Connection::new(stream, "app").get("/"));
    assert_eq!(answer.unwrap().status, 200);
    assert!(agent.log().contains("user space serves it"), "{}", agent.log());
    drop((agent, theirs));
}

/// The programs of a host's interface, as classifiers of tc.
#[test]
#[ignore = "compiles Calico's programs, with a compiler that nothing else needs"]
fn beside_calico_by_tc() {
    let scenario = Scenario::new("calico").unwrap();
    let pins = Pins(pin_directory("netns-foreign-calico"));
    fs::create_dir_all(&pins.0).unwrap();
    let theirs = Others::start(&scenario, "calico", &calico(), &[pins.0.display().to_string()]);
    let tc =
        |arguments: &str| command::output(scenario.command_on_node("tc").args(arguments.split(' '))).unwrap();
    tc(&format!("qdisc add dev {CLIENT_INTERFACE} clsact"));
    for (direction, pin) in [("ingress", "from"), ("egress", "to")] {
        let pin = pins.0.join(pin);
        tc(&format!(
            "filter add dev {CLIENT_INTERFACE} {direction} bpf direct-action object-pinned {}",
            pin.display()
        ));
    }
    let filters = || ["ingress", "egress"].map(|it| tc(&format!("filter show dev {CLIENT_INTERFACE} {it}")));
    let before = filters();
    let agent = with_names(&scenario);
    assert_served(&scenario, &agent);
    drop(agent);
    assert_eq!(filters(), before);
    drop(theirs);
}

/// The quickstart over HTTP and HTTPS.
fn assert_served(scenario: &Scenario, agent: &Agent) {
    for (url, status) in [("http://shop.example.com/", 301), ("https://shop.example.com/", 200)] {
        let answer = scenario.request(url).with(&["--max-time", "5"]).send().unwrap();
        assert_eq!(answer.status, status, "{url}: {answer:?}");
    }
    let steered = agent.metric("portcullis_datapath_verdicts_total{reason=\"steered\"}").unwrap();
    assert!(steered >= 2.0, "{steered}");
}

fn with_names(scenario: &Scenario) -> Agent {
    let mut launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    launch.arguments.extend(["--name-interface", CLIENT_INTERFACE].map(Into::into));
    launch.start().unwrap()
}

/// The process that holds their programs; ended when dropped.
struct Others(Child);

impl Others {
    fn start(scenario: &Scenario, whose: &str, object: &Path, places: &[String]) -> Self {
        let loader = go::built("tests/netns/others", ".", "others").unwrap();
        let mut loader = scenario.command_on_node(loader.to_str().unwrap());
        loader.arg(whose).arg(object).args(places).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = loader.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "attached\n", "its error is above");
        Self(child)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory of pins, removed when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Options as of an agent that replaces kube-proxy and routes by eBPF.
fn cilium() -> PathBuf {
    const FLAGS: &str = "-I. -Iinclude -O2 -g --target=bpf -std=gnu89 -nostdinc -mcpu=v3 -w -DENABLE_IPV4=1 \
                         -DENABLE_IPV6=1 -DENABLE_NODEPORT=1 -DENABLE_ROUTING=1 -DENABLE_HOST_ROUTING=1";
    compiled("cilium", CILIUM, "bpf", |sources| {
        for name in ["bpf_host", "bpf_lxc", "bpf_xdp", "bpf_sock"] {
            let mut clang = Command::new("clang-19");
            clang.current_dir(sources).args(FLAGS.split(' '));
            command::run(clang.args(["-c", &format!("{name}.c"), "-o", &format!("{name}.o")])).unwrap();
        }
    })
}

fn calico() -> PathBuf {
    let directory = compiled("calico", CALICO, "felix/bpf-gpl", |sources| {
        for name in ["from_hep_fib_no_log", "to_hep_fib_no_log", "policy_default", "tc_preamble"] {
            let mut make = Command::new("make");
            make.current_dir(sources).args(["CC=clang-19", "LD=llc-19", &format!("bin/{name}.o")]);
            command::run(&mut make).unwrap();
        }
    });
    directory.join("bin")
}

/// A directory of a Go module, in which something was compiled; kept for the next time.
fn compiled(name: &str, module: &str, inside: &str, compile: impl Fn(&Path)) -> PathBuf {
    let place = workspace::cache()
        .join(format!("others-{name}-{}", module.rsplit('@').next().unwrap().replace('.', "-")));
    let lock = fs::File::create(place.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    if place.exists() {
        return place;
    }
    let mut download = go::command(workspace::root());
    let told = command::output(download.args(["mod", "download", "-json", module])).unwrap();
    let directory =
        told.lines().find_map(|line| line.trim().strip_prefix("\"Dir\": \"")?.strip_suffix("\","));
    let partial = place.with_extension("partial");
    let _ = fs::remove_dir_all(&partial);
    let from = Path::new(directory.unwrap()).join(inside);
    command::run(Command::new("cp").args(["--recursive", "--no-preserve=mode"]).arg(from).arg(&partial))
        .unwrap();
    command::run(Command::new("chmod").args(["-R", "u+rwx"]).arg(&partial)).unwrap();
    compile(&partial);
    fs::rename(&partial, &place).unwrap();
    place
}
