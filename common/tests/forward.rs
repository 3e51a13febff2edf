//! Flows on the host: packets in, and what becomes of them.
#![cfg(test)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use portcullis_common::abi::{FrontendKey, TCP, UDP};
use portcullis_common::flow::{
    BY_CONNECTION, Endpoint, Fragments, Hook, Ip, NodeAddresses, OPEN, Rule, Settings, Slot, Translation,
    Tuple, UNCONFIRMED,
};
use portcullis_common::forward::{
    Begun, Entry, Kept, PROBES, Put, Verdict, World, begin, complete, take_port, translate,
};
use portcullis_common::nat::{Kind, Packet, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use portcullis_common::reason::Reason;

const SECOND: u64 = 1_000_000_000;

/// Maps with room for everything, and one backend.
struct Maps {
    now: Cell<u64>,
    entries: RefCell<[BTreeMap<Tuple, Shared>; 2]>,
    fragments: RefCell<Vec<(Fragments, Ip)>>,
    counted: RefCell<Vec<Reason>>,
    ports: (u16, u16),
    has_room: Cell<bool>,
    /// The interfaces by which the backend and clients are reached; number 9 has the programs.
    ways: Cell<[u32; 2]>,
}

#[derive(Clone)]
struct Shared(Rc<Cell<Translation>>);

/// Entries are copied like pointers.
#[derive(Clone, Copy)]
struct Pointer<'m>(&'m Cell<Translation>);

macro_rules! fields {
    ($($field:ident $set:ident $kind:ty),*) => {
        $(
            fn $field(&self) -> $kind {
                self.0.get().$field
            }

            fn $set(&self, value: $kind) {
                self.0.set(Translation { $field: value, ..self.0.get() });
            }
        )*
    };
}

impl Entry for Pointer<'_> {
    fn to(&self) -> Endpoint {
        self.0.get().to
    }

    fn with(&self) -> Endpoint {
        self.0.get().with
    }

    fn side(&self) -> u8 {
        self.0.get().side
    }

    fields! {
        seen set_seen u64,
        acknowledgement set_acknowledgement u32,
        client set_client u8,
        backend set_backend u8,
        ended_first set_ended_first u8
    }
}

impl<'m> World for &'m Maps {
    type Entry = Pointer<'m>;

    fn now(&self) -> u64 {
        self.now.get()
    }

    fn random(&self) -> u32 {
        7 << 28
    }

    fn settings(&self) -> Option<Settings> {
        Some(Settings { key: [1, 2], first_port: self.ports.0, last_port: self.ports.1, room: OPEN })
    }

    fn rule(&self, frontend: &FrontendKey) -> Option<Rule> {
        let is_there = frontend.address == VIP.ip.address() && matches!(frontend.port(), 0 | 80 | 81);
        is_there.then_some(Rule { table: 3, slots: 1021, affinity: BY_CONNECTION })
    }

    fn backend(&self, slot: &Slot) -> Option<Endpoint> {
        (slot.table == 3 && slot.slot < 1021).then_some(BACKEND)
    }

    fn route(&self, _came_in_by: u32, _from: Ip, to: Ip) -> Option<u32> {
        let [to_backend, to_clients] = self.ways.get();
        Some(if to == BACKEND.ip { to_backend } else { to_clients })
    }

    fn interface(&self, index: u32) -> Option<NodeAddresses> {
        (index == 9).then_some(NodeAddresses { v4: NODE, v6: Ip::v6([0; 16]) })
    }

    fn entry(&self, kept: Kept, key: &Tuple) -> Option<Pointer<'m>> {
        let found = self.entries.borrow()[kept as usize].get(key).cloned()?;
        // Leaked, as entries of a map stay where they are.
        Some(Pointer(Box::leak(Box::new(found)).0.as_ref()))
    }

    fn put(&self, kept: Kept, key: &Tuple, value: &Translation, put: Put) -> bool {
        let map = &mut self.entries.borrow_mut()[kept as usize];
        let is_refused = put == Put::IfAbsent && map.contains_key(key);
        if is_refused || kept == Kept::Confirmed && !self.has_room.get() {
            return false;
        }
        map.insert(*key, Shared(Rc::new(Cell::new(*value))));
        true
    }

    fn remove(&self, kept: Kept, key: &Tuple) {
        self.entries.borrow_mut()[kept as usize].remove(key);
    }

    fn fragment(&self, key: &Fragments) -> Option<Ip> {
        self.fragments.borrow().iter().rev().find(|(known, _)| known == key).map(|(_, to)| *to)
    }

    fn put_fragment(&self, key: &Fragments, to: Ip) {
        self.fragments.borrow_mut().push((*key, to));
    }

    fn count(&self, reason: Reason) {
        self.counted.borrow_mut().push(reason);
    }
}

