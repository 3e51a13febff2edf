//! tcx: forwards connections and datagrams of TCPRoutes and UDPRoutes. `forward_in` rewrites
//! destinations, `forward_out` sources; between them the stack routes the packet, and its firewall
//! sees client and backend.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_NOEXIST, bpf_fib_lookup};
use aya_ebpf::helpers::{
    bpf_csum_diff, bpf_fib_lookup as fib_lookup, bpf_get_prandom_u32, bpf_ktime_get_coarse_ns,
    bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_pull_data, bpf_skb_store_bytes,
};
use aya_ebpf::macros::{classifier, map};
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray};
use aya_ebpf::programs::TcContext;
use portcullis_common::abi::{FrontendKey, TCP};
use portcullis_common::flow::{
    Endpoint, Fragments, Hook, Ip, MAX_FLOWS, MAX_FRAGMENTS, MAX_INTERFACES, MAX_NEW_FLOWS, MAX_RULES,
    MAX_SLOTS, NodeAddresses, Rule, Settings, Slot, Translation, Tuple,
};
use portcullis_common::forward::{
    Begun, Entry, Kept, PROBES, Put, Search, Verdict, World, begin, complete, take_port, translate,
};
use portcullis_common::nat::{Kind, Packet, Unread};
use portcullis_common::packet::Frame;
use portcullis_common::reason::Reason;

use crate::maps::count;

/// `BPF_F_NO_PREALLOC` of linux/bpf.h.
const NO_PREALLOC: u32 = 1;

#[map]
static FORWARD_RULES: HashMap<FrontendKey, Rule> = HashMap::with_max_entries(MAX_RULES, NO_PREALLOC);
#[map]
static FORWARD_BACKENDS: HashMap<Slot, Endpoint> = HashMap::with_max_entries(MAX_SLOTS, NO_PREALLOC);
#[map]
static FORWARD_INTERFACES: HashMap<u32, NodeAddresses> =
    HashMap::with_max_entries(MAX_INTERFACES, NO_PREALLOC);
#[map]
static FORWARD_SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);
#[map]
static FLOWS: HashMap<Tuple, Translation> = HashMap::with_max_entries(MAX_FLOWS, NO_PREALLOC);
#[map]
static NEW_FLOWS: LruHashMap<Tuple, Translation> = LruHashMap::with_max_entries(MAX_NEW_FLOWS, 0);
#[map]
static FRAGMENTS: LruHashMap<Fragments, Ip> = LruHashMap::with_max_entries(MAX_FRAGMENTS, 0);

#[map]
static FORWARD_SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// More than the stack has room for. Each CPU has its own, and looks at one packet after the other.
#[repr(C)]
struct Scratch {
    packet: Packet,
    to: Endpoint,
    search: Search,
    key: Tuple,
    value: Translation,
    question: bpf_fib_lookup,
}

/// The next program, or the stack.
const TCX_NEXT: i32 = -1;
/// The packet is lost: its headers are half rewritten, or its receiver would not know its sender.
const TCX_DROP: i32 = 2;

/// Enough for the headers of an error and of what it quotes.
const HEADERS: u32 = 160;

/// `PACKET_HOST` of linux/if_packet.h: not what an interface sees of others' packets.
const TO_THIS_HOST: u32 = 0;

#[classifier]
pub fn forward_in(context: TcContext) -> i32 {
    // SAFETY: the context outlives the program.
    if unsafe { (*context.skb.skb).pkt_type } != TO_THIS_HOST {
        return TCX_NEXT;
    }
    forward(&context, Hook::In)
}

#[classifier]
pub fn forward_out(context: TcContext) -> i32 {
    forward(&context, Hook::Out)
}

/// Each step is a function of its own: the kernel verifies it once, and not for each way that leads
/// there, and the stack is free again after it. What one leaves for the next is in the scratch.
#[inline(always)]
fn forward(context: &TcContext, hook: Hook) -> i32 {
    let skb = context.skb.skb;
    let number = hook as u32;
    if is_of_vlan(context) {
        return TCX_NEXT;
    }
    if read_packet(skb, number) == 0 {
        return TCX_NEXT;
    }
    match translate_packet(skb, number) {
        TO => {}
        LOSE => return TCX_DROP,
        BEGIN if hook == Hook::In => match begin_flow(skb) {
            TO => {}
            SEARCH => {
                let mut port = 0;
                for probe in 0..PROBES {
                    port = probe_port(probe);
                    if port != 0 {
                        break;
                    }
                }
                if complete_flow(port) != TO {
                    return TCX_NEXT;
                }
            }
            _ => return TCX_NEXT,
        },
        _ => return TCX_NEXT,
    }
    if rewrite_packet(skb, number) == 0 { TCX_DROP } else { TCX_NEXT }
}

