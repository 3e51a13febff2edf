//! A directory of manifests as a source. Whatever happens to the files, what was once good stays in
//! force until something good replaces it or its definition is really gone; everything else is
//! reported with file, line and object.

mod catalog;
pub(crate) mod disk;
mod file;
mod touches;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use foldhash::quality::RandomState;
use portcullis_api::Change;
use portcullis_log::LastLogged;
use tokio::sync::oneshot;

use catalog::{BUILT_IN, Catalog};
use disk::{ListError, Listing, MountId, ReadError, Stamp};
use file::File;
use touches::{Ready, Touch};
use watch::{SharedTouches, Watch};

use super::{Effect, InputProblem, Source, Update};

/// Above this, a file is more likely a mistake than a configuration.
pub const MAX_FILE_SIZE: u64 = 10 << 20;

pub struct DirSource {
    state: State,
    touched: SharedTouches,
}

/// Reading happens on a thread of its own: a file system that does not answer (NFS, FUSE) holds up
/// nothing but its own changes, and not the end of the process either.
enum State {
    Idle(Box<Directory>),
    Reading(oneshot::Receiver<(Box<Directory>, Update)>),
}

/// The directory as it is known.
struct Directory {
    /// As it was given, for messages.
    shown_root: PathBuf,
    /// Absolute, as file system events spell it.
    root: PathBuf,
    max_file_size: u64,
    built_in: String,
    catalog: Catalog,
    stamps: BTreeMap<PathBuf, Option<Stamp>>,
    /// Found gone or emptied once; believed when found so again.
    unconfirmed: BTreeSet<PathBuf>,
    /// The mount that each directory was on when its files were listed.
    mounts: BTreeMap<PathBuf, MountId>,
    /// Directories that cannot be read, and why not.
    unreadable: BTreeMap<PathBuf, String>,
    watch: Watch,
    hasher: RandomState,
    problems: Vec<InputProblem>,
    /// Kinds that translation does not use.
    ignored: LastLogged<String, ()>,
    loaded: bool,
}

/// Makes the source read everything again (SIGHUP).
#[derive(Clone)]
pub struct Reread(SharedTouches);

/// A file's new state, or why there is none yet.
enum Look {
    Read(PathBuf, Option<Stamp>, File),
    Gone(PathBuf),
    /// Look again when the writer is done.
    Unconfirmed(PathBuf),
}

// === impl DirSource ===

impl DirSource {
    pub fn new(root: impl Into<PathBuf>, max_file_size: u64) -> Self {
        let directory = Directory::new(root.into(), max_file_size);
        let touched = directory.watch.touched().clone();
        Self { state: State::Idle(directory.into()), touched }
    }

    /// Objects to take for granted unless a file defines them.
    pub fn with_built_in(mut self, manifests: &str) -> Self {
        if let State::Idle(directory) = &mut self.state {
            directory.built_in = manifests.to_owned();
        }
        self
    }

    pub fn reread(&self) -> Reread {
        Reread(self.touched.clone())
    }
}

impl Source for DirSource {
    async fn next(&mut self) -> Update {
        loop {
            let ready = match &mut self.state {
                State::Idle(directory) if !directory.loaded => Ready { sweep: true, ..Ready::default() },
                State::Idle(directory) => directory.watch.ready().await,
                State::Reading(reading) => {
                    // A panic there has ended the process.
                    let Ok((directory, update)) = reading.await else { return std::future::pending().await };
                    self.state = State::Idle(directory);
                    if update.is_complete || !update.changes.is_empty() || update.problems.is_some() {
                        return update;
                    }
                    continue;
                }
            };
            let (sender, reading) = oneshot::channel();
            if let State::Idle(mut directory) = std::mem::replace(&mut self.state, State::Reading(reading)) {
                thread::spawn(move || {
                    let update = directory.refresh(ready);
                    let _ = sender.send((directory, update));
                });
            }
        }
    }
}

// === impl Directory ===

impl Directory {
    fn new(shown_root: PathBuf, max_file_size: u64) -> Self {
        Self {
            root: std::path::absolute(&shown_root).unwrap_or_else(|_| shown_root.clone()),
            shown_root,
            max_file_size,
            built_in: String::new(),
            catalog: Catalog::default(),
            stamps: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            mounts: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            watch: Watch::new(),
            hasher: RandomState::default(),
            problems: Vec::new(),
            ignored: LastLogged::default(),
            loaded: false,
        }
    }

