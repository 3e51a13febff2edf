//! An agent that starts takes over from the one that serves, under load: no request fails, and no
//! connection is refused.
#![cfg(test)]

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use portcullis_netns_tests::{CLIENT_INTERFACE, Load, Scenario, VIP};
use portcullis_testbed::{Agent, Datapath, Launch, until};

const SHOP: &str = "https://shop.example.com/";
/// Answered by agents themselves.
const PLAIN: &str = "http://shop.example.com/";
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
        until(Duration::from_secs(60), goes_on).unwrap();
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
    assert!(said.contains("hands nothing over: the one that serves belongs to directory"), "{said}");

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

/// Ordinary sockets of the agent before are not another process's, where the address is the node's
/// own.
#[test]
fn no_request_fails_on_the_nodes_own_address() {
    let scenario = Scenario::new("hand-own").unwrap();
    scenario.ip_on_node(&["address", "add", &format!("{VIP}/32"), "dev", CLIENT_INTERFACE]).unwrap();
    let launch = scenario.launch_with(Datapath::Userspace).unwrap();
    let mut agent = launch.clone().start().unwrap();
    let loads = loads(&scenario);
    for turn in 0..4 {
        let datapath = [Datapath::Ebpf, Datapath::Userspace][turn % 2];
        agent = taken_over(agent, Launch { datapath, ..with(&launch, &["--take-over"]) });
    }
    for load in loads {
        load.finish().unwrap_or_else(|error| panic!("{error:#}; {}", agent.log()));
    }
    assert!(!agent.log().contains("another process"), "{}", agent.log());
}

/// The directories of pins change with the version of the maps: old, new, old.
#[test]
fn no_request_fails_when_the_version_of_the_maps_changes() {
    let scenario = Scenario::new("hand-abi").unwrap();
    let launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    let mut agent = launch.clone().start().unwrap();
    let version = || {
        let mut versions = fs::read_dir(&launch.pins).unwrap().map(|entry| entry.unwrap().path());
        let version = versions.next().unwrap();
        assert!(versions.next().is_none(), "those of the other version are left");
        version
    };
    let own = version();
    let loads = loads(&scenario);
    for other in ["v0", "v9999", "v0"] {
        fs::rename(version(), launch.pins.join(other)).unwrap();
        agent = taken_over(agent, with(&launch, &["--take-over"]));
        assert_eq!(version(), own);
    }
    loads.into_iter().for_each(|load| load.finish().unwrap());
}

#[test]
fn an_agent_that_ends_while_the_one_before_drains_is_followed_at_once() {
    let scenario = Scenario::new("hand-drain").unwrap();
    let launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    let mut first = launch.clone().start().unwrap();
    let apart = |name| Launch { scratch: scenario.file(name), ..with(&launch, &["--take-over"]) };
    let held = scenario.shop.hold();
    thread::scope(|scope| {
        let pending = scope.spawn(|| scenario.request(SHOP).send());
        until(Duration::from_secs(60), || match scenario.shop.requests() {
            0 => anyhow::bail!("no request"),
            _ => Ok(()),
        })
        .unwrap();
        let second = apart("second").start().unwrap();
        second.crash().unwrap();
        let third = apart("third").start().unwrap();
        assert!(first.runs().unwrap(), "its connections are open");
        assert_eq!(scenario.request(PLAIN).send().unwrap().status, 301);
        drop(held);
        assert_eq!(pending.join().unwrap().unwrap().status, 200);
        first.wait_succeeded().unwrap();
        drop(third);
    });
}

#[test]
fn an_agent_that_was_to_take_over_serves_when_the_other_one_ends_before() {
    let scenario = Scenario::new("hand-late").unwrap();
    let launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    let apart = Launch { scratch: scenario.file("second"), ..with(&launch, &["--take-over"]) };
    let waits = |next: &Agent| {
        until(Duration::from_secs(60), || {
            anyhow::ensure!(next.log().contains("another agent serves"), "{}", next.log());
            Ok(())
        })
    };
    for ends in [|agent: Agent| agent.crash().map(drop), |agent: Agent| agent.stop().map(drop)] {
        let first = launch.clone().start().unwrap();
        let mut next = apart.clone().spawn().unwrap();
        // It has the locks, most likely, and hangs.
        waits(&next).unwrap();
        next.pause().unwrap();
        ends(first).unwrap();
        next.resume().unwrap();
        next.wait_ready().unwrap();
        assert_eq!(scenario.request(PLAIN).send().unwrap().status, 301);
        fs::remove_file(next.stop().unwrap().scratch.join("agent.log")).unwrap();
    }
    // Both are told to end.
    let first = launch.clone().start().unwrap();
    let next = apart.spawn().unwrap();
    waits(&next).unwrap();
    let [first, next] = [first, next].map(|agent| thread::spawn(|| agent.terminate()));
    assert!(first.join().unwrap().unwrap().success());
    // It may not have taken signals into its own hands yet.
    next.join().unwrap().unwrap();
}

