//! The keys that all agents have: a Secret in their namespace, which every agent watches, and to
//! which the leader adds a new key from time to time. Without a cluster, a file. A key is an entry
//! `key-<seconds since 1970>`; what else there is stays.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event};
use portcullis_log::LastLogged;
use portcullis_model::{KeyRing, RingKey};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::kube::backoff::{jittered, spaced};
use crate::kube::read_log::ReadLog;
use crate::kube::{code, is_unanswered, problem, wording};

/// The Secret's name.
pub const KEYS: &str = "portcullis-keys";

const PREFIX: &str = "key-";
/// Age of the newest key at which there is to be another.
const ROTATION: Duration = Duration::from_hours(7 * 24);
/// Keys of a ring: what was signed with the oldest is two months old.
const KEPT: usize = 9;
/// Time between two looks at the age of keys, and after a write that failed.
const LOOK: Duration = Duration::from_hours(1);
const AGAIN: Duration = Duration::from_secs(5);
/// Time that an agent waits for keys before it says that it has none.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two looks at the file.
const FILE_LOOK: Duration = Duration::from_secs(10);
/// Time that a write may take.
const WRITE: Duration = Duration::from_secs(10);

/// Keeps the ring known, and up to date while this agent leads.
pub struct KeyRingWatch {
    api: Api<Secret>,
    leading: watch::Receiver<bool>,
    ring: watch::Sender<Option<Arc<KeyRing>>>,
    known: Known,
    problem: LastLogged,
}

/// The Secret, as the last list or event had it.
enum Known {
    Unread,
    Missing,
    There(Box<Secret>),
}

/// The file that takes the Secret's place without a cluster.
struct KeyFile {
    path: PathBuf,
    ring: watch::Sender<Option<Arc<KeyRing>>>,
    problem: LastLogged,
}

#[derive(Debug, thiserror::Error)]
enum KeyFileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it holds no key: remove it, and the agent makes another")]
    NoKey,
    #[error("others may read it: chmod 600")]
    Public,
    #[error("the system gives no random numbers")]
    Random,
}

// === impl KeyRingWatch ===

impl KeyRingWatch {
    pub fn new(client: Client, namespace: &str, leading: watch::Receiver<bool>) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            leading,
            ring: watch::Sender::default(),
            known: Known::Unread,
            problem: LastLogged::default(),
        }
    }

    /// `None` as long as there are no common keys.
    pub fn ring(&self) -> watch::Receiver<Option<Arc<KeyRing>>> {
        self.ring.subscribe()
    }

    pub async fn run(mut self) {
        let config = watcher::Config::default().fields(&format!("metadata.name={KEYS}"));
        let mut events = spaced(watcher::watcher(self.api.clone(), config)).boxed();
        let mut read_log = ReadLog::new("the agents' keys");
        let mut keyless = Some(Box::pin(tokio::time::sleep(TIMEOUT)));
        let mut next_look = LOOK;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        if !matches!(event, Event::Init) {
                            read_log.over();
                        }
                        self.receive(event);
                    }
                    Some(Err(error)) => {
                        read_log.failed(&error);
                        continue;
                    }
                    None => return,
                },
                // Without one who could lead, there is nothing to follow.
                Ok(()) = self.leading.changed() => {}
                () = tokio::time::sleep(jittered(next_look)) => {}
                () = elapsed(&mut keyless) => self.warn_without(),
            }
            next_look = if self.tend().await { LOOK } else { AGAIN };
        }
    }

    fn receive(&mut self, event: Event<Secret>) {
        match event {
            Event::Init => {
                self.known = Known::Unread;
                return;
            }
            Event::InitApply(secret) | Event::Apply(secret) => self.known = Known::There(Box::new(secret)),
            Event::InitDone if matches!(self.known, Known::There(_)) => {}
            Event::InitDone | Event::Delete(_) => self.known = Known::Missing,
        }
        let Known::There(secret) = &self.known else { return };
        let ring = ring(secret);
        // Keys that cannot be read are no reason to forget those that are known.
        if !ring.is_empty() {
            let ring = Some(Arc::new(ring));
            self.ring.send_if_modified(|known| {
                let is_another = *known != ring;
                known.clone_from(&ring);
                is_another
            });
        }
    }

    fn warn_without(&self) {
        if self.ring.borrow().is_none() {
            tracing::warn!(
                "Secret {}/{KEYS} with the agents' keys cannot be read, or is not there yet: sessions that begin at this \
                 agent go on at this agent only, until it is",
                self.api.namespace().unwrap_or_default()
            );
        }
    }

    /// Adds a key where one is due. False if that failed and has to be tried again.
    async fn tend(&mut self) -> bool {
        let there = match &self.known {
            Known::There(secret) => Some(&**secret),
            Known::Missing => None,
            Known::Unread => return true,
        };
        if !*self.leading.borrow() || !is_key_due(there, now()) {
            return true;
        }
        let Some(wanted) = with_key(there, now()) else { return false };
        let parameters = PostParams::default();
        let written = match there {
            None => timeout(WRITE, self.api.create(&parameters, &wanted)).await,
            Some(_) => timeout(WRITE, self.api.replace(KEYS, &parameters, &wanted)).await,
        };
        match written {
            Ok(Ok(_)) => {
                self.problem.clear(&());
                tracing::info!("Secret {KEYS}: the agents have a new key");
                true
            }
            // Another was faster, which the watch will tell.
            Ok(Err(error)) if code(&error) == Some(409) => true,
            Ok(Err(error)) => {
                if !is_unanswered(&error) {
                    self.log(&problem(&error));
                }
                false
            }
            Err(_) => false,
        }
    }

    fn log(&mut self, problem: &str) {
        if self.problem.update((), Some(wording(problem))).is_some() {
            tracing::warn!(
                "Secret {KEYS}: no key can be added: {problem}; the leader needs create and update on secrets in namespace {}",
                self.api.namespace().unwrap_or_default()
            );
        }
    }
}