    fn refresh(&mut self, ready: Ready) -> Update {
        if self.loaded {
            return self.follow(ready);
        }
        self.loaded = true;
        let name = BUILT_IN.into();
        let built_in = File::default().read(&name, &self.built_in, &self.hasher);
        let mut changes = self.catalog.replace(&name, Some(built_in));
        let update = self.follow(ready);
        changes.extend(update.changes);
        Update { changes, is_complete: true, ..update }
    }

    /// Brings the catalog up to date with what is ready.
    fn follow(&mut self, ready: Ready) -> Update {
        let mut paths = BTreeSet::from_iter(ready.paths);
        // First: whether a missing file is gone depends on the directories above it.
        if ready.sweep || ready.reread {
            paths.extend(self.sweep());
        }
        if ready.reread {
            paths.extend(self.stamps.keys().cloned());
        }
        // Sweeps, too, leave alone what is being written: what it says is half of it, or nothing.
        paths.retain(|path| !self.watch.touched().is_open(path));
        let looks = self.look_at(&paths.into_iter().collect::<Vec<_>>());
        let changes = looks.into_iter().flat_map(|look| self.accept(look)).collect();
        // Once per kind, however many objects there are.
        for kind in self.catalog.ignored() {
            if self.ignored.update(kind.clone(), Some(())).is_some() {
                tracing::info!("{kind}: ignored, Portcullis does not use this kind");
            }
        }
        Update { changes, problems: self.new_problems(), ..Update::default() }
    }

    /// The differences between the disk and what is known of it. New directories are watched first,
    /// then listed again: what appears in between is seen either way.
    fn sweep(&mut self) -> Vec<PathBuf> {
        let mut listing = disk::list(&self.root);
        if self.watch.follow(&listing.directories) {
            listing = disk::list(&self.root);
        }
        self.note_lost_directories(&mut listing);
        self.note_unmounted(&mut listing);
        let failures = listing.failures.iter();
        self.unreadable = failures.map(|(path, error)| (path.clone(), error.to_string())).collect();
        let gone = self.stamps.keys().filter(|path| !listing.files.contains_key(*path));
        let gone = gone.filter(|path| !self.is_out_of_sight(path));
        let new = listing.files.iter().filter(|(path, stamp)| self.stamps.get(*path) != Some(*stamp));
        gone.chain(new.map(|(path, _)| path)).cloned().collect()
    }

    /// A link to nothing is listed as a file if its name is a file's; some led to a directory.
    fn note_lost_directories(&self, listing: &mut Listing) {
        let is_lost = |path: &PathBuf, stamp: &mut Option<Stamp>| {
            stamp.is_none() && has_below(&self.stamps, path) && disk::is_link_to_nothing(path)
        };
        let lost = listing.files.extract_if(.., is_lost);
        listing.failures.extend(lost.map(|(path, _)| (path, ListError::ToNothing)));
    }

    /// Files that went with a mount were not removed. Where others have taken their place, they
    /// were replaced.
    fn note_unmounted(&mut self, listing: &mut Listing) {
        let is_unmounted = |(path, mount): &(&PathBuf, &MountId)| {
            self.was_mount_point(path)
                && self.mounts.get(*path) != Some(*mount)
                && has_below(&self.stamps, path)
                && !has_below(&listing.files, path)
        };
        let unmounted: Vec<_> =
            listing.mounts.iter().filter(is_unmounted).map(|(path, _)| path.clone()).collect();
        listing.failures.extend(unmounted.into_iter().map(|path| (path, ListError::Unmounted)));
        let is_lost = |path: &Path| path.ancestors().any(|path| listing.failures.contains_key(path));
        self.mounts.retain(|path, _| is_lost(path));
        let mounts = listing.mounts.iter().filter(|(path, _)| !is_lost(path));
        self.mounts.extend(mounts.map(|(path, mount)| (path.clone(), *mount)));
    }

    /// True of a directory that was on another mount than the one above it.
    fn was_mount_point(&self, path: &Path) -> bool {
        let mount = self.mounts.get(path);
        mount.is_some() && mount != path.parent().and_then(|parent| self.mounts.get(parent))
    }

