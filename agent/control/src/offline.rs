//! Manifests to an outcome without an agent or a cluster: the same reading and the same translation
//! as of a directory. All of it is values; how they are printed is not known here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use portcullis_api::{Change, Object, ObjectKey, Objects};
use portcullis_gateway::delegate::{Names, copied_filters};
use portcullis_gateway::infra::{self, AssignedAddresses};
use portcullis_gateway::{Feedback, Grants, Outcome, Settings, Status, Translator};
use portcullis_model::ObjectName;
use serde_json::{Value, json};

use crate::source::Batch;
use crate::source::batch::Manifest;
use crate::source::built_in::{gateways_without_class, with_built_in};

/// Of objects that no cluster has given one.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// Begin of the addresses that a cluster would give to Gateways: of a range that no network routes
/// (RFC 2544).
const FIRST_OWN: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// The addresses of Gateways that ask for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultAddresses {
    /// Those of the settings, for all of them, as an agent serves a directory.
    Shared,
    /// One of its own for each, as its Service gives it in a cluster.
    Own,
}

/// Manifests and their outcome.
pub struct Translated {
    pub batch: Batch,
    pub outcome: Outcome,
}

/// The routes that delegation makes, as objects.
#[derive(Debug, Default)]
pub struct PrintedRoutes {
    pub objects: Vec<Value>,
    /// Policies that do not hold for them as they do for what they take the place of, a line each.
    pub policies_left_behind: Vec<String>,
}

/// The validity of an input as a whole, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// Everything is served as its author wants it.
    Valid,
    /// An object has a fault, or lacks its GatewayClass.
    Faulty,
    /// There is no object in it.
    Empty,
    /// A part of the input could not be read.
    Unreadable,
}

/// Reads files, directories and `-` (standard input), and translates them. Larger files than
/// `max_file_size` bytes are refused.
pub fn translate(
    paths: &[PathBuf],
    max_file_size: u64,
    settings: Settings,
    addresses: DefaultAddresses,
) -> Translated {
    let batch = Batch::read(paths, max_file_size);
    let mut translator = Translator::new(settings);
    if addresses == DefaultAddresses::Own {
        translator.observe(Feedback::Assigned(own_addresses(&batch)));
    }
    let outcome = translator.apply(with_built_in(batch.changes()));
    Translated { batch, outcome }
}

/// Translates manifests as values, whose Gateways have addresses of their own.
pub fn translate_manifests(manifests: Vec<Value>, settings: Settings) -> Translated {
    let batch = Batch::of(manifests);
    let mut translator = Translator::new(settings);
    translator.observe(Feedback::Assigned(own_addresses(&batch)));
    let outcome = translator.apply(with_built_in(batch.changes()));
    Translated { batch, outcome }
}

/// By Gateway, an address of its own after those that it asks for.
fn own_addresses(batch: &Batch) -> BTreeMap<ObjectName, AssignedAddresses> {
    let objects = batch.manifests.iter().filter_map(|manifest| manifest.object.as_ref());
    let gateways = objects.filter_map(|object| match object {
        Object::Gateway(gateway) => Some((object.key().name, gateway)),
        _ => None,
    });
    let own = (FIRST_OWN.to_bits()..).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
    gateways
        .zip(own)
        .map(|((name, gateway), own)| {
            let asked = gateway.spec.addresses.iter().flatten();
            let asked = asked.filter_map(|address| address.value.as_deref()?.parse().ok());
            (name, asked.chain([own]).collect())
        })
        .collect()
}

// === impl Translated ===

impl Translated {
    pub fn validity(&self) -> Validity {
        let Self { batch, outcome } = self;
        if !batch.is_readable() {
            return Validity::Unreadable;
        }
        if batch.manifests.is_empty() {
            return Validity::Empty;
        }
        let is_valid = gateways_without_class(batch).is_empty()
            && batch.problems.is_empty()
            && outcome.problems.values().all(Vec::is_empty)
            && !outcome.statuses.values().any(Status::has_fault);
        if is_valid { Validity::Valid } else { Validity::Faulty }
    }

    /// The objects of the input in its order, each with the status that it would get.
    pub fn with_statuses(&self) -> Vec<Value> {
        self.batch.manifests.iter().map(|manifest| self.with_status(manifest)).collect()
    }

