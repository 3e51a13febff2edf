//! The directory as the file system shows it: which files count, and reading one without ever
//! seeing half of it, or waiting for what is no file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A link to `/` is a mistake that should not read the whole file system.
const MAX_DEPTH: usize = 16;

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

/// The result of a walk through the directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// `None`: the attributes of the file cannot be had.
    pub files: BTreeMap<PathBuf, Option<Stamp>>,
    /// Every directory that holds files or directories that count, the root included.
    pub directories: BTreeMap<PathBuf, DirectoryId>,
    /// Directories that could not be read.
    pub failures: BTreeMap<PathBuf, ListError>,
    /// Directories that have been visited. Each counts once, whatever links lead to it.
    seen: BTreeSet<DirectoryId>,
    /// Directories to visit, and their depth. Links to directories come last, so that a directory
    /// counts under its own path if it has one.
    due: VecDeque<(PathBuf, usize)>,
    links: VecDeque<(PathBuf, usize)>,
}

/// The reason why nothing is known of a directory's contents.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error("cannot be read: {0}{advice}", advice = advice(.0))]
    Io(io::Error),
    #[error("is over {MAX_DEPTH} directories deep: move it up, or remove the link that leads here")]
    TooDeep,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the file is gone")]
    Gone,
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
/// own.
pub(crate) fn list(root: &Path) -> Listing {
    let mut listing = Listing::default();
    listing.due.push_back((root.to_owned(), 0));
    while let Some((path, depth)) = listing.due.pop_front().or_else(|| listing.links.pop_front()) {
        match listing.visit(&path, depth) {
            // It went away meanwhile. The root may be a mount that comes back.
            Err(ListError::Io(error)) if error.kind() == io::ErrorKind::NotFound && depth > 0 => {}
            Err(error) => drop(listing.failures.insert(path, error)),
            Ok(()) => {}
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
    ensure_regular(&fs::metadata(path)?)?;
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

// === impl Listing ===

impl Listing {
    fn visit(&mut self, path: &Path, depth: usize) -> Result<(), ListError> {
        let id = DirectoryId::of(&fs::metadata(path)?);
        if !self.seen.insert(id) {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            return Err(ListError::TooDeep);
        }
        let entries = fs::read_dir(path)?;
        self.directories.insert(path.to_owned(), id);
        let mut entries: Vec<_> = entries.flatten().filter(|entry| !is_hidden(&entry.path())).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                    let queue = if is_link { &mut self.links } else { &mut self.due };
                    queue.push_back((path, depth + 1));
                }
                Ok(metadata) if is_manifest(&path) => {
                    self.files.insert(path, Some(Stamp::of(&metadata)));
                }
                // A link to nowhere, or a file that vanished meanwhile: nothing to list.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) if is_manifest(&path) => drop(self.files.insert(path, None)),
                // Perhaps a directory with manifests.
                Err(error) if !entry.file_type().is_ok_and(|kind| kind.is_file()) => {
                    self.failures.insert(path, ListError::Io(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

// === impl DirectoryId ===

impl DirectoryId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
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
        assert_eq!(files, [&root.join("a.yaml"), &root.join("team/b.yml")]);
        assert!(listing.failures.is_empty());
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
