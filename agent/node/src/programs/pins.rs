//! Paths at which links and maps are pinned: `<base>/v<ABI>/net-<inode of the network namespace>`.
//! The ABI version keeps an agent from adopting maps it does not understand; the namespace keeps
//! two agents on one machine, and two tests, apart. Where maps of another shape are in the way, the
//! directory has a number besides (`net-4026531840-1`). Only the agent's user may look into it, and
//! its lock is held as long as the agent runs.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use portcullis_common::ABI_VERSION;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::error::{Error, Unavailable};
use crate::ownership::{PRIVATE, check_owner, close_to_others, is_there, resolve};
use crate::process::Process;
use crate::programs::sys;

/// The base unless the operator sets another.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/portcullis";

const BPFFS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPFFS_MAGIC: u32 = 0xcafe_4a11;
/// Names of link pins start with this; all others are maps.
const LINK: &str = "link-";

/// This thread's network namespace, which is the one its sockets are in.
pub(crate) const NETWORK_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The pin directory of this namespace and ABI.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    /// Locked for as long as an agent looks after what is pinned here; it ends with the agent,
    /// however that ends.
    in_use: Option<File>,
}

/// The pins of a namespace, locked by the agent that found them.
pub(crate) struct Found {
    pub(crate) ours: Pins,
    /// Of agents of other versions, or with maps that this agent cannot use.
    pub(crate) others: Vec<Pins>,
}

impl Pins {
    /// Finds the directory with maps that fit, or makes one, and mounts the BPF file system at its
    /// usual place if the machine has none. The locks `held` are those of an agent that hands over.
    pub(crate) fn open(
        base: &Path,
        held: &[File],
        fit: impl Fn(&Pins) -> bool,
    ) -> Result<Found, Unavailable> {
        ensure_bpffs(base)?;
        let base = &resolve(base)?;
        let mut others = Self::of_all_versions(base)?;
        others.iter_mut().try_for_each(|pins| pins.lock(held))?;
        let version = base.join(format!("v{ABI_VERSION}"));
        version.ancestors().filter(|directory| is_there(directory)).try_for_each(check_owner)?;
        let adopted = others.iter().position(|pins| pins.directory.parent() == Some(&version) && fit(pins));
        let ours = match adopted {
            Some(found) => others.swap_remove(found),
            None => Self::create(&version)?,
        };
        close_to_others(&ours.directory)?;
        Ok(Found { ours, others })
    }

