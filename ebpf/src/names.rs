//! tcx: looks for the server name of each connection's ClientHello, and whether a listener of the
//! port has it. It refuses what its listener, or the port, has no room for, or does not permit, and
//! passes everything else: user space decides, by what it reads itself.

use core::arch::asm;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{__sk_buff, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_skb_load_bytes};
use aya_ebpf::macros::{classifier, map};
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray};
use aya_ebpf::programs::TcContext;
use portcullis_common::abi::{
    Address, Bucket, Budget, Flow, FrontendKey, ListenerTerms, MAX_BUDGETS, MAX_FRONTENDS, MAX_HELLOS,
    MAX_LISTENERS, MAX_NAMES, NameInTable, PartialHello, UNKNOWN_NAMES,
};
use portcullis_common::bucket;
use portcullis_common::client_hello::{Cursor, MOST_KEPT, Reading, Window, may_begin};
use portcullis_common::packet::Frame;
use portcullis_common::reason::Reason;
use portcullis_common::reset::{V4, V6};
use portcullis_common::segment::{Form, Segment};
use portcullis_common::verdict::Tables;

use crate::connection;
use crate::maps::{KernelTables, count_index};
use crate::refuse::{Outcome, Refused, refuse};

#[map]
static NAME_TABLES: HashMap<FrontendKey, u32> = HashMap::with_max_entries(MAX_FRONTENDS, BPF_F_NO_PREALLOC);
#[map]
static NAMES: LpmTrie<NameInTable, u32> = LpmTrie::with_max_entries(MAX_NAMES, 0);
#[map]
static LISTENERS: HashMap<u32, ListenerTerms> = HashMap::with_max_entries(MAX_LISTENERS, BPF_F_NO_PREALLOC);
#[map]
static BUDGETS: HashMap<u32, Budget> = HashMap::with_max_entries(MAX_BUDGETS, BPF_F_NO_PREALLOC);
#[map]
static BUCKETS: HashMap<u32, Bucket> = HashMap::with_max_entries(MAX_BUDGETS, BPF_F_NO_PREALLOC);
#[map]
static HELLOS: LruHashMap<Flow, PartialHello> = LruHashMap::with_max_entries(MAX_HELLOS, 0);
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// The next program, or the stack.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// Bytes of a frame in which its headers are looked for.
const HEADERS: usize = 256;
/// A power of two with room for what was kept and for what is read of a segment.
const STREAM: usize = 8192;
/// The most that is read of a segment. Segments that were merged on receipt hold a whole hello.
const READ: u32 = 4096;
/// More than any one look at the bytes takes, so that the mask of its place is enough.
const BEYOND: usize = 320;

/// More than the stack has room for. Each CPU has its own, and receives one packet after the other.
#[repr(C)]
struct Scratch {
    partial: PartialHello,
    length: u32,
    name_offset: u32,
    name_length: u32,
    kept_from: u32,
    headers: [u8; HEADERS + BEYOND],
    /// Begins with a word of its own, as what is kept does.
    stream: [u8; STREAM + BEYOND],
    key: Key<NameInTable>,
    table: u32,
    client: Address,
    refused: Refused,
    /// As a number: 4, 6, or 0 for one that is not answered here.
    version: u32,
}

#[classifier]
pub fn names(context: TcContext) -> i32 {
    let context = context.skb.skb;
    let found = read(context);
    if (found == NAME || found == NO_NAME) && !is_connected(context) {
        count_index(Reason::HelloUnconnected as u32);
        return TCX_NEXT;
    }
    let reason = match found {
        NAME => admit(look_up(), Reason::HelloKnownName as u32),
        NO_NAME => admit(look_up_any(), Reason::HelloWithoutName as u32),
        UNREADABLE => Reason::HelloNotRead as u32,
        _ => return TCX_NEXT,
    };
    let outcome = if is_refused(reason) { reset(context) } else { PASSED };
    count_index(if outcome == LEFT { Reason::HelloLeft as u32 } else { reason });
    if outcome == SPOILT { TCX_DROP } else { TCX_NEXT }
}

