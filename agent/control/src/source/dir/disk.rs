//! The directory as the file system shows it: which files count, and reading one without ever
//! seeing half of it, or waiting for what is no file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};

const MAX_DEPTH: usize = 16;

/// Files and directories that a link to a directory may lead to. A link to `/` is a mistake that
/// should not read the whole file system, or keep the rest of the configuration waiting for it.
pub(super) const MAX_LINKED: usize = 20_000;

/// File systems of the kernel, by `statfs(2)`: nothing there is configuration, and listing some of
/// them never ends, because it changes them.
const OF_KERNEL: [(&str, u32); 8] = [
    ("proc", 0x9fa0),
    ("sysfs", 0x6265_6572),
    ("devpts", 0x1cd1),
    ("cgroup", 0x27_e0eb),
    ("cgroup2", 0x6367_7270),
    ("debugfs", 0x6462_6720),
    ("tracefs", 0x7472_6163),
    ("bpf", 0xcafe_4a11),
];

/// The attributes that tell two states of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The identity of a directory, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirectoryId {
    device: u64,
    inode: u64,
}

/// The mount that a directory is on, as long as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId(u64);

/// The result of a walk through the directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// `None`: the attributes of the file cannot be had.
    pub files: BTreeMap<PathBuf, Option<Stamp>>,
    /// Every directory that holds files or directories that count, the root included.
    pub directories: BTreeMap<PathBuf, DirectoryId>,
    /// The mount of each of these.
    pub mounts: BTreeMap<PathBuf, MountId>,
    /// Directories that could not be read, or lead too far, and links that may have led to one.
    pub failures: BTreeMap<PathBuf, ListError>,
}

/// A directory to visit.
#[derive(Debug)]
struct Due {
    path: PathBuf,
    depth: usize,
}

/// A walk of one directory and those below it, links left for later.
struct Walk<'a> {
    /// Directories that have been visited before. Each counts once, whatever links lead to it.
    seen_before: &'a BTreeSet<DirectoryId>,
    seen: BTreeSet<DirectoryId>,
    found: Listing,
    due: VecDeque<Due>,
    links: Vec<Due>,
    /// Files and directories that it may still look at.
    allowed: usize,
}

const TO_NOTHING: &str = "is a link to nothing: remove it, or put there what it leads to";

/// The reason why nothing is known of a directory's contents.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error("cannot be read: {0}{advice}", advice = advice(.0))]
    Io(io::Error),
    #[error("is over {MAX_DEPTH} directories deep: move it up, or remove the link that leads here")]
    TooDeep,
    #[error(
        "links to more than {MAX_LINKED} files and directories: link to the directory with the manifests alone"
    )]
    TooMuch,
    #[error("is on a file system of the kernel ({0}): remove the link or the mount that leads there")]
    OfKernel(&'static str),
    #[error("{TO_NOTHING}")]
    ToNothing,
    #[error(
        "is empty, and what was mounted there is gone: mount it again, or put a manifest there, if only an empty \
         one, to give up what it held"
    )]
    Unmounted,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the file is gone")]
    Gone,
    #[error("{TO_NOTHING}")]
    ToNothing,
    #[error("is {0}, and only regular files are read: remove it, or replace it by a file")]
    NotRegular(&'static str),
    #[error("cannot be read: {0}{advice}", advice = advice(.0))]
    Io(io::Error),
    #[error("is {} MiB big, the limit is {} MiB: split it, or raise --max-file-size", .size >> 20, .limit >> 20)]
    TooBig { size: u64, limit: u64 },
    #[error("is not UTF-8 text")]
    NotText,
    #[error("is being written")]
    InFlux,
}

/// `*.yaml` and `*.yml`, except hidden ones: editors' temporary files and the `..data` of ConfigMap
/// volumes.
pub(crate) fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml")) && !is_hidden(path)
}

pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// All files that count below `root`, symbolic links followed. A single file is a listing of its
/// own. Links to directories come last, one by one, so that a directory counts under its own path
/// if it has one, and that a link which leads too far takes nothing from the others.
pub(crate) fn list(root: &Path) -> Listing {
    list_within(root, MAX_LINKED)
}

fn list_within(root: &Path, max_linked: usize) -> Listing {
    let mut listing = Listing::default();
    let mut seen = BTreeSet::new();
    let mut roots = VecDeque::from([Due { path: root.to_owned(), depth: 0 }]);
    while let Some(root) = roots.pop_front() {
        let (path, allowed) = (root.path.clone(), if root.depth == 0 { usize::MAX } else { max_linked });
        let mut walk = Walk::new(root, &seen, allowed);
        match walk.finish() {
            Ok(()) => {
                let Walk { found, links, seen: visited, .. } = walk;
                seen.extend(visited);
                roots.extend(links);
                listing.files.extend(found.files);
                listing.directories.extend(found.directories);
                listing.mounts.extend(found.mounts);
                listing.failures.extend(found.failures);
            }
            Err(error) => drop(listing.failures.insert(path, error)),
        }
    }
    listing
}

/// The text of a file, together with the stamp it had before and after reading. Nothing here waits:
/// opening a named pipe would, for a writer, and opening a device may do anything.
///
/// # Errors
/// When there is no such text, or when the file was written to meanwhile.
pub(crate) fn read(path: &Path, limit: u64) -> Result<(Stamp, String), ReadError> {
    ensure_regular(&fs::metadata(path).map_err(|error| absent(path, error))?)?;
    // What was a file a moment ago may be a pipe now.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let before = file.metadata()?;
    ensure_regular(&before)?;
    if before.len() > limit {
        return Err(ReadError::TooBig { size: before.len(), limit });
    }
    let bytes = read_to_end(&file, before.len(), limit)?;
    let stamp = Stamp::of(&before);
    if Stamp::of(&file.metadata()?) != stamp || bytes.len() as u64 != before.len() {
        // Files of the kernel have no size; their text comes into being as it is read.
        let is_virtual = before.len() == 0 && before.blocks() == 0 && file.metadata()?.len() == 0;
        return Err(if is_virtual {
            ReadError::NotRegular("a file of the kernel")
        } else {
            ReadError::InFlux
        });
    }
    let text = String::from_utf8(bytes).map_err(|_| ReadError::NotText)?;
    Ok((stamp, text))
}

/// True if one of the directories that a file was read through is a link to nothing.
pub(crate) fn is_below_link_to_nothing(path: &Path) -> bool {
    path.ancestors().skip(1).any(is_link_to_nothing)
}