    /// The pins of agents of any version in this namespace; makes nothing.
    pub(crate) fn of_all_versions(base: &Path) -> Result<Vec<Self>, Unavailable> {
        let namespace = namespace()?;
        let is_ours = |name: &str| {
            name.strip_prefix(&namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let mut pins = vec![];
        for version in fs::read_dir(base).into_iter().flatten().flatten() {
            let entries = fs::read_dir(version.path()).into_iter().flatten().flatten();
            let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
            pins.extend(ours.map(|entry| Self { directory: entry.path(), in_use: None }));
        }
        pins.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(pins)
    }

    /// These, and those of agents of any version in this namespace.
    pub(crate) fn beside(&self) -> Vec<Self> {
        let base = self.directory.ancestors().nth(2);
        base.and_then(|base| Self::of_all_versions(base).ok()).unwrap_or_else(|| vec![self.place()])
    }

    /// A directory beside those that are there.
    fn create(version: &Path) -> Result<Self, Unavailable> {
        let namespace = namespace()?;
        let more = (1..).map(|number: u32| format!("{namespace}-{number}"));
        let mut names = std::iter::once(namespace.clone()).chain(more).map(|name| version.join(name));
        let directory = names.find(|path| !path.exists()).unwrap_or_else(|| version.join(&namespace));
        // Maps decide which process gets connections.
        let made = DirBuilder::new().recursive(true).mode(PRIVATE).create(&directory);
        made.map_err(|source| Unavailable::PinDirectory { path: directory.clone(), source })?;
        let mut pins = Self { directory, in_use: None };
        pins.lock(&[])?;
        Ok(pins)
    }

    fn lock(&mut self, held: &[File]) -> Result<(), Unavailable> {
        let path = || self.directory.clone();
        let failed = |source: io::Error| Unavailable::PinDirectory { path: path(), source };
        let directory = File::open(&self.directory).map_err(failed)?;
        if let Some(held) = held.iter().find(|held| is_same(held, &directory)) {
            self.in_use = Some(held.try_clone().map_err(failed)?);
            return Ok(());
        }
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.in_use = Some(directory),
            Err(Errno::WOULDBLOCK) => {
                return Err(Unavailable::InUse { path: path(), holder: Process::with_lock(&directory) });
            }
            Err(error) => return Err(failed(error.into())),
        }
        Ok(())
    }

    /// The same place, without its lock.
    pub(crate) fn place(&self) -> Self {
        Self { directory: self.directory.clone(), in_use: None }
    }

    /// The lock that this agent has.
    pub(crate) fn held(&self) -> Option<&File> {
        self.in_use.as_ref()
    }

    pub(crate) fn unlock(&mut self) {
        self.in_use = None;
    }

    /// Returns `true` if one of these is their lock.
    pub(crate) fn are_locked_by(&self, locks: &[File]) -> bool {
        let directory = File::open(&self.directory);
        directory.is_ok_and(|directory| locks.iter().any(|held| is_same(held, &directory)))
    }

    /// Returns `true` if a running agent looks after them.
    pub(crate) fn are_in_use(&self) -> bool {
        let lock = |directory: File| flock(directory, FlockOperation::NonBlockingLockExclusive);
        File::open(&self.directory).is_ok_and(|directory| lock(directory) == Err(Errno::WOULDBLOCK))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{LINK}{name}"))
    }

    /// The names of all pinned links.
    pub(crate) fn links(&self) -> Vec<String> {
        let names = self.names().into_iter().filter_map(|name| name.into_string().ok());
        names.filter_map(|name| name.strip_prefix(LINK).map(str::to_owned)).collect()
    }

    /// Detaches a link and removes its pin; a link that is not there is no error.
    pub(crate) fn remove_link(&self, name: &str) -> Result<(), Error> {
        let path = self.link(name);
        if let Ok(link) = sys::obj_get(&path) {
            // A link whose interface or namespace is gone is detached already.
            _ = sys::link_detach(link.as_fd());
        }
        remove_file(path)
    }

    /// Removes a map's pin; a map that is not there is no error.
    pub(crate) fn remove_map(&self, name: &str) -> Result<(), Error> {
        remove_file(self.map(name))
    }

    /// Detaches and removes everything, links first, so that no program runs on maps that are
    /// going.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        for link in self.links() {
            self.remove_link(&link)?;
        }
        for name in self.names() {
            remove_file(self.directory.join(name))?;
        }
        let gone = fs::remove_dir(&self.directory);
        // Others may have pins beside ours.
        _ = self.directory.ancestors().skip(1).take(2).try_for_each(fs::remove_dir);
        gone.map_err(|source| Error::Unpin { path: self.directory.clone(), source })
    }

    fn names(&self) -> Vec<OsString> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
    }
}

/// True of descriptors of one directory.
fn is_same(one: &File, other: &File) -> bool {
    let place = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    place(one).ok().is_some_and(|one| place(other).is_ok_and(|other| one == other))
}

fn namespace() -> Result<String, Unavailable> {
    network_namespace().map_err(Unavailable::NetworkNamespace)
}

/// The name of this network namespace in directories of the agent: `net-4026531840`.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn network_namespace() -> io::Result<String> {
    let namespace = rustix::fs::stat(NETWORK_NAMESPACE)?;
    Ok(format!("net-{}", namespace.st_ino))
}

fn remove_file(path: PathBuf) -> Result<(), Error> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Unpin { path, source }),
        _ => Ok(()),
    }
}

fn ensure_bpffs(base: &Path) -> Result<(), Unavailable> {
    if is_bpffs(base) {
        return Ok(());
    }
    let mounted = match base.starts_with(BPFFS) {
        true => rustix::mount::mount("bpf", BPFFS, "bpf", MountFlags::empty(), None).map_err(io::Error::from),
        false => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "the pin directory is on another file system"))
        }
    };
    mounted.map_err(|source| Unavailable::NoBpffs { path: base.to_owned(), source })
}

/// Returns `true` if the directory, or its place, is on a BPF file system.
pub(crate) fn is_bpffs(directory: &Path) -> bool {
    let mut places = directory.ancestors().filter_map(|place| rustix::fs::statfs(place).ok());
    places.next().is_some_and(|place| place.f_type as u32 == BPFFS_MAGIC)
}