/// True of a frame whose VLAN is beside it: the VLAN's own interface has the programs, and where
/// there is none the node has no part in that network. VLAN 0 is none (IEEE 802.1Q, table 9-2).
#[inline(always)]
fn is_of_vlan(context: &TcContext) -> bool {
    const IDENTIFIER: u32 = 0xfff;
    // SAFETY: the context outlives the program.
    let (is_present, tag) = unsafe { ((*context.skb.skb).vlan_present, (*context.skb.skb).vlan_tci) };
    is_present != 0 && tag & IDENTIFIER != 0
}

const PASS: u32 = 0;
const TO: u32 = 1;
const BEGIN: u32 = 2;
const SEARCH: u32 = 3;
const LOSE: u32 = 4;

const fn hook_of(number: u32) -> Hook {
    if number == Hook::In as u32 { Hook::In } else { Hook::Out }
}

/// Leaves the packet in the scratch; 0 if it is none that is forwarded.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read_packet(skb: *mut __sk_buff, hook: u32) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return 0 };
    let (context, hook) = (TcContext::new(skb), hook_of(hook));
    let Some(packet) = read(&context, hook) else { return 0 };
    if hook == Hook::Out && is_own(&context, &packet) {
        return 0;
    }
    // SAFETY: this CPU's own.
    unsafe { (&raw mut (*scratch).packet).write(packet) };
    1
}

/// Finds the treatment of the packet in the scratch.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn translate_packet(skb: *mut __sk_buff, hook: u32) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return PASS };
    // SAFETY: this CPU's own; nothing below writes to the packet.
    let packet = unsafe { &(*scratch).packet };
    let kernel = Kernel { skb, scratch };
    match translate(&kernel, packet, hook_of(hook)) {
        Verdict::Pass => PASS,
        Verdict::Lose => LOSE,
        Verdict::To(to) => kernel.send_to(to),
        Verdict::Begin => BEGIN,
    }
}

/// Begins a flow for the packet in the scratch, or leaves there what it needs to find a port.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn begin_flow(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return PASS };
    // SAFETY: as above.
    let packet = unsafe { &(*scratch).packet };
    let kernel = Kernel { skb, scratch };
    match begin(&kernel, packet) {
        Begun::Not => PASS,
        Begun::To(to) => kernel.send_to(to),
        Begun::Search(search) => {
            // SAFETY: this CPU's own.
            unsafe { (&raw mut (*scratch).search).write(search) };
            SEARCH
        }
    }
}

/// A port for the flow in the scratch, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probe_port(probe: u32) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own; nothing below writes to the search.
    let search = unsafe { &(*scratch).search };
    take_port(&Kernel { skb: core::ptr::null_mut(), scratch }, search, probe).map_or(0, u32::from)
}

/// Writes the flow in the scratch, if it has got a port.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn complete_flow(port: u32) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return PASS };
    // SAFETY: this CPU's own; nothing below writes to these.
    let (packet, search) = unsafe { (&(*scratch).packet, &(*scratch).search) };
    let kernel = Kernel { skb: core::ptr::null_mut(), scratch };
    let port = if port == 0 { None } else { Some(port as u16) };
    complete(&kernel, packet, search, port).map_or(PASS, |to| kernel.send_to(to))
}

/// Sends the packet in the scratch where that says; 0 if it is lost.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn rewrite_packet(skb: *mut __sk_buff, hook: u32) -> u32 {
    let Some(scratch) = FORWARD_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own; nothing below writes to these.
    let (packet, to) = unsafe { (&(*scratch).packet, &(*scratch).to) };
    let (context, hook) = (TcContext::new(skb), hook_of(hook));
    let rewritten = match packet.kind {
        Kind::IcmpError => rewrite_error(&context, packet, hook, to),
        _ => rewrite(&context, packet, hook, to),
    };
    u32::from(rewritten.is_ok())
}

/// True of what the node itself sends, which has come in by no interface. Its ICMP errors may be
/// about what is forwarded; and where fragments came from is not always known.
#[inline(always)]
fn is_own(context: &TcContext, packet: &Packet) -> bool {
    // SAFETY: the context outlives the program.
    let came_in_by = unsafe { (*context.skb.skb).ingress_ifindex };
    came_in_by == 0 && packet.identification.is_none() && packet.kind != Kind::IcmpError
}

