//! Statuses as files: `<directory>/<kind>/<namespace>/<name>.yaml`, replaced atomically and only
//! when something but time changed. A thread of its own writes them, so that a slow disk delays
//! nothing else; it always writes the newest, and what a full disk refuses again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portcullis_api::{Kind, ObjectKey, StatusUse};
use portcullis_log::LastLogged;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::{StatusSink, Statuses, times};

/// The bytes that are left of the 255 of a file's name without `.yaml.tmp`.
const LONGEST: usize = 246;

/// A rest between two attempts while files cannot be written.
const RETRY_EVERY: Duration = Duration::from_secs(3);

/// Dropping it waits until everything is written.
pub struct FileStatuses {
    shared: Arc<Shared>,
    /// The directory's lock; it ends with the process, however that ends.
    lock: File,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    changed: Condvar,
    /// The reason for which the files lack some statuses.
    fault: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct Work {
    /// JSON text: there may be tens of thousands, and a disk takes its time.
    statuses: Texts,
    /// Some of them could not be written.
    not_before: Option<Instant>,
    /// Remove the files of all other objects.
    only: Option<BTreeSet<PathBuf>>,
    closed: bool,
}

/// `None` for an object that is gone.
type Texts = BTreeMap<ObjectKey, Option<Box<str>>>;

/// Every status file below a directory, as an object with `apiVersion`, `kind`, `metadata` and
/// `status`.
///
/// # Errors
/// When the directory cannot be read. A broken file is left out: the agent writes it anew.
pub fn read_statuses(directory: &Path) -> io::Result<Vec<Value>> {
    fs::read_dir(directory)?;
    let files = directories(directory).flat_map(|kind| files_below(&kind));
    Ok(files.filter_map(|file| read(&file)).collect())
}

/// A digest of each status file. A file is read again only when it changed: there may be
/// tens of thousands.
#[derive(Debug)]
pub struct DigestedStatuses<T> {
    digests: BTreeMap<PathBuf, (Stamp, T)>,
}

/// Inode, size and time: files are replaced, not written to.
type Stamp = [i64; 4];

impl<T> Default for DigestedStatuses<T> {
    fn default() -> Self {
        Self { digests: BTreeMap::new() }
    }
}

impl<T> DigestedStatuses<T> {
    /// In the order of the files.
    ///
    /// # Errors
    /// When the directory cannot be read. A broken file is left out.
    pub fn refresh(
        &mut self,
        directory: &Path,
        digest: impl Fn(&Value) -> T,
    ) -> io::Result<impl Iterator<Item = &T>> {
        fs::read_dir(directory)?;
        let mut before = std::mem::take(&mut self.digests);
        for file in directories(directory).flat_map(|kind| files_below(&kind)) {
            let Ok(stamp) = stamp(&file) else { continue };
            let known = before.remove(&file).filter(|(its, _)| *its == stamp).map(|(_, digest)| digest);
            if let Some(digest) = known.or_else(|| read(&file).as_ref().map(&digest)) {
                self.digests.insert(file, (stamp, digest));
            }
        }
        Ok(self.digests.values().map(|(_, digest)| digest))
    }
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    let of = fs::metadata(file)?;
    Ok([of.ino().cast_signed(), of.size().cast_signed(), of.mtime(), of.mtime_nsec()])
}

/// Removes every status file, and directories that are empty then. Returns whether there was one.
///
/// # Errors
/// When one cannot be removed.
pub fn remove_statuses(directory: &Path) -> io::Result<bool> {
    let mut found = false;
    for kind in directories(directory) {
        for file in files_below(&kind) {
            fs::remove_file(&file)?;
            found = true;
        }
        let namespaces = fs::read_dir(&kind).into_iter().flatten().flatten().map(|entry| entry.path());
        // What is not empty is not only ours.
        namespaces.chain([kind.clone()]).for_each(|empty| drop(fs::remove_dir(empty)));
    }
    let _ = fs::remove_dir(directory);
    Ok(found)
}

// === impl FileStatuses ===

impl FileStatuses {
    /// # Errors
    /// When the directory cannot be made; `WouldBlock` when another agent writes its statuses
    /// there: each would take the other's away. One that hands over has given its locks.
    pub fn new(directory: PathBuf, locks: &[File]) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        let lock = locked(File::open(&directory)?, locks)?;
        let shared = Arc::<Shared>::default();
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("status-files".to_owned())
            .spawn(move || worker.run(&directory))?;
        Ok(Self { shared, lock, thread: Some(thread) })
    }

