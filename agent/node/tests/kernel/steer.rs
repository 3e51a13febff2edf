//! Steering, live: real connections from another network namespace.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{HashMap, PerCpuArray};
use portcullis_common::ABI_VERSION;
use portcullis_common::abi::MAX_FRONTENDS;
use portcullis_node::{
    Cleaned, Datapath, Desired, How, Interfaces, Options, Reason, Sharing, Unavailable, detach,
};

use crate::support::{Client, Cores, close, ip, isolated, open, options, tc, tcp};

const CORES: usize = 4;

#[test]
fn a_thousand_ports_reach_the_cores_and_keep_their_number() {
    isolated(|pin_dir| {
        let ports =
            || (2000..3000).flat_map(|port| [format!("10.50.0.1:{port}"), format!("[fd50::1]:{port}")]);
        let desired = Desired::new(ports().map(|address| tcp(&address)), []);
        let Steered { client, cores, datapath } = Steered::new(&options(pin_dir), CORES, &desired);

        let mut hits = BTreeMap::<usize, usize>::new();
        for address in ports().map(|address| address.parse::<SocketAddr>().unwrap()) {
            let connection = client.connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
            let (core, accepted) = cores.accept();
            assert_eq!(accepted.local_addr().unwrap(), address);
            assert_eq!(accepted.peer_addr().unwrap(), connection.local_addr().unwrap());
            *hits.entry(core).or_default() += 1;
        }
        assert!((0..CORES).all(|core| hits[&core] > 2000 / CORES / 2), "uneven: {hits:?}");
        assert_eq!(count(&datapath, Reason::Steered), 2000);
        datapath.remove().unwrap();
    });
}

#[test]
fn what_is_not_a_frontend_is_untouched() {
    isolated(|pin_dir| {
        let desired = Desired::new([tcp("10.50.0.1:443")], []);
        let Steered { client, cores: _cores, datapath } = Steered::new(&options(pin_dir), 1, &desired);
        assert_refused(&client, "10.50.0.1:444");
        assert_refused(&client, "10.99.0.1:443");
        assert_refused(&client, "[fd50::1]:443");
        let ordinary = TcpListener::bind("10.99.0.1:7000").unwrap();
        client.connect(ordinary.local_addr().unwrap()).unwrap();
        ordinary.accept().unwrap();
        assert_eq!(count(&datapath, Reason::Steered), 0);
    });
}

#[test]
fn a_wildcard_frontend_is_every_local_address_of_its_family() {
    isolated(|pin_dir| {
        let desired = Desired::new([tcp("0.0.0.0:8080"), tcp("[::]:8081")], []);
        let Steered { client, cores, datapath: _datapath } = Steered::new(&options(pin_dir), 2, &desired);
        for address in ["10.50.0.1:8080", "10.99.0.1:8080", "[fd50::1]:8081", "[fd99::1]:8081"] {
            assert_reaches(&client, &cores, address);
        }
        assert_refused(&client, "[fd50::1]:8080");
        assert_refused(&client, "10.50.0.1:8081");
    });
}

#[test]
fn a_frontend_without_sockets_is_refused_and_counted() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let mut datapath = open(&options(pin_dir));
        datapath.apply(&Desired::new([tcp("10.50.0.1:443")], [])).unwrap();
        assert_refused(&client, "10.50.0.1:443");

        let cores = Cores::new(2);
        datapath.set_sockets(&cores.sockets()).unwrap();
        assert_reaches(&client, &cores, "10.50.0.1:443");

        close(cores);
        assert_refused(&client, "10.50.0.1:443");
        assert_eq!(count(&datapath, Reason::SteerNoSocket), 2);
    });
}