/// The packet, if it may be one that is forwarded.
#[inline(always)]
fn read(context: &TcContext, hook: Hook) -> Option<Packet> {
    for _ in 0..2 {
        match Packet::read(&TcFrame(context), hook) {
            Ok(packet) => return Some(packet),
            Err(Unread::Other) => return None,
            // Headers may lie in a part that is not in sight.
            Err(Unread::Short) => {
                let length = context.len();
                if context.data() + length as usize <= context.data_end() {
                    return None;
                }
                // SAFETY: the context is the program's own.
                if unsafe { bpf_skb_pull_data(context.as_ptr().cast(), length.min(HEADERS)) } != 0 {
                    return None;
                }
            }
        }
    }
    None
}

struct TcFrame<'c>(&'c TcContext);

impl Frame for TcFrame<'_> {
    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let start = self.0.data() + offset;
        if start + N > self.0.data_end() {
            return None;
        }
        // SAFETY: the N bytes end before the packet does, and no helper that moves it is called
        // while they are looked at.
        Some(unsafe { &*(start as *const [u8; N]) })
    }
}

/// A helper refused: it had no memory.
struct Refused;

/// The address and port that the packet is sent on with.
#[inline(always)]
fn rewrite(context: &TcContext, packet: &Packet, hook: Hook, to: &Endpoint) -> Result<(), Refused> {
    let (old, address_at, port_at) = match hook {
        Hook::In => (packet.tuple.to(), destination_at(packet.network, &packet.sender), 2),
        Hook::Out => (packet.tuple.from(), source_at(packet.network, &packet.sender), 0),
    };
    if packet.kind == Kind::LaterFragment {
        return address(context, packet.network, address_at, &old.ip, &to.ip);
    }
    let (checksum_at, flags) = match packet.tuple.protocol {
        TCP => (packet.transport + 16, 0),
        // 0 says that there is none.
        _ => (packet.transport + 6, BPF_F_MARK_MANGLED_0 as u64),
    };
    pseudo_header(context, checksum_at, flags, &old.ip, &to.ip)?;
    if old.port_be != to.port_be {
        let (from, to) = (u64::from(old.port_be), u64::from(to.port_be));
        checksum(context, checksum_at, from, to, flags | 2)?;
        store(context, packet.transport + port_at, &(to as u16))?;
    }
    address(context, packet.network, address_at, &old.ip, &to.ip)
}

/// The receiver of an error on its way in, its sender on the way out; and the side of the packet
/// that it quotes which the error is not sent to.
#[inline(always)]
fn rewrite_error(context: &TcContext, packet: &Packet, hook: Hook, to: &Endpoint) -> Result<(), Refused> {
    // The tuple is that of an answer to what is quoted.
    let (old, quoted, address_at, quoted_at, port_at) = match hook {
        Hook::In => (
            packet.addressee,
            packet.tuple.to(),
            destination_at(packet.network, &packet.sender),
            source_at(packet.quoted_network, &packet.sender),
            0,
        ),
        Hook::Out => (
            packet.sender,
            packet.tuple.from(),
            source_at(packet.network, &packet.sender),
            destination_at(packet.quoted_network, &packet.sender),
            2,
        ),
    };
    let checksum_at = packet.transport + 2;
    let (from, port) = (u64::from(quoted.port_be), u64::from(to.port_be));
    checksum(context, checksum_at, from, port, 2)?;
    store(context, packet.quoted_transport + port_at, &to.port_be)?;
    if packet.sender.is_v4() {
        // What the quoted header's own checksum takes back leaves that of ICMP as it is.
        address(context, packet.quoted_network, quoted_at, &quoted.ip, &to.ip)?;
    } else {
        let difference = difference(&quoted.ip, &to.ip);
        checksum(context, checksum_at, 0, difference, 0)?;
        store(context, quoted_at, &to.ip.0)?;
        pseudo_header(context, checksum_at, 0, &old, &to.ip)?;
    }
    address(context, packet.network, address_at, &old, &to.ip)
}

#[inline(always)]
const fn source_at(network: usize, family: &Ip) -> usize {
    if family.is_v4() { network + 12 } else { network + 8 }
}

#[inline(always)]
const fn destination_at(network: usize, family: &Ip) -> usize {
    if family.is_v4() { network + 16 } else { network + 24 }
}

