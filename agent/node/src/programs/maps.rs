//! The maps from user space: dumb, idempotent reads and writes.
#![expect(unsafe_code, reason = "aya's marker for plain old data is an unsafe trait")]

use std::os::fd::BorrowedFd;

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, MapInfo, MapType, PerCpuArray, SockMap};
use aya::{Ebpf, Pod};
use portcullis_common::abi::{
    Address, BUCKETS, BUDGETS, Bucket, Budget, CLIENTS, COUNTERS, ClientInList, FRONTENDS, Family,
    FrontendKey, GROUPS, Group, LISTENERS, ListenerTerms, MAX_BUDGETS, MAX_CLIENTS, MAX_CORES, MAX_FRONTENDS,
    MAX_GROUPS, MAX_LISTENERS, MAX_NAMES, MAX_VIPS, NAME_TABLES, NAMES, NameInTable, SOCKETS, VIPS,
    socket_index,
};
use portcullis_common::reason::Reason;
use portcullis_model::SpeaksFirst;
use rustix::rand::GetRandomFlags;

use crate::clock::monotonic;
use crate::error::{Error, Unavailable};
use crate::plan::admission::ClientKey;
use crate::plan::names::NameKey;
use crate::plan::table::Change;
use crate::plan::{Contents, Op};
use crate::programs::pins::Pins;

/// The listening sockets of one core. They may be bound to any port; steered connections keep the
/// port they came for.
#[derive(Clone, Copy, Debug)]
pub struct CoreSockets<'a> {
    /// On the connections that they are for.
    pub speaks_first: SpeaksFirst,
    pub v4: Option<BorrowedFd<'a>>,
    pub v6: Option<BorrowedFd<'a>>,
}

/// `BPF_F_NO_PREALLOC` of linux/bpf.h.
const NO_PREALLOC: u32 = 1;

/// The shape of a map: its kind, its sizes in bytes, its room and its flags.
#[derive(Debug, PartialEq)]
pub(super) struct Shape {
    kind: MapType,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
}

impl Shape {
    pub(super) const fn new<K, V>(kind: MapType, entries: u32) -> Self {
        Self { kind, key: size_of::<K>() as u32, value: size_of::<V>() as u32, entries, flags: 0 }
    }

    /// A hash map that takes memory for what it has, and not for what it has room for.
    pub(super) const fn grown<K, V>(entries: u32) -> Self {
        Self { flags: NO_PREALLOC, ..Self::new::<K, V>(MapType::Hash, entries) }
    }

    /// A trie is only ever made entry by entry, and wants that to be said.
    const fn trie<K, V>(entries: u32) -> Self {
        Self { flags: NO_PREALLOC, ..Self::new::<Key<K>, V>(MapType::LpmTrie, entries) }
    }

    pub(super) fn pinned(map: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: map.map_type()?,
            key: map.key_size(),
            value: map.value_size(),
            entries: map.max_entries(),
            flags: map.map_flags(),
        })
    }
}

/// The maps as the built-in object declares them. Those that are pinned have to be like this: the
/// library uses them as it finds them, and reads past its buffers where sizes differ.
const SHAPES: [(&str, Shape); 11] = [
    (FRONTENDS, Shape::new::<FrontendKey, u32>(MapType::Hash, MAX_FRONTENDS)),
    (VIPS, Shape::new::<Address, u32>(MapType::Hash, MAX_VIPS)),
    (NAME_TABLES, Shape::grown::<FrontendKey, u32>(MAX_FRONTENDS)),
    (NAMES, Shape::trie::<NameInTable, u32>(MAX_NAMES)),
    (LISTENERS, Shape::grown::<u32, ListenerTerms>(MAX_LISTENERS)),
    (BUDGETS, Shape::grown::<u32, Budget>(MAX_BUDGETS)),
    (BUCKETS, Shape::grown::<u32, Bucket>(MAX_BUDGETS)),
    (CLIENTS, Shape::trie::<ClientInList, u32>(MAX_CLIENTS)),
    (GROUPS, Shape::new::<u32, Group>(MapType::Array, MAX_GROUPS)),
    (SOCKETS, Shape::new::<u32, u32>(MapType::SockMap, MAX_GROUPS * 2 * MAX_CORES)),
    (COUNTERS, Shape::new::<u32, u64>(MapType::PerCpuArray, Reason::COUNT)),
];

/// Returns `true` if what is pinned can be used; the log says why not. A map that is not there will
/// be made.
pub(crate) fn fit(pins: &Pins) -> bool {
    SHAPES.iter().all(|(name, expected)| {
        let path = pins.map(name);
        if !path.exists() {
            return true;
        }
        let found = match MapInfo::from_pin(&path).and_then(|map| Shape::pinned(&map)) {
            Ok(found) if found == *expected => return true,
            Ok(found) => format!("{found:?}, not {expected:?}"),
            Err(error) => format!("unreadable: {error}"),
        };
        let path = path.display();
        tracing::warn!("the map pinned at {path} is {found}: its directory is left, and replaced by another");
        false
    })
}