    fn look_at(&self, paths: &[PathBuf]) -> Vec<Look> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        if paths.len() < 64 || threads == 1 {
            return paths.iter().filter_map(|path| self.look(path)).collect();
        }
        let share = paths.len().div_ceil(threads);
        let look = |paths: &[PathBuf]| paths.iter().filter_map(|path| self.look(path)).collect::<Vec<_>>();
        thread::scope(|scope| {
            let workers: Vec<_> = paths.chunks(share).map(|chunk| scope.spawn(move || look(chunk))).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
        })
    }

    fn look(&self, path: &Path) -> Option<Look> {
        let name = self.name_of(path);
        let empty = File::default();
        let before = self.catalog.file(&name).unwrap_or(&empty);
        let known = self.stamps.contains_key(path);
        let owned = path.to_owned();
        match disk::read(path, self.max_file_size) {
            Err(ReadError::InFlux) => Some(Look::Unconfirmed(owned)),
            Err(ReadError::Gone) if !known || self.is_out_of_sight(path) => None,
            Err(ReadError::ToNothing) if has_below(&self.stamps, path) => None,
            Err(ReadError::Gone | ReadError::ToNothing) if !self.unconfirmed.contains(path) => {
                Some(Look::Unconfirmed(owned))
            }
            Err(ReadError::Gone) => Some(Look::Gone(owned)),
            Err(_) if path.is_dir() => known.then_some(Look::Gone(owned)),
            Err(error) => {
                Some(Look::Read(owned, disk::stamp(path), before.unreadable(&name, error.to_string())))
            }
            Ok((stamp, _)) if stamp.is_empty() && known && !self.unconfirmed.contains(path) => {
                Some(Look::Unconfirmed(owned))
            }
            Ok((stamp, text)) => {
                Some(Look::Read(owned, Some(stamp), before.read(&name, &text, &self.hasher)))
            }
        }
    }

    /// True if a file that is not found may be there all the same: the root is absent, or a
    /// directory above the file cannot be read.
    fn is_out_of_sight(&self, path: &Path) -> bool {
        !self.root.exists()
            || disk::is_below_link_to_nothing(path)
            || path.ancestors().any(|path| self.unreadable.contains_key(path))
    }

    fn accept(&mut self, look: Look) -> Vec<Change> {
        match look {
            Look::Read(path, stamp, file) => {
                self.unconfirmed.remove(&path);
                let name = self.name_of(&path);
                self.stamps.insert(path, stamp);
                self.catalog.replace(&name, Some(file))
            }
            Look::Gone(path) => {
                self.unconfirmed.remove(&path);
                self.stamps.remove(&path);
                let name = self.name_of(&path);
                self.catalog.replace(&name, None)
            }
            Look::Unconfirmed(path) => {
                self.unconfirmed.insert(path.clone());
                self.watch.touched().touch(path, Touch::Unsettled);
                Vec::new()
            }
        }
    }

    fn name_of(&self, path: &Path) -> Arc<str> {
        let shown = match path.strip_prefix(&self.root) {
            Ok(relative) if relative.as_os_str().is_empty() => self.shown_root.clone(),
            Ok(relative) => self.shown_root.join(relative),
            Err(_) => path.to_owned(),
        };
        shown.to_string_lossy().into()
    }

    fn new_problems(&mut self) -> Option<Vec<InputProblem>> {
        let mut problems = self.catalog.problems();
        problems.extend(self.unreadable.iter().map(|(path, message)| {
            let files = self.stamps.keys().filter(|file| file.starts_with(path));
            let kept = files.filter_map(|file| self.catalog.file(&self.name_of(file)));
            InputProblem {
                file: self.name_of(path),
                line: None,
                object: None,
                message: message.clone(),
                effect: Effect::Unreadable { kept: kept.map(|file| file.objects.len()).sum() },
            }
        }));
        problems.sort();
        if problems == self.problems {
            return None;
        }
        self.problems = problems.clone();
        Some(problems)
    }
}

fn has_below<T>(files: &BTreeMap<PathBuf, T>, directory: &Path) -> bool {
    let mut after = files.range::<Path, _>((Bound::Excluded(directory), Bound::Unbounded));
    after.next().is_some_and(|(file, _)| file.starts_with(directory))
}

// === impl Reread ===

impl Reread {
    pub fn now(&self) {
        self.0.reread();
    }
}

#[cfg(test)]
#[path = "dir/dir_tests.rs"]
mod tests;