/// An address in an IP header, and the header's checksum if it has one.
#[inline(always)]
fn address(context: &TcContext, network: usize, at: usize, from: &Ip, to: &Ip) -> Result<(), Refused> {
    if !from.is_v4() {
        return store(context, at, &to.0);
    }
    let (old, new) = (u64::from(from.0[3]), u64::from(to.0[3]));
    // SAFETY: the context is the program's own.
    let error = unsafe { bpf_l3_csum_replace(context.as_ptr().cast(), network as u32 + 10, old, new, 4) };
    if error != 0 {
        return Err(Refused);
    }
    store(context, at, &to.0[3])
}

/// `BPF_F_IPV6` of linux/bpf.h: there is no checksum of the IP header that would take the address's
/// difference back (Linux 6.16, and 6.12.31).
const BPF_F_IPV6: u64 = 1 << 7;

/// The addresses' part of a checksum behind the IP header.
#[inline(always)]
fn pseudo_header(context: &TcContext, at: usize, flags: u64, from: &Ip, to: &Ip) -> Result<(), Refused> {
    let flags = flags | BPF_F_PSEUDO_HDR as u64;
    if from.is_v4() {
        return checksum(context, at, u64::from(from.0[3]), u64::from(to.0[3]), flags | 4);
    }
    let difference = difference(from, to);
    match checksum(context, at, 0, difference, flags | BPF_F_IPV6) {
        Err(Refused) => checksum(context, at, 0, difference, flags),
        done => done,
    }
}

#[inline(always)]
fn difference(from: &Ip, to: &Ip) -> u64 {
    let (mut from, mut to) = (from.0, to.0);
    // SAFETY: both are 16 bytes.
    unsafe { bpf_csum_diff(from.as_mut_ptr(), 16, to.as_mut_ptr(), 16, 0) as u64 }
}

#[inline(always)]
fn checksum(context: &TcContext, at: usize, from: u64, to: u64, flags: u64) -> Result<(), Refused> {
    // SAFETY: the context is the program's own.
    let error = unsafe { bpf_l4_csum_replace(context.as_ptr().cast(), at as u32, from, to, flags) };
    if error == 0 { Ok(()) } else { Err(Refused) }
}

#[inline(always)]
fn store<T>(context: &TcContext, at: usize, value: &T) -> Result<(), Refused> {
    let (from, length) = ((&raw const *value).cast(), size_of::<T>() as u32);
    // SAFETY: the context is the program's own, the value as long as it says.
    let error = unsafe { bpf_skb_store_bytes(context.as_ptr().cast(), at as u32, from, length, 0) };
    if error == 0 { Ok(()) } else { Err(Refused) }
}

/// The maps and helpers behind the decisions.
struct Kernel {
    /// Null where no way is looked for.
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
}

impl Kernel {
    /// To be sent there, once it is rewritten.
    #[inline(always)]
    fn send_to(&self, to: Endpoint) -> u32 {
        // SAFETY: this CPU's own.
        unsafe { (&raw mut (*self.scratch).to).write(to) };
        TO
    }

    #[inline(always)]
    fn key(&self, key: &Tuple) -> &Tuple {
        // SAFETY: nothing else refers to it.
        unsafe {
            (&raw mut (*self.scratch).key).write(*key);
            &(*self.scratch).key
        }
    }

    #[inline(always)]
    fn value(&self, value: &Translation) -> &Translation {
        // SAFETY: as above.
        unsafe {
            (&raw mut (*self.scratch).value).write(*value);
            &(*self.scratch).value
        }
    }
}

/// An entry where it lies. Others may write to it meanwhile: each field is read and written whole.
#[derive(Clone, Copy)]
struct InMap(*mut Translation);

macro_rules! fields {
    ($($field:ident $set:ident $kind:ty),*) => {
        $(
            #[inline(always)]
            fn $field(&self) -> $kind {
                // SAFETY: entries of a map stay where they are while a program runs.
                unsafe { (&raw const (*self.0).$field).read_volatile() }
            }

            #[inline(always)]
            fn $set(&self, value: $kind) {
                // SAFETY: as above.
                unsafe { (&raw mut (*self.0).$field).write_volatile(value) }
            }
        )*
    };
}

impl Entry for InMap {
    #[inline(always)]
    fn to(&self) -> Endpoint {
        // SAFETY: as below; never written but with the whole entry.
        unsafe { (*self.0).to }
    }

    #[inline(always)]
    fn with(&self) -> Endpoint {
        // SAFETY: as above.
        unsafe { (*self.0).with }
    }

