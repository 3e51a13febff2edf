//! The directory as the file system shows it: which files count, and reading one without ever
//! seeing half of it.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Symbolic links may form cycles.
const MAX_DEPTH: usize = 16;

/// The attributes that tell two states of a file apart without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The result of a walk through the directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub files: BTreeMap<PathBuf, Stamp>,
    /// Every directory that holds files or directories that count, the root included.
    pub directories: Vec<PathBuf>,
    /// Directories that could not be read.
    pub failures: Vec<(PathBuf, io::Error)>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the file is gone")]
    Gone,
    #[error("cannot be read: {0}")]
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
    visit(root, 0, &mut listing);
    listing
}

fn visit(path: &Path, depth: usize, listing: &mut Listing) {
    let entries = match fs::read_dir(path) {
        Ok(entries) if depth < MAX_DEPTH => entries,
        Ok(_) => return,
        Err(error) => return listing.failures.push((path.to_owned(), error)),
    };
    listing.directories.push(path.to_owned());
    for entry in entries.flatten().map(|entry| entry.path()).filter(|entry| !is_hidden(entry)) {
        // A link to nowhere, or a file that vanished meanwhile: nothing to list.
        let Ok(metadata) = fs::metadata(&entry) else { continue };
        if metadata.is_dir() {
            visit(&entry, depth + 1, listing);
        } else if is_manifest(&entry) {
            listing.files.insert(entry, Stamp::of(&metadata));
        }
    }
}

/// The text of a file, together with the stamp it had before and after reading.
///
/// # Errors
/// When there is no such text, or when the file was written to meanwhile.
pub(crate) fn read(path: &Path, limit: u64) -> Result<(Stamp, String), ReadError> {
    let file = fs::File::open(path).map_err(ReadError::from)?;
    let before = file.metadata().map_err(ReadError::from)?;
    if before.len() > limit {
        return Err(ReadError::TooBig { size: before.len(), limit });
    }
    let mut bytes = Vec::with_capacity(before.len() as usize + 1);
    (&file).take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(ReadError::from)?;
    let stamp = Stamp::of(&before);
    if Stamp::of(&file.metadata().map_err(ReadError::from)?) != stamp || bytes.len() as u64 != before.len() {
        return Err(ReadError::InFlux);
    }
    let text = String::from_utf8(bytes).map_err(|_| ReadError::NotText)?;
    Ok((stamp, text))
}

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().filter(Metadata::is_file).map(|metadata| Stamp::of(&metadata))
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
        let shallow: Vec<_> = listing
            .files
            .keys()
            .filter(|path| path.components().count() <= root.components().count() + 2)
            .collect();
        assert_eq!(shallow, [&root.join("a.yaml"), &root.join("team/b.yml")]);
        assert!(listing.failures.is_empty());
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
