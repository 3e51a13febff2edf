//! Part of the plan: what is to be generated for Gateways in a cluster. Only Gateways with addresses of their own get
//! something; children are served on their parents'.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::{ObjectName, ParentKind};

use super::Translator;
use super::unit::Root;
use crate::infra::{self, Merged, Wanted};
use crate::listener::ParentKey;

impl Translator {
    pub(super) fn generate(&mut self) -> BTreeMap<ObjectName, Option<Wanted>> {
        let concerned = std::mem::take(&mut self.dirty.generated);
        let now: Vec<_> = concerned.into_iter().map(|name| (self.wanted_for(&name), name)).collect();
        now.into_iter()
            .filter_map(|(wanted, name)| Some((name.clone(), self.remember(name, wanted)?)))
            .collect()
    }

    fn wanted_for(&self, name: &ObjectName) -> Option<Wanted> {
        let (root, gateway) = (self.roots.get(name)?, self.objects.gateways.get(name)?);
        match &root.refusal {
            Some(_) => infra::untouched(gateway),
            None => {
                let ports = self.serving.ports_of(name).collect();
                let merged = Merged { ports, secrets: self.secrets(name, root) };
                infra::plan(gateway, &merged, &root.parameters, &self.settings.controller_name)
            }
        }
    }

    /// Those that its own listeners and its children's refer to with permission; [`crate::secrets_of`] says the same.
    fn secrets(&self, name: &ObjectName, root: &Root) -> BTreeSet<ObjectName> {
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let units = std::iter::once(&own).chain(root.members.values()).filter_map(|key| self.units.get(key));
        units.flat_map(|unit| &unit.declared.secrets).cloned().collect()
    }

    /// `None` if it is as before.
    fn remember(&mut self, name: ObjectName, wanted: Option<Wanted>) -> Option<Option<Wanted>> {
        let before = match &wanted {
            Some(wanted) => self.generated.insert(name, wanted.clone()),
            None => self.generated.remove(&name),
        };
        (before != wanted).then_some(wanted)
    }
}