    /// The directory's lock, for an agent that takes over.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn lock(&self) -> io::Result<OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// The reason for which the files lack some statuses, as long as they do.
    pub fn fault(&self) -> watch::Receiver<Option<String>> {
        self.shared.fault.subscribe()
    }
}

fn locked(directory: File, locks: &[File]) -> io::Result<File> {
    let place = |file: &File| Ok::<_, io::Error>((file.metadata()?.dev(), file.metadata()?.ino()));
    let its = place(&directory)?;
    if let Some(held) = locks.iter().find(|held| place(held).is_ok_and(|place| place == its)) {
        return held.try_clone();
    }
    directory.try_lock()?;
    Ok(directory)
}

impl StatusSink for FileStatuses {
    fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        let mut work = self.shared.work();
        work.statuses.retain(|key, _| objects.contains(key));
        work.only = Some(objects.iter().map(path_of).collect());
        drop(work);
        self.shared.changed.notify_one();
    }

    fn write(&mut self, statuses: &Statuses) {
        if !statuses.is_empty() {
            let texts = statuses.iter().map(|(key, status)| {
                (key.clone(), status.as_ref().map(|status| status.to_json().to_string().into()))
            });
            self.shared.work().statuses.extend(texts);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for FileStatuses {
    fn drop(&mut self) {
        self.shared.work().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn run(&self, directory: &Path) {
        let mut failed = LastLogged::default();
        while let Some(work) = self.take() {
            if let Some(only) = work.only {
                remove_others(directory, &only);
            }
            let (unwritten, error) = put_all(directory, work.statuses);
            report(directory, error.as_ref(), &mut failed);
            self.fault.send_replace(error.map(|error| {
                let directory = directory.display();
                format!("cannot be written to {directory}: {error}; some are missing or out of date there")
            }));
            if !work.closed {
                self.put_back(unwritten);
            }
        }
    }

    /// Waits for work; `None` when there will be no more.
    fn take(&self) -> Option<Work> {
        let mut work = self.work();
        loop {
            let rest = work.not_before.and_then(|at| at.checked_duration_since(Instant::now()));
            work = match (work.statuses.is_empty() && work.only.is_none(), work.closed, rest) {
                (true, true, _) => return None,
                (true, false, _) => self.changed.wait(work).unwrap_or_else(PoisonError::into_inner),
                (false, false, Some(rest)) => {
                    self.changed.wait_timeout(work, rest).unwrap_or_else(PoisonError::into_inner).0
                }
                (false, closed, _) => {
                    return Some(std::mem::replace(&mut work, Work { closed, ..Work::default() }));
                }
            };
        }
    }

    /// Has these written later, unless there is something newer.
    fn put_back(&self, mut unwritten: Texts) {
        let mut work = self.work();
        if let Some(only) = &work.only {
            unwritten.retain(|key, _| only.contains(&path_of(key)));
        }
        if !unwritten.is_empty() {
            unwritten.append(&mut work.statuses);
            work.statuses = unwritten;
            work.not_before = Some(Instant::now() + RETRY_EVERY);
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Once when it starts to fail, once when everything is written.
fn report(directory: &Path, error: Option<&io::Error>, failed: &mut LastLogged<(), io::ErrorKind>) {
    let directory = directory.display();
    match error {
        None if failed.clear(&()) => tracing::info!(%directory, "status files are written again"),
        Some(error) if failed.update((), Some(error.kind())).is_some() => {
            tracing::warn!(%directory, %error, "cannot write status files; traffic is served nevertheless");
        }
        _ => {}
    }
}

/// Returns what could not be written, and why the first of it could not.
fn put_all(directory: &Path, statuses: Texts) -> (Texts, Option<io::Error>) {
    let (mut unwritten, mut first) = (Texts::new(), None);
    // Taken apart as it is written: there may be tens of thousands.
    for (key, text) in statuses {
        let status = text.as_deref().map(serde_json::from_str).transpose().map_err(io::Error::other);
        if let Err(error) = status.and_then(|status| put(directory, &key, status)) {
            first.get_or_insert(error);
            unwritten.insert(key, text);
        }
    }
    (unwritten, first)
}

fn put(directory: &Path, key: &ObjectKey, status: Option<Value>) -> io::Result<()> {
    let path = directory.join(path_of(key));
    let Some(mut status) = status else {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let before = read(&path);
    times::carry(&mut status, before.as_ref().and_then(|before| before.get("status")), &times::now());
    let object = object_with_status(key, status);
    if before.as_ref() == Some(&object) { Ok(()) } else { replace(&path, &object) }
}

/// `apiVersion`, `kind`, `metadata` with name and namespace, `status`.
fn object_with_status(key: &ObjectKey, status: Value) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(&*key.name.name));
    if !key.name.namespace.is_empty() {
        metadata.insert("namespace".to_owned(), json!(&*key.name.namespace));
    }
    json!({
        "apiVersion": key.kind.api_version(), "kind": key.kind.as_str(), "metadata": metadata, "status": status,
    })
}

fn replace(path: &Path, object: &Value) -> io::Result<()> {
    let text = serde_saphyr::to_string(object).map_err(io::Error::other)?;
    let temporary = path.with_extension("yaml.tmp");
    let write = || fs::write(&temporary, &text);
    write().or_else(|error| match path.parent() {
        Some(parent) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(parent)?;
            write()
        }
        _ => Err(error),
    })?;
    fs::rename(&temporary, path)
}

fn read(path: &Path) -> Option<Value> {
    serde_saphyr::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn path_of(key: &ObjectKey) -> PathBuf {
    let mut path = PathBuf::from(key.kind.as_str());
    if !key.name.namespace.is_empty() {
        path.push(&*key.name.namespace);
    }
    path.join(file_name(&key.name.name))
}

/// An object's name may be nearly as long as a file's.
fn file_name(name: &str) -> String {
    if name.len() <= LONGEST {
        return format!("{name}.yaml");
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = format!("-{:016x}", hasher.finish());
    let start = &name[..name.floor_char_boundary(LONGEST - hash.len())];
    format!("{start}{hash}.yaml")
}

/// Touches nothing but what a status file could be.
fn remove_others(directory: &Path, keep: &BTreeSet<PathBuf>) {
    for file in directories(directory).flat_map(|kind| files_below(&kind)) {
        if file.strip_prefix(directory).is_ok_and(|relative| !keep.contains(relative)) {
            // If it cannot be removed, writing will complain, too.
            let _ = fs::remove_file(&file);
        }
    }
}

/// One for each kind that has a status of ours.
fn directories(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let kinds = Kind::ALL.iter().filter(|kind| kind.status() == StatusUse::Written);
    kinds.map(|kind| directory.join(kind.as_str()))
}

fn files_below(kind: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| -> BTreeMap<PathBuf, bool> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir()))).collect()
    };
    let nested = entries(kind).into_iter().flat_map(|(path, is_directory)| {
        if is_directory { entries(&path).into_keys().collect() } else { vec![path] }
    });
    nested.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_gateway::Status;
    use portcullis_model::ObjectName;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", name))
    }

    fn status(reason: &str) -> Option<Status> {
        let condition = json!({"type": "Accepted", "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let parent = json!({"parentRef": {"name": "g"}, "controllerName": "c", "conditions": [condition]});
        Some(Status::Route(serde_json::from_value(json!({"parents": [parent]})).unwrap()))
    }

    #[test]
    fn files_hold_the_newest_status_and_go_with_their_object() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join("HTTPRoute/shop").join(name);
        let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
        sink.write(&[(key("a"), status("x")), (key("b"), status("x"))].into());
        sink.keep_only(&[key("a"), key("b")].into());
        drop(sink);
        let first = read_statuses(dir.path()).unwrap();
        assert_eq!(first.len(), 2);
        assert_eq!(first[0]["metadata"], json!({"name": "a", "namespace": "shop"}));
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&file("a.yaml"));

        let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
        sink.write(&[(key("a"), status("x")), (key("c"), status("x"))].into());
        sink.keep_only(&[key("a"), key("c")].into());
        sink.write(&[(key("c"), status("y"))].into());
        drop(sink);
        let second = read_statuses(dir.path()).unwrap();
        assert_eq!(second.len(), 2);
        assert_eq!(inode(&file("a.yaml")), before, "an unchanged status is not written");
        assert_eq!(second[1]["status"]["parents"][0]["conditions"][0]["reason"], "y");

        let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
        sink.write(&[(key("a"), None), (key("none"), None)].into());
        drop(sink);
        assert!(!file("a.yaml").exists() && file("c.yaml").exists());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = dir.path().join("HTTPRoute");
        fs::write(&in_the_way, "").unwrap();
        let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
        let mut fault = sink.fault();
        sink.write(&[(key("a"), status("x")), (key("b"), status("x")), (key("c"), status("x"))].into());
        let why = fault.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        let told = format!("cannot be written to {}: Not a directory", dir.path().display());
        assert!(why.starts_with(&told), "{why}");
        sink.write(&[(key("b"), status("y"))].into());
        sink.keep_only(&[key("a"), key("b")].into());
        fs::remove_file(in_the_way).unwrap();
        fault.wait_for(Option::is_none).await.unwrap();
        let written = read_statuses(dir.path()).unwrap();
        let reasons = written.iter().map(|object| {
            let reason = &object["status"]["parents"][0]["conditions"][0]["reason"];
            (object["metadata"]["name"].as_str().unwrap(), reason.as_str().unwrap())
        });
        assert_eq!(reasons.collect::<Vec<_>>(), [("a", "x"), ("b", "y")]);
    }

    #[test]
    fn an_end_tries_once_more_and_waits_for_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = dir.path().join("HTTPRoute");
        for is_freed in [false, true] {
            fs::write(&in_the_way, "").unwrap();
            let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
            let fault = sink.fault();
            sink.write(&[(key("a"), status("x"))].into());
            while fault.borrow().is_none() {
                std::thread::yield_now();
            }
            if is_freed {
                fs::remove_file(&in_the_way).unwrap();
            }
            drop(sink);
            assert_eq!(read_statuses(dir.path()).unwrap().len(), usize::from(is_freed));
        }
    }

    #[test]
    fn only_what_changed_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let write = |statuses: &Statuses| {
            let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
            sink.write(statuses);
        };
        let reads = std::cell::RefCell::new(Vec::new());
        let mut digested = DigestedStatuses::default();
        let mut refresh = || {
            let digest = |object: &Value| {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                reads.borrow_mut().push(name.clone());
                name
            };
            let all: Vec<_> = digested.refresh(dir.path(), digest).unwrap().cloned().collect();
            (all, reads.take())
        };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        write(&[(key("a"), status("x")), (key("b"), status("x"))].into());
        assert_eq!(refresh(), (names(&["a", "b"]), names(&["a", "b"])));
        assert_eq!(refresh(), (names(&["a", "b"]), names(&[])));
        write(&[(key("a"), None), (key("b"), status("y")), (key("c"), status("x"))].into());
        assert_eq!(refresh(), (names(&["b", "c"]), names(&["b", "c"])));
        let nowhere = dir.path().join("nowhere");
        assert!(DigestedStatuses::<()>::default().refresh(&nowhere, |_| ()).is_err());
    }

    #[test]
    fn one_agent_writes_to_a_directory_whatever_path_leads_there() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, link) = (dir.path().join("status"), dir.path().join("link"));
        let held = FileStatuses::new(directory.clone(), &[]).unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        for path in [directory, link.clone()] {
            assert_eq!(FileStatuses::new(path, &[]).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        }
        drop(held);
        FileStatuses::new(link, &[]).unwrap();
    }

    #[test]
    fn the_longest_names_have_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|last| format!("{}{last}", "x".repeat(252)));
        let mut sink = FileStatuses::new(dir.path().to_owned(), &[]).unwrap();
        sink.write(&names.iter().map(|name| (key(name), status("x"))).collect());
        sink.keep_only(&names.iter().map(|name| key(name)).collect());
        drop(sink);
        let written = read_statuses(dir.path()).unwrap();
        let mut written: Vec<_> =
            written.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        written.sort();
        assert_eq!(written, names);
    }
}