const fn endpoint(host: u8, port: u16) -> Endpoint {
    Endpoint::new(Ip::v4([10, 0, 0, host]), port.to_be())
}

const CLIENT: Endpoint = endpoint(1, 40_000);
const OTHER: Endpoint = endpoint(2, 40_000);
const VIP: Endpoint = endpoint(9, 80);
const BACKEND: Endpoint = endpoint(30, 8080);
const NODE: Ip = Ip::v4([10, 0, 0, 40]);
const ANY_NODE: Endpoint = Endpoint::new(NODE, 61_000_u16.to_be());

impl Maps {
    fn new() -> Self {
        Self::with_ports(61_000, 61_999)
    }

    fn with_ports(first: u16, last: u16) -> Self {
        Self {
            now: Cell::new(1000 * SECOND),
            entries: RefCell::default(),
            fragments: RefCell::default(),
            counted: RefCell::default(),
            ports: (first, last),
            has_room: Cell::new(true),
            ways: Cell::new([9, 9]),
        }
    }

    fn pass(&self, time: u64) {
        self.now.set(self.now.get() + time);
    }

    fn counted(&self) -> Vec<Reason> {
        std::mem::take(&mut self.counted.borrow_mut())
    }

    fn kept(&self, kept: Kept) -> usize {
        self.entries.borrow()[kept as usize].len()
    }

    /// One program's work.
    fn run(&self, packet: &Packet, hook: Hook) -> Option<Endpoint> {
        let world = &self;
        match translate(world, packet, hook) {
            Verdict::Pass | Verdict::Lose => None,
            Verdict::To(to) => Some(to),
            Verdict::Begin => match begin(world, packet) {
                Begun::Not => None,
                Begun::To(to) => Some(to),
                Begun::Search(search) => {
                    let port = (0..PROBES).find_map(|probe| take_port(world, &search, probe));
                    complete(world, packet, &search, port)
                }
            },
        }
    }

    /// From one side to the other: where from and where to it goes on. `None`: user space has it.
    fn forward(&self, mut packet: Packet) -> Option<(Endpoint, Endpoint)> {
        let to = self.run(&packet, Hook::In)?;
        (packet.tuple.destination, packet.tuple.destination_port_be) = (to.ip, to.port_be);
        packet.tuple.hook = Hook::Out as u8;
        Some((self.run(&packet, Hook::Out)?, to))
    }

    /// The client's SYN, and the node's port that the backend sees.
    fn syn(&self, client: Endpoint) -> Option<Endpoint> {
        let (node, backend) = self.forward(segment(client, VIP, TCP_SYN, 0, 0))?;
        assert_eq!((node.ip, backend), (NODE, BACKEND));
        Some(node)
    }

    fn syn_ack(&self, client: Endpoint, node: Endpoint) {
        let answer = self.forward(segment(BACKEND, node, TCP_SYN | TCP_ACK, 5000, 1));
        assert_eq!(answer, Some((VIP, client)));
    }

    fn ack(&self, client: Endpoint, flags: u8, number: u32) -> Option<(Endpoint, Endpoint)> {
        self.forward(segment(client, VIP, TCP_ACK | flags, 1, number))
    }

    fn connect(&self, client: Endpoint) -> Endpoint {
        let node = self.syn(client).unwrap();
        self.syn_ack(client, node);
        assert_eq!(self.ack(client, 0, 5001), Some((node, BACKEND)));
        node
    }
}

fn segment(from: Endpoint, to: Endpoint, flags: u8, sequence: u32, acknowledgement: u32) -> Packet {
    Packet { flags, sequence, acknowledgement, kind: Kind::Tcp, ..packet(TCP, from, to) }
}

fn datagram(from: Endpoint, to: Endpoint) -> Packet {
    packet(UDP, from, to)
}

fn packet(protocol: u8, from: Endpoint, to: Endpoint) -> Packet {
    Packet {
        tuple: Tuple::new(Hook::In, protocol, from, to),
        kind: Kind::Udp,
        network: 14,
        transport: 34,
        addressee: to.ip,
        sender: from.ip,
        quoted_network: 0,
        quoted_transport: 0,
        flags: 0,
        sequence: 0,
        acknowledgement: 0,
        identification: None,
    }
}

