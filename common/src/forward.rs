//! The decisions of the two programs that forward: which packets are translated, to what, and when
//! a flow begins, is confirmed or forgotten. What is not translated passes untouched, and user
//! space serves it.

mod ends;

use crate::abi::{Address, FrontendKey, TCP};
use crate::flow::{
    ANSWERED, BACKEND_IN, BACKEND_OUT, BY_ADDRESS, CLIENT_IN, CLIENT_OUT, Endpoint, FULL, Flow, Fragments,
    Hook, Ip, NodeAddresses, Part, REST, RST, Rule, SEEN, Settings, Side, Slot, Translation, Tuple,
    UNCONFIRMED, is_closing, linger,
};
use crate::forward::ends::{
    client_flags, has_sent, note_backend, note_client, note_progress, note_sent, reopen,
};
use crate::nat::{Kind, Packet, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use crate::reason::Reason;
use crate::steer::core_of;

/// Source ports that are tried for a flow.
pub const PROBES: u32 = 32;

/// The map that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// [`crate::flow::FLOWS`]
    Confirmed,
    /// [`crate::flow::NEW_FLOWS`]
    New,
}

/// The way to write an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Always,
    /// Unless there is one.
    IfAbsent,
}

/// An entry in its map. What is written is seen by others at once.
pub trait Entry: Copy {
    fn to(&self) -> Endpoint;
    fn with(&self) -> Endpoint;
    fn side(&self) -> u8;
    fn seen(&self) -> u64;
    fn set_seen(&self, now: u64);
    fn acknowledgement(&self) -> u32;
    fn set_acknowledgement(&self, number: u32);
    fn client(&self) -> u8;
    fn set_client(&self, flags: u8);
    fn backend(&self) -> u8;
    fn set_backend(&self, flags: u8);
    fn ended_first(&self) -> u8;
    fn set_ended_first(&self, side: u8);
}

/// The maps, and what else the kernel knows.
pub trait World {
    type Entry: Entry;

    /// Nanoseconds of the monotonic clock.
    fn now(&self) -> u64;
    fn random(&self) -> u32;
    fn settings(&self) -> Option<Settings>;
    fn rule(&self, frontend: &FrontendKey) -> Option<Rule>;
    fn backend(&self, slot: &Slot) -> Option<Endpoint>;
    /// The interface by which the stack would send on a packet that has come in by another; 0 for
    /// the one that this packet has come in by.
    fn route(&self, came_in_by: u32, from: Ip, to: Ip) -> Option<u32>;
    fn interface(&self, index: u32) -> Option<NodeAddresses>;
    fn entry(&self, kept: Kept, key: &Tuple) -> Option<Self::Entry>;
    /// Returns false if there was no room, or an entry already.
    fn put(&self, kept: Kept, key: &Tuple, value: &Translation, put: Put) -> bool;
    fn remove(&self, kept: Kept, key: &Tuple);
    fn fragment(&self, key: &Fragments) -> Option<Ip>;
    fn put_fragment(&self, key: &Fragments, to: Ip);
    fn count(&self, reason: Reason);
}

/// A flow that needs a port of the node.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    pub flow: Flow,
    pub now: u64,
    pub first_port: u32,
    pub ports: u32,
    /// Random.
    pub begin: u32,
}

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes untouched.
    Pass,
    /// It is lost: its receiver would not know the address that it would leave with.
    Lose,
    /// The address and port that it is sent on with: its destination on the way in, its source on
    /// the way out. In an ICMP error also the other one of the packet that it quotes.
    To(Endpoint),
    /// It may begin a flow: [`begin`].
    Begin,
}

/// The treatment of a packet that may begin a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// User space serves it.
    Not,
    /// As [`Verdict::To`].
    To(Endpoint),
    /// The flow needs a port: [`take_port`] in [`PROBES`] probes, then [`complete`]. Not called
    /// from here, because the kernel's stack is small.
    Search(Search),
}

/// The side of an entry for a client whose datagrams user space has.
const USER_SPACE: u8 = 2;