/// A process with the node's network has the names of unix sockets in it, and not its files.
#[test]
fn the_sockets_are_for_those_who_have_the_agents_directory() {
    let scenario = Scenario::new("hand-door").unwrap();
    let launch = scenario.launch_with(Datapath::Ebpf).unwrap();
    let first = launch.clone().start().unwrap();
    let by_name = scenario.on_node(|| {
        let lock = SocketAddr::from_abstract_name("portcullis")?;
        Ok(UnixStream::connect_addr(&lock).map(drop).map_err(|error| error.kind()))
    });
    assert_eq!(by_name.unwrap(), Err(ErrorKind::ConnectionRefused), "the lock is nothing to talk to");
    let directory = scenario.file("state").join("hand-over");
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    let socket = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();

    // A process that says nothing, and one that the agent has no descriptor for, cost it nothing.
    let silent = UnixStream::connect(&socket).unwrap();
    let limit = |files: &str| {
        let pid = first.pid().to_string();
        let mut command = scenario.command_on_node("prlimit");
        assert!(command.args(["--pid", &pid, &format!("--nofile={files}")]).status().unwrap().success());
    };
    limit("16:");
    let unheard = UnixStream::connect(&socket).unwrap();
    let said = || {
        anyhow::ensure!(first.log().contains("cannot be asked to hand over"), "{}", first.log());
        Ok(())
    };
    until(Duration::from_secs(60), said).unwrap();
    limit("1024:");
    let next =
        taken_over(first, Launch { scratch: scenario.file("second"), ..with(&launch, &["--take-over"]) });
    drop((silent, unheard));
    drop(next);
}

/// The hold is no condition: an agent without serves and hands over, and says what that costs.
#[test]
fn agents_hand_over_where_nftables_refuses_the_hold() {
    let scenario = Scenario::new("hand-nft").unwrap();
    let ruleset = || {
        let output = scenario.command_on_node("nft").args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // Another program's, which no other may change.
    let mut occupant = Occupant::start(&scenario);
    until(Duration::from_secs(60), || {
        anyhow::ensure!(ruleset().contains("flags owner"), "{}", ruleset());
        Ok(())
    })
    .unwrap();
    let launch = with(&scenario.launch_with(Datapath::Ebpf).unwrap(), &["--syn-hold", "10"]);
    refused_hold(&scenario, &launch);
    occupant.end();
    assert_eq!(ruleset(), "", "nothing is left");

    // A system without nftables, for all that the agent may do.
    // Its addresses are there still.
    let less = ["setpriv", "--bounding-set", "-net_admin"].map(OsString::from);
    let through = launch.through.iter().cloned().chain(less).collect();
    refused_hold(&scenario, &Launch { datapath: Datapath::Userspace, through, ..launch });
    assert_eq!(ruleset(), "");
}

fn refused_hold(scenario: &Scenario, launch: &Launch) {
    let scratch = scenario.file(&format!("{}", launch.datapath));
    let launch = Launch { scratch, ..launch.clone() };
    let first = launch.clone().start().unwrap();
    let loads = loads(scenario);
    let next = taken_over(first, with(&launch, &["--take-over"]));
    loads.into_iter().for_each(|load| load.finish().unwrap());
    let log = next.log();
    let cost = "new connections are refused while no agent runs, because nftables cannot hold them";
    assert_eq!(log.matches(cost).count(), 2, "by each of them: {log}");
    next.stop().unwrap();
    let refused = scenario.request(SHOP).send().unwrap();
    assert_eq!(refused.code, Some(7), "{refused:?}");
}

/// A program that has the table of the hold for itself, as long as it runs.
struct Occupant(Child);

impl Occupant {
    fn start(scenario: &Scenario) -> Self {
        let mut command = scenario.command_on_node("nft");
        let mut nft = command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = nft.stdin.as_mut().unwrap();
        input.write_all(b"add table inet portcullis { flags owner; }\n").unwrap();
        Self(nft)
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Occupant {
    fn drop(&mut self) {
        self.end();
    }
}

/// The next agent, when it serves and the one before has ended.
fn taken_over(agent: Agent, next: Launch) -> Agent {
    let mut next = next.spawn().unwrap();
    agent.wait_succeeded().unwrap();
    next.wait_ready().unwrap();
    next
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
