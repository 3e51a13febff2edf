//! A listening socket of a core, held while it is looked at.

use core::ptr::NonNull;

use aya_ebpf::EbpfContext;
use aya_ebpf::cty::c_void;
use aya_ebpf::helpers::{bpf_map_lookup_elem, bpf_sk_assign, bpf_sk_release, bpf_skc_to_tcp_sock};
use aya_ebpf::programs::SkLookupContext;
use portcullis_common::abi::AcceptQueue;

use crate::maps::SOCKETS;

/// Set by the agent from the running kernel's type information, before the program is verified.
#[unsafe(no_mangle)]
static ACCEPT_QUEUE: AcceptQueue = AcceptQueue { waiting: 0, room: 0 };

pub struct Listening(NonNull<c_void>);

impl Listening {
    /// The socket at an index of [`SOCKETS`], until it is assigned or dropped.
    #[inline(always)]
    pub fn at(index: u32) -> Option<Self> {
        let map = (&raw const SOCKETS).cast_mut().cast();
        // SAFETY: the map's definition and the key live as long as the call; what comes back is
        // null or a socket with a reference that is ours.
        NonNull::new(unsafe { bpf_map_lookup_elem(map, (&raw const index).cast()) }).map(Self)
    }

    /// Connections that wait to be accepted, and as many as may; none of none where the kernel does
    /// not say where it keeps these numbers.
    #[inline(always)]
    pub fn accept_queue(&self) -> (u32, u32) {
        // SAFETY: a constant of this object, which the agent writes before loading it.
        let AcceptQueue { waiting, room } = unsafe { (&raw const ACCEPT_QUEUE).read_volatile() };
        if waiting == 0 {
            return (0, 0);
        }
        // SAFETY: the kernel returns the same socket if it is one of TCP, else null.
        let socket = unsafe { bpf_skc_to_tcp_sock(self.0.as_ptr()) };
        if socket.is_null() {
            return (0, 0);
        }
        // SAFETY: the verifier knows the type behind the pointer, and accepts only the places of
        // its fields.
        let number = |at: u32| unsafe { socket.byte_add(at as usize).cast::<u32>().read_volatile() };
        (number(waiting), number(room))
    }

    #[inline(always)]
    pub fn assign(self, context: &SkLookupContext, flags: u64) -> Result<(), i64> {
        // SAFETY: the context is the running program's, and the socket is held until the drop.
        match unsafe { bpf_sk_assign(context.as_ptr().cast(), self.0.as_ptr(), flags) } {
            0 => Ok(()),
            error => Err(error),
        }
    }
}

impl Drop for Listening {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken with a reference, released once.
        unsafe { bpf_sk_release(self.0.as_ptr()) };
    }
}