/// The treatment of a packet, as far as there is a flow for it.
#[inline(always)]
pub fn translate<W: World>(world: &W, packet: &Packet, hook: Hook) -> Verdict {
    let verdict = match (packet.kind, hook) {
        (Kind::LaterFragment, _) => return later_fragment(world, packet, hook),
        (Kind::IcmpError, _) => {
            return found(world, &packet.tuple).map_or(Verdict::Pass, |it| Verdict::To(it.to()));
        }
        (_, Hook::In) => inward(world, packet),
        (_, Hook::Out) => outward(world, packet),
    };
    if let Verdict::To(to) = verdict {
        remember(world, packet, hook, to);
    }
    verdict
}

/// Later fragments of this packet, if there are any, go where it goes.
#[inline(always)]
fn remember<W: World>(world: &W, packet: &Packet, hook: Hook, to: Endpoint) {
    if packet.identification.is_some() {
        world.put_fragment(&fragments(packet, hook, period(world.now())), to.ip);
    }
}

#[inline(always)]
fn found<W: World>(world: &W, key: &Tuple) -> Option<W::Entry> {
    let entry = match world.entry(Kept::Confirmed, key) {
        None => world.entry(Kept::New, key),
        found => found,
    };
    entry.filter(|entry| entry.side() != USER_SPACE)
}

#[inline(always)]
fn later_fragment<W: World>(world: &W, packet: &Packet, hook: Hook) -> Verdict {
    let now = period(world.now());
    for period in [now, now.wrapping_sub(1)] {
        if let Some(to) = world.fragment(&fragments(packet, hook, period)) {
            return Verdict::To(Endpoint::new(to, 0));
        }
    }
    // An entry for all ports of an address says that it has rules.
    if hook == Hook::In && world.rule(&frontend(0, Endpoint::new(packet.tuple.destination, 0))).is_some() {
        world.count(Reason::ForwardFragment);
    }
    Verdict::Pass
}

/// Half a minute or so. Receivers wait for the rest of a datagram for half a minute or a minute,
/// and senders use its identification for another one at some time.
#[inline(always)]
const fn period(now: u64) -> u16 {
    (now >> 35) as u16
}

#[inline(always)]
fn fragments(packet: &Packet, hook: Hook, period: u16) -> Fragments {
    Fragments {
        source: packet.tuple.source,
        destination: packet.tuple.destination,
        identification: packet.identification.unwrap_or(0),
        protocol: packet.tuple.protocol,
        hook: hook as u8,
        period,
    }
}

#[inline(always)]
fn frontend(protocol: u8, to: Endpoint) -> FrontendKey {
    FrontendKey { address: to.ip.address(), port_be: to.port_be, protocol, reserved: 0 }
}

/// A packet that has come to the node.
#[inline(always)]
fn inward<W: World>(world: &W, packet: &Packet) -> Verdict {
    let key = &packet.tuple;
    if let Some(entry) = world.entry(Kept::Confirmed, key) {
        let is_clients = entry.side() == Side::Client as u8;
        if is_clients {
            let is_over = is_closing(entry.client(), entry.backend());
            if is_over && packet.begins() && packet.kind == Kind::Tcp {
                // The client has chosen the same port again. So soon after a packet it may also be
                // a forged reset and a forged SYN: the backend knows.
                if world.now().wrapping_sub(entry.seen()) > REST {
                    return Verdict::Begin;
                }
                reopen(&entry);
            }
        }
        if see_inward(world, key, &entry) == Way::Astray {
            return Verdict::Lose;
        }
        match packet.kind {
            Kind::Tcp if is_clients => note_client(world, &entry, packet),
            Kind::Tcp => note_sent(&entry, packet),
            _ => {}
        }
        return Verdict::To(entry.to());
    }
    let Some(entry) = world.entry(Kept::New, key) else {
        return if packet.begins() { Verdict::Begin } else { Verdict::Pass };
    };
    if entry.side() == USER_SPACE {
        let now = world.now();
        if now.wrapping_sub(entry.seen()) > UNCONFIRMED {
            return Verdict::Begin;
        }
        entry.set_seen(now);
        return Verdict::Pass;
    }
    if entry.side() == Side::Backend as u8 {
        return Verdict::To(entry.to());
    }
    let confirms = entry.backend() & ANSWERED != 0 && acknowledges(packet, entry.acknowledgement());
    if confirms || packet.begins() { Verdict::Begin } else { Verdict::To(entry.to()) }
}

/// The way on of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Known,
    /// By an interface without the programs, or to the node itself: nothing would rewrite the
    /// source.
    Astray,
}

