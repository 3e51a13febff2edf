//! Directories of the agent's own: only its user and root may look into them, or put another in
//! place of what it finds there.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// Mode of a directory that only its user looks into.
pub(crate) const PRIVATE: u32 = 0o700;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The directory cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub enum Insecure {
    #[error("the directory {path} belongs to user {owner}, who could change what is in it")]
    Foreign { path: PathBuf, owner: u32 },
    #[error("other users may write to the directory {path}, and change what is in it or below")]
    Open { path: PathBuf },
    #[error("cannot use the directory {path}: {problem}")]
    Unusable { path: PathBuf, problem: io::Error },
}

/// Makes a directory that only this user may look into, or takes that right from others. Returns
/// its path without symbolic links.
///
/// # Errors
/// When it is another user's, or others could put another one in its place.
pub fn make_private(directory: &Path) -> Result<PathBuf, Insecure> {
    let resolved = resolve(directory)?;
    let parent = resolved.parent().unwrap_or(Path::new("/"));
    let made =
        fs::create_dir_all(parent).and_then(|()| match DirBuilder::new().mode(PRIVATE).create(&resolved) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        });
    made.map_err(|problem| Insecure::Unusable { path: resolved.clone(), problem })?;
    resolved.ancestors().try_for_each(check_owner)?;
    close_to_others(&resolved)?;
    Ok(resolved)
}

/// The path without symbolic links; they are followed here only. It may lead to nothing yet.
pub(crate) fn resolve(directory: &Path) -> Result<PathBuf, Insecure> {
    let failed = |problem| Insecure::Unusable { path: directory.to_owned(), problem };
    let directory = std::path::absolute(directory).map_err(failed)?;
    let there = directory.ancestors().find(|place| is_there(place)).unwrap_or(Path::new("/"));
    there.ancestors().try_for_each(check_owner)?;
    let resolved = fs::canonicalize(there).map_err(failed)?;
    let missing = directory.strip_prefix(there).unwrap_or(Path::new(""));
    // Without the slash that joining nothing leaves.
    Ok(resolved.join(missing).components().collect())
}

/// Also a link that leads to nothing, or that the kernel does not follow.
pub(crate) fn is_there(place: &Path) -> bool {
    fs::symlink_metadata(place).is_ok()
}

/// Refuses a directory in which others than this user and root could put another one in place of
/// what they find, and a link that is another user's.
pub(crate) fn check_owner(directory: &Path) -> Result<(), Insecure> {
    let refuse_foreign = |owner: u32| match owner == geteuid().as_raw() || owner == 0 {
        true => Ok(()),
        false => Err(Insecure::Foreign { path: directory.to_owned(), owner }),
    };
    // First the link, if it is one: the kernel may refuse to follow it (fs.protected_symlinks).
    if let Ok(link) = fs::symlink_metadata(directory) {
        refuse_foreign(link.uid())?;
    }
    let (owner, mode) = owner_and_mode(directory)?;
    refuse_foreign(owner)?;
    let (is_sticky, is_writable) = (mode & STICKY != 0, mode & WRITABLE_BY_OTHERS != 0);
    match is_writable && !is_sticky {
        true => Err(Insecure::Open { path: directory.to_owned() }),
        false => Ok(()),
    }
}

/// One that is left open is closed.
pub(crate) fn close_to_others(directory: &Path) -> Result<(), Insecure> {
    let (owner, mode) = owner_and_mode(directory)?;
    if owner != geteuid().as_raw() {
        return Err(Insecure::Foreign { path: directory.to_owned(), owner });
    }
    if mode & 0o777 == PRIVATE {
        return Ok(());
    }
    let closed = fs::set_permissions(directory, Permissions::from_mode(PRIVATE));
    closed.map_err(|problem| Insecure::Unusable { path: directory.to_owned(), problem })
}

fn owner_and_mode(directory: &Path) -> Result<(u32, u32), Insecure> {
    let metadata = fs::metadata(directory);
    let metadata = metadata.map_err(|problem| Insecure::Unusable { path: directory.to_owned(), problem })?;
    Ok((metadata.uid(), metadata.mode()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(directory: &Path) -> u32 {
        fs::metadata(directory).unwrap().mode() & 0o777
    }

    #[test]
    fn a_directory_is_made_for_this_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state/hand-over");
        let made = make_private(&directory).unwrap();
        assert_eq!((made.clone(), mode(&made)), (fs::canonicalize(&directory).unwrap(), PRIVATE));

        fs::set_permissions(&made, Permissions::from_mode(0o755)).unwrap();
        make_private(&directory).unwrap();
        assert_eq!(mode(&made), PRIVATE, "an open one is closed");
    }

    #[test]
    fn one_that_others_could_replace_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(parent.path(), Permissions::from_mode(0o777)).unwrap();
        let refused = make_private(&parent.path().join("hand-over")).unwrap_err();
        assert!(matches!(refused, Insecure::Open { .. }), "{refused}");
    }
}