    #[inline(always)]
    fn side(&self) -> u8 {
        // SAFETY: as above.
        unsafe { (*self.0).side }
    }

    fields! {
        seen set_seen u64,
        acknowledgement set_acknowledgement u32,
        client set_client u8,
        backend set_backend u8,
        ended_first set_ended_first u8
    }
}

impl World for Kernel {
    type Entry = InMap;

    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: no condition.
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: no condition.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn settings(&self) -> Option<Settings> {
        FORWARD_SETTINGS.get(0).copied()
    }

    #[inline(always)]
    fn rule(&self, frontend: &FrontendKey) -> Option<Rule> {
        // SAFETY: a rule that is replaced meanwhile leads to the old table or the new one.
        unsafe { FORWARD_RULES.get(frontend) }.copied()
    }

    #[inline(always)]
    fn backend(&self, slot: &Slot) -> Option<Endpoint> {
        // SAFETY: likewise.
        unsafe { FORWARD_BACKENDS.get(slot) }.copied()
    }

    #[inline(always)]
    fn route(&self, came_in_by: u32, from: Ip, to: Ip) -> Option<u32> {
        /// linux/socket.h.
        const AF_INET: u8 = 2;
        const AF_INET6: u8 = 10;
        /// `BPF_FIB_LKUP_RET_SUCCESS`, `_NO_NEIGH`, `_FRAG_NEEDED`: the stack knows the way.
        const SUCCESS: i64 = 0;
        const NO_NEIGHBOUR: i64 = 7;
        const TOO_BIG: i64 = 8;
        // SAFETY: all zeros are a value of it; nothing else refers to it.
        let question = unsafe {
            let question = &raw mut (*self.scratch).question;
            question.write(core::mem::zeroed());
            &mut *question
        };
        // SAFETY: the context outlives the program.
        question.ifindex = if came_in_by == 0 { unsafe { (*self.skb).ifindex } } else { came_in_by };
        if from.is_v4() {
            question.family = AF_INET;
            question.__bindgen_anon_3.ipv4_src = from.0[3];
            question.__bindgen_anon_4.ipv4_dst = to.0[3];
        } else {
            question.family = AF_INET6;
            question.__bindgen_anon_3.ipv6_src = from.0;
            question.__bindgen_anon_4.ipv6_dst = to.0;
        }
        let length = size_of::<bpf_fib_lookup>() as i32;
        // SAFETY: the context is the program's own, the question as long as it says.
        let answer = unsafe { fib_lookup(self.skb.cast(), &raw mut *question, length, 0) };
        matches!(answer as i64, SUCCESS | NO_NEIGHBOUR | TOO_BIG).then_some(question.ifindex)
    }

    #[inline(always)]
    fn interface(&self, index: u32) -> Option<NodeAddresses> {
        // SAFETY: as a rule's.
        unsafe { FORWARD_INTERFACES.get(index) }.copied()
    }

    #[inline(always)]
    fn entry(&self, kept: Kept, key: &Tuple) -> Option<InMap> {
        let key = self.key(key);
        match kept {
            Kept::Confirmed => FLOWS.get_ptr_mut(key),
            Kept::New => NEW_FLOWS.get_ptr_mut(key),
        }
        .map(InMap)
    }

    #[inline(always)]
    fn put(&self, kept: Kept, key: &Tuple, value: &Translation, put: Put) -> bool {
        let flags = match put {
            Put::Always => 0,
            Put::IfAbsent => u64::from(BPF_NOEXIST),
        };
        let (key, value) = (self.key(key), self.value(value));
        match kept {
            Kept::Confirmed => FLOWS.insert(key, value, flags),
            Kept::New => NEW_FLOWS.insert(key, value, flags),
        }
        .is_ok()
    }

    #[inline(always)]
    fn remove(&self, kept: Kept, key: &Tuple) {
        let key = self.key(key);
        _ = match kept {
            Kept::Confirmed => FLOWS.remove(key),
            Kept::New => NEW_FLOWS.remove(key),
        };
    }

    #[inline(always)]
    fn fragment(&self, key: &Fragments) -> Option<Ip> {
        // SAFETY: an entry that another datagram gets meanwhile is for one of as old an
        // identification.
        unsafe { FRAGMENTS.get(key) }.copied()
    }

    #[inline(always)]
    fn put_fragment(&self, key: &Fragments, to: Ip) {
        _ = FRAGMENTS.insert(key, &to, 0);
    }

    #[inline(always)]
    fn count(&self, reason: Reason) {
        count(reason);
    }
}
