//! A directory of manifests as a source. Whatever happens to the files, what was once good stays in
//! force until something good replaces it or its definition is really gone; everything else is
//! reported with file, line and object.

mod catalog;
pub(crate) mod disk;
mod file;
mod touches;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use foldhash::quality::RandomState;
use portcullis_gateway::Change;

use catalog::{BUILT_IN, Catalog};
use disk::{ReadError, Stamp};
use file::File;
use touches::{Ready, Touch};
use watch::{SharedTouches, Watch};

use super::{Problem, Source, Update};

/// Above this, a file is more likely a mistake than a configuration.
pub const MAX_FILE_SIZE: u64 = 10 << 20;

pub struct DirSource {
    /// As it was given, for messages.
    shown_root: PathBuf,
    /// Absolute, as file system events spell it.
    root: PathBuf,
    max_file_size: u64,
    built_in: String,
    catalog: Catalog,
    stamps: BTreeMap<PathBuf, Option<Stamp>>,
    /// Found gone or emptied once; believed when found so again.
    doubtful: BTreeSet<PathBuf>,
    watch: Watch,
    hasher: RandomState,
    problems: Vec<Problem>,
    ignored: BTreeSet<String>,
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
    Doubtful(PathBuf),
}

// === impl DirSource ===

impl DirSource {
    pub fn new(root: impl Into<PathBuf>, max_file_size: u64) -> Self {
        let shown_root = root.into();
        Self {
            root: std::path::absolute(&shown_root).unwrap_or_else(|_| shown_root.clone()),
            shown_root,
            max_file_size,
            built_in: String::new(),
            catalog: Catalog::default(),
            stamps: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            watch: Watch::new(),
            hasher: RandomState::default(),
            problems: Vec::new(),
            ignored: BTreeSet::new(),
            loaded: false,
        }
    }

    /// Objects to take for granted unless a file defines them.
    pub fn with_built_in(mut self, manifests: &str) -> Self {
        self.built_in = manifests.to_owned();
        self
    }

    pub fn reread(&self) -> Reread {
        Reread(self.watch.touched().clone())
    }

    fn load_built_in(&mut self) -> Vec<Change> {
        let name = BUILT_IN.into();
        let file = File::default().read(&name, &self.built_in, &self.hasher);
        self.catalog.replace(&name, Some(file))
    }

    /// Brings the catalog up to date with what is ready.
    fn refresh(&mut self, ready: Ready) -> Update {
        let mut paths = BTreeSet::from_iter(ready.paths);
        if ready.reread {
            paths.extend(self.stamps.keys().cloned());
        }
        if ready.sweep || ready.reread {
            paths.extend(self.sweep());
        }
        let looks = self.look_at(&paths.into_iter().collect::<Vec<_>>());
        let changes = looks.into_iter().flat_map(|look| self.accept(look)).collect();
        self.report_ignored();
        Update { changes, problems: self.new_problems(), ..Update::default() }
    }

    /// The differences between the disk and what is known of it. New directories are watched first,
    /// then listed again: what appears in between is seen either way.
    fn sweep(&mut self) -> Vec<PathBuf> {
        let mut listing = disk::list(&self.root);
        if self.watch.follow(std::mem::take(&mut listing.directories)) {
            listing = disk::list(&self.root);
        }
        for (path, error) in &listing.failures {
            tracing::warn!(directory = %path.display(), %error, "cannot be read: what it held stays in force");
        }
        let unreadable = |path: &Path| listing.failures.iter().any(|(failed, _)| path.starts_with(failed));
        let gone = self.stamps.keys().filter(|path| !listing.files.contains_key(*path) && !unreadable(path));
        let new = listing.files.iter().filter(|(path, stamp)| self.stamps.get(*path) != Some(&Some(**stamp)));
        gone.chain(new.map(|(path, _)| path)).cloned().collect()
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
            Err(ReadError::InFlux) => Some(Look::Doubtful(owned)),
            Err(ReadError::Gone) if !known => None,
            Err(ReadError::Gone) if !self.doubtful.contains(path) => Some(Look::Doubtful(owned)),
            Err(ReadError::Gone) => Some(Look::Gone(owned)),
            Err(error) => {
                Some(Look::Read(owned, disk::stamp(path), before.unreadable(&name, error.to_string())))
            }
            Ok((stamp, _)) if stamp.is_empty() && known && !self.doubtful.contains(path) => {
                Some(Look::Doubtful(owned))
            }
            Ok((stamp, text)) => {
                Some(Look::Read(owned, Some(stamp), before.read(&name, &text, &self.hasher)))
            }
        }
    }

    fn accept(&mut self, look: Look) -> Vec<Change> {
        match look {
            Look::Read(path, stamp, file) => {
                self.doubtful.remove(&path);
                let name = self.name_of(&path);
                self.stamps.insert(path, stamp);
                self.catalog.replace(&name, Some(file))
            }
            Look::Gone(path) => {
                self.doubtful.remove(&path);
                self.stamps.remove(&path);
                let name = self.name_of(&path);
                self.catalog.replace(&name, None)
            }
            Look::Doubtful(path) => {
                self.doubtful.insert(path.clone());
                self.watch.touched().touch(path, Touch::Unsettled);
                Vec::new()
            }
        }
    }

    fn name_of(&self, path: &Path) -> Arc<str> {
        let shown = path.strip_prefix(&self.root).map(|relative| self.shown_root.join(relative));
        shown.as_deref().unwrap_or(path).to_string_lossy().into()
    }

    fn new_problems(&mut self) -> Option<Vec<Problem>> {
        let problems = self.catalog.problems();
        if problems == self.problems {
            return None;
        }
        self.problems = problems.clone();
        Some(problems)
    }

    /// Once per kind, however many objects there are.
    fn report_ignored(&mut self) {
        let new: Vec<_> = self
            .catalog
            .ignored()
            .into_iter()
            .filter(|kind| !self.ignored.contains(*kind))
            .cloned()
            .collect();
        for kind in new {
            tracing::info!("{kind}: ignored, Portcullis does not use this kind");
            self.ignored.insert(kind);
        }
    }
}

impl Source for DirSource {
    async fn next(&mut self) -> Update {
        if !self.loaded {
            self.loaded = true;
            let mut changes = self.load_built_in();
            let update = self.refresh(Ready { sweep: true, ..Ready::default() });
            changes.extend(update.changes);
            return Update { changes, is_complete: true, ..update };
        }
        loop {
            let ready = self.watch.ready().await;
            let update = self.refresh(ready);
            if !update.changes.is_empty() || update.problems.is_some() {
                return update;
            }
        }
    }
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