/// Asks for the segment that the scratch has.
#[inline(always)]
fn is_connected(context: *mut __sk_buff) -> bool {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return false };
    // SAFETY: as [`reset`].
    let is_connected = match unsafe { (*scratch).version } {
        4 => is_connected_v4(context),
        6 => is_connected_v6(context),
        _ => u32::from(connection::are_assumed()),
    };
    is_connected != 0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_connected_v4(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: as above.
    u32::from(connection::is_connected::<V4>(context, unsafe { (*scratch).refused.network }))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_connected_v6(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: as above.
    u32::from(connection::is_connected::<V6>(context, unsafe { (*scratch).refused.network }))
}

#[inline(always)]
const fn is_refused(reason: u32) -> bool {
    reason == Reason::HelloOverBudget as u32
        || reason == Reason::HelloDeniedClient as u32
        || reason == Reason::HelloUnknownRefused as u32
}

const PASSED: u32 = Outcome::Reset as u32;
const LEFT: u32 = Outcome::Left as u32;
const SPOILT: u32 = Outcome::Spoilt as u32;

/// Refuses the segment that the scratch has.
#[inline(always)]
fn reset(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return LEFT };
    // SAFETY: this CPU's own; the functions that refer to it do so in turn.
    match unsafe { (*scratch).version } {
        4 => reset_v4(context),
        6 => reset_v6(context),
        _ => LEFT,
    }
}

/// A function of its own for the verifier, as those below: it goes through it once, and not for
/// each way that leads here; and each has the stack for itself.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reset_v4(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return LEFT };
    // SAFETY: as above.
    refuse::<V4>(context, unsafe { (*scratch).refused }) as u32
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reset_v6(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return LEFT };
    // SAFETY: as above.
    refuse::<V6>(context, unsafe { (*scratch).refused }) as u32
}

/// Reads as much of a hello as has come, and leaves what was found in the scratch. What is no
/// hello, or one that is to be gone on with, is [`INCOMPLETE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn read(context: *mut __sk_buff) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return INCOMPLETE };
    // SAFETY: as above.
    unsafe { read_segment(&TcContext::new(context), scratch) }.unwrap_or(INCOMPLETE)
}

#[inline(always)]
unsafe fn read_segment(context: &TcContext, scratch: *mut Scratch) -> Option<u32> {
    // SAFETY: the caller's. Pointers, and no references that would last, because the functions
    // below write to the same memory.
    let (headers, stream, partial) = unsafe {
        let headers: *mut u8 = (&raw mut (*scratch).headers).cast();
        let stream: *mut u8 = (&raw mut (*scratch).stream).cast();
        (headers, stream, &raw mut (*scratch).partial)
    };
    let loaded = load::<{ HEADERS as u32 - 1 }>(context, 0, context.len(), headers)?;
    let segment = Segment::read(&Bytes::<HEADERS> { start: headers, length: loaded as usize })?;
    let table = table(&segment.flow)?;
    let length = segment.length as u32;
    // SAFETY: an entry that another flow gets meanwhile makes a name be missed, or found that user
    // space does not find.
    let known = unsafe { HELLOS.get(&segment.flow) }.filter(|it| it.sequence == segment.sequence);
    let (cursor, kept) = match known {
        Some(known) => {
            // SAFETY: both have room for it.
            unsafe { copy(known.bytes.as_ptr(), stream.cast()) };
            (known.cursor, masked::<511>(known.length))
        }
        None => {
            let mut first = [0; 8];
            let loaded = load::<7>(context, segment.offset, length, first.as_mut_ptr())?;
            if !may_begin(&first, loaded as usize) {
                return None;
            }
            (Cursor::BEGIN, 0)
        }
    };
    // SAFETY: the stream is longer than both together.
    let loaded = load::<{ READ - 1 }>(context, segment.offset, length, unsafe { stream.add(kept as usize) })?;
    // SAFETY: the caller's.
    unsafe {
        (*scratch).length = kept + loaded;
        (*partial).cursor = cursor;
        (*scratch).table = table;
        (*scratch).client = segment.flow.source;
        (*scratch).refused = Refused { network: segment.network as u32, length, flags: segment.flags.into() };
        (*scratch).version = match segment.form {
            Form::V4 => 4,
            Form::V6 => 6,
            Form::Other => 0,
        };
    }
    let found = match find_name() {
        INCOMPLETE if loaded == length => {
            // SAFETY: so many bytes lie behind the mask, which the last three bits are not part of.
            unsafe {
                let from = masked::<{ STREAM as u32 - 8 }>((&raw const (*scratch).kept_from).read_volatile());
                copy(stream.add(from as usize).cast(), (&raw mut (*partial).bytes).cast());
                (*partial).sequence = segment.sequence.wrapping_add(length);
                _ = HELLOS.insert(&segment.flow, &*partial, 0);
            }
            return None;
        }
        INCOMPLETE => UNREADABLE,
        found => found,
    };
    if known.is_some() {
        _ = HELLOS.remove(&segment.flow);
    }
    Some(found)
}

