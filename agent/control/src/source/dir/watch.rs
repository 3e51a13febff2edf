//! Waits for the directory to change: file system events by `notify`, a sweep now and then for what
//! events miss (targets of links that point elsewhere, network file systems, lost events). One
//! watch per directory that counts, so that a `.git` or the agent's own status files cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::disk::{self, DirectoryId};
use super::touches::{Ready, Touch, Touches};

/// Events of one edit come together; a short wait turns them into one update.
const WINDOW: Duration = Duration::from_millis(1);
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Without events, sweeps are all there is.
const SWEEP_WITHOUT_EVENTS: Duration = Duration::from_secs(1);

pub(crate) struct Watch {
    /// `None`: the system gives no events.
    watcher: Option<RecommendedWatcher>,
    touched: SharedTouches,
    /// Directories that cannot be watched, as the log has it.
    unwatched: BTreeSet<PathBuf>,
    next_sweep: Instant,
}

/// Tells the watch what to look at; cheap to clone, usable from any thread.
#[derive(Clone, Default)]
pub(crate) struct SharedTouches(Arc<Shared>);

#[derive(Default)]
struct Shared {
    touches: Mutex<Touches>,
    /// The directories that are watched. A watch follows a directory, not its path: `None` once the
    /// path may lead to another one.
    watched: Mutex<BTreeMap<PathBuf, Option<DirectoryId>>>,
    changed: Notify,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new() -> Self {
        let touched = SharedTouches::default();
        let notifier = touched.clone();
        let watcher = notify::recommended_watcher(move |event| notifier.event(event));
        if let Err(error) = &watcher {
            tracing::warn!(%error, "no file system events: the directory is compared every second instead");
        }
        let next_sweep = Instant::now() + SWEEP_EVERY;
        Self { watcher: watcher.ok(), touched, unwatched: BTreeSet::new(), next_sweep }
    }

    pub(crate) fn touched(&self) -> &SharedTouches {
        &self.touched
    }

    /// Watches exactly these directories; returns whether there were new ones among them.
    pub(crate) fn follow(&mut self, wanted: &BTreeMap<PathBuf, DirectoryId>) -> bool {
        let watched = self.touched.watched().clone();
        let stays = |(path, id): (&PathBuf, &DirectoryId)| watched.get(path) == Some(&Some(*id));
        let gone = watched.keys().filter(|path| !wanted.get_key_value(*path).is_some_and(stays));
        gone.for_each(|directory| self.forget(directory));
        self.unwatched.retain(|directory| wanted.contains_key(directory));
        let new = wanted.iter().filter(|directory| !stays(*directory));
        new.filter(|(directory, id)| self.add(directory, **id)).count() > 0
    }

    /// Waits until there is something to look at.
    pub(crate) async fn ready(&mut self) -> Ready {
        loop {
            let wait = self.next_due().saturating_duration_since(Instant::now());
            // A timer, even one that is due, would cost a millisecond.
            if !wait.is_zero() && timeout(wait, self.touched.0.changed.notified()).await.is_ok() {
                continue;
            }
            tokio::time::sleep(WINDOW).await;
            let ready = self.take();
            if ready != Ready::default() {
                return ready;
            }
        }
    }

    fn next_due(&self) -> Instant {
        let due = self.touched.touches().due(Instant::now());
        due.map_or(self.next_sweep, |due| due.min(self.next_sweep))
    }

    fn take(&mut self) -> Ready {
        let now = Instant::now();
        let mut ready = self.touched.touches().take(now);
        ready.sweep |= now >= self.next_sweep;
        if ready.sweep {
            self.next_sweep = now + if self.watcher.is_some() { SWEEP_EVERY } else { SWEEP_WITHOUT_EVENTS };
        }
        ready
    }

    fn add(&mut self, directory: &Path, id: DirectoryId) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        match watcher.watch(directory, RecursiveMode::NonRecursive) {
            Ok(()) => {
                self.unwatched.remove(directory);
                self.touched.watched().insert(directory.to_owned(), Some(id));
                true
            }
            Err(error) => {
                if self.unwatched.insert(directory.to_owned()) {
                    let directory = directory.display();
                    tracing::warn!(%directory, %error, "cannot watch: edits there are seen within 10 s only");
                }
                false
            }
        }
    }

    fn forget(&mut self, directory: &Path) {
        self.touched.watched().remove(directory);
        if let Some(watcher) = &mut self.watcher {
            // It may have gone by itself, with the directory.
            let _ = watcher.unwatch(directory);
        }
    }
}

// === impl SharedTouches ===

impl SharedTouches {
    /// Have a path looked at again.
    pub(crate) fn touch(&self, path: PathBuf, touch: Touch) {
        self.touches().touch(path, touch, Instant::now());
        self.0.changed.notify_one();
    }

    /// Have everything read again.
    pub(crate) fn reread(&self) {
        self.touches().reread();
        self.0.changed.notify_one();
    }

    /// True while a file's writer is waited for.
    pub(crate) fn is_open(&self, path: &Path) -> bool {
        self.touches().is_open(path)
    }

    fn event(&self, event: notify::Result<Event>) {
        let Ok(event) = event else { return self.sweep(Touch::Complete) };
        if event.need_rescan() {
            return self.sweep(Touch::Complete);
        }
        let Some(touch) = touch_of(event.kind) else { return };
        let of_directory = concerns_directory(event.kind);
        for path in event.paths {
            if disk::is_manifest(&path) && !of_directory {
                self.touch(path, touch);
            } else if is_volume_swap(&path) {
                self.sweep(Touch::Complete);
            } else if !disk::is_hidden(&path) && (of_directory || self.is_directory(&path)) {
                if let Some(watched) = self.watched().get_mut(&path) {
                    *watched = None;
                }
                self.sweep(Touch::Unsettled);
            }
        }
    }

    /// Now, or before it was renamed.
    fn is_directory(&self, path: &Path) -> bool {
        self.watched().contains_key(path) || path.is_dir()
    }

    fn sweep(&self, touch: Touch) {
        self.touches().sweep(touch, Instant::now());
        self.0.changed.notify_one();
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<DirectoryId>>> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touches(&self) -> MutexGuard<'_, Touches> {
        self.0.touches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: reading, which changes nothing, and the summary event of a rename that came in two
/// parts already.
fn touch_of(kind: EventKind) -> Option<Touch> {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Touch::Complete),
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) | EventKind::Access(_) => None,
        // A reader that finds the file gone lets it rest before believing it.
        EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => Some(Touch::Complete),
        EventKind::Modify(ModifyKind::Data(_)) => Some(Touch::Written),
        _ => Some(Touch::Unsettled),
    }
}

fn concerns_directory(kind: EventKind) -> bool {
    matches!(kind, EventKind::Create(CreateKind::Folder) | EventKind::Remove(RemoveKind::Folder))
}

/// A ConfigMap or Secret volume changes by replacing the link `..data`, all files at once.
fn is_volume_swap(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "..data")
}
