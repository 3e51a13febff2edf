//! What to do so that what is there becomes what is wanted. Objects that were not generated for the Gateway are never
//! touched, whatever their name.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use portcullis_model::ObjectName;

use super::{CONTROLLER_ANNOTATION, MANAGED_BY_LABEL, MANAGER, Wanted};
use crate::GATEWAY_GROUP;

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Server-side apply under our field manager: what an earlier apply set and this one does not is withdrawn.
    Apply(Box<Service>),
    /// Generated for a Gateway that is gone, has another class or another name for it by now.
    Delete { name: ObjectName, uid: String },
    /// Somebody else's object has the name: it is left alone, and the Gateway gets no object of its own.
    Refuse { gateway: ObjectName, message: String },
}

/// An annotation of our own: what was applied. It tells withdrawn fields, which cannot be told from others' otherwise.
const APPLIED: &str = "portcullis.dev/applied";

/// `observed` are all Services, or all that are generated plus those whose name is wanted. What other controllers had
/// generated is theirs to remove.
pub fn diff<'s>(
    wanted: &[Wanted],
    observed: impl IntoIterator<Item = &'s Service>,
    controller_name: &str,
) -> Vec<Operation> {
    let observed: BTreeMap<ObjectName, &Service> =
        observed.into_iter().map(|service| (name_of(service), service)).collect();
    let obsolete = observed.values().filter(|service| is_obsolete(service, wanted, controller_name));
    let wanted = wanted.iter().filter_map(|wanted| realize(wanted, &observed));
    wanted.chain(obsolete.map(|service| delete(service))).collect()
}

/// Whether we made it for some Gateway: it says so, and that Gateway is its controller.
pub fn is_generated(service: &Service) -> bool {
    let label = service.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY_LABEL));
    label.is_some_and(|value| value == MANAGER) && owner_of(service).is_some()
}

fn realize(wanted: &Wanted, observed: &BTreeMap<ObjectName, &Service>) -> Option<Operation> {
    let service = stamped(wanted.service.as_deref()?);
    match observed.get(&name_of(&service)) {
        Some(there) if !belongs_to(there, wanted) => Some(refuse(wanted, there)),
        Some(there) if is_up_to_date(there, &service) => None,
        _ => Some(Operation::Apply(Box::new(service))),
    }
}

fn refuse(wanted: &Wanted, there: &Service) -> Operation {
    let name = name_of(there);
    let message = format!(
        "Service {name} was not generated for Gateway {}: it is left alone; rename or delete it, or rename the Gateway",
        wanted.gateway
    );
    Operation::Refuse { gateway: wanted.gateway.clone(), message }
}

fn belongs_to(service: &Service, wanted: &Wanted) -> bool {
    is_generated(service) && owner_of(service).is_some_and(|owner| owner.uid == wanted.uid)
}

/// A Gateway that has no port at the moment keeps its Service.
fn is_obsolete(service: &Service, wanted: &[Wanted], controller_name: &str) -> bool {
    let controller = service.metadata.annotations.as_ref().and_then(|all| all.get(CONTROLLER_ANNOTATION));
    if !is_generated(service) || controller.is_none_or(|controller| controller != controller_name) {
        return false;
    }
    let name = name_of(service);
    !wanted.iter().any(|wanted| {
        belongs_to(service, wanted) && wanted.service.as_deref().is_none_or(|kept| name_of(kept) == name)
    })
}

fn delete(service: &Service) -> Operation {
    Operation::Delete { name: name_of(service), uid: service.metadata.uid.clone().unwrap_or_default() }
}

pub(super) fn owner_of(service: &Service) -> Option<&OwnerReference> {
    let is_gateway = |owner: &&OwnerReference| {
        owner.kind == "Gateway"
            && owner.api_version.starts_with(GATEWAY_GROUP)
            && owner.controller == Some(true)
    };
    service.metadata.owner_references.iter().flatten().find(is_gateway)
}

/// What is applied says what it is, in full: comparing that is comparing all of it.
fn stamped(service: &Service) -> Service {
    let mut service = service.clone();
    let applied =
        serde_json::to_string(&service).map(|text| format!("{:016x}", fnv1a(&text))).unwrap_or_default();
    service.metadata.annotations.get_or_insert_default().insert(APPLIED.to_owned(), applied);
    service
}

/// The stamp says that nothing is to be withdrawn; the rest, that nobody changed what we set.
fn is_up_to_date(there: &Service, wanted: &Service) -> bool {
    let (there, wanted) = (serde_json::to_value(there), serde_json::to_value(wanted));
    matches!((there, wanted), (Ok(there), Ok(wanted)) if contains(&there, &wanted))
}

/// Whether every field of `part` is in `whole`; elements of lists correspond by position.
fn contains(whole: &serde_json::Value, part: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Object};
    match (whole, part) {
        (Object(whole), Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|there| contains(there, value)))
        }
        (Array(whole), Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(there, value)| contains(there, value))
        }
        (there, value) => there == value,
    }
}

fn name_of(service: &Service) -> ObjectName {
    let metadata = &service.metadata;
    ObjectName::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// FNV-1a, 64 bits: must be the same in every process.
fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