/// Notes that a confirmed flow is in use. Once a second its way is looked for again: routes move.
#[inline(always)]
fn see_inward<W: World>(world: &W, key: &Tuple, entry: &W::Entry) -> Way {
    let now = world.now();
    if now.wrapping_sub(entry.seen()) <= SEEN {
        return Way::Known;
    }
    if leaves_by(world, 0, key.source, entry.to().ip).is_none() {
        world.count(Reason::DroppedForwardInterface);
        return Way::Astray;
    }
    entry.set_seen(now);
    Way::Known
}

/// The interface by which the stack would send it on, and the node's addresses there, if the
/// programs are there, too.
#[inline(always)]
fn leaves_by<W: World>(world: &W, came_in_by: u32, from: Ip, to: Ip) -> Option<(u32, NodeAddresses)> {
    let index = world.route(came_in_by, from, to)?;
    Some((index, world.interface(index)?))
}

/// True of a client's packet that it could not send without having seen the answer.
#[inline(always)]
const fn acknowledges(packet: &Packet, number: u32) -> bool {
    match packet.kind {
        Kind::Tcp => {
            packet.flags & (TCP_SYN | TCP_ACK | TCP_RST) == TCP_ACK && packet.acknowledgement == number
        }
        _ => true,
    }
}

/// Begins a flow, or confirms one that has begun.
#[inline(always)]
pub fn begin<W: World>(world: &W, packet: &Packet) -> Begun {
    let key = &packet.tuple;
    if let Some(entry) = world.entry(Kept::Confirmed, key) {
        forget(world, Kept::Confirmed, &Flow::of_client_in(key, entry.to(), entry.with()));
    }
    if let Some(entry) = world.entry(Kept::New, key)
        && entry.side() == Side::Client as u8
    {
        match go_on(world, packet, &entry) {
            Some(to) => {
                remember(world, packet, Hook::In, to);
                return Begun::To(to);
            }
            None if packet.begins() => {}
            None => return Begun::Not,
        }
    }
    let Some(rule) = world.rule(&frontend(key.protocol, key.to())) else { return Begun::Not };
    match search(world, key, &rule) {
        Ok(search) => Begun::Search(search),
        Err(reason) => {
            leave(world, packet, reason);
            Begun::Not
        }
    }
}

/// Makes a flow of what has got a port, if it has. `None`: user space serves it.
#[inline(always)]
pub fn complete<W: World>(
    world: &W,
    packet: &Packet,
    search: &Search,
    port: Option<u16>,
) -> Option<Endpoint> {
    let Some(port_be) = port else {
        leave(world, packet, Reason::ForwardNoPort);
        return None;
    };
    let mut flow = search.flow;
    flow.node.port_be = port_be;
    // The client's entry comes last: what it finds, the others have.
    if !write(world, &flow, search.now) {
        leave(world, packet, Reason::ForwardFull);
        return None;
    }
    world.count(Reason::Forwarded);
    remember(world, packet, Hook::In, flow.backend);
    Some(flow.backend)
}

/// Leaves it to user space; datagrams that come after this one, too.
#[inline(always)]
fn leave<W: World>(world: &W, packet: &Packet, reason: Reason) {
    world.count(reason);
    let key = &packet.tuple;
    if key.protocol != TCP {
        let flow = Flow::of_client_in(key, Endpoint::default(), Endpoint::default());
        let mut value = flow.translation(CLIENT_IN, world.now());
        value.side = USER_SPACE;
        world.put(Kept::New, key, &value, Put::Always);
    }
}

/// A client's packet of a flow that it has not confirmed. `None` if the flow is lost: its other
/// entries may have made room for newer ones, and the port may be another's now.
#[inline(always)]
fn go_on<W: World>(world: &W, packet: &Packet, entry: &W::Entry) -> Option<Endpoint> {
    let to = entry.to();
    let flow = Flow::of_client_in(&packet.tuple, to, entry.with());
    let (client, backend, seen) = (entry.client(), entry.backend(), entry.seen());
    let answered = entry.acknowledgement();
    let confirms = backend & ANSWERED != 0 && acknowledges(packet, answered);
    let is_ours = |it: W::Entry| it.to() == flow.client;
    if !world.entry(Kept::New, &flow.key(BACKEND_IN)).is_some_and(is_ours) {
        world.remove(Kept::New, &packet.tuple);
        return None;
    }
    let now = world.now();
    if confirms {
        // A client that goes on was not reset.
        let ends = (client | client_flags(packet), backend & !RST);
        confirm(world, &flow, now, [packet.sequence, answered], ends);
    } else if now.wrapping_sub(seen) > SEEN || world.entry(Kept::New, &flow.key(CLIENT_OUT)).is_none() {
        write(world, &flow, now);
    }
    Some(to)
}

