//! Lists of clients for which the map has no room, or not for all of their ranges: the kernel
//! refuses by none of them, and user space decides.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData};
use portcullis_common::ABI_VERSION;
use portcullis_common::abi::{CLIENTS, MAX_CLIENTS};
use portcullis_model::{Admission, ClientList, ClientRules, FrontendKey, HostPattern};
use portcullis_node::{Datapath, Desired, EnforcedAt, NameTable};

use crate::support::{Client, Cores, isolated, open, options, tcp};

/// As many ranges as a list of `n` addresses has: with those of all addresses of a family.
const fn ranges(addresses: usize) -> usize {
    addresses + 2
}

#[test]
fn a_list_of_which_a_part_has_room_is_used_by_nothing() {
    isolated(|pin_dir| {
        let client = Client::new();
        let mut datapath = open(&options(pin_dir));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontend = tcp("10.99.0.1:443");
        let mut others = Others::fill(pin_dir);
        for room in [0, 1, 2, ranges(20) - 1] {
            others.leave(room);
            datapath.apply(&desired(frontend, &allowing(20))).unwrap_err();
            assert_is_left_to_user_space(&datapath, frontend);
            client.connect(address(frontend)).unwrap();
            cores.accept();
        }
        others.leave(ranges(20));
        datapath.apply(&desired(frontend, &allowing(20))).unwrap();
        assert_eq!(enforced(&datapath, frontend), EnforcedAt::SkLookup);
        let refused = client.connect(address(frontend)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// The one before it goes, too: by its terms clients would be refused that are now permitted.
#[test]
fn a_list_that_has_no_room_does_not_leave_the_one_before_it_in_force() {
    isolated(|pin_dir| {
        let client = Client::new();
        let mut datapath = open(&options(pin_dir));
        let cores = Cores::new(1);
        datapath.set_sockets(&cores.sockets()).unwrap();
        let frontend = tcp("10.99.0.1:443");
        datapath.apply(&desired(frontend, &allowing(2))).unwrap();
        assert_eq!(client.connect(address(frontend)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut others = Others::fill(pin_dir);
        datapath.apply(&desired(frontend, &allowing(20))).unwrap_err();
        assert_is_left_to_user_space(&datapath, frontend);
        client.connect(address(frontend)).unwrap();

        others.leave(ranges(20));
        datapath.apply(&desired(frontend, &allowing(20))).unwrap();
        others.leave(0);
        // Beside the one before it there is no room, and in its place there is.
        datapath.apply(&desired(frontend, &allowing(19))).unwrap();
        assert_eq!(client.connect(address(frontend)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    });
}

/// It is written again once what is not wanted any more is gone.
#[test]
fn what_goes_makes_room_for_what_comes_at_the_same_time() {
    isolated(|pin_dir| {
        drop(open(&options(pin_dir)));
        let mut others = Others::fill(pin_dir);
        others.leave(ranges(2));
        let mut datapath = open(&options(pin_dir));
        let frontend = tcp("10.99.0.1:443");
        // To an agent that begins, all that it finds is observed, and not wanted.
        datapath.apply(&desired(frontend, &allowing(20))).unwrap();
        assert_eq!(enforced(&datapath, frontend), EnforcedAt::SkLookup);
        assert_eq!(datapath.contents().clients.len(), ranges(20));
    });
}

fn assert_is_left_to_user_space(datapath: &Datapath, frontend: FrontendKey) {
    assert!(datapath.steers(&frontend), "it is served");
    assert_eq!(enforced(datapath, frontend), EnforcedAt::Accept);
    assert_eq!(datapath.contents().listeners, BTreeMap::new(), "by name neither");
    assert_eq!(datapath.contents().clients, BTreeMap::new(), "nothing of it is left");
}

fn enforced(datapath: &Datapath, frontend: FrontendKey) -> EnforcedAt {
    datapath.enforcement(&frontend, &HostPattern::Any).port_clients
}

/// So many addresses, of which none is the client's.
fn allowing(addresses: usize) -> ClientRules {
    let allow = (1..=addresses).map(|at| format!("10.98.0.{at}").parse().unwrap()).collect();
    ClientRules::new(vec![ClientList { allow, deny: vec![] }])
}

/// The terms of the port and of one of its names, which also denies addresses of its own.
fn desired(frontend: FrontendKey, rules: &ClientRules) -> Desired {
    let mut desired = Desired::new([frontend], []);
    desired.clients = BTreeMap::from([(frontend, rules.ranges().clone())]);
    let admission = Admission { clients: Some(Arc::new(rules.clone())), ..Admission::default() };
    let names = BTreeMap::from([(HostPattern::Any, Arc::new(admission))]);
    desired.names = vec![NameTable { frontends: [frontend].into(), names }];
    desired
}

fn address(frontend: FrontendKey) -> SocketAddr {
    SocketAddr::new(frontend.address, frontend.port)
}

/// Entries of the map that are not the agent's, as if the kernel had no memory for its own.
struct Others {
    map: LpmTrie<MapData, [u8; 20], u32>,
    entries: Vec<Key<[u8; 20]>>,
}

impl Others {
    /// Until nothing fits.
    fn fill(pin_dir: &Path) -> Self {
        let map = MapData::from_pin(pinned(pin_dir)).unwrap();
        let map = LpmTrie::try_from(Map::LpmTrie(map)).unwrap();
        let mut others = Self { map, entries: Vec::new() };
        others.leave(0);
        others
    }

    fn leave(&mut self, room: usize) {
        while let Some(key) = self.free_key() {
            if self.map.insert(&key, 1, 0).is_err() {
                break;
            }
            self.entries.push(key);
        }
        for _ in 0..room {
            self.map.remove(&self.entries.pop().unwrap()).unwrap();
        }
    }

    /// Of lists that no agent comes to.
    fn free_key(&self) -> Option<Key<[u8; 20]>> {
        let number = u32::try_from(self.entries.len()).unwrap();
        let mut data = [0xff; 20];
        data[16..].copy_from_slice(&number.to_be_bytes());
        (number < MAX_CLIENTS).then(|| Key::new(160, data))
    }
}

fn pinned(pin_dir: &Path) -> PathBuf {
    let version = pin_dir.join(format!("v{ABI_VERSION}"));
    let mut directories = fs::read_dir(version).unwrap().map(|entry| entry.unwrap().path());
    directories.next().unwrap().join(CLIENTS)
}
