//! Where links and maps are pinned: `<base>/v<ABI>/net-<inode of the network namespace>`. The ABI
//! version keeps an agent from adopting maps it does not understand; the namespace keeps two agents
//! on one machine, and two tests, apart.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use portcullis_common::ABI_VERSION;
use rustix::fs::{FlockOperation, flock};
use rustix::mount::MountFlags;

use crate::error::{Error, Unavailable};
use crate::programs::sys;

/// The base when nothing else is asked for.
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
    _in_use: Option<File>,
}

impl Pins {
    /// Makes the directory, and mounts the BPF file system at its usual place if the machine has
    /// none.
    pub(crate) fn open(base: &Path) -> Result<Self, Unavailable> {
        ensure_bpffs(base)?;
        let directory = base.join(format!("v{ABI_VERSION}")).join(namespace()?);
        match fs::create_dir_all(&directory).and_then(|()| lock(&directory, FlockOperation::LockShared)) {
            Ok(lock) => Ok(Self { directory, _in_use: Some(lock) }),
            Err(source) => Err(Unavailable::PinDirectory { path: directory, source }),
        }
    }

    /// The pins of agents of any version in this namespace; makes nothing.
    pub(crate) fn of_all_versions(base: &Path) -> Result<Vec<Self>, Unavailable> {
        let namespace = namespace()?;
        let versions = fs::read_dir(base).into_iter().flatten().flatten();
        let directories = versions.map(|version| version.path().join(&namespace));
        Ok(directories.filter(|path| path.is_dir()).map(Self::abandoned).collect())
    }

    fn abandoned(directory: PathBuf) -> Self {
        Self { directory, _in_use: None }
    }

    /// Returns `true` if a running agent looks after them.
    pub(crate) fn are_in_use(&self) -> bool {
        let lock = lock(&self.directory, FlockOperation::NonBlockingLockExclusive);
        lock.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
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

    /// The pins of agents of other ABI versions in this namespace.
    pub(crate) fn of_other_versions(&self) -> Vec<Pins> {
        let (Some(version), Some(namespace)) = (self.directory.parent(), self.directory.file_name()) else {
            return vec![];
        };
        let versions = version.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten();
        let others = versions.map(|entry| entry.path()).filter(|path| path != version);
        let directories = others.map(|path| path.join(namespace)).filter(|path| path.is_dir());
        directories.map(Self::abandoned).collect()
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

fn namespace() -> Result<String, Unavailable> {
    let namespace =
        rustix::fs::stat(NETWORK_NAMESPACE).map_err(|e| Unavailable::NetworkNamespace(e.into()))?;
    Ok(format!("net-{}", namespace.st_ino))
}

fn lock(directory: &Path, operation: FlockOperation) -> io::Result<File> {
    let directory = File::open(directory)?;
    flock(&directory, operation)?;
    Ok(directory)
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