pub(crate) fn is_link_to_nothing(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// A link that leads nowhere was not removed: somewhere else, something is missing.
fn absent(path: &Path, error: io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound && path.is_symlink() {
        ReadError::ToNothing
    } else {
        error.into()
    }
}

fn read_to_end(file: &File, size: u64, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size as usize + 1);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn ensure_regular(metadata: &Metadata) -> Result<(), ReadError> {
    let kind = metadata.file_type();
    if kind.is_file() { Ok(()) } else { Err(ReadError::NotRegular(describe(kind))) }
}

fn describe(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ": give the agent's user the right to read it",
        _ => "",
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(root: Due, seen_before: &'a BTreeSet<DirectoryId>, allowed: usize) -> Self {
        Self {
            seen_before,
            seen: BTreeSet::new(),
            found: Listing::default(),
            due: VecDeque::from([root]),
            links: Vec::new(),
            allowed,
        }
    }

    /// Visits everything.
    ///
    /// # Errors
    /// When that is more than it may look at.
    fn finish(&mut self) -> Result<(), ListError> {
        while let Some(Due { path, depth }) = self.due.pop_front() {
            match self.visit(&path, depth) {
                Err(error @ ListError::TooMuch) => return Err(error),
                // It went away meanwhile. The root may be a mount that comes back.
                Err(ListError::Io(error)) if error.kind() == io::ErrorKind::NotFound && depth > 0 => {}
                Err(error) => drop(self.found.failures.insert(path, error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn visit(&mut self, path: &Path, depth: usize) -> Result<(), ListError> {
        let metadata = fs::metadata(path)?;
        let id = DirectoryId::of(&metadata);
        if self.seen_before.contains(&id) || !self.seen.insert(id) {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            return Err(ListError::TooDeep);
        }
        ensure_not_of_kernel(path)?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)?.flatten() {
            self.allowed = self.allowed.checked_sub(1).ok_or(ListError::TooMuch)?;
            if !is_hidden(&entry.path()) {
                entries.push(entry);
            }
        }
        self.found.directories.insert(path.to_owned(), id);
        self.found.mounts.insert(path.to_owned(), MountId::of(path, &metadata));
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.iter().for_each(|entry| self.entry(entry, depth));
        Ok(())
    }

    fn entry(&mut self, entry: &fs::DirEntry, depth: usize) {
        let path = entry.path();
        let is_link = || entry.file_type().is_ok_and(|kind| kind.is_symlink());
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                let due = Due { path, depth: depth + 1 };
                if is_link() {
                    self.links.push(due);
                } else {
                    self.due.push_back(due);
                }
            }
            Ok(metadata) if is_manifest(&path) => {
                self.found.files.insert(path, Some(Stamp::of(&metadata)));
            }
            // It vanished meanwhile: nothing to list.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link() => {}
            Err(_) if is_manifest(&path) => drop(self.found.files.insert(path, None)),
            // Perhaps a directory with manifests.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.found.failures.insert(path, ListError::ToNothing);
            }
            Err(error) if !entry.file_type().is_ok_and(|kind| kind.is_file()) => {
                self.found.failures.insert(path, ListError::Io(error));
            }
            _ => {}
        }
    }
}

fn ensure_not_of_kernel(path: &Path) -> Result<(), ListError> {
    let magic = rustix::fs::statfs(path).map_err(io::Error::from)?.f_type as u32;
    match OF_KERNEL.iter().find(|(_, of_kernel)| *of_kernel == magic) {
        Some((name, _)) => Err(ListError::OfKernel(name)),
        None => Ok(()),
    }
}

// === impl DirectoryId ===

impl DirectoryId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

// === impl MountId ===

impl MountId {
    /// Before Linux 5.8, the file system stands for the mount.
    fn of(path: &Path, metadata: &Metadata) -> Self {
        let mount = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok();
        let mount = mount.filter(|it| StatxFlags::from_bits_retain(it.stx_mask).contains(StatxFlags::MNT_ID));
        Self(mount.map_or(metadata.dev(), |it| it.stx_mnt_id))
    }
}

// === impl ListError ===

impl From<io::Error> for ListError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.size == 0
    }
}