#[test]
fn a_frontend_without_sockets_is_no_other_processes() {
    isolated(|pin_dir| {
        let (client, cores) = (client_with_vips(), Cores::new(1));
        let everywhere = [TcpListener::bind("0.0.0.0:443").unwrap(), TcpListener::bind("[::]:22").unwrap()];
        let mut datapath = open(&options(pin_dir));
        datapath.apply(&Desired::new([tcp("10.50.0.1:443"), tcp("[fd50::1]:22")], [])).unwrap();
        assert_refused(&client, "10.50.0.1:443");
        assert_refused(&client, "[fd50::1]:22");
        client.connect("10.99.0.1:443".parse().unwrap()).unwrap();
        client.connect("[fd99::1]:22".parse().unwrap()).unwrap();

        datapath.set_sockets(&cores.sockets()).unwrap();
        assert_reaches(&client, &cores, "10.50.0.1:443");
        close((datapath, cores));
        assert_refused(&client, "10.50.0.1:443");
        close(everywhere);
    });
}

/// A core that is busy for long accepts nothing, and the kernel drops what comes to a full queue.
#[test]
fn connections_pass_by_a_core_whose_accept_queue_is_full() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let (busy, idle) = (Cores::with_room(1, 8), Cores::new(1));
        let mut datapath = open(&options(pin_dir));
        let ports = ["10.50.0.1:443", "[fd50::1]:443"];
        datapath.apply(&Desired::new(ports.map(tcp), [])).unwrap();
        for address in ports.map(|address| address.parse().unwrap()) {
            datapath.set_sockets(&busy.sockets()).unwrap();
            let waiting: Vec<_> = (0..9).map(|_| client.connect(address).unwrap()).collect();
            let full = client.connect_within(address, Duration::from_millis(300));
            assert_eq!(full.map_err(|error| error.kind()).unwrap_err(), ErrorKind::TimedOut, "{address}");

            let both: Vec<_> = busy.sockets().into_iter().chain(idle.sockets()).collect();
            datapath.set_sockets(&both).unwrap();
            for _ in 0..30 {
                // Sooner than the client's kernel asks again.
                let _connection = client.connect_within(address, Duration::from_millis(900)).unwrap();
                idle.accept();
            }
            close(waiting);
        }
        assert!(count(&datapath, Reason::SteeredAside) > 10, "{:?}", datapath.counters());
    });
}

#[test]
fn fewer_cores_after_more_leave_no_connection_behind() {
    isolated(|pin_dir| {
        let desired = Desired::new([tcp("10.50.0.1:443")], []);
        let Steered { client, cores: _many, mut datapath } = Steered::new(&options(pin_dir), 8, &desired);
        let few = Cores::new(1);
        datapath.set_sockets(&few.sockets()).unwrap();
        for _ in 0..50 {
            assert_reaches(&client, &few, "10.50.0.1:443");
        }
    });
}

#[test]
fn traffic_survives_the_agent_and_is_adopted_by_the_next() {
    isolated(|pin_dir| {
        let (options, desired) = (guarded(pin_dir), desired_443());
        let Steered { client, cores, datapath } = Steered::new(&options, 2, &desired);
        assert!(datapath.attachments().all(|a| a.how != How::Adopted), "{:?}", attached(&datapath));
        close(datapath);
        assert_reaches(&client, &cores, "10.50.0.1:443");

        for _ in 0..5 {
            let mut next = open(&options);
            assert!(next.attachments().all(|a| a.how == How::Adopted), "{:?}", attached(&next));
            assert_eq!(next.apply(&desired).unwrap(), [], "the maps are as they were left");
            assert_reaches(&client, &cores, "10.50.0.1:443");
            close(next);
        }

        let mut next = open(&options);
        let successors = Cores::new(2);
        next.set_sockets(&successors.sockets()).unwrap();
        assert_reaches(&client, &successors, "10.50.0.1:443");
        assert!(count(&next, Reason::Steered) >= 7, "counters go on");
    });
}