#[test]
fn the_clients_acknowledgement_confirms_a_connection() {
    let maps = Maps::new();
    let node = maps.syn(CLIENT).unwrap();
    assert_eq!(maps.syn(CLIENT), Some(node), "sent again");
    maps.syn_ack(CLIENT, node);
    assert_eq!((maps.kept(Kept::New), maps.kept(Kept::Confirmed)), (4, 0));
    assert_eq!(maps.ack(CLIENT, 0, 4999), Some((node, BACKEND)), "a guess confirms nothing");
    assert_eq!(maps.kept(Kept::Confirmed), 0);
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    assert_eq!((maps.kept(Kept::New), maps.kept(Kept::Confirmed)), (0, 4));
    assert_eq!(maps.counted(), [Reason::Forwarded, Reason::ForwardConfirmed]);
    assert_eq!(maps.forward(segment(BACKEND, node, TCP_ACK, 0, 0)), Some((VIP, CLIENT)));
}

#[test]
fn what_has_no_flow_and_begins_none_passes() {
    let maps = Maps::new();
    for flags in [0, TCP_RST, TCP_FIN, TCP_SYN | TCP_ACK] {
        assert_eq!(maps.ack(CLIENT, flags, 1), None);
    }
    let elsewhere = endpoint(9, 82);
    assert_eq!(maps.forward(segment(CLIENT, elsewhere, TCP_SYN, 0, 0)), None);
    assert_eq!(maps.forward(datagram(CLIENT, elsewhere)), None);
    assert_eq!((maps.kept(Kept::New), maps.counted()), (0, vec![]));
}

#[test]
fn a_second_datagram_after_an_answer_confirms() {
    let maps = Maps::new();
    let (node, _) = maps.forward(datagram(CLIENT, VIP)).unwrap();
    assert_eq!(maps.forward(datagram(CLIENT, VIP)).unwrap().0, node);
    assert_eq!(maps.kept(Kept::Confirmed), 0);
    assert_eq!(maps.forward(datagram(BACKEND, node)), Some((VIP, CLIENT)));
    assert_eq!(maps.kept(Kept::Confirmed), 0);
    assert_eq!(maps.forward(datagram(CLIENT, VIP)).unwrap().0, node);
    assert_eq!((maps.kept(Kept::New), maps.kept(Kept::Confirmed)), (0, 4));
}

/// The entries of unconfirmed flows make room for each other one by one.
#[test]
fn a_lost_entry_is_written_again_or_the_flow_begins_anew() {
    for lost in 0..4 {
        for is_tcp in [true, false] {
            let maps = Maps::new();
            let send = || if is_tcp { segment(CLIENT, VIP, TCP_SYN, 0, 0) } else { datagram(CLIENT, VIP) };
            let (node, _) = maps.forward(send()).unwrap();
            let key = *maps.entries.borrow()[1].keys().nth(lost).unwrap();
            maps.entries.borrow_mut()[1].remove(&key);
            maps.pass(2 * SECOND);
            let again = maps.forward(send()).unwrap();
            assert_eq!(again.1, BACKEND);
            let answer = |node| match is_tcp {
                true => segment(BACKEND, node, TCP_SYN | TCP_ACK, 1, 1),
                false => datagram(BACKEND, node),
            };
            assert_eq!(maps.forward(answer(again.0)), Some((VIP, CLIENT)), "{lost}, first by {node:?}");
        }
    }
}

#[test]
fn an_acknowledgement_of_a_flow_whose_port_is_lost_goes_nowhere() {
    let maps = Maps::new();
    let node = maps.syn(CLIENT).unwrap();
    maps.syn_ack(CLIENT, node);
    let key = Tuple::new(Hook::In, TCP, BACKEND, node);
    maps.entries.borrow_mut()[1].remove(&key);
    assert_eq!(maps.ack(CLIENT, 0, 5001), None);
    assert_eq!(maps.kept(Kept::Confirmed), 0);
}