    fn with_status(&self, manifest: &Manifest) -> Value {
        let mut object = manifest.head.clone();
        let read = manifest.object.as_ref();
        if let Some(read) = read {
            object["metadata"] = json!(read.metadata());
        }
        let status = read.and_then(|read| self.outcome.statuses.get(&read.key()));
        object["status"] = status.map_or_else(|| json!({}), Status::to_json);
        object
    }

    /// The routes that delegation makes, and the grants they need when they are applied in place of
    /// parents and children.
    pub fn ephemeral(&self) -> PrintedRoutes {
        let read = self.batch.manifests.iter().filter_map(|manifest| manifest.object.as_ref());
        let mut names = Names::new(read.clone().map(Object::key));
        let mut objects = Objects::default();
        for object in read {
            objects.apply(Change::Set(object.clone()));
        }
        let grants = Grants::new(&objects);
        let families: Vec<_> = self.outcome.ephemeral.values().flatten().collect();
        let mut printed = PrintedRoutes::default();
        for family in &families {
            let routes = family.objects(&mut names, grants);
            printed.policies_left_behind.extend(family.policies_left_behind(&routes, &objects));
            printed.objects.extend(routes);
        }
        printed.objects.extend(copied_filters(&mut names, &objects));
        for family in &families {
            printed.objects.extend(family.grants(&mut names, grants));
        }
        printed
    }

    /// The objects that would be generated in a cluster, for every Gateway that is ours, and a line
    /// for each that a Gateway would not get.
    pub fn generated(&self, settings: Settings) -> (Vec<Value>, Vec<String>) {
        let objects = self.batch.manifests.iter().filter_map(|manifest| manifest.object.clone());
        let changes = objects.map(with_uid).map(Change::Set).collect();
        let outcome = Translator::new(settings).apply(with_built_in(changes));
        let desired: Vec<_> = outcome.generated.into_values().flatten().collect();
        let (objects, clashes) = infra::without_clashes(&desired);
        let lines = clashes.into_iter().map(|(gateway, message)| format!("Gateway {gateway}: {message}"));
        (objects.into_iter().map(|object| object.manifest.clone()).collect(), lines.collect())
    }

    /// The problems of objects that no status can say, then those of Gateways without a class.
    pub fn problems(&self) -> Vec<(ObjectKey, String)> {
        let unreported = self.outcome.problems.iter();
        let unreported = unreported.flat_map(|(object, problems)| {
            problems.iter().map(move |problem| (object.clone(), problem.clone()))
        });
        unreported.chain(gateways_without_class(&self.batch)).collect()
    }
}

/// Nothing is generated for a Gateway without UID, which only an API server gives.
fn with_uid(object: Object) -> Object {
    match object {
        Object::Gateway(mut gateway) => {
            let uid = &mut Arc::make_mut(&mut gateway).metadata.uid;
            uid.get_or_insert_with(|| NO_UID.to_owned());
            Object::Gateway(gateway)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validity(text: &str) -> Validity {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("input.yaml");
        std::fs::write(&file, text).unwrap();
        translate(&[file], u64::MAX, Settings::default(), DefaultAddresses::Shared).validity()
    }

    #[test]
    fn an_input_is_as_good_as_its_worst_object() {
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
        assert_eq!(validity(secret), Validity::Valid);
        assert_eq!(validity(&format!("{secret}---\n{secret}")), Validity::Faulty, "defined twice");
        let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {gatewayClassName: none, listeners: [{name: a, port: 80, protocol: HTTP}]}\n";
        assert_eq!(validity(gateway), Validity::Faulty, "a class that is not there");
        let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i}\n";
        assert_eq!(
            validity(&format!("{secret}---\n{ingress}")),
            Validity::Faulty,
            "an Ingress is not served"
        );
        let other = "apiVersion: config.openshift.io/v1\nkind: Ingress\nmetadata: {name: i}\n";
        assert_eq!(validity(other), Validity::Valid, "an Ingress of another API");
        assert_eq!(validity("# nothing\n"), Validity::Empty);
        assert_eq!(validity("kind: [\n"), Validity::Unreadable);
    }
}