#[test]
fn the_guard_drops_what_the_kernel_would_refuse() {
    isolated(|pin_dir| {
        let Steered { client, cores, datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
        assert_reaches(&client, &cores, "10.50.0.1:443");
        let silence = client.connect_within("10.50.0.1:444".parse().unwrap(), Duration::from_millis(200));
        assert_eq!(silence.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_refused(&client, "10.99.0.1:444");
        assert_eq!(count(&datapath, Reason::DroppedNoListener), 1);
        assert!(count(&datapath, Reason::PassedListener) > 0);
    });
}

#[test]
fn a_port_that_is_going_is_closed_and_its_connections_go_on() {
    isolated(|pin_dir| {
        let Steered { client, cores, mut datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
        let address = "10.50.0.1:443".parse().unwrap();
        let mut connection = client.connect(address).unwrap();
        let (_, mut accepted) = cores.accept();

        let mut going = desired_443();
        going.leaving = std::mem::take(&mut going.frontends);
        datapath.apply(&going).unwrap();
        assert_refused(&client, "10.50.0.1:443");
        connection.write_all(b"still here").unwrap();
        accepted.set_nonblocking(false).unwrap();
        accepted.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        accepted.read_exact(&mut [0; 10]).unwrap();

        going.leaving.clear();
        datapath.apply(&going).unwrap();
        client.connect_within(address, Duration::from_millis(200)).unwrap_err();
        assert_eq!(count(&datapath, Reason::DroppedNoListener), 1);
    });
}

#[test]
fn a_full_map_is_full_for_what_is_new_only() {
    isolated(|pin_dir| {
        let frontend = |at: u32| tcp(&format!("10.{}.0.1:{}", 60 + at / 50_000, 10_000 + at % 50_000));
        let many = |count| Desired::new((0..count).map(frontend), []);
        let mut datapath = open(&options(pin_dir));
        datapath.apply(&many(MAX_FRONTENDS)).unwrap();

        // Nothing more fits, but what goes goes, and leaves room for what comes.
        let mut next = many(MAX_FRONTENDS + 10);
        let gone = next.frontends.pop_first().unwrap();
        let first = tcp("10.50.0.1:443");
        next.frontends.insert(first);
        datapath.apply(&next).unwrap_err();
        assert!(!datapath.steers(&gone), "it is still there");
        assert_eq!(next.frontends.iter().filter(|it| !datapath.steers(it)).count(), 10);

        let fits = Desired::new((1..MAX_FRONTENDS).map(frontend).chain([first]), []);
        datapath.apply(&fits).unwrap();
        assert!(fits.frontends.iter().all(|it| datapath.steers(it)));
    });
}

#[test]
fn an_interface_no_longer_listed_is_left() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let mut datapath = open(&guarded(pin_dir));
        datapath.apply(&desired_443()).unwrap();
        close(datapath);
        let next = open(&options(pin_dir));
        assert_eq!(next.attachments().count(), 1);
        assert_refused(&client, "10.50.0.1:444");
    });
}

