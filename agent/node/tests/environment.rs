//! The datapath's needs of a node, and its messages where they are not met.
#![cfg(test)]

#[expect(dead_code, reason = "an environment needs no client")]
mod support;

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use portcullis_node::{
    DEFAULT_PIN_DIR, Datapath, Desired, How, Interfaces, LogLevel, Options, Sharing, Unavailable, detach,
    probe,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use support::{Cores, close, ip, isolated, open, options, tcp};

const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_with_three_capabilities_is_enough() {
    isolated(|pin_dir| {
        chown(pin_dir.parent().unwrap(), Some(NOBODY), Some(NOBODY)).unwrap();
        become_nobody_with(CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON);
        let on_loopback = Options { interfaces: Interfaces::Named(vec!["lo".into()]), ..options(pin_dir) };
        let mut datapath = open(&on_loopback);
        let vip = [(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), Sharing::Exclusive)];
        assert_eq!(datapath.apply(&Desired::new([tcp("10.0.0.1:443")], vip)).unwrap().len(), 2);
        let guard = datapath.attachments().nth(1).unwrap();
        assert_eq!(guard.how, How::AttachedGeneric, "loopback has no native XDP");
        datapath.remove().unwrap();
    });
}

/// An agent that may not load programs still removes what is pinned.
#[test]
fn programs_are_detached_without_capabilities() {
    isolated(|pin_dir| {
        chown(pin_dir.parent().unwrap(), Some(NOBODY), Some(NOBODY)).unwrap();
        become_nobody_with(CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON);
        let ordinary = TcpListener::bind("127.0.0.1:8443").unwrap();
        let mut datapath = open(&options(pin_dir));
        datapath.apply(&Desired::new([tcp("127.0.0.1:8443")], [])).unwrap();
        TcpStream::connect(ordinary.local_addr().unwrap()).unwrap_err();
        close(datapath);

        become_nobody_with(CapabilitySet::empty());
        assert_eq!(detach(pin_dir).problems, Vec::<String>::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(ordinary.local_addr().unwrap()).is_err() {
            assert!(Instant::now() < deadline, "the program is still attached");
        }
    });
}

#[test]
fn missing_capabilities_are_named() {
    isolated(|pin_dir| {
        become_nobody_with(CapabilitySet::NET_ADMIN);
        let refused = refusal(&options(pin_dir));
        assert!(matches!(refused, Unavailable::Capabilities(_)), "{refused}");
        let message = refused.to_string();
        assert!(message.contains("BPF, PERFMON") && message.contains("grant"), "{message}");
    });
}

#[test]
fn a_pin_directory_on_another_file_system_is_refused() {
    isolated(|_| {
        let refused = refusal(&options(Path::new("/tmp/portcullis")));
        assert!(matches!(refused, Unavailable::NoBpffs { .. }), "{refused}");
    });
}

/// Also where the machine has no BPF file system yet: then it is mounted, here in the test's own
/// mount namespace.
#[test]
fn the_default_pin_directory_works() {
    isolated(|_| open(&options(Path::new(DEFAULT_PIN_DIR))).remove().unwrap());
}

/// As one of a tunnel that another program is yet to make.
#[test]
fn an_interface_that_comes_later_gets_the_guard_then() {
    isolated(|pin_dir| {
        let named = Options { interfaces: Interfaces::Named(vec!["later0".into()]), ..options(pin_dir) };
        let mut datapath = open(&named);
        let missing: Vec<_> = datapath.unguarded().iter().map(|it| it.interface.clone()).collect();
        assert_eq!((missing, datapath.attachments().count()), (vec!["later0".to_owned()], 1));
        for _ in 0..2 {
            ip("link add later0 type veth peer name later1");
            datapath.renew_guards();
            assert!(datapath.unguarded().is_empty());
            assert_eq!(datapath.attachments().count(), 2);
            ip("link del later0");
            datapath.renew_guards();
            assert_eq!((datapath.unguarded().len(), datapath.attachments().count()), (1, 1));
        }
    });
}

#[test]
fn probing_changes_nothing() {
    isolated(|pin_dir| {
        let environment = probe(pin_dir);
        assert!(environment.bpffs && environment.object, "{environment:?}");
        assert!(environment.check().is_ok());
        assert!(!pin_dir.exists());
    });
}

#[test]
fn the_kernel_logs_what_becomes_of_connections_and_nothing_unless_asked() {
    static RECORDS: Records = Records(Mutex::new(vec![]));
    log::set_logger(&RECORDS).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let (refused, steered) = ("connection to port 443: steer-no-socket", "connection to port 443: steered");
    let cases = [
        (None, vec![]),
        (Some(LogLevel::Debug), vec![refused]),
        (Some(LogLevel::Trace), vec![refused, steered]),
    ];
    for (level, expected) in cases {
        isolated(|pin_dir| refuse_and_steer(&Options { log: level, ..options(pin_dir) }));
        let records = std::mem::take(&mut *RECORDS.0.lock().unwrap());
        let ours: Vec<_> = records.iter().filter(|record| record.starts_with("connection ")).collect();
        assert_eq!(ours, expected);
    }
}

fn refuse_and_steer(options: &Options) {
    let mut datapath = open(options);
    datapath.apply(&Desired::new([tcp("127.0.0.1:443")], [])).unwrap();
    let mut kernel_log = datapath.kernel_log().unwrap();
    TcpStream::connect("127.0.0.1:443").unwrap_err();
    let cores = Cores::new(1);
    datapath.set_sockets(&cores.sockets()).unwrap();
    TcpStream::connect("127.0.0.1:443").unwrap();
    kernel_log.flush();
}

fn refusal(options: &Options) -> Unavailable {
    match Datapath::open(options) {
        Ok(_) => panic!("opened"),
        Err(refused) => refused,
    }
}

/// Makes this thread, and no other, an ordinary user's with these capabilities alone.
fn become_nobody_with(capabilities: CapabilitySet) {
    rustix::thread::set_keep_capabilities(true).unwrap();
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    let sets = CapabilitySets {
        effective: capabilities,
        permitted: capabilities,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

struct Records(Mutex<Vec<String>>);

impl log::Log for Records {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}
