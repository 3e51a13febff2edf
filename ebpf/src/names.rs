//! tcx: looks for the server name of each connection's ClientHello, and whether a listener of the
//! port has it. It counts, and passes everything: user space decides, by what it reads itself.

use core::arch::asm;

use aya_ebpf::EbpfContext;
use aya_ebpf::helpers::bpf_skb_load_bytes;
use aya_ebpf::macros::{classifier, map};
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::maps::{HashMap, LpmTrie, LruHashMap, PerCpuArray};
use aya_ebpf::programs::TcContext;
use portcullis_common::abi::{
    Flow, FrontendKey, MAX_FRONTENDS, MAX_HELLOS, MAX_NAMES, NameInTable, PartialHello,
};
use portcullis_common::client_hello::{Cursor, MOST_KEPT, Reading, Window, may_begin};
use portcullis_common::packet::Frame;
use portcullis_common::reason::Reason;
use portcullis_common::segment::Segment;

use crate::maps::count_index;

#[map]
static NAME_TABLES: HashMap<FrontendKey, u32> = HashMap::with_max_entries(MAX_FRONTENDS, 0);
#[map]
static NAMES: LpmTrie<NameInTable, u32> = LpmTrie::with_max_entries(MAX_NAMES, 0);
#[map]
static HELLOS: LruHashMap<Flow, PartialHello> = LruHashMap::with_max_entries(MAX_HELLOS, 0);
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// The next program, or the stack.
const TCX_NEXT: i32 = -1;

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
}

#[classifier]
pub fn names(context: TcContext) -> i32 {
    if let Some(scratch) = SCRATCH.get_ptr_mut(0) {
        // SAFETY: this CPU's own, and only the functions below refer to it while this runs.
        let reason = unsafe { read(&context, scratch) };
        if let Some(reason) = reason {
            count_index(reason);
        }
    }
    TCX_NEXT
}

/// `None` for what is no hello, and for one that is to be gone on with.
#[inline(always)]
unsafe fn read(context: &TcContext, scratch: *mut Scratch) -> Option<u32> {
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
    }
    let reason = match find_name() {
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
        NAME => look_up(table),
        NO_NAME => Reason::HelloWithoutName as u32,
        _ => Reason::HelloNotRead as u32,
    };
    if known.is_some() {
        _ = HELLOS.remove(&segment.flow);
    }
    Some(reason)
}

const NAME: u32 = 0;
const NO_NAME: u32 = 1;
const INCOMPLETE: u32 = 2;
const UNREADABLE: u32 = 3;

/// Reads on in the stream that the scratch has, and leaves there where the name is; or what the
/// next reading needs, and from where on the stream is kept for it. A function of its own for the
/// verifier, which goes through it once, and not for each way that leads here.
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

/// Looks up the name at the place in the stream that the scratch has. A function of its own for the
/// same reason.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn look_up(table: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return Reason::HelloNotRead as u32 };
    // SAFETY: as above.
    let scratch = unsafe { &mut *scratch };
    let stream = Bytes::<STREAM> { start: scratch.stream.as_ptr(), length: scratch.length as usize };
    let key = &mut scratch.key;
    let name = key.data.name.read(&stream, scratch.name_offset as usize, scratch.name_length as usize);
    let Some(length) = name else { return Reason::HelloNotRead as u32 };
    key.data.table = (table as u16).to_be_bytes();
    key.prefix_len = NameInTable::prefix_of_name(length);
    match NAMES.get(&*key) {
        Some(_) => Reason::HelloKnownName as u32,
        None => Reason::HelloUnknownName as u32,
    }
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