#[test]
fn an_agent_of_another_version_is_relieved() {
    isolated(|pin_dir| {
        let Steered { client, cores: old, datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
        close(datapath);
        let (version, other) = (pin_dir.join(format!("v{ABI_VERSION}")), pin_dir.join("v0"));
        std::fs::rename(version, &other).unwrap();

        let mut next = open(&guarded(pin_dir));
        assert!(next.attachments().all(|a| a.how != How::Adopted), "{:?}", attached(&next));
        assert_reaches(&client, &old, "10.50.0.1:443");
        let new = Cores::new(1);
        next.set_sockets(&new.sockets()).unwrap();
        next.apply(&desired_443()).unwrap();
        assert_reaches(&client, &old, "10.50.0.1:443");
        next.relieve_predecessors().unwrap();
        assert_reaches(&client, &new, "10.50.0.1:443");
        assert!(!other.exists(), "the other version's pins are left");
    });
}

#[test]
fn a_second_agent_is_refused_and_changes_nothing() {
    isolated(|pin_dir| {
        let Steered { client, cores, datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
        let Err(refused) = Datapath::open(&guarded(pin_dir)) else { panic!("opened") };
        let own = format!("process {} (", std::process::id());
        assert!(matches!(refused, Unavailable::InUse { .. }), "{refused}");
        assert!(refused.to_string().contains(&own), "{refused}");
        assert_reaches(&client, &cores, "10.50.0.1:443");
        close(datapath);
        open(&guarded(pin_dir));
    });
}

/// As an agent finds them that was built with other limits.
#[test]
fn maps_of_another_shape_are_left_and_replaced() {
    type Pin = fn(&Path);
    let pins: [(&str, Pin); 4] = [
        ("COUNTERS", |path| HashMap::<_, u32, u64>::create(Reason::COUNT, 0).unwrap().pin(path).unwrap()),
        ("COUNTERS", |path| {
            PerCpuArray::<_, [u64; 64]>::create(Reason::COUNT, 0).unwrap().pin(path).unwrap();
        }),
        ("FRONTENDS", |path| HashMap::<_, [u8; 20], [u8; 64]>::create(65_536, 0).unwrap().pin(path).unwrap()),
        ("VIPS", |path| HashMap::<_, [u8; 16], u32>::create(1, 0).unwrap().pin(path).unwrap()),
    ];
    for (name, pin) in pins {
        isolated(|pin_dir| {
            let Steered { client, cores: old, datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
            close(datapath);
            let [directory] = pin_directories(pin_dir).try_into().unwrap();
            std::fs::remove_file(directory.join(name)).unwrap();
            pin(&directory.join(name));

            let mut next = open(&guarded(pin_dir));
            assert_reaches(&client, &old, "10.50.0.1:443");
            let new = Cores::new(1);
            next.set_sockets(&new.sockets()).unwrap();
            next.apply(&desired_443()).unwrap();
            next.relieve_predecessors().unwrap();
            assert_reaches(&client, &new, "10.50.0.1:443");
            assert!(count(&next, Reason::Steered) > 0);
            assert!(!directory.exists(), "{name}: it has no agent any more");
            let own = pin_directories(pin_dir);
            close(next);
            let next = open(&guarded(pin_dir));
            assert!(next.attachments().all(|a| a.how == How::Adopted), "{:?}", attached(&next));
            assert_eq!(pin_directories(pin_dir), own, "its directory is found again");
        });
    }
}

/// A network card has room for one XDP program in its driver, and for one in the generic hook.
#[test]
fn a_foreign_program_on_an_interface_costs_the_guard_and_not_the_steering() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let foreign = Datapath::open(&guarded(&pin_dir.with_file_name("foreign"))).unwrap();
        let mut datapath = open(&guarded(pin_dir));
        let unguarded = datapath.unguarded();
        assert_eq!(unguarded.len(), 1, "{unguarded:?}");
        assert_eq!(unguarded[0].interface, "node0");
        assert!(unguarded[0].reason.contains("cannot attach guard to node0"), "{unguarded:?}");
        assert_eq!(unguarded[0].label, "foreign-program");
        assert_eq!(datapath.guard_coverage().on, Vec::<String>::new());
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        datapath.apply(&desired_443()).unwrap();
        assert_reaches(&client, &cores, "10.50.0.1:443");
        datapath.renew_guards();
        assert_eq!(datapath.unguarded().len(), 1, "it is still in the way");
        foreign.remove().unwrap();
        datapath.renew_guards();
        assert!(datapath.unguarded().is_empty(), "{:?}", datapath.unguarded());
        assert_eq!(datapath.guard_coverage().on, ["node0"]);
        assert!(datapath.attachments().any(|it| it.target == "node0"), "{:?}", attached(&datapath));
    });
}

