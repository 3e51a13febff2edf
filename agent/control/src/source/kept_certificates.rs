//! The memory of those who read Secrets: what a Secret held that could be served, for as long as it
//! holds nothing that can be. A pair whose key stops matching, say, stays in service; that ends
//! with the process, with the Secret, and when nothing may refer to it any more. Translation gets
//! the broken Secret and the kept certificate, and decides what to make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use portcullis_api::{Change, Kind, Object, ObjectKey};
use portcullis_gateway::{ChangedNeeds, Feedback, read_certificate};
use portcullis_model::{Certificate, ObjectName};

use super::{Source, Update};

/// A source whose updates say what broken Secrets held before.
pub(crate) struct KeptCertificates<S> {
    source: S,
    /// Secrets that something refers to with permission.
    needed: BTreeSet<ObjectName>,
    /// The newest version of each Secret, or, of those with a kept certificate, the one it is from.
    /// It is parsed only when another one takes its place. Translation shares the objects.
    secrets: BTreeMap<ObjectName, Arc<Secret>>,
    kept: BTreeMap<ObjectName, Certificate>,
    /// No update has said yet what is kept now.
    is_changed: bool,
}

impl<S> KeptCertificates<S> {
    pub(crate) fn of(source: S) -> Self {
        Self {
            source,
            needed: BTreeSet::new(),
            secrets: BTreeMap::new(),
            kept: BTreeMap::new(),
            is_changed: false,
        }
    }

    fn note(&mut self, change: &Change) {
        match change {
            Change::Set(object @ Object::Secret(secret)) => self.set(object.key().name, secret),
            Change::Delete(ObjectKey { kind: Kind::Secret, name }) => {
                self.secrets.remove(name);
                self.forget(name);
            }
            Change::Set(_) | Change::Delete(_) => {}
        }
    }

    fn set(&mut self, name: ObjectName, secret: &Arc<Secret>) {
        let before = self.secrets.get(&name).filter(|_| self.needed.contains(&name));
        let is_broken = before.is_some() && read_certificate(secret).is_err();
        if let Some(before) = before.filter(|_| is_broken)
            && let Ok(certificate) = read_certificate(before)
        {
            self.is_changed |= self.kept.insert(name, certificate).is_none();
            return;
        }
        self.forget(&name);
        self.secrets.insert(name, secret.clone());
    }

    fn forget(&mut self, secret: &ObjectName) {
        self.is_changed |= self.kept.remove(secret).is_some();
    }

    /// Forgets what it held before: that is not its referrers' any more.
    fn unneeded(&mut self, secret: &ObjectName) {
        self.needed.remove(secret);
        if self.kept.contains_key(secret) {
            self.secrets.remove(secret);
            self.forget(secret);
        }
    }
}

impl<S: Source> Source for KeptCertificates<S> {
    async fn next(&mut self) -> Update {
        let mut update = self.source.next().await;
        for change in &update.changes {
            self.note(change);
        }
        if std::mem::take(&mut self.is_changed) {
            update.observed.push(Feedback::KeptCertificates(self.kept.clone()));
        }
        update
    }

    fn need(&mut self, changed: ChangedNeeds) {
        self.needed.extend(secrets(&changed.added).cloned());
        for secret in secrets(&changed.removed) {
            self.unneeded(secret);
        }
        self.source.need(changed);
    }

    fn need_only(&mut self, needs: BTreeSet<ObjectKey>) {
        let needed: BTreeSet<_> = secrets(&needs).cloned().collect();
        for secret in self.needed.difference(&needed).cloned().collect::<Vec<_>>() {
            self.unneeded(&secret);
        }
        self.needed = needed;
        self.source.need_only(needs);
    }
}

fn secrets(keys: &BTreeSet<ObjectKey>) -> impl Iterator<Item = &ObjectName> {
    keys.iter().filter(|key| key.kind == Kind::Secret).map(|key| &key.name)
}

#[cfg(test)]
#[path = "kept_certificates_tests.rs"]
mod tests;
