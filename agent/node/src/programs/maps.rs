//! The maps from user space: dumb, idempotent reads and writes.
#![expect(unsafe_code, reason = "aya's marker for plain old data is an unsafe trait")]

use std::os::fd::BorrowedFd;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, SockMap};
use aya::{Ebpf, Pod};
use portcullis_common::abi::{
    Address, COUNTERS, FRONTENDS, FrontendKey, GROUPS, Group, MAX_CORES, SOCKETS, VIPS, socket_index,
};
use portcullis_common::reason::Reason;

use crate::error::{Error, Unavailable};
use crate::plan::table::Change;
use crate::plan::{Contents, Op};

/// The listening sockets of one core. They may be bound to any port; steered connections keep the
/// port they came for.
#[derive(Clone, Copy, Debug)]
pub struct CoreSockets<'a> {
    pub v4: Option<BorrowedFd<'a>>,
    pub v6: Option<BorrowedFd<'a>>,
}

pub(crate) struct Maps {
    frontends: HashMap<MapData, Raw<FrontendKey>, u32>,
    vips: HashMap<MapData, Raw<Address>, u32>,
    groups: Array<MapData, Raw<Group>>,
    sockets: SockMap<MapData>,
    counters: PerCpuArray<MapData, u64>,
}

impl Maps {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, Unavailable> {
        Ok(Self {
            frontends: take(ebpf, FRONTENDS)?,
            vips: take(ebpf, VIPS)?,
            groups: take(ebpf, GROUPS)?,
            sockets: take(ebpf, SOCKETS)?,
            counters: take(ebpf, COUNTERS)?,
        })
    }

    pub(crate) fn contents(&self) -> Result<Contents, Error> {
        let frontends = self.frontends.iter().map(|entry| entry.map(|(key, group)| (key.0, group)));
        let vips = self.vips.iter().map(|entry| entry.map(|(address, flags)| (address.0, flags)));
        Ok(Contents {
            frontends: frontends.collect::<Result<_, _>>().map_err(unreadable(FRONTENDS))?,
            vips: vips.collect::<Result<_, _>>().map_err(unreadable(VIPS))?,
        })
    }

    pub(crate) fn execute(&mut self, op: Op) -> Result<(), Error> {
        let (map, written) = match op {
            Op::Frontend(change) => (FRONTENDS, write(&mut self.frontends, change)),
            Op::Vip(change) => (VIPS, write(&mut self.vips, change)),
        };
        written.map_err(unwritable(map, || op.to_string()))
    }

    /// Replaces the sockets of a group without a gap: a connection finds an old socket or a new
    /// one. Sockets come before the count that makes them eligible, and go after it.
    pub(crate) fn set_sockets(&mut self, group: u32, cores: &[CoreSockets<'_>]) -> Result<(), Error> {
        let v4: Vec<_> = cores.iter().filter_map(|core| core.v4).collect();
        let v6: Vec<_> = cores.iter().filter_map(|core| core.v6).collect();
        let count = Group { v4: checked_count(v4.len())?, v6: checked_count(v6.len())? };
        let old = self.groups.get(&group, 0).map_err(unreadable(GROUPS))?.0;
        self.put_sockets(group, false, &v4)?;
        self.put_sockets(group, true, &v6)?;
        let written = self.groups.set(group, Raw(count), 0);
        written.map_err(unwritable(GROUPS, || format!("listener group {group}")))?;
        (count.v4..old.v4).for_each(|core| self.clear_socket(group, false, core));
        (count.v6..old.v6).for_each(|core| self.clear_socket(group, true, core));
        Ok(())
    }

    /// Sums over all CPUs, in the order of the table.
    pub(crate) fn counters(&self) -> Result<Vec<(Reason, u64)>, Error> {
        let sum = |reason: &Reason| {
            let values = self.counters.get(&(*reason as u32), 0).map_err(unreadable(COUNTERS))?;
            Ok((*reason, values.iter().sum()))
        };
        Reason::ALL.iter().map(sum).collect()
    }

    fn put_sockets(&mut self, group: u32, v6: bool, sockets: &[BorrowedFd<'_>]) -> Result<(), Error> {
        for (core, socket) in (0..).zip(sockets) {
            let written = self.sockets.set(socket_index(group, v6, core), socket, 0);
            written.map_err(unwritable(SOCKETS, || format!("the socket of core {core}")))?;
        }
        Ok(())
    }

    /// A closed socket has left the map by itself.
    fn clear_socket(&mut self, group: u32, v6: bool, core: u32) {
        _ = self.sockets.clear_index(&socket_index(group, v6, core));
    }
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
        Change::Remove(key) => gone(map.remove(&Raw(key))),
    }
}

/// Removing what is not there is done already.
fn gone(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
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