/// Of the cluster's network, for instance: neither where agents of this version come and go, nor
/// where one of another version is relieved.
#[test]
fn what_others_have_attached_to_an_interface_stays() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let foreign = Datapath::open(&guarded(&pin_dir.with_file_name("foreign"))).unwrap();
        tc("qdisc add dev node0 clsact");
        for hook in ["ingress", "egress"] {
            tc(&format!("filter add dev node0 {hook} protocol all u32 match u32 0 0 classid 1:1"));
        }
        let attached = || {
            let filters = ["ingress", "egress"].map(|hook| tc(&format!("filter show dev node0 {hook}")));
            let link = ip("-details link show node0");
            let xdp = link.lines().find(|line| line.contains("prog/xdp")).map(str::to_owned);
            (filters, xdp.expect("the foreign program"))
        };
        let before = attached();
        assert!(before.0.iter().all(|filters| filters.contains("match 00000000/00000000")), "{before:?}");

        let cores = Cores::new(1);
        let serve = |mut datapath: Datapath| {
            datapath.set_sockets(&cores.sockets()).unwrap();
            datapath.apply(&desired_443()).unwrap();
            assert_reaches(&client, &cores, "10.50.0.1:443");
            assert_refused(&client, "10.50.0.1:444");
            assert_eq!(attached(), before);
            datapath
        };
        close(serve(open(&options(pin_dir))));
        let version = pin_dir.join(format!("v{ABI_VERSION}"));
        std::fs::rename(version, pin_dir.join("v0")).unwrap();
        close(serve(open(&options(pin_dir))));
        serve(open(&options(pin_dir))).remove().unwrap();
        assert_eq!(attached(), before);
        close(foreign);
    });
}

#[test]
fn only_the_agents_user_may_look_at_its_pins() {
    isolated(|pin_dir| {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let datapath = open(&options(pin_dir));
        let [directory] = pin_directories(pin_dir).try_into().unwrap();
        assert_eq!([mode(pin_dir), mode(&directory)], [0o700; 2]);
        close(datapath);

        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        close(open(&options(pin_dir)));
        assert_eq!(mode(&directory), 0o700, "as an earlier version left it");

        let refused = || Datapath::open(&options(pin_dir)).err().map(|error| error.to_string());
        std::fs::set_permissions(pin_dir, Permissions::from_mode(0o777)).unwrap();
        assert!(refused().unwrap().contains("chmod go-w"), "{:?}", refused());
        std::fs::set_permissions(pin_dir, Permissions::from_mode(0o700)).unwrap();
        chown(&directory, Some(65534), None).unwrap();
        assert!(refused().unwrap().contains("belongs to user 65534"), "{:?}", refused());
    });
}

#[test]
fn a_directory_that_others_could_replace_is_refused() {
    isolated(|pin_dir| {
        let above = pin_dir.with_file_name("above");
        std::fs::create_dir(&above).unwrap();
        let below = above.join("portcullis");
        close(open(&options(&below)));

        let refused = |pin_dir: &Path| Datapath::open(&options(pin_dir)).err().unwrap().to_string();
        let says = |said: String, what: &str| {
            assert!(said.contains(&above.display().to_string()) && said.contains(what), "{said}");
        };
        let allow = |mode| std::fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
        allow(0o777);
        says(refused(&below), "other users may write");
        says(refused(&above.join("none").join("portcullis")), "other users may write");
        assert!(!above.join("none").exists(), "nothing is made there");
        allow(0o1777);
        close(open(&options(&below)));
        allow(0o755);
        chown(&above, Some(65534), None).unwrap();
        says(refused(&below), "belongs to user 65534");
    });
}

#[test]
fn a_link_is_as_good_as_the_directory_it_leads_to() {
    isolated(|pin_dir| {
        let datapath = open(&options(pin_dir));
        let link = pin_dir.with_file_name("link");
        symlink(pin_dir, &link).unwrap();
        let refused = || Datapath::open(&options(&link)).err().unwrap().to_string();
        let in_use = refused();
        assert!(in_use.contains("another agent") && in_use.contains("--pin-dir"), "{in_use}");
        close(datapath);
        close(open(&options(&link)));
        assert_eq!(pin_directories(pin_dir).len(), 1);

        lchown(&link, Some(65534), None).unwrap();
        assert!(refused().contains("belongs to user 65534"), "{}", refused());
    });
}