/// Moves a flow to where it stays. What finds no room there stays where it is, and is tried again
/// with the next packet. `next` are the numbers of the bytes that come next, from the client and
/// from the backend.
#[inline(always)]
fn confirm<W: World>(world: &W, flow: &Flow, now: u64, next: [u32; 2], ends: (u8, u8)) {
    let put =
        |part: Part, value: &Translation| world.put(Kept::Confirmed, &flow.key(part), value, Put::Always);
    let mut is_written = true;
    for part in [BACKEND_IN, CLIENT_OUT, BACKEND_OUT] {
        let mut value = flow.translation(part, now);
        // The client has been heard: its next byte is the one that the backend waits for.
        value.acknowledgement = next[0];
        if part == BACKEND_IN {
            (value.acknowledgement, value.backend) = (next[1], ANSWERED);
        }
        is_written = is_written && put(part, &value);
    }
    let mut value = flow.translation(CLIENT_IN, now);
    (value.client, value.backend) = ends;
    is_written = is_written && put(CLIENT_IN, &value);
    let (over, reason) = match is_written {
        true => (Kept::New, Reason::ForwardConfirmed),
        false => (Kept::Confirmed, Reason::ForwardFull),
    };
    forget(world, over, flow);
    world.count(reason);
}

#[inline(always)]
fn forget<W: World>(world: &W, kept: Kept, flow: &Flow) {
    for part in [CLIENT_IN, BACKEND_OUT, CLIENT_OUT, BACKEND_IN] {
        world.remove(kept, &flow.key(part));
    }
}

/// Everything of an unconfirmed flow.
#[inline(always)]
fn write<W: World>(world: &W, flow: &Flow, now: u64) -> bool {
    let mut is_written = true;
    for part in [BACKEND_IN, CLIENT_OUT, BACKEND_OUT, CLIENT_IN] {
        let value = flow.translation(part, now);
        is_written = is_written && world.put(Kept::New, &flow.key(part), &value, Put::Always);
    }
    is_written
}

/// Everything that a flow needs but a port.
#[inline(always)]
fn search<W: World>(world: &W, key: &Tuple, rule: &Rule) -> Result<Search, Reason> {
    let settings = world.settings().ok_or(Reason::ForwardFull)?;
    if settings.room == FULL {
        return Err(Reason::ForwardFull);
    }
    let client = key.from();
    if world.rule(&any_port(client.ip.address())).is_some() {
        // Two services would answer each other without end; user space refuses it.
        return Err(Reason::ForwardNoRoute);
    }
    let port = if rule.affinity == BY_ADDRESS { 0 } else { u32::from(client.port_be) };
    let slot = Slot { table: rule.table, slot: core_of(settings.key, client.ip.0, port, rule.slots) };
    let backend = world.backend(&slot).ok_or(Reason::ForwardNoBackend)?;
    if backend.ip.is_v4() != client.ip.is_v4() {
        return Err(Reason::ForwardNoBackend);
    }
    if backend == client {
        // What leaves to the backend, and what leaves to the client, would look the same.
        return Err(Reason::ForwardSameClient);
    }
    let index = world.route(0, client.ip, backend.ip).ok_or(Reason::ForwardNoRoute)?;
    let addresses = world.interface(index).ok_or(Reason::ForwardNoInterface)?;
    // What is answered needs the programs, too.
    leaves_by(world, index, backend.ip, client.ip).ok_or(Reason::ForwardNoInterface)?;
    let node = if backend.ip.is_v4() { addresses.v4 } else { addresses.v6 };
    if !node.is_specified() {
        return Err(Reason::ForwardNoInterface);
    }
    let node = Endpoint::new(node, 0);
    let flow = Flow { client, frontend: key.to(), backend, node, protocol: key.protocol };
    let now = world.now();
    let other = flow.key(CLIENT_OUT);
    let is_other =
        |entry: W::Entry| entry.with() != flow.frontend && now.wrapping_sub(entry.seen()) <= UNCONFIRMED;
    if world.entry(Kept::Confirmed, &other).is_some() || world.entry(Kept::New, &other).is_some_and(is_other)
    {
        return Err(Reason::ForwardSameClient);
    }
    let first_port = u32::from(settings.first_port);
    let ports = u32::from(settings.last_port).wrapping_sub(first_port) + 1;
    Ok(Search { flow, now, first_port, ports, begin: world.random() })
}

