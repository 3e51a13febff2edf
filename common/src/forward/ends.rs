//! The ends of TCP connections: FINs and resets, who sends them, and whether they are believed.

use crate::flow::{ANSWERED, BACKEND, BACKEND_IN, BACKEND_OUT, CLIENT, CLIENT_IN, FIN, Flow, RST};
use crate::forward::{Entry, Kept, World};
use crate::nat::{Kind, Packet, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};

#[inline(always)]
pub(super) fn client_flags(packet: &Packet) -> u8 {
    if packet.kind == Kind::Tcp { ends(packet.flags) } else { 0 }
}

#[inline(always)]
const fn ends(flags: u8) -> u8 {
    let fin = if flags & TCP_FIN != 0 { FIN } else { 0 };
    fin | if flags & TCP_RST != 0 { RST } else { 0 }
}

#[inline(always)]
pub(super) fn note_client<W: World>(world: &W, entry: &W::Entry, packet: &Packet) {
    let flags = client_flags(packet);
    if flags & RST == 0 && packet.flags & TCP_SYN == 0 {
        // A client that goes on has not reset the connection, nor believed a reset.
        undo_reset(entry);
    }
    if flags == 0 || entry.client() & flags == flags {
        return;
    }
    let flow = Flow::of_client_in(&packet.tuple, entry.to(), entry.with());
    let Some(answers) = world.entry(Kept::Confirmed, &flow.key(BACKEND_OUT)) else { return };
    let expected = answers.acknowledgement();
    // Of flows that an earlier version has begun it is not known.
    if expected != 0 && !is_in_sequence(packet, expected) {
        // The backend will not believe it either (RFC 9293, section 3.10.7.4).
        return;
    }
    answers.set_client(answers.client() | flags & RST);
    if flags & FIN != 0 && entry.ended_first() == 0 {
        entry.set_ended_first(CLIENT);
    }
    entry.set_client(entry.client() | flags);
}

/// Bytes that may lie between the end of a connection and what was seen of it, for it to be
/// believed.
const WINDOW: u32 = 1 << 20;
/// The same of a reset. It is no more than most receivers' windows: within it they answer a reset
/// that is not exact (RFC 5961, section 3.2), which undoes it here; behind it they are silent.
const RESET_WINDOW: u32 = 1 << 16;

/// True of a segment that ends its direction where the other side may be waiting for it. What lies
/// behind is sent again, and a reset never is.
#[inline(always)]
const fn is_in_sequence(packet: &Packet, expected: u32) -> bool {
    let distance = packet.sequence.wrapping_sub(expected);
    match packet.flags & TCP_RST != 0 {
        true => distance < RESET_WINDOW,
        false => distance.wrapping_add(WINDOW) < 2 * WINDOW,
    }
}

/// Notes how far the backend has sent, in the entry of what it sends to the node.
#[inline(always)]
pub(super) fn note_sent(entry: &impl Entry, packet: &Packet) {
    if packet.flags & (TCP_SYN | TCP_RST) != 0 {
        return;
    }
    let distance = packet.sequence.wrapping_sub(entry.acknowledgement());
    if entry.backend() & ANSWERED == 0 {
        // An earlier version has begun the flow, and had another number there.
        entry.set_acknowledgement(packet.sequence);
        entry.set_backend(ANSWERED);
    } else if distance != 0 && distance < WINDOW {
        entry.set_acknowledgement(packet.sequence);
    }
}

/// True of a segment that the backend may have sent there; not of a forged end, but by chance.
#[inline(always)]
pub(super) fn has_sent<W: World>(world: &W, flow: &Flow, packet: &Packet) -> bool {
    if packet.kind != Kind::Tcp || packet.flags & (TCP_FIN | TCP_RST) == 0 {
        return true;
    }
    let sent = world.entry(Kept::Confirmed, &flow.key(BACKEND_IN));
    sent.is_some_and(|it| it.backend() & ANSWERED != 0 && is_in_sequence(packet, it.acknowledgement()))
}

/// Notes how far the backend has come, in the entry of what it sends. One that goes on has neither
/// reset the connection nor believed a reset.
#[inline(always)]
pub(super) fn note_progress<W: World>(world: &W, entry: &W::Entry, packet: &Packet) {
    let last = entry.acknowledgement();
    let distance = packet.acknowledgement.wrapping_sub(last);
    if packet.flags & TCP_ACK != 0 && distance != 0 && (distance < WINDOW || last == 0) {
        entry.set_acknowledgement(packet.acknowledgement);
    }
    if entry.client() & RST != 0 {
        entry.set_client(0);
        let flow = Flow::of_backend_out(&packet.tuple, entry.to(), entry.with());
        if let Some(state) = world.entry(Kept::Confirmed, &flow.key(CLIENT_IN)) {
            undo_reset(&state);
        }
    }
}

#[inline(always)]
pub(super) fn note_backend(state: &impl Entry, packet: &Packet) {
    let mut flags = state.backend();
    if packet.kind != Kind::Tcp {
        flags |= ANSWERED;
    } else if packet.flags & TCP_SYN != 0 {
        flags |= ANSWERED;
        state.set_acknowledgement(packet.sequence.wrapping_add(1));
    } else {
        flags |= ends(packet.flags);
        if flags & FIN != 0 && state.ended_first() == 0 {
            state.set_ended_first(BACKEND);
        }
    }
    state.set_backend(flags);
}

/// Both sides may end the connection again.
#[inline(always)]
pub(super) fn reopen(entry: &impl Entry) {
    entry.set_client(0);
    entry.set_backend(ANSWERED);
    entry.set_ended_first(0);
}

/// The connection goes on, as far as its sides have not ended it in order.
#[inline(always)]
fn undo_reset(entry: &impl Entry) {
    let (client, backend) = (entry.client(), entry.backend());
    if (client | backend) & RST != 0 {
        entry.set_client(client & !RST);
        entry.set_backend(backend & !RST);
    }
}
