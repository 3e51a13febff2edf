//! The maps, named as in `portcullis_common::abi`.

use aya_ebpf::macros::map;
use aya_ebpf::maps::lpm_trie::{Key, LpmTrie};
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, SockMap};
use portcullis_common::abi::{
    Address, ClientInList, DENIED, FrontendKey, Group, MAX_CLIENTS, MAX_CORES, MAX_FRONTENDS, MAX_GROUPS,
    MAX_VIPS,
};
use portcullis_common::reason::Reason;
use portcullis_common::verdict::Tables;

#[map]
pub static FRONTENDS: HashMap<FrontendKey, u32> = HashMap::with_max_entries(MAX_FRONTENDS, 0);
#[map]
pub static VIPS: HashMap<Address, u32> = HashMap::with_max_entries(MAX_VIPS, 0);
#[map]
pub static GROUPS: Array<Group> = Array::with_max_entries(MAX_GROUPS, 0);
#[map]
pub static SOCKETS: SockMap = SockMap::with_max_entries(MAX_GROUPS * 2 * MAX_CORES, 0);
/// Lists of clients, for all programs.
#[map]
static CLIENTS: LpmTrie<ClientInList, u32> = LpmTrie::with_max_entries(MAX_CLIENTS, 0);
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Reason::COUNT, 0);

/// Adds one to this CPU's counter.
#[inline(always)]
pub fn count(reason: Reason) {
    count_index(reason as u32);
}

/// The same by the reason's place in the table, which is all that a function of the kernel's kind
/// can return.
#[inline(always)]
pub fn count_index(reason: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(reason) {
        // SAFETY: the slot belongs to this CPU, and programs are not preempted by each other while
        // they run.
        unsafe { *counter += 1 };
    }
}

/// The real maps behind the decisions of `portcullis-common`.
pub struct KernelTables;

impl Tables for KernelTables {
    #[inline(always)]
    fn vip(&self, address: &Address) -> Option<u32> {
        // SAFETY: an aligned u32 is read whole; an entry replaced meanwhile gives the old value or
        // the new one.
        unsafe { VIPS.get(address) }.copied()
    }

    #[inline(always)]
    fn frontend(&self, key: &FrontendKey) -> Option<u32> {
        // SAFETY: as above.
        unsafe { FRONTENDS.get(key) }.copied()
    }

    /// A list that is not there denies nothing: user space has the same rules.
    #[inline(always)]
    fn denies(&self, list: u32, client: &Address) -> bool {
        let client = ClientInList { list: list.to_be_bytes(), address: *client };
        CLIENTS.get(Key::new(ClientInList::WHOLE, client)) == Some(&DENIED)
    }
}