const NAME: u32 = 0;
const NO_NAME: u32 = 1;
const INCOMPLETE: u32 = 2;
const UNREADABLE: u32 = 3;

/// Reads on in the stream that the scratch has, and leaves there where the name is; or what the
/// next reading needs, and from where on the stream is kept for it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_name() -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return UNREADABLE };
    // SAFETY: this CPU's own; the caller holds no reference.
    let scratch = unsafe { &mut *scratch };
    let stream = Bytes::<STREAM> { start: scratch.stream.as_ptr(), length: scratch.length as usize };
    match scratch.partial.cursor.read(&stream) {
        Reading::Name { offset, length } => {
            scratch.name_offset = offset as u32;
            scratch.name_length = length as u32;
            NAME
        }
        Reading::NoName => NO_NAME,
        Reading::Unreadable => UNREADABLE,
        Reading::Incomplete(cursor) => {
            let keep = cursor.keep(stream.length);
            scratch.kept_from = keep.from as u32;
            scratch.partial.length = (stream.length - keep.from) as u32;
            scratch.partial.cursor = keep.cursor;
            INCOMPLETE
        }
    }
}

/// Not the number of a listener.
const NO_LISTENER: u32 = u32::MAX;
const NO_DNS_NAME: u32 = u32::MAX - 1;

/// Looks up the name at the place in the stream that the scratch has, and returns the listener that
/// has it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn look_up() -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return NO_DNS_NAME };
    // SAFETY: as above.
    let scratch = unsafe { &mut *scratch };
    let stream = Bytes::<STREAM> { start: scratch.stream.as_ptr(), length: scratch.length as usize };
    let key = &mut scratch.key;
    let name = key.data.name.read(&stream, scratch.name_offset as usize, scratch.name_length as usize);
    let Some(length) = name else { return NO_DNS_NAME };
    key.data.table = (scratch.table as u16).to_be_bytes();
    key.prefix_len = NameInTable::prefix_of_name(length);
    NAMES.get(&*key).copied().unwrap_or(NO_LISTENER)
}

/// The listener for all names, which gets what has none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn look_up_any() -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return NO_LISTENER };
    // SAFETY: as above.
    let (key, table) = unsafe { (&mut (*scratch).key, (*scratch).table) };
    key.data.table = (table as u16).to_be_bytes();
    key.prefix_len = NameInTable::ANY_NAME;
    NAMES.get(&*key).copied().unwrap_or(NO_LISTENER)
}

/// Lets a connection for the listener in, for the reason given, or says why not.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn admit(listener: u32, admitted: u32) -> u32 {
    if listener == NO_DNS_NAME {
        return Reason::HelloNotRead as u32;
    }
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return admitted };
    // SAFETY: as above.
    let (table, client) = unsafe { ((*scratch).table, &(*scratch).client) };
    if listener == NO_LISTENER {
        let passed = if admitted == Reason::HelloKnownName as u32 {
            Reason::HelloUnknownName as u32
        } else {
            admitted
        };
        return if take(UNKNOWN_NAMES | table) { passed } else { Reason::HelloUnknownRefused as u32 };
    }
    // SAFETY: entries are replaced, not changed.
    let Some(terms) = (unsafe { LISTENERS.get(listener) }) else { return admitted };
    if terms.clients != 0 && KernelTables.denies(terms.clients, client) {
        return Reason::HelloDeniedClient as u32;
    }
    let [own, parent, gateway] = terms.budgets;
    if own != 0 && !take(own) {
        return Reason::HelloOverBudget as u32;
    }
    if parent != 0 && !take(parent) {
        give_back(own);
        return Reason::HelloOverBudget as u32;
    }
    if gateway != 0 && !take(gateway) {
        give_back(own);
        give_back(parent);
        return Reason::HelloOverBudget as u32;
    }
    admitted
}

/// Tries with which others that take at the same time are got past; then the connection is let in
/// without being counted.
const TRIES: u32 = 8;

