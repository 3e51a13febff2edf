//! The reader of names on the loaded program: segments in → what was counted. The hellos are those
//! of real clients that the parser's own tests have, too.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use portcullis_common::client_hello::{Cursor, Reading};
use portcullis_common::server_name::ReversedName;
use portcullis_model::HostPattern;
use portcullis_node::{
    Believed, Datapath, Desired, How, Interfaces, MOST_VERIFIED, NameTable, Options, Reason,
    verified_instructions,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::corpus::{Hello, corpus};
use crate::names_frames::{Client, KNOWN, LINKS, OTHERS, UNREAD, VIPS};
use crate::support;
use crate::support::{close, isolated, open, options, tcp};

/// Segments on Ethernet; with a tunnel's header, with another; and all that came, merged.
const SIZES: [usize; 4] = [1448, 1398, 1208, 4096];

#[test]
fn every_hello_has_its_own_name_and_no_other() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        let corpus = corpus();
        let names: BTreeSet<_> = corpus.iter().filter_map(|hello| hello.name.as_deref()).collect();
        for (index, Hello { client, bytes, name }) in corpus.iter().enumerate() {
            let its_own = name.iter().map(String::as_str).collect();
            let others: Vec<_> =
                names.iter().copied().filter(|other| Some(*other) != name.as_deref()).collect();
            datapath.apply(&world(its_own, others)).unwrap();
            let (at_its_own, at_others) = match name {
                Some(_) => (Reason::HelloKnownName, Reason::HelloUnknownName),
                None => (Reason::HelloWithoutName, Reason::HelloWithoutName),
            };
            for (size, link) in SIZES.into_iter().flat_map(|size| LINKS.map(|link| (size, link))) {
                for (port, reason) in [(KNOWN, at_its_own), (OTHERS, at_others)] {
                    let segments: Vec<_> = bytes.chunks(size).collect();
                    let counted = send(&mut datapath, Client::new(index, port, link).stream(&segments));
                    assert_eq!(counted, [(reason, 1)], "{client}, {size} bytes, {link:?}");
                }
                let elsewhere = Client::new(index, UNREAD, link).stream(&[bytes]);
                assert_eq!(send(&mut datapath, elsewhere), [], "a port whose names are not looked up");
            }
        }
    });
}

#[test]
fn a_hello_may_be_cut_anywhere() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        let corpus = corpus();
        for client in ["chromium-second-segment", "openssl-tls13"] {
            let hello = corpus.iter().find(|hello| hello.client == client).unwrap();
            datapath.apply(&world(vec![hello.name.as_deref().unwrap()], vec![])).unwrap();
            for cut in 1..hello.bytes.len() {
                let (first, second) = hello.bytes.split_at(cut);
                let frames = Client::new(cut, KNOWN, LINKS[0]).stream(&[first, second]);
                assert_eq!(send(&mut datapath, frames), [(Reason::HelloKnownName, 1)], "cut at {cut}");
            }
        }
    });
}

#[test]
fn segments_of_other_flows_and_segments_that_come_again_do_not_matter() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        let hello = corpus().into_iter().find(|hello| hello.client == "chromium-last").unwrap();
        datapath.apply(&world(vec![hello.name.as_deref().unwrap()], vec![])).unwrap();
        let segments: Vec<_> = hello.bytes.chunks(700).collect();
        let flows = [0, 1, 2].map(|index| Client::new(index, KNOWN, LINKS[0]).stream(&segments));
        let interleaved = (0..segments.len()).flat_map(|at| flows.iter().map(move |flow| flow[at].clone()));
        assert_eq!(send(&mut datapath, interleaved.collect()), [(Reason::HelloKnownName, 3)]);

        let flow = Client::new(3, KNOWN, LINKS[0]).stream(&segments);
        let again = [0, 0, 1, 0, 1, 2].map(|at: usize| flow[at].clone());
        assert_eq!(send(&mut datapath, again.to_vec()), [(Reason::HelloKnownName, 1)]);

        // Out of order, and one missing: that is left to user space, and no other name is found.
        let flow = Client::new(4, KNOWN, LINKS[0]).stream(&segments);
        let missing = [0, 2, 2].map(|at: usize| flow[at].clone());
        assert_eq!(send(&mut datapath, missing.to_vec()), []);
    });
}