fn pin_directories(pin_dir: &Path) -> Vec<PathBuf> {
    let version = pin_dir.join(format!("v{ABI_VERSION}"));
    std::fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// As an agent does that serves without programs.
#[test]
fn programs_are_detached_that_no_agent_looks_after() {
    isolated(|pin_dir| {
        let client = client_with_vips();
        let ordinary = TcpListener::bind("10.50.0.1:444").unwrap();
        let mut datapath = open(&guarded(pin_dir));
        datapath.apply(&desired_443()).unwrap();
        let refused = detach(pin_dir);
        assert!(refused.removed.is_empty() && refused.problems.len() == 1, "{refused:?}");
        let address = ordinary.local_addr().unwrap();
        client.connect_within(address, Duration::from_millis(200)).unwrap_err();
        close(datapath);

        let version = format!("v{ABI_VERSION}");
        std::fs::rename(pin_dir.join(version), pin_dir.join("v0")).unwrap();
        let detached = detach(pin_dir);
        assert!(detached.problems.is_empty() && detached.removed.len() == 1, "{detached:?}");
        client.connect(address).unwrap();
        assert_eq!(detach(pin_dir), Cleaned::default());
    });
}

#[test]
fn removing_detaches_and_leaves_no_pin() {
    isolated(|pin_dir| {
        let Steered { client, cores, datapath } = Steered::new(&guarded(pin_dir), 1, &desired_443());
        assert_reaches(&client, &cores, "10.50.0.1:443");
        datapath.remove().unwrap();
        assert_refused(&client, "10.50.0.1:443");
        assert_refused(&client, "10.50.0.1:444");
        assert!(!pin_dir.exists(), "pins are left");
    });
}

/// A client with VIPs, and a datapath that steers what it wants to cores of its own.
struct Steered {
    client: Client,
    cores: Cores,
    datapath: Datapath,
}

impl Steered {
    fn new(options: &Options, cores: usize, desired: &Desired) -> Self {
        let (client, cores) = (client_with_vips(), Cores::new(cores));
        let mut datapath = open(options);
        datapath.set_sockets(&cores.sockets()).unwrap();
        datapath.apply(desired).unwrap();
        Self { client, cores, datapath }
    }
}

fn client_with_vips() -> Client {
    let client = Client::new();
    ip("addr add 10.50.0.1/32 dev lo");
    ip("addr add fd50::1/128 dev lo");
    client
}

/// With the guard on the client's veth: small packets only, so its cost to segmentation offload
/// does not matter.
fn guarded(pin_dir: &std::path::Path) -> Options {
    Options { interfaces: Interfaces::Named(vec!["node0".into()]), ..options(pin_dir) }
}

fn desired_443() -> Desired {
    Desired::new([tcp("10.50.0.1:443")], [("10.50.0.1".parse().unwrap(), Sharing::Exclusive)])
}

fn assert_reaches(client: &Client, cores: &Cores, address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let _connection = client.connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    assert_eq!(cores.accept().1.local_addr().unwrap(), address);
}

fn assert_refused(client: &Client, address: &str) {
    let refused = client.connect(address.parse().unwrap());
    assert_eq!(refused.map_err(|error| error.kind()).unwrap_err(), ErrorKind::ConnectionRefused, "{address}");
}

fn attached(datapath: &Datapath) -> Vec<String> {
    datapath.attachments().map(ToString::to_string).collect()
}

fn count(datapath: &Datapath, reason: Reason) -> u64 {
    let counters: BTreeMap<_, _> = datapath.counters().unwrap().into_iter().collect();
    counters[&reason]
}