/// Once; afterwards never.
async fn elapsed(sleep: &mut Option<std::pin::Pin<Box<tokio::time::Sleep>>>) {
    match sleep {
        Some(pending) => {
            pending.await;
            *sleep = None;
        }
        None => std::future::pending().await,
    }
}

// === the Secret ===

fn ring(secret: &Secret) -> KeyRing {
    let entries = secret.data.iter().flatten();
    KeyRing::new(entries.filter_map(|(name, value)| key(name, &value.0)).collect())
}

fn key(name: &str, secret: &[u8]) -> Option<RingKey> {
    let created = name.strip_prefix(PREFIX)?.parse().ok()?;
    Some(RingKey { created, secret: secret.try_into().ok()? })
}

fn is_key_due(secret: Option<&Secret>, now: u64) -> bool {
    let newest = secret.and_then(|secret| ring(secret).keys().first().map(|key| key.created));
    newest.is_none_or(|created| now.saturating_sub(created) >= ROTATION.as_secs())
}

/// The Secret with a new key, and without those that are too old. `None` without randomness.
fn with_key(secret: Option<&Secret>, now: u64) -> Option<Secret> {
    let metadata = || ObjectMeta { name: Some(KEYS.to_owned()), ..ObjectMeta::default() };
    let type_ = Some("Opaque".to_owned());
    let made = || Secret { metadata: metadata(), type_, ..Secret::default() };
    let mut secret = secret.cloned().unwrap_or_else(made);
    let data = secret.data.get_or_insert_default();
    data.insert(format!("{PREFIX}{now}"), ByteString(random()?.to_vec()));
    let kept = ring(&secret);
    let oldest = kept.keys().get(KEPT - 1).map_or(0, |key| key.created);
    secret
        .data
        .get_or_insert_default()
        .retain(|name, value| key(name, &value.0).is_none_or(|key| key.created >= oldest));
    Some(secret)
}

fn random() -> Option<[u8; 32]> {
    let mut secret = [0; 32];
    rand::fill(&mut secret).ok().map(|()| secret)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

// === the file ===

/// The keys of a file, which is read again as long as they are followed; made with one key if it is
/// not there. Nothing adds keys to it.
pub fn follow_file(path: PathBuf) -> watch::Receiver<Option<Arc<KeyRing>>> {
    let there = path.try_exists().map_err(KeyFileError::from);
    let made = there.and_then(|is_there| if is_there { Ok(()) } else { make_file(&path) });
    let mut file = KeyFile { path, ring: watch::Sender::default(), problem: LastLogged::default() };
    file.take(made.and_then(|()| read_file(&file.path)));
    let ring = file.ring.subscribe();
    tokio::spawn(file.follow());
    ring
}

// === impl KeyFile ===

impl KeyFile {
    async fn follow(mut self) {
        loop {
            tokio::select! {
                () = self.ring.closed() => return,
                () = tokio::time::sleep(FILE_LOOK) => {}
            }
            let path = self.path.clone();
            if let Ok(read) = tokio::task::spawn_blocking(move || read_file(&path)).await {
                self.take(read);
            }
        }
    }

    /// Keys that cannot be read are no reason to forget those that are known.
    fn take(&mut self, read: Result<Arc<KeyRing>, KeyFileError>) {
        match read {
            Ok(ring) => {
                self.problem.clear(&());
                let ring = Some(ring);
                self.ring.send_if_modified(|known| {
                    let is_another = *known != ring;
                    known.clone_from(&ring);
                    is_another
                });
            }
            Err(error) => {
                let path = self.path.display();
                let instead = match *self.ring.borrow() {
                    Some(_) => "the keys that it held before stay in use until the agent ends",
                    None => "sessions that begin at this agent end with it",
                };
                if let Some(problem) = self.problem.update((), Some(error.to_string())) {
                    tracing::warn!("{path}: {problem}; {instead} (--state-dir)");
                }
            }
        }
    }
}

/// Lines `key-<seconds since 1970> <64 hexadecimal digits>`.
fn read_file(path: &Path) -> Result<Arc<KeyRing>, KeyFileError> {
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        return Err(KeyFileError::Public);
    }
    let text = fs::read_to_string(path)?;
    let keys = text.lines().filter_map(|line| {
        let (name, digits) = line.trim().split_once(' ')?;
        key(name, &bytes(digits.trim())?)
    });
    let ring = KeyRing::new(keys.collect());
    if ring.is_empty() { Err(KeyFileError::NoKey) } else { Ok(Arc::new(ring)) }
}

/// Whole from the moment on at which it is there; the first of several agents makes it.
fn make_file(path: &Path) -> Result<(), KeyFileError> {
    let secret = random().ok_or(KeyFileError::Random)?;
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    writeln!(file, "{PREFIX}{} {digits}", now())?;
    file.sync_all()?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
#[path = "key_ring_tests.rs"]
mod tests;