#[test]
fn what_is_no_hello_is_not_counted() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        datapath.apply(&world(vec!["a.b"], vec![])).unwrap();
        let application = [0x17, 3, 3, 0, 4, 1, 2, 3, 4];
        let segments: [&[u8]; 5] = [b"", b"GET / HTTP/1.1\r\n\r\n", &application, &[0; 1448], b"\x16"];
        for link in LINKS {
            let frames = Client::new(0, KNOWN, link).stream(&segments);
            assert_eq!(send(&mut datapath, frames), [], "{link:?}");
        }
    });
}

#[test]
fn wildcards_are_for_names_below() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        let go = corpus().into_iter().find(|hello| hello.client == "go").unwrap();
        let known = [(Reason::HelloKnownName, 1)];
        let unknown = [(Reason::HelloUnknownName, 1)];
        let cases = [
            (&["*.example.com"][..], known),
            (&["*.com"], known),
            (&["*.app.example.com"], unknown),
            (&["*.xample.com", "pp.example.com", "x.app.example.com", "example.com"], unknown),
            (&["*"], known),
            (&[], unknown),
        ];
        for (index, (names, expected)) in cases.into_iter().enumerate() {
            datapath.apply(&world(names.to_vec(), vec![])).unwrap();
            let frames = Client::new(index, KNOWN, LINKS[0]).stream(&[&go.bytes]);
            assert_eq!(send(&mut datapath, frames), expected, "{names:?}");
        }
    });
}

/// The program is the parser that is held to other parsers, with a memory of its own between the
/// segments.
#[test]
fn damaged_hellos_are_read_as_the_parser_reads_them() {
    isolated(|pin_dir| {
        let mut datapath = open(&reading(pin_dir));
        datapath.apply(&world(vec!["*"], vec![])).unwrap();
        let corpus = corpus();
        let mut random = Random(7);
        let mut names = 0;
        for index in 0..1000 {
            let mut bytes = corpus[random.below(corpus.len())].bytes.clone();
            for _ in 0..random.below(3) {
                let most = [2048, 200][random.below(2)].min(bytes.len());
                let at = random.below(most);
                bytes[at] = random.below(256) as u8;
            }
            let mut cuts = [0; 3].map(|_| random.below(bytes.len()));
            cuts.sort_unstable();
            let [a, b, c] = cuts;
            let segments = [&bytes[..a], &bytes[a..b], &bytes[b..c], &bytes[c..]];
            let counted = send(&mut datapath, Client::new(index, KNOWN, LINKS[0]).stream(&segments));
            let expected: &[&[(Reason, u64)]] = match read(segments) {
                Outcome::Name => &[&[(Reason::HelloKnownName, 1)]],
                Outcome::NoName => &[&[(Reason::HelloWithoutName, 1)]],
                Outcome::Incomplete => &[&[]],
                Outcome::Unreadable => &[&[], &[(Reason::HelloNotRead, 1)]],
            };
            assert!(expected.contains(&&*counted), "{index}: {counted:?}, not {expected:?}");
            names += usize::from(counted == [(Reason::HelloKnownName, 1)]);
        }
        assert!(names > 250, "{names} names");
    });
}

enum Outcome {
    Name,
    NoName,
    Incomplete,
    Unreadable,
}

fn read(segments: [&[u8]; 4]) -> Outcome {
    let (mut kept, mut cursor) = (Vec::new(), Cursor::BEGIN);
    for segment in segments.into_iter().filter(|segment| !segment.is_empty()) {
        let window = [&kept[..], segment].concat();
        match cursor.read(&window[..]) {
            Reading::Name { offset, length } => {
                let name = ReversedName(ReversedName::EMPTY.0).read(&window[..], offset, length);
                return if name.is_some() { Outcome::Name } else { Outcome::Unreadable };
            }
            Reading::NoName => return Outcome::NoName,
            Reading::Unreadable => return Outcome::Unreadable,
            Reading::Incomplete(next) => {
                let keep = next.keep(window.len());
                kept = window[keep.from..].to_vec();
                cursor = keep.cursor;
            }
        }
    }
    Outcome::Incomplete
}