pub(crate) struct Maps {
    frontends: HashMap<MapData, Raw<FrontendKey>, u32>,
    vips: HashMap<MapData, Raw<Address>, u32>,
    name_tables: HashMap<MapData, Raw<FrontendKey>, u32>,
    names: LpmTrie<MapData, Raw<NameInTable>, u32>,
    listeners: HashMap<MapData, u32, Raw<ListenerTerms>>,
    budgets: HashMap<MapData, u32, Raw<Budget>>,
    buckets: HashMap<MapData, u32, Raw<Bucket>>,
    clients: LpmTrie<MapData, Raw<ClientInList>, u32>,
    groups: Array<MapData, Raw<Group>>,
    sockets: SockMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
}

impl Maps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, Unavailable> {
        Ok(Self {
            frontends: take(ebpf, FRONTENDS)?,
            vips: take(ebpf, VIPS)?,
            name_tables: take(ebpf, NAME_TABLES)?,
            names: take(ebpf, NAMES)?,
            listeners: take(ebpf, LISTENERS)?,
            budgets: take(ebpf, BUDGETS)?,
            buckets: take(ebpf, BUCKETS)?,
            clients: take(ebpf, CLIENTS)?,
            groups: take(ebpf, GROUPS)?,
            sockets: take(ebpf, SOCKETS)?,
            counters: take(ebpf, COUNTERS)?,
        })
    }

    pub(crate) fn contents(&self) -> Result<Contents, Error> {
        let frontends = self.frontends.iter().map(|entry| entry.map(|(key, group)| (key.0, group)));
        let vips = self.vips.iter().map(|entry| entry.map(|(address, flags)| (address.0, flags)));
        let name_tables = self.name_tables.iter().map(|entry| entry.map(|(key, table)| (key.0, table)));
        let names = self.names.iter().map(|entry| {
            entry.map(|(key, value)| (NameKey { prefix: key.prefix_len(), name: key.data().0 }, value))
        });
        let listeners = self.listeners.iter().map(|entry| entry.map(|(number, terms)| (number, terms.0)));
        let budgets = self.budgets.iter().map(|entry| entry.map(|(number, budget)| (number, budget.0)));
        let clients = self
            .clients
            .iter()
            .map(|entry| entry.map(|(key, access)| (ClientKey::new(key.prefix_len(), key.data().0), access)));
        Ok(Contents {
            listeners: listeners.collect::<Result<_, _>>().map_err(unreadable(LISTENERS))?,
            budgets: budgets.collect::<Result<_, _>>().map_err(unreadable(BUDGETS))?,
            clients: clients.collect::<Result<_, _>>().map_err(unreadable(CLIENTS))?,
            name_tables: name_tables.collect::<Result<_, _>>().map_err(unreadable(NAME_TABLES))?,
            names: names.collect::<Result<_, _>>().map_err(unreadable(NAMES))?,
            frontends: frontends.collect::<Result<_, _>>().map_err(unreadable(FRONTENDS))?,
            vips: vips.collect::<Result<_, _>>().map_err(unreadable(VIPS))?,
        })
    }

    pub(crate) fn execute(&mut self, op: Op) -> Result<(), Error> {
        let (map, written) = match op {
            Op::Frontend(change) => (FRONTENDS, write(&mut self.frontends, change)),
            Op::Vip(change) => (VIPS, write(&mut self.vips, change)),
            Op::NameTable(change) => (NAME_TABLES, write(&mut self.name_tables, change)),
            Op::Name(change) => {
                (NAMES, write_range(&mut self.names, change, |name| Key::new(name.prefix, Raw(name.name))))
            }
            Op::Client(change) => {
                (CLIENTS, write_range(&mut self.clients, change, |it| Key::new(it.prefix, Raw(it.data()))))
            }
            Op::Listener(Change::Put(number, terms)) => {
                (LISTENERS, self.listeners.insert(number, Raw(terms), 0))
            }
            Op::Listener(Change::Remove(number)) => (LISTENERS, removed(self.listeners.remove(&number))),
            Op::Budget(Change::Put(number, budget)) => (BUDGETS, self.put_budget(number, budget)),
            Op::Budget(Change::Remove(number)) => (BUDGETS, self.remove_budget(number)),
        };
        written.map_err(unwritable(map, || op.to_string()))
    }

    /// Replaces the sockets of a group without a gap: a connection finds an old socket or a new
    /// one. Sockets come before the count that makes them eligible, and go after it.
    pub(crate) fn set_sockets(&mut self, group: u32, cores: &[CoreSockets<'_>]) -> Result<(), Error> {
        let v4: Vec<_> = cores.iter().filter_map(|core| core.v4).collect();
        let v6: Vec<_> = cores.iter().filter_map(|core| core.v6).collect();
        let old = self.groups.get(&group, 0).map_err(unreadable(GROUPS))?.0;
        let key = match old.key {
            [0, 0] => random_key()?,
            known => known,
        };
        let count = Group { v4: checked_count(v4.len())?, v6: checked_count(v6.len())?, key };
        self.put_sockets(group, Family::V4, &v4)?;
        self.put_sockets(group, Family::V6, &v6)?;
        let written = self.groups.set(group, Raw(count), 0);
        written.map_err(unwritable(GROUPS, || format!("listener group {group}")))?;
        (count.v4..old.v4).for_each(|core| self.clear_socket(group, Family::V4, core));
        (count.v6..old.v6).for_each(|core| self.clear_socket(group, Family::V6, core));
        Ok(())
    }

    /// Sums over all CPUs, in the order of the table.
    pub(crate) fn counters(&self) -> Result<Vec<(Reason, u64)>, Error> {
        let sums = Reason::ALL.iter().map(|reason| {
            let values = self.counters.get(&(*reason as u32), 0).map_err(unreadable(COUNTERS))?;
            Ok((*reason, values.iter().sum()))
        });
        sums.collect()
    }

    /// A budget that is there keeps its bucket, and what was taken is taken; but a bucket that was
    /// larger, or filled more slowly, is empty now and no more than that.
    fn put_budget(&mut self, number: u32, budget: Budget) -> Result<(), MapError> {
        let Ok(Raw(bucket)) = self.buckets.get(&number, 0) else {
            self.buckets.insert(number, Raw(Bucket::default()), 0)?;
            return self.budgets.insert(number, Raw(budget), 0);
        };
        self.budgets.insert(number, Raw(budget), 0)?;
        let empty = monotonic().saturating_add(budget.span);
        if bucket.full_at > empty {
            self.buckets.insert(number, Raw(Bucket { full_at: empty, ..bucket }), 0)?;
        }
        Ok(())
    }

    fn remove_budget(&mut self, number: u32) -> Result<(), MapError> {
        removed(self.budgets.remove(&number))?;
        removed(self.buckets.remove(&number))
    }

    /// Connections let in and refused by a budget.
    pub(crate) fn bucket(&self, number: u32) -> Option<Bucket> {
        self.buckets.get(&number, 0).ok().map(|bucket| bucket.0)
    }

    fn put_sockets(&mut self, group: u32, family: Family, sockets: &[BorrowedFd<'_>]) -> Result<(), Error> {
        for (core, socket) in (0..).zip(sockets) {
            let written = self.sockets.set(socket_index(group, family, core), socket, 0);
            written.map_err(unwritable(SOCKETS, || format!("the socket of core {core}")))?;
        }
        Ok(())
    }

    /// A closed socket has left the map by itself.
    fn clear_socket(&mut self, group: u32, family: Family, core: u32) {
        _ = self.sockets.clear_index(&socket_index(group, family, core));
    }
}

/// The kernel's random numbers are never short of eight bytes.
fn random_key() -> Result<[u32; 2], Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::Random)?;
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok([u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])])
}