// === impl ReadError ===

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { Self::Gone } else { Self::Io(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn listings_skip_what_is_hidden_and_follow_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("..2024/sub")).unwrap();
        fs::create_dir(root.join("team")).unwrap();
        fs::write(root.join("..2024/a.yaml"), "").unwrap();
        symlink("..2024", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
        symlink("..", root.join("team/loop")).unwrap();
        symlink("nowhere", root.join("dangling.yaml")).unwrap();
        for ignored in [".a.yaml.swp", "4913", "README.md", ".hidden.yaml"] {
            fs::write(root.join(ignored), "").unwrap();
        }
        fs::write(root.join("team/b.yml"), "").unwrap();
        let listing = list(root);
        let files: Vec<_> = listing.files.keys().collect();
        assert_eq!(files, [&root.join("a.yaml"), &root.join("dangling.yaml"), &root.join("team/b.yml")]);
        assert!(listing.failures.is_empty());
        symlink("nowhere", root.join("dangling")).unwrap();
        let failures = list(root).failures;
        assert!(
            matches!(Vec::from_iter(&failures)[..], [(path, ListError::ToNothing)] if *path == root.join("dangling"))
        );
    }

    #[test]
    fn a_directory_counts_once_and_under_its_own_path() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path();
        fs::create_dir(root.join("team")).unwrap();
        fs::write(root.join("team/a.yaml"), "").unwrap();
        fs::write(elsewhere.path().join("b.yaml"), "").unwrap();
        symlink(".", root.join("loop")).unwrap();
        symlink("team", root.join("alias")).unwrap();
        symlink(elsewhere.path(), root.join("elsewhere")).unwrap();
        symlink(root, elsewhere.path().join("back")).unwrap();
        symlink("self", root.join("self")).unwrap();
        let listing = list(root);
        let files: Vec<_> = listing.files.keys().collect();
        assert_eq!(files, [&root.join("elsewhere/b.yaml"), &root.join("team/a.yaml")]);
        assert_eq!(listing.directories.len(), 3);
        assert_eq!(Vec::from_iter(listing.failures.keys()), [&root.join("self")]);
    }

    /// It neither hides what other links lead to, nor counts in part.
    #[test]
    fn a_link_that_leads_too_far_is_left_out_as_a_whole() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path();
        fs::create_dir(elsewhere.path().join("good")).unwrap();
        for file in ["a", "b", "c", "d", "good/e"] {
            fs::write(elsewhere.path().join(file).with_extension("yaml"), "").unwrap();
        }
        symlink(elsewhere.path(), root.join("everything")).unwrap();
        symlink(elsewhere.path().join("good"), root.join("good")).unwrap();
        for own in 0..9 {
            fs::write(root.join(format!("{own}.yaml")), "").unwrap();
        }
        let listing = list_within(root, 5);
        assert_eq!(listing.files.len(), 10);
        assert!(listing.files.contains_key(&root.join("good/e.yaml")));
        let failures = listing.failures.iter().map(|(path, error)| (path, error.to_string()));
        let too_much =
            "links to more than 20000 files and directories: link to the directory with the manifests alone";
        assert_eq!(Vec::from_iter(failures), [(&root.join("everything"), too_much.to_owned())]);
        assert_eq!(Vec::from_iter(listing.directories.keys()), [root, &root.join("good")]);
    }

    #[test]
    fn file_systems_of_the_kernel_hold_no_manifests() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/proc/self/fd", dir.path().join("fd")).unwrap();
        symlink("/proc", dir.path().join("proc")).unwrap();
        let listing = list(dir.path());
        assert_eq!(Vec::from_iter(listing.directories.keys()), [dir.path()]);
        for name in ["fd", "proc"] {
            let says = listing.failures[&dir.path().join(name)].to_string();
            let expected =
                "is on a file system of the kernel (proc): remove the link or the mount that leads there";
            assert_eq!(says, expected);
        }
    }

    #[test]
    fn only_regular_files_are_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        symlink("pipe", &link).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let says = |path: &Path| read(path, 1 << 20).unwrap_err().to_string();
        let only = "and only regular files are read: remove it, or replace it by a file";
        for path in [&pipe, &link] {
            assert_eq!(says(path), format!("is a named pipe, {only}"));
        }
        assert_eq!(says(&dir.path().join("socket")), format!("is a socket, {only}"));
        assert_eq!(says(Path::new("/dev/zero")), format!("is a device, {only}"));
        assert_eq!(says(Path::new("/proc/version")), format!("is a file of the kernel, {only}"));
    }

    #[test]
    fn files_over_the_limit_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.yaml");
        fs::File::create(&path).unwrap().set_len(20 << 20).unwrap();
        let error = read(&path, 10 << 20).unwrap_err();
        assert_eq!(
            error.to_string(),
            "is 20 MiB big, the limit is 10 MiB: split it, or raise --max-file-size"
        );
        assert!(matches!(read(&dir.path().join("none"), 1), Err(ReadError::Gone)));
    }
}
