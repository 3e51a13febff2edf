//! The last good configuration on disk, so that an agent that restarts while the API server is away
//! serves at once. Secrets are not for disks: they are kept in memory that outlives the process, or
//! what needs a key waits for the API server.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_api::{Change, LastGood as Storage, Object, Objects};
use portcullis_log::LastLogged;
use rustix::fs::{FsWord, statfs};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Delay after a change until the file is written, and the shortest time between two writes.
const DELAY: Duration = Duration::from_secs(2);
/// Writing takes at most this share of the time.
const SHARE: u32 = 20;
/// A file system in memory, as statfs(2) tells it.
const TMPFS: FsWord = 0x0102_1994;

/// Files with one object per line, replaced as a whole.
#[derive(Debug)]
pub struct LastGood {
    path: PathBuf,
    /// Of Secrets.
    secrets: Option<PathBuf>,
    due: Option<Instant>,
    pause: Duration,
    /// Files that could not be written the last time.
    failed: LastLogged<PathBuf, io::ErrorKind>,
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    failures: Vec<Failure>,
    took: Duration,
}

#[derive(Debug)]
struct Failure {
    path: PathBuf,
    error: io::Error,
    /// The consequence for a restart without API server, and what can be done.
    advice: &'static str,
}

impl LastGood {
    pub fn new(path: PathBuf) -> Self {
        Self { path, secrets: None, due: None, pause: DELAY, failed: LastLogged::default() }
    }

    /// Keeps those Secrets, too, that something refers to, if the directory is in memory.
    #[must_use]
    pub fn with_secrets(mut self, directory: &Path) -> Self {
        let path = directory.display();
        match is_memory(directory) {
            Ok(true) => self.secrets = Some(directory.join("secrets.jsonl")),
            Ok(false) => tracing::warn!(
                "Secrets are not kept: {path} is on a disk, where keys do not belong; choose a tmpfs with --secrets-dir"
            ),
            Err(error) => tracing::warn!("Secrets are not kept: {path}: {error}"),
        }
        self
    }

    /// Reads what was kept, if anything. A broken line is left out: better little than nothing.
    pub(super) fn read(&self) -> JoinHandle<Vec<Change>> {
        let paths: Vec<_> = std::iter::once(&self.path).chain(&self.secrets).cloned().collect();
        tokio::task::spawn_blocking(move || {
            paths.iter().flat_map(|path| read(path)).map(Change::Set).collect()
        })
    }

    /// Removes the file of the configuration, and one that was being written. Secrets go with their
    /// memory. Returns those that were there.
    ///
    /// # Errors
    /// When one that is there cannot be removed.
    pub fn remove(&self) -> io::Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for path in [self.path.clone(), temporary(&self.path)] {
            match std::fs::remove_file(&path) {
                Ok(()) => removed.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(removed)
    }

    pub(super) fn changed(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + self.pause);
    }

    /// The time of the next write, if there is anything to write.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Writes in the background: a slow disk delays nothing.
    pub(super) fn write(&mut self, objects: &Objects) -> JoinHandle<Written> {
        self.due = None;
        let (path, secrets, objects) = (self.path.clone(), self.secrets.clone(), objects.clone());
        tokio::task::spawn_blocking(move || {
            let began = std::time::Instant::now();
            let configuration = write(&path, &objects, Storage::Disk).err().map(|error| {
                let advice = "would serve nothing; is --state-dir writable, and has it room?";
                Failure { path, error, advice }
            });
            let secrets = secrets.and_then(|path| {
                let error = write(&path, &objects, Storage::Memory).err()?;
                let advice = "would serve no HTTPS; is --secrets-dir writable, and has it room?";
                Some(Failure { path, error, advice })
            });
            Written { failures: configuration.into_iter().chain(secrets).collect(), took: began.elapsed() }
        })
    }

    /// Takes note of the result of a write.
    pub(super) fn written(&mut self, Written { failures, took }: Written) {
        self.pause = DELAY.max(took * SHARE);
        self.failed.keep_only(|path| failures.iter().any(|failure| failure.path == *path));
        for Failure { path, error, advice } in failures {
            if self.failed.update(path.clone(), Some(error.kind())).is_some() {
                let path = path.display();
                tracing::warn!(%error, %path, "cannot keep the last good configuration: a restart without API server {advice}");
            }
        }
    }
}

fn read(path: &Path) -> Vec<Object> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                let path = path.display();
                tracing::warn!(%error, %path, "cannot read the last good configuration: what it holds is not served before the API server answers");
            }
            return Vec::new();
        }
    };
    let manifests = BufReader::new(file).lines().map_while(Result::ok);
    let manifests = manifests.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    manifests.filter_map(|manifest| Object::from_json(manifest).ok().flatten()).collect()
}

/// The file beside it that is written before it takes its place.
fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

fn is_memory(directory: &Path) -> io::Result<bool> {
    std::fs::create_dir_all(directory)?;
    Ok(statfs(directory)?.f_type == TMPFS)
}

fn write(path: &Path, objects: &Objects, storage: Storage) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let temporary = temporary(path);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let mut file = BufWriter::new(file);
    for object in objects.iter().filter(|object| object.kind().last_good() == storage) {
        serde_json::to_writer(&mut file, &object.to_json()?)?;
        file.write_all(b"\n")?;
    }
    file.into_inner()?.sync_all()?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn objects() -> Objects {
        let mut objects = Objects::default();
        for manifest in [
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"tls.key": "MQ=="}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"}, "spec": {}}),
        ] {
            objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
        }
        objects
    }

    async fn written_and_read(kept: &mut LastGood, objects: &Objects) -> Objects {
        let written = kept.write(objects).await.unwrap();
        assert!(written.failures.is_empty(), "{written:?}");
        let mut again = Objects::default();
        for change in kept.read().await.unwrap() {
            again.apply(change);
        }
        again
    }

    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
    }

    #[tokio::test]
    async fn what_is_read_is_what_was_written_but_for_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = LastGood::new(dir.path().join("state/last-good.jsonl"));
        assert!(kept.read().await.unwrap().is_empty());
        let mut objects = objects();
        let again = written_and_read(&mut kept, &objects).await;
        objects.secrets.clear();
        assert_eq!(format!("{objects:?}"), format!("{again:?}"));
        assert_eq!(mode(&kept.path), 0o600);
    }

    #[tokio::test]
    async fn secrets_are_kept_in_memory_only() {
        let (dir, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let kept = LastGood::new(dir.path().join("last-good.jsonl"));
        let mut kept = kept.with_secrets(&memory.path().join("secrets"));
        let objects = objects();
        let again = written_and_read(&mut kept, &objects).await;
        assert_eq!(format!("{objects:?}"), format!("{again:?}"));
        assert_eq!(mode(kept.secrets.as_ref().unwrap()), 0o600);
        assert!(!std::fs::read_to_string(&kept.path).unwrap().contains("tls.key"));

        assert_eq!(LastGood::new(kept.path).with_secrets(Path::new("/proc")).secrets, None);
    }
    #[tokio::test]
    async fn what_could_not_be_written_is_named() {
        let (dir, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let kept = LastGood::new(dir.path().join("last-good.jsonl"));
        let mut kept = kept.with_secrets(&memory.path().join("secrets"));
        let secrets = kept.secrets.clone().unwrap();
        std::fs::create_dir(&secrets).unwrap();
        let written = kept.write(&objects()).await.unwrap();
        kept.written(written);
        assert!(kept.failed.subjects().eq([&secrets]));
    }
}