fn checked_count(given: usize) -> Result<u32, Error> {
    let count = u32::try_from(given).ok().filter(|count| *count <= MAX_CORES);
    count.ok_or(Error::TooManyCores { given, most: MAX_CORES })
}

fn take<M: TryFrom<Map, Error = MapError>>(ebpf: &mut Ebpf, name: &str) -> Result<M, Unavailable> {
    let map = ebpf.take_map(name).ok_or_else(|| Unavailable::Object(format!("it has no map {name}")))?;
    M::try_from(map).map_err(|error| Unavailable::Object(format!("map {name}: {error}")))
}

fn write<K>(map: &mut HashMap<MapData, Raw<K>, u32>, change: Change<K, u32>) -> Result<(), MapError>
where
    Raw<K>: Pod,
{
    match change {
        Change::Put(key, value) => map.insert(Raw(key), value, 0),
        Change::Remove(key) => removed(map.remove(&Raw(key))),
    }
}

fn write_range<K, R: Pod>(
    map: &mut LpmTrie<MapData, R, u32>,
    change: Change<K, u32>,
    key: impl Fn(K) -> Key<R>,
) -> Result<(), MapError> {
    match change {
        Change::Put(range, value) => map.insert(&key(range), value, 0),
        Change::Remove(range) => removed(map.remove(&key(range))),
    }
}

/// Removing what is not there is done already.
pub(super) fn removed(outcome: Result<(), MapError>) -> Result<(), MapError> {
    match outcome {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn unreadable(map: &'static str) -> impl Fn(MapError) -> Error {
    move |source| Error::Read { map, source: Box::new(source) }
}

fn unwritable(map: &'static str, entry: impl Fn() -> String) -> impl Fn(MapError) -> Error {
    move |source| Error::Write { map, entry: entry(), source: Box::new(source) }
}

/// A key or value as the kernel sees it.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Raw<T>(T);

// SAFETY: `repr(C)` integers without padding (`portcullis_common::abi` asserts the sizes); every
// bit pattern is a value.
unsafe impl Pod for Raw<FrontendKey> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Address> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Group> {}
// SAFETY: as above.
unsafe impl Pod for Raw<NameInTable> {}
// SAFETY: as above.
unsafe impl Pod for Raw<ClientInList> {}
// SAFETY: as above.
unsafe impl Pod for Raw<ListenerTerms> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Budget> {}
// SAFETY: as above.
unsafe impl Pod for Raw<Bucket> {}
