//! XDP: drops what is addressed to a VIP but to no listener, before the kernel spends anything on
//! it.

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use portcullis_common::packet::Frame;
use portcullis_common::verdict::verdict;

use crate::maps::{KernelTables, count};

#[xdp]
pub fn guard(context: XdpContext) -> u32 {
    let reason = verdict(&XdpFrame(context), &KernelTables);
    count(reason);
    if reason.drops() { xdp_action::XDP_DROP } else { xdp_action::XDP_PASS }
}

struct XdpFrame(XdpContext);

impl Frame for XdpFrame {
    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let start = self.0.data() + offset;
        if start + N > self.0.data_end() {
            return None;
        }
        // SAFETY: the N bytes end before the frame does, and the frame lives as long as the
        // context.
        Some(unsafe { &*(start as *const [u8; N]) })
    }
}