/// Takes a connection from the budget; false if it has none left. What has no budget is not
/// limited.
#[inline(always)]
fn take(number: u32) -> bool {
    // SAFETY: entries are replaced, not changed.
    let Some(budget) = (unsafe { BUDGETS.get(number) }) else { return true };
    let Some(bucket) = BUCKETS.get_ptr_mut(number) else { return true };
    // SAFETY: the kernel's clock.
    let now = unsafe { bpf_ktime_get_ns() };
    for _ in 0..TRIES {
        // SAFETY: what lies in the map is valid while the program runs, and is changed in single
        // steps only.
        unsafe {
            let full_at = (&raw const (*bucket).full_at).read_volatile();
            let Some(next) = bucket::take(full_at, now, budget) else {
                add(&raw mut (*bucket).refused, 1);
                return false;
            };
            if exchange(&raw mut (*bucket).full_at, full_at, next) {
                add(&raw mut (*bucket).taken, 1);
                return true;
            }
        }
    }
    true
}

/// The connection that was taken is not let in: another budget has none left.
#[inline(always)]
fn give_back(number: u32) {
    // SAFETY: as above.
    let Some(budget) = (unsafe { BUDGETS.get(number) }) else { return };
    let Some(bucket) = BUCKETS.get_ptr_mut(number) else { return };
    // SAFETY: as above.
    unsafe {
        add(&raw mut (*bucket).full_at, budget.interval.wrapping_neg());
        add(&raw mut (*bucket).taken, 1u64.wrapping_neg());
    }
}

/// Adds in one step.
#[inline(always)]
unsafe fn add(number: *mut u64, summand: u64) {
    // SAFETY: the caller's.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) number, in(reg) summand) };
}

/// Replaces the number in one step if it is the one expected.
#[inline(always)]
unsafe fn exchange(number: *mut u64, expected: u64, new: u64) -> bool {
    let mut found = expected;
    // SAFETY: the caller's.
    unsafe {
        asm!("r0 = cmpxchg_64({0} + 0, r0, {1})", in(reg) number, in(reg) new, inout("r0") found);
    }
    found == expected
}

/// The names of the port that the flow goes to; the exact address before all addresses.
#[inline(always)]
fn table(flow: &Flow) -> Option<u32> {
    let frontend = flow.frontend();
    // SAFETY: an aligned u32 is read whole.
    unsafe { NAME_TABLES.get(&frontend).or_else(|| NAME_TABLES.get(frontend.wildcard())) }.copied()
}

/// Bytes in a part of the scratch that is `SIZE` long, a power of two, and [`BEYOND`].
struct Bytes<const SIZE: usize> {
    start: *const u8,
    length: usize,
}

impl<const SIZE: usize> Bytes<SIZE> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        const { assert!(N <= BEYOND && SIZE.is_power_of_two()) };
        if offset + N > self.length {
            return None;
        }
        let mut at = offset as u64;
        // SAFETY: the verifier sees the bound in one register; the compiler would leave it out.
        unsafe {
            asm!("{at} &= {mask}", at = inout(reg) at, mask = const SIZE - 1);
            Some(&*self.start.add(at as usize).cast())
        }
    }
}

impl<const SIZE: usize> Frame for Bytes<SIZE> {
    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.bytes(offset)
    }
}

impl<const SIZE: usize> Window for Bytes<SIZE> {
    #[inline(always)]
    fn length(&self) -> usize {
        self.length
    }

    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.bytes(offset)
    }
}

/// Loads so many bytes of the packet, one more than `MASK` at most, and returns how many.
#[inline(always)]
fn load<const MASK: u32>(context: &TcContext, offset: usize, length: u32, to: *mut u8) -> Option<u32> {
    if length == 0 {
        return None;
    }
    // The verifier sees that there is one at least, too.
    let length = masked::<MASK>(length.min(MASK + 1) - 1) + 1;
    // SAFETY: callers have room for one more than `MASK`.
    let error = unsafe { bpf_skb_load_bytes(context.as_ptr(), offset as u32, to.cast(), length) };
    (error == 0).then_some(length)
}

/// The number, in a form whose bound the verifier sees, where the compiler knows it.
#[inline(always)]
fn masked<const MASK: u32>(number: u32) -> u32 {
    let mut number = u64::from(number);
    // SAFETY: touches nothing else.
    unsafe { asm!("{0} &= {mask}", inout(reg) number, mask = const MASK) };
    number as u32
}

/// Copies as much as is kept of a hello.
#[inline(always)]
unsafe fn copy(from: *const u64, to: *mut u64) {
    for at in 0..MOST_KEPT / 8 {
        // SAFETY: the caller's. Volatile, or it would become a call of memcpy.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}