#[test]
fn no_two_flows_to_a_backend_have_a_port() {
    let maps = Maps::with_ports(61_000, 61_001);
    let one = maps.connect(CLIENT);
    let other = maps.connect(OTHER);
    assert_ne!(one, other);
    maps.counted();
    assert_eq!(maps.syn(endpoint(3, 40_000)), None);
    assert_eq!(maps.counted(), [Reason::ForwardNoPort]);
    // Datagrams have ports of their own.
    assert!(maps.forward(datagram(CLIENT, VIP)).is_some());

    // One that the client has ended first leaves its port soon.
    maps.ack(CLIENT, TCP_FIN, 5001).unwrap();
    maps.forward(segment(BACKEND, one, TCP_ACK | TCP_FIN, 0, 0)).unwrap();
    assert_eq!(maps.syn(endpoint(3, 40_000)), None);
    maps.pass(3 * SECOND);
    assert_eq!(maps.syn(endpoint(3, 40_000)), Some(one));

    // One that its backend has ended first, after a minute.
    maps.forward(segment(BACKEND, other, TCP_ACK | TCP_FIN, 0, 0)).unwrap();
    maps.ack(OTHER, TCP_FIN, 5001).unwrap();
    maps.pass(3 * SECOND);
    assert_eq!(maps.syn(endpoint(4, 40_000)), None);
    maps.pass(60 * SECOND);
    assert!(maps.syn(endpoint(4, 40_000)).is_some());
}

#[test]
fn unconfirmed_flows_leave_their_ports_after_a_while() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.syn(CLIENT).unwrap();
    assert_eq!(maps.syn(OTHER), None);
    maps.pass(UNCONFIRMED + 1);
    assert_eq!(maps.syn(OTHER), Some(node));
    assert_eq!(maps.syn(CLIENT), None, "it is the other's now");
    maps.syn_ack(OTHER, node);
}

#[test]
fn user_space_goes_on_with_datagrams_that_it_has_begun_with() {
    let maps = Maps::with_ports(61_000, 61_000);
    maps.forward(datagram(CLIENT, VIP)).unwrap();
    assert_eq!(maps.forward(datagram(OTHER, VIP)), None);
    for _ in 0..3 {
        maps.pass(UNCONFIRMED - 1);
        assert_eq!(maps.forward(datagram(OTHER, VIP)), None, "though there are ports again");
    }
    maps.pass(UNCONFIRMED + 1);
    assert!(maps.forward(datagram(OTHER, VIP)).is_some());
}

#[test]
fn one_clients_port_leads_to_a_backend_by_one_frontend() {
    let maps = Maps::new();
    maps.connect(CLIENT);
    maps.counted();
    assert_eq!(maps.forward(segment(CLIENT, endpoint(9, 81), TCP_SYN, 0, 0)), None);
    assert_eq!(maps.counted(), [Reason::ForwardSameClient]);
}

#[test]
fn a_client_that_chooses_a_port_again_gets_another_connection() {
    let maps = Maps::new();
    maps.connect(CLIENT);
    maps.ack(CLIENT, TCP_RST, 5001).unwrap();
    maps.pass(3 * SECOND);
    let node = maps.connect(CLIENT);
    assert_eq!(maps.kept(Kept::Confirmed), 4);
    assert_eq!(maps.counted().iter().filter(|it| **it == Reason::Forwarded).count(), 2);
    assert_eq!(maps.syn(CLIENT), Some(node), "while it is open, it is the backend's to answer");
}

/// An attacker that guesses a client's port may send both.
#[test]
fn a_forged_reset_and_a_forged_syn_end_no_connection() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    maps.ack(CLIENT, TCP_RST, 1).unwrap();
    assert_eq!(maps.syn(CLIENT), Some(node), "it is the backend's to answer");
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    maps.ack(CLIENT, TCP_RST, 1).unwrap();
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)), "the client goes on");
    maps.pass(100 * SECOND);
    assert_eq!(maps.syn(OTHER), None, "its port is its own");
}

#[test]
fn a_frontend_is_no_client() {
    let maps = Maps::new();
    assert_eq!(maps.forward(datagram(endpoint(9, 81), VIP)), None);
    assert_eq!(maps.counted(), [Reason::ForwardNoRoute]);
}

#[test]
fn without_room_a_connection_goes_on_as_it_is() {
    let maps = Maps::new();
    maps.has_room.set(false);
    let node = maps.connect(CLIENT);
    assert_eq!(maps.kept(Kept::Confirmed), 0);
    assert_eq!(maps.counted(), [Reason::Forwarded, Reason::ForwardFull]);
    maps.has_room.set(true);
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    assert_eq!((maps.kept(Kept::New), maps.kept(Kept::Confirmed)), (0, 4));
}