/// Takes a port, in network byte order, if no other flow to the same backend has it.
#[inline(always)]
pub fn take_port<W: World>(world: &W, search: &Search, probe: u32) -> Option<u16> {
    let (mut flow, now) = (search.flow, search.now);
    // The high half of a product, as in `core_of`; then one port after the other.
    let first = ((u64::from(search.begin) * u64::from(search.ports)) >> 32) as u32 + probe;
    let port = search.first_port + if first < search.ports { first } else { first - search.ports };
    if probe >= search.ports {
        return None;
    }
    flow.node.port_be = (port as u16).to_be();
    let key = flow.key(BACKEND_IN);
    if let Some(entry) = world.entry(Kept::Confirmed, &key) {
        let old = Flow::of_backend_in(&key, entry.to(), entry.with());
        let state = world.entry(Kept::Confirmed, &old.key(CLIENT_IN))?;
        let (client, backend) = (state.client(), state.backend());
        let rests = linger(client, backend, state.ended_first());
        let goes_on = |it: W::Entry| now.wrapping_sub(it.seen()) < rests;
        if !is_closing(client, backend)
            || goes_on(state)
            || world.entry(Kept::Confirmed, &old.key(BACKEND_OUT)).is_some_and(goes_on)
        {
            return None;
        }
        forget(world, Kept::Confirmed, &old);
    }
    let value = flow.translation(BACKEND_IN, now);
    if !world.put(Kept::New, &key, &value, Put::IfAbsent) {
        let is_stale = |entry: W::Entry| now.wrapping_sub(entry.seen()) > UNCONFIRMED;
        if !world.entry(Kept::New, &key).is_some_and(is_stale) {
            return None;
        }
        world.put(Kept::New, &key, &value, Put::Always);
    }
    // A flow is confirmed by being written there first, and then removed here.
    if world.entry(Kept::Confirmed, &key).is_some() {
        world.remove(Kept::New, &key);
        return None;
    }
    Some(flow.node.port_be)
}

/// A packet that leaves the node.
#[inline(always)]
fn outward<W: World>(world: &W, packet: &Packet) -> Verdict {
    let key = &packet.tuple;
    let (kept, entry) = match world.entry(Kept::Confirmed, key) {
        Some(entry) => (Kept::Confirmed, entry),
        None => match world.entry(Kept::New, key) {
            Some(entry) => (Kept::New, entry),
            None => return Verdict::Pass,
        },
    };
    if entry.side() != Side::Backend as u8 {
        return Verdict::To(entry.to());
    }
    let is_first = kept == Kept::New && entry.backend() & ANSWERED == 0;
    let is_tcp = packet.kind == Kind::Tcp;
    let is_notable = if is_tcp { packet.flags & (TCP_SYN | TCP_FIN | TCP_RST) != 0 } else { is_first };
    if is_notable {
        let flow = Flow::of_backend_out(key, entry.to(), entry.with());
        entry.set_backend(ANSWERED);
        if kept == Kept::New || has_sent(world, &flow, packet) {
            if let Some(state) = world.entry(kept, &flow.key(CLIENT_IN)) {
                note_backend(&state, packet);
            }
            if is_tcp && packet.flags & TCP_RST != 0 {
                entry.set_client(entry.client() | RST);
            }
        }
    }
    if is_tcp && kept == Kept::Confirmed && packet.flags & TCP_RST == 0 {
        note_progress(world, &entry, packet);
    }
    see(world, &entry);
    Verdict::To(entry.to())
}

#[inline(always)]
fn see<W: World>(world: &W, entry: &W::Entry) {
    let now = world.now();
    if now.wrapping_sub(entry.seen()) > SEEN {
        entry.set_seen(now);
    }
}

/// The key of the rule that says that an address has others.
pub const fn any_port(address: Address) -> FrontendKey {
    FrontendKey { address, port_be: 0, protocol: 0, reserved: 0 }
}