/// Numbers that are the same each time (Knuth's linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A real client's segments, which the kernel may have merged.
#[test]
fn names_are_read_where_they_come_in() {
    isolated(|pin_dir| {
        let client = support::Client::new();
        let named = |names: &[&str]| Interfaces::Named(names.iter().map(|it| (*it).into()).collect());
        let options = Options { name_interfaces: named(&["node0", "later0"]), ..options(pin_dir) };
        let mut datapath = open(&options);
        let missing: Vec<_> = datapath.without_name_reader().iter().map(|it| &*it.interface).collect();
        assert_eq!(missing, ["later0"]);
        let cores = support::Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontends = ["10.99.0.1:443", "[fd99::1]:443"].map(tcp);
        let mut desired = Desired::new(frontends, []);
        let names = BTreeMap::from([(pattern("*.app.example.com"), Arc::default())]);
        desired.names = vec![NameTable { frontends: frontends.into(), names }];
        datapath.apply(&desired).unwrap();

        let before = counts(&datapath);
        for address in ["10.99.0.1:443", "[fd99::1]:443"] {
            for hello in corpus().iter().filter(|hello| hello.client.starts_with("chromium")) {
                let mut stream = client.connect(address.parse().unwrap()).unwrap();
                let (_, mut accepted) = cores.accept();
                stream.write_all(&hello.bytes).unwrap();
                accepted.set_nonblocking(false).unwrap();
                accepted.read_exact(&mut vec![0; hello.bytes.len()]).unwrap();
            }
        }
        let reasons = [Reason::HelloKnownName, Reason::HelloUnknownName, Reason::HelloNotRead];
        let after = counts(&datapath);
        assert_eq!(reasons.map(|reason| after[&reason] - before[&reason]), [10, 0, 0]);

        // The next agent adopts the program, and takes it off where it is not wanted.
        close(datapath);
        let adopted = open(&options);
        assert_eq!(adopted.attachments().nth(1).unwrap().how, How::Adopted);
        close(adopted);
        assert_eq!(open(&support::options(pin_dir)).attachments().count(), 1);
    });
}

#[test]
fn all_programs_are_verified_soon_for_an_ordinary_user_with_three_capabilities() {
    isolated(|_| {
        become_nobody_with(CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON);
        let verified = verified_instructions().unwrap();
        println!("verified instructions: {verified:?}");
        assert_eq!(verified.len(), 5);
        for (program, instructions) in verified {
            assert!(instructions.is_none_or(|number| number <= MOST_VERIFIED), "{program}: {instructions:?}");
        }
    });
}

/// An ordinary user.
const NOBODY: u32 = 65534;

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

/// There is no such interface, but there is room for begun hellos.
fn reading(pin_dir: &Path) -> Options {
    let name_interfaces = Interfaces::Named(vec!["none0".into()]);
    Options { name_interfaces, believed: Believed::All, ..options(pin_dir) }
}

/// Names of the ports [`KNOWN`] and [`OTHERS`] of each VIP.
fn world(known: Vec<&str>, others: Vec<&str>) -> Desired {
    let at = |port: u16| VIPS.map(|vip| tcp(&format!("{vip}:{port}")));
    let table = |port: u16, names: Vec<&str>| NameTable {
        frontends: BTreeSet::from(at(port)),
        names: names.into_iter().map(|name| (pattern(name), Arc::default())).collect(),
    };
    let mut desired = Desired::new([KNOWN, OTHERS, UNREAD].into_iter().flat_map(at), []);
    desired.names = vec![table(KNOWN, known), table(OTHERS, others)];
    desired
}

fn pattern(name: &str) -> HostPattern {
    if name == "*" { HostPattern::Any } else { HostPattern::parse(name).unwrap() }
}

fn counts(datapath: &Datapath) -> BTreeMap<Reason, u64> {
    datapath.counters().unwrap().into_iter().collect()
}

/// The counters that moved.
fn send(datapath: &mut Datapath, frames: Vec<Vec<u8>>) -> Vec<(Reason, u64)> {
    let before = counts(datapath);
    for frame in frames {
        datapath.run_names(&frame).unwrap_or_else(|error| panic!("{error}"));
    }
    let after = datapath.counters().unwrap().into_iter();
    let moved = after.map(|(reason, count)| (reason, count - before[&reason]));
    moved.filter(|(_, count)| *count > 0).collect()
}
