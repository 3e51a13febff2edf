//! The answer to a ClientHello that is refused: a reset to the client, and one to the node's own
//! socket, made of the very packet. Nothing is dropped in silence: the client would send it again
//! and again, and the socket wait for it.

use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers::{
    bpf_clone_redirect, bpf_l4_csum_replace, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use portcullis_common::reset::{ACK, Checksum, Headers, Ip, RST, SYN};

/// The segment with the hello, or with the end of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Refused {
    /// Offset of the IP header.
    pub network: u32,
    /// Of the payload.
    pub length: u32,
    /// Of TCP.
    pub flags: u32,
}

/// The packet afterwards.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// A reset for the node's own socket.
    Reset,
    /// As it came.
    Left,
    /// Neither: the client has been reset, the socket has to wait in vain.
    Spoilt,
}

const MAC_ADDRESSES: usize = 12;
/// From an IP header without options, or extensions, to the checksum of TCP.
const CHECKSUM: usize = 16;

#[inline(always)]
pub fn refuse<I: Ip>(context: *mut __sk_buff, refused: Refused) -> Outcome {
    let Refused { network, length, flags } = refused;
    // What opens a connection has a number of its own before its payload; and without a number to
    // wait for, no reset is accepted.
    if flags & u32::from(SYN | RST | ACK) != u32::from(ACK) {
        return Outcome::Left;
    }
    let end = network + size_of::<Headers<I>>() as u32;
    let (Some(links), Some(headers)) =
        (load::<[u8; MAC_ADDRESSES]>(context, 0), load::<Headers<I>>(context, network))
    else {
        return Outcome::Left;
    };
    // SAFETY: the running program's context; the verifier knows that this changes the packet.
    if unsafe { bpf_skb_change_tail(context, end, 0) } != 0 {
        return Outcome::Left;
    }
    let form = checksum_form(context, network + (size_of::<I>() + CHECKSUM) as u32);
    let [d1, d2, d3, d4, d5, d6, s1, s2, s3, s4, s5, s6] = links;
    let answering = [s1, s2, s3, s4, s5, s6, d1, d2, d3, d4, d5, d6];
    let is_made = store(context, 0, &answering, 0)
        && store(context, network, &headers.to_client(length, form), BPF_F_RECOMPUTE_CSUM.into());
    if is_made {
        // SAFETY: as above. Without memory for it, the client hears of it when it sends again.
        unsafe { bpf_clone_redirect(context, (*context).ifindex, 0) };
    }
    let is_restored = store(context, 0, &links, 0)
        && store(context, network, &headers.to_server(form), BPF_F_RECOMPUTE_CSUM.into());
    if is_restored { Outcome::Reset } else { Outcome::Spoilt }
}

/// Of a packet whose checksum is yet to be completed, the kernel leaves the field alone when it is
/// told that the payload has changed. The second call undoes the first.
#[inline(always)]
fn checksum_form(context: *mut __sk_buff, field: u32) -> Checksum {
    let before = load::<[u8; 2]>(context, field);
    // SAFETY: the running program's context.
    unsafe { bpf_l4_csum_replace(context, field, 0, 1, 2) };
    let after = load::<[u8; 2]>(context, field);
    // SAFETY: as above.
    unsafe { bpf_l4_csum_replace(context, field, 1, 0, 2) };
    if before == after { Checksum::PseudoHeader } else { Checksum::Full }
}

/// Bytes of the packet. `T` is made of bytes.
#[inline(always)]
pub fn load<T: Copy>(context: *mut __sk_buff, offset: u32) -> Option<T> {
    let mut bytes = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: so many bytes are there, and any bytes are a `T`.
    unsafe {
        let error =
            bpf_skb_load_bytes(context.cast(), offset, bytes.as_mut_ptr().cast(), size_of::<T>() as u32);
        (error == 0).then(|| bytes.assume_init())
    }
}

#[inline(always)]
fn store<T>(context: *mut __sk_buff, offset: u32, bytes: &T, flags: u64) -> bool {
    // SAFETY: so many bytes are there, without padding.
    let error = unsafe {
        bpf_skb_store_bytes(context, offset, (&raw const *bytes).cast(), size_of::<T>() as u32, flags)
    };
    error == 0
}
