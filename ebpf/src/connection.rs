//! The connection that a segment is of: its client has to have got what the node sent it, or
//! addresses that others forge could use up a budget, and reset connections of theirs.

use core::arch::asm;

use aya_ebpf::bindings::{__sk_buff, bpf_sock, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1};
use aya_ebpf::helpers::{
    bpf_probe_read_kernel, bpf_sk_release, bpf_skc_lookup_tcp, bpf_skc_to_tcp_sock, bpf_tcp_check_syncookie,
};
use portcullis_common::abi::ConnectionFields;
use portcullis_common::reset::{Headers, Tcp, V4, V6};

use crate::refuse::load;

/// Set by the agent from the running kernel's type information, before the program is verified.
#[unsafe(no_mangle)]
static CONNECTION_FIELDS: ConnectionFields =
    ConnectionFields { first_sent: 0, next_sent: 0, next_received: 0 };

/// `BPF_F_CURRENT_NETNS` of linux/bpf.h.
const CURRENT_NETNS: u64 = u64::MAX;
/// `TCP_LISTEN` and `TCP_NEW_SYN_RECV` of the kernel's net/tcp_states.h.
const LISTEN: u32 = 10;
const BEGUN: u32 = 12;
/// Bytes that may be under way at the beginning of a connection.
const WINDOW: u32 = 1 << 16;

/// The address and port that a segment is from, and those that it is for.
pub trait Tuple: Copy {
    const SIZE: u32;

    fn tuple(headers: &Headers<Self>) -> bpf_sock_tuple__bindgen_ty_1;
}

/// A socket, held while it is looked at: of a connection, of one that has begun, or the one at
/// which it would begin.
struct Found(*mut bpf_sock);

/// True where the kernel does not say where it keeps a connection's numbers.
#[inline(always)]
pub fn are_assumed() -> bool {
    fields().next_sent == 0
}

/// True if a segment, whose IP header is at the offset, has the numbers of a connection that this
/// node has, or has sent a cookie for.
#[inline(always)]
pub fn is_connected<I: Tuple>(context: *mut __sk_buff, network: u32) -> bool {
    if are_assumed() {
        return true;
    }
    let fields = fields();
    let Some(mut headers) = load::<Headers<I>>(context, network) else { return false };
    let Some(found) = Found::by(context, &headers) else { return false };
    let [sequence, acknowledged] = [headers.tcp.sequence, headers.tcp.acknowledgement].map(u32::from_be);
    // SAFETY: the kernel returns the same socket if it is one of that kind, else null. The verifier
    // knows the types behind the pointers, and accepts only the places of their fields.
    unsafe {
        let state = (&raw const (*found.0).state).read_volatile();
        if state == BEGUN {
            // The verifier knows it, too, and does not ask for a helper that may not be had.
            if fields.first_sent == 0 {
                return false;
            }
            return first_sent(found.0, fields).is_some_and(|it| acknowledged == it.wrapping_add(1));
        }
        if state == LISTEN {
            let (ip, tcp) = ((&raw mut headers.ip).cast(), (&raw mut headers.tcp).cast());
            let (of_ip, of_tcp) = (size_of::<I>() as u32, size_of::<Tcp>() as u32);
            return bpf_tcp_check_syncookie(found.0.cast(), ip, of_ip, tcp, of_tcp) == 0;
        }
        let connection = bpf_skc_to_tcp_sock(found.0.cast());
        if connection.is_null() {
            return false;
        }
        let sent = connection.byte_add(fields.next_sent as usize).cast::<u32>().read_volatile();
        let received = connection.byte_add(fields.next_received as usize).cast::<u32>().read_volatile();
        // What was received before may still wait for the socket's owner.
        acknowledged == sent && sequence.wrapping_sub(received) < WINDOW
    }
}

/// The node's first number of a connection that has only begun. `bpf_skc_to_tcp_request_sock` is of
/// no use here: it knows them by their operations, and those that begin at a socket which a map
/// holds have others.
#[inline(always)]
fn first_sent(begun: *mut bpf_sock, fields: ConnectionFields) -> Option<u32> {
    let mut address = begun as u64;
    // SAFETY: leaves the number as it is. The verifier takes it for no pointer any more, whose
    // fields it would not let the program read.
    unsafe { asm!("{0} = -{0}", "{0} = -{0}", inout(reg) address) };
    let first = address.wrapping_add(fields.first_sent.into()) as *const u32;
    // SAFETY: the kernel checks the address when it reads.
    unsafe { bpf_probe_read_kernel(first) }.ok()
}

#[inline(always)]
fn fields() -> ConnectionFields {
    // SAFETY: a constant of this object, which the agent writes before loading it.
    unsafe { (&raw const CONNECTION_FIELDS).read_volatile() }
}

impl Tuple for V4 {
    const SIZE: u32 = 12;

    #[inline(always)]
    fn tuple(headers: &Headers<Self>) -> bpf_sock_tuple__bindgen_ty_1 {
        // SAFETY: all zeros are a value of it, and it is a union of plain numbers.
        unsafe {
            let mut tuple: bpf_sock_tuple__bindgen_ty_1 = core::mem::zeroed();
            (tuple.ipv4.saddr, tuple.ipv4.daddr) = (headers.ip.source, headers.ip.destination);
            (tuple.ipv4.sport, tuple.ipv4.dport) = (headers.tcp.source, headers.tcp.destination);
            tuple
        }
    }
}

impl Tuple for V6 {
    const SIZE: u32 = 36;

    #[inline(always)]
    fn tuple(headers: &Headers<Self>) -> bpf_sock_tuple__bindgen_ty_1 {
        // SAFETY: as above.
        unsafe {
            let mut tuple: bpf_sock_tuple__bindgen_ty_1 = core::mem::zeroed();
            (tuple.ipv6.saddr, tuple.ipv6.daddr) = (headers.ip.source, headers.ip.destination);
            (tuple.ipv6.sport, tuple.ipv6.dport) = (headers.tcp.source, headers.tcp.destination);
            tuple
        }
    }
}

impl Found {
    #[inline(always)]
    fn by<I: Tuple>(context: *mut __sk_buff, headers: &Headers<I>) -> Option<Self> {
        let mut tuple = bpf_sock_tuple { __bindgen_anon_1: I::tuple(headers) };
        // SAFETY: the running program's context; the tuple is at least as long as it says.
        let found = unsafe { bpf_skc_lookup_tcp(context.cast(), &raw mut tuple, I::SIZE, CURRENT_NETNS, 0) };
        if found.is_null() { None } else { Some(Self(found)) }
    }
}

impl Drop for Found {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken with a reference, released once.
        unsafe { bpf_sk_release(self.0.cast()) };
    }
}