#[test]
fn errors_find_the_flow_of_what_they_quote() {
    let maps = Maps::new();
    let node = maps.connect(CLIENT);
    // What the node has sent to the backend comes back quoted: the answer to it is the backend's.
    let quoting = |hook, from, to| {
        let tuple = Tuple::new(hook, TCP, from, to);
        maps.run(&Packet { tuple, kind: Kind::IcmpError, ..packet(1, endpoint(77, 0), node) }, hook)
    };
    assert_eq!(quoting(Hook::In, BACKEND, node), Some(CLIENT));
    assert_eq!(quoting(Hook::Out, BACKEND, CLIENT), Some(VIP));
    assert_eq!(quoting(Hook::In, CLIENT, VIP), Some(BACKEND));
    assert_eq!(quoting(Hook::Out, CLIENT, BACKEND), Some(node));
    assert_eq!(quoting(Hook::In, OTHER, VIP), None);
}

/// A sender gives each identification to another datagram at some time.
#[test]
fn later_fragments_follow_a_first_one_for_a_while() {
    let maps = Maps::new();
    let first = Packet { identification: Some(7), ..datagram(CLIENT, VIP) };
    let later = || {
        let endpoint = |it: Endpoint| Endpoint::new(it.ip, 0);
        let kind = Kind::LaterFragment;
        Packet { kind, identification: Some(7), ..datagram(endpoint(CLIENT), endpoint(VIP)) }
    };
    assert_eq!(maps.run(&later(), Hook::In), None, "without a first one");
    assert_eq!(maps.run(&first, Hook::In), Some(BACKEND));
    for time in [0, 1, 30] {
        maps.pass(time * SECOND);
        assert_eq!(maps.run(&later(), Hook::In).map(|to| to.ip), Some(BACKEND.ip), "{time}");
    }
    maps.pass(60 * SECOND);
    assert_eq!(maps.run(&later(), Hook::In), None);
    assert_eq!(maps.counted(), [Reason::ForwardFragment, Reason::Forwarded, Reason::ForwardFragment]);
}

/// Packets out to either would look the same.
#[test]
fn a_backend_is_not_its_own_client_by_its_own_port() {
    let maps = Maps::new();
    assert_eq!(maps.forward(datagram(BACKEND, VIP)), None);
    assert_eq!(maps.counted(), [Reason::ForwardSameClient]);
}

/// An attacker knows neither side's numbers.
#[test]
fn a_forged_end_is_no_end() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    for (flags, sequence) in
        [(TCP_RST, 0), (TCP_RST, 1 + (1 << 20)), (TCP_RST | TCP_ACK, 1 << 31), (TCP_FIN | TCP_ACK, 1 << 31)]
    {
        // Nor is an acknowledgement that would make it one.
        maps.forward(segment(BACKEND, node, TCP_ACK, 5001, sequence)).unwrap();
        let forged = segment(CLIENT, VIP, flags, sequence, 5001);
        assert_eq!(maps.forward(forged), Some((node, BACKEND)), "the backend judges it");
        // The backend may end its direction.
        maps.forward(segment(BACKEND, node, TCP_ACK | TCP_FIN, 5001, 1)).unwrap();
        maps.pass(100 * SECOND);
        assert_eq!(maps.syn(OTHER), None, "{flags} {sequence}");
    }
    maps.forward(segment(CLIENT, VIP, TCP_RST, 1, 0)).unwrap();
    maps.pass(3 * SECOND);
    assert_eq!(maps.syn(OTHER), Some(node));
}

#[test]
fn a_forged_end_of_the_backends_is_no_end() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    for (flags, sequence) in
        [(TCP_RST, 5000), (TCP_RST, 5001 + (1 << 16)), (TCP_RST | TCP_ACK, 0), (TCP_FIN | TCP_ACK, 1 << 31)]
    {
        let forged = segment(BACKEND, node, flags, sequence, 1);
        assert_eq!(maps.forward(forged), Some((VIP, CLIENT)), "the client judges it");
        // The client may end its direction.
        assert_eq!(maps.ack(CLIENT, TCP_FIN, 5001), Some((node, BACKEND)));
        maps.pass(100 * SECOND);
        assert_eq!(maps.syn(OTHER), None, "{flags} {sequence}");
    }
    // However far it has come, and whatever is forged meanwhile.
    for step in 0..200 {
        maps.forward(segment(BACKEND, node, TCP_ACK, 5001 + step * 60_000, 1)).unwrap();
        maps.forward(segment(BACKEND, node, TCP_ACK, 1 << 31, 1)).unwrap();
    }
    maps.forward(segment(BACKEND, node, TCP_RST, 5001 + 200 * 60_000, 0)).unwrap();
    maps.pass(3 * SECOND);
    assert_eq!(maps.syn(OTHER), Some(node));
}

