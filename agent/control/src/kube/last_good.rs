//! The last good configuration on disk, so that an agent that restarts while the API server is away serves at once. No
//! Secrets: what needs a key waits for the API server.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_gateway::{Change, Object, Objects};
use serde_json::Value;
use tokio::time::Instant;

/// How soon after a change the file is written, and how often at most.
const DELAY: Duration = Duration::from_secs(2);
/// Writing takes at most this share of the time.
const SHARE: u32 = 20;

/// A file with one object per line, replaced as a whole.
#[derive(Debug)]
pub struct LastGood {
    path: PathBuf,
    due: Option<Instant>,
    pause: Duration,
    failed: bool,
}

impl LastGood {
    pub fn new(path: PathBuf) -> Self {
        Self { path, due: None, pause: DELAY, failed: false }
    }

    /// What was kept, if anything. A broken line is left out: better little than nothing.
    pub(super) fn read(&self) -> Vec<Change> {
        let file = match std::fs::File::open(&self.path) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = self.path.display();
                    tracing::warn!(%error, %path, "cannot read the last good configuration: nothing is served before the API server answers");
                }
                return Vec::new();
            }
        };
        let manifests = BufReader::new(file).lines().map_while(Result::ok);
        let manifests = manifests.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        manifests.filter_map(|manifest| Object::from_json(manifest).ok().flatten()).map(Change::Set).collect()
    }

    pub(super) fn changed(&mut self) {
        self.due.get_or_insert_with(|| Instant::now() + self.pause);
    }

    /// When to write, if there is anything to write.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Writes in the background: a slow disk delays nobody.
    pub(super) fn write(&mut self, objects: &Objects) -> tokio::task::JoinHandle<(io::Result<()>, Duration)> {
        self.due = None;
        let (path, objects) = (self.path.clone(), objects.clone());
        tokio::task::spawn_blocking(move || {
            let began = std::time::Instant::now();
            (write(&path, &objects), began.elapsed())
        })
    }

    /// What came of it.
    pub(super) fn written(&mut self, result: &io::Result<()>, took: Duration) {
        self.pause = DELAY.max(took * SHARE);
        match result {
            Err(error) if !self.failed => {
                let path = self.path.display();
                tracing::warn!(%error, %path, "cannot keep the last good configuration: a restart without API server would serve nothing; is --state-dir writable?");
            }
            _ => {}
        }
        self.failed = result.is_err();
    }
}

fn write(path: &Path, objects: &Objects) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let temporary = path.with_extension("tmp");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let mut file = BufWriter::new(file);
    for object in objects.iter() {
        if let Some(manifest) = manifest(&object) {
            serde_json::to_writer(&mut file, &manifest)?;
            file.write_all(b"\n")?;
        }
    }
    file.into_inner()?.sync_all()?;
    std::fs::rename(&temporary, path)
}

fn manifest(object: &Object) -> Option<Value> {
    let manifest = match object {
        Object::Secret(_) | Object::CustomResourceDefinition(_) => return None,
        Object::GatewayClass(object) => serde_json::to_value(object),
        Object::Gateway(object) => serde_json::to_value(object),
        Object::ListenerSet(object) => serde_json::to_value(object),
        Object::HttpRoute(object) => serde_json::to_value(object),
        Object::GrpcRoute(object) => serde_json::to_value(object),
        Object::ReferenceGrant(object) => serde_json::to_value(object),
        Object::Service(object) => serde_json::to_value(object),
        Object::EndpointSlice(object) => serde_json::to_value(object),
        Object::Namespace(object) => serde_json::to_value(object),
        Object::Node(object) => serde_json::to_value(object),
        Object::ConfigMap(object) => serde_json::to_value(object),
        Object::GatewayParameters(object) => serde_json::to_value(object),
    };
    manifest.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_read_is_what_was_written_but_for_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let kept = LastGood::new(dir.path().join("state/last-good.jsonl"));
        assert!(kept.read().is_empty());
        let mut objects = Objects::default();
        for manifest in [
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"tls.key": "MQ=="}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"}, "spec": {}}),
        ] {
            objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
        }
        write(&kept.path, &objects).unwrap();
        let mut again = Objects::default();
        for change in kept.read() {
            again.apply(change);
        }
        objects.secrets.clear();
        assert_eq!(format!("{objects:?}"), format!("{again:?}"));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&kept.path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