/// It answers a reset that is not exact.
#[test]
fn a_client_that_goes_on_was_not_reset() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    maps.forward(segment(BACKEND, node, TCP_RST, 5500, 0)).unwrap();
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    maps.pass(100 * SECOND);
    assert_eq!(maps.syn(OTHER), None);
    // A reset that comes before the client has confirmed the connection.
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.syn(CLIENT).unwrap();
    maps.syn_ack(CLIENT, node);
    maps.forward(segment(BACKEND, node, TCP_RST, 1 << 31, 0)).unwrap();
    assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    maps.pass(100 * SECOND);
    assert_eq!(maps.syn(OTHER), None);
}

/// Its entry has another number in the place of that of the backend's last segment.
#[test]
fn the_backend_ends_a_flow_of_an_earlier_version() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    let entry = (&&maps).entry(Kept::Confirmed, &Tuple::new(Hook::In, TCP, BACKEND, node)).unwrap();
    entry.set_backend(0);
    entry.set_acknowledgement(1 << 31);
    maps.ack(CLIENT, TCP_FIN, 5001).unwrap();
    maps.forward(segment(BACKEND, node, TCP_ACK | TCP_FIN, 9000, 1)).unwrap();
    maps.pass(3 * SECOND);
    assert_eq!(maps.syn(OTHER), Some(node));
}

#[test]
fn a_backend_that_goes_on_was_not_reset() {
    for forged in [segment(CLIENT, VIP, TCP_RST, 500, 0), segment(BACKEND, ANY_NODE, TCP_RST, 5500, 0)] {
        let maps = Maps::with_ports(61_000, 61_000);
        let node = maps.connect(CLIENT);
        assert_eq!(node, ANY_NODE);
        maps.forward(forged).unwrap();
        maps.forward(segment(BACKEND, node, TCP_ACK, 5001, 1)).unwrap();
        maps.pass(3 * SECOND);
        assert_eq!(maps.syn(OTHER), None);
        assert_eq!(maps.ack(CLIENT, 0, 5001), Some((node, BACKEND)));
    }
}

#[test]
fn a_backend_that_still_sends_keeps_the_port() {
    let maps = Maps::with_ports(61_000, 61_000);
    let node = maps.connect(CLIENT);
    maps.ack(CLIENT, TCP_FIN, 5001).unwrap();
    maps.forward(segment(BACKEND, node, TCP_ACK | TCP_FIN, 9000, 1)).unwrap();
    for _ in 0..5 {
        maps.pass(3 * SECOND / 2);
        maps.forward(segment(BACKEND, node, TCP_ACK, 6000, 1)).unwrap();
    }
    assert_eq!(maps.syn(OTHER), None, "it sends again what was lost");
}

#[test]
fn nothing_is_forwarded_that_would_be_answered_past_the_programs() {
    let maps = Maps::new();
    for ways in [[8, 9], [9, 8]] {
        maps.ways.set(ways);
        assert_eq!(maps.syn(CLIENT), None);
        assert_eq!(maps.counted(), [Reason::ForwardNoInterface], "{ways:?}");
    }
}

/// Its receiver would see the client's address, or the backend's.
#[test]
fn what_would_leave_past_the_programs_is_lost() {
    let maps = Maps::new();
    let node = maps.connect(CLIENT);
    for (ways, lost) in
        [([8, 9], segment(CLIENT, VIP, TCP_ACK, 1, 5001)), ([9, 8], segment(BACKEND, node, 0, 1, 1))]
    {
        maps.ways.set(ways);
        maps.pass(2 * SECOND);
        maps.counted();
        assert_eq!(translate(&&maps, &lost, Hook::In), Verdict::Lose);
        assert_eq!(maps.counted(), [Reason::DroppedForwardInterface]);
        maps.ways.set([9, 9]);
        assert!(maps.forward(lost).is_some(), "the way is back");
    }
}
