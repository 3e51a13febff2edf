//! The operations by which what is there becomes what is desired. Objects that were not generated
//! for the Gateway are never touched, whatever their name.

use std::collections::BTreeMap;

use portcullis_model::ObjectName;
use serde_json::Value;

use super::DesiredObjects;
use super::name::fnv1a;
use super::object::{Generated, GeneratedKind};
use super::syntax::billionths;

#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Server-side apply under our field manager: what an earlier apply set and this one does not
    /// is withdrawn.
    Apply(Box<Generated>),
    /// A field that cannot be changed has to be: the object must go before it can come as it is
    /// desired.
    Replace { object: Box<Generated>, uid: String },
    /// Generated for a Gateway that is gone, has another class, mode or name for it by now.
    Delete { kind: GeneratedKind, name: ObjectName, uid: String },
    /// Another owner's object has the name: it is left alone, and the Gateway gets no object of its
    /// own.
    Refuse { gateway: ObjectName, kind: GeneratedKind, message: String },
}

impl Operation {
    pub fn kind(&self) -> GeneratedKind {
        match self {
            Self::Apply(object) | Self::Replace { object, .. } => object.kind,
            Self::Delete { kind, .. } | Self::Refuse { kind, .. } => *kind,
        }
    }

    /// True if it must not be done for a Gateway that cannot have its object of a kind.
    pub fn needs(&self, kind: GeneratedKind) -> bool {
        match self {
            Self::Apply(object) | Self::Replace { object, .. } => object.kind.needs(kind),
            Self::Delete { .. } | Self::Refuse { .. } => false,
        }
    }
}

/// An annotation of our own: what was applied. Withdrawn fields are known by it; they look like
/// others' fields otherwise.
const APPLIED: &str = "portcullis.dev/applied";

type Observed<'o> = BTreeMap<(GeneratedKind, ObjectName), &'o Generated>;
type Owners<'d> = BTreeMap<(GeneratedKind, ObjectName), &'d DesiredObjects>;

/// `observed` are all objects of these kinds, or all that are generated plus those whose name is
/// desired. What other controllers had generated is theirs to remove.
pub fn diff<'o>(
    desired: &[DesiredObjects],
    observed: impl IntoIterator<Item = &'o Generated>,
    controller_name: &str,
) -> Vec<Operation> {
    let observed: Observed<'o> =
        observed.into_iter().map(|object| ((object.kind, object.name()), object)).collect();
    let gateways = desired.iter().map(|desired| (desired.uid.as_str(), desired)).collect();
    let obsolete = observed.values().filter(|object| is_obsolete(object, &gateways, controller_name));
    let owners = owners(desired, &observed);
    let made = pairs(desired).filter_map(|(desired, object)| realize(desired, object, &observed, &owners));
    made.chain(obsolete.map(|object| delete(object))).collect()
}

/// The objects that Gateways would get where there are none yet, and, for each object that a
/// Gateway does not get because another one has its name, a message with that Gateway's name.
pub fn without_clashes(desired: &[DesiredObjects]) -> (Vec<&Generated>, Vec<(&ObjectName, String)>) {
    let owners = owners(desired, &Observed::new());
    let (mut objects, mut clashes) = (Vec::new(), Vec::new());
    for (desired, object) in pairs(desired) {
        match owners.get(&(object.kind, object.name())) {
            Some(owner) if owner.gateway != desired.gateway => {
                clashes.push((&desired.gateway, clash(object, desired, owner)));
            }
            _ => objects.push(object),
        }
    }
    (objects, clashes)
}

fn pairs(desired: &[DesiredObjects]) -> impl Iterator<Item = (&DesiredObjects, &Generated)> {
    desired.iter().flat_map(|desired| desired.objects().iter().map(move |object| (desired, object)))
}

/// The Gateway that gets the object of a name. Several may want it: `a-b` of class `c` and `a` of
/// class `b-c`. The one for which it was generated keeps it; else the oldest gets it.
fn owners<'d>(desired: &'d [DesiredObjects], observed: &Observed<'_>) -> Owners<'d> {
    let mut owners = Owners::new();
    for (candidate, object) in pairs(desired) {
        let key = (object.kind, object.name());
        let has_it = |desired: &DesiredObjects| {
            observed.get(&key).is_some_and(|there| there.gateway_uid() == Some(&desired.uid))
        };
        let rank = |desired: &'d DesiredObjects| (!has_it(desired), desired.created, &desired.gateway);
        if owners.get(&key).is_none_or(|owner| rank(candidate) < rank(owner)) {
            owners.insert(key, candidate);
        }
    }
    owners
}

fn realize(
    desired: &DesiredObjects,
    object: &Generated,
    observed: &Observed<'_>,
    owners: &Owners<'_>,
) -> Option<Operation> {
    let object = stamped(object);
    let key = (object.kind, object.name());
    if let Some(owner) = owners.get(&key).filter(|owner| owner.gateway != desired.gateway) {
        let (gateway, message) = (desired.gateway.clone(), clash(&object, desired, owner));
        return Some(Operation::Refuse { gateway, kind: object.kind, message });
    }
    match observed.get(&key) {
        Some(there) if there.gateway_uid() != Some(&desired.uid) => Some(refuse(desired, there)),
        Some(there) if contains(&there.manifest, &object.manifest) => None,
        Some(there) if has_other_address(there, &object) => {
            Some(Operation::Replace { object: Box::new(object), uid: uid(there) })
        }
        _ => Some(Operation::Apply(Box::new(object))),
    }
}

fn refuse(desired: &DesiredObjects, there: &Generated) -> Operation {
    let gateway = desired.gateway.clone();
    let message = format!(
        "{there} was not generated for Gateway {gateway}: it is left alone; rename or delete it, or rename the Gateway"
    );
    Operation::Refuse { gateway, kind: there.kind, message }
}

fn clash(object: &Generated, desired: &DesiredObjects, owner: &DesiredObjects) -> String {
    format!(
        "{object} is Gateway {}'s, and Gateway {} would need one of the same name (<Gateway>-<GatewayClass>): rename the Gateway",
        owner.gateway, desired.gateway
    )
}

/// A Service's `spec.clusterIP` is for life. One that has none yet, or is to have any, is no
/// obstacle.
fn has_other_address(there: &Generated, desired: &Generated) -> bool {
    let address = |object: &Generated| object.manifest["spec"]["clusterIP"].as_str().map(str::to_owned);
    matches!((address(there), address(desired)), (Some(there), Some(desired)) if there != desired)
}

fn is_obsolete(
    object: &Generated,
    gateways: &BTreeMap<&str, &DesiredObjects>,
    controller_name: &str,
) -> bool {
    let gateway = object.gateway_uid().and_then(|uid| gateways.get(uid));
    object.is_generated()
        && object.is_of_controller(controller_name)
        && gateway.is_none_or(|desired| !desired.keeps(object))
}

fn delete(object: &Generated) -> Operation {
    Operation::Delete { kind: object.kind, name: object.name(), uid: uid(object) }
}

fn uid(object: &Generated) -> String {
    object.metadata.uid.clone().unwrap_or_default()
}

/// True if an applied object differs: its manifest is complete, so comparing that is comparing all
/// of it.
fn stamped(object: &Generated) -> Generated {
    let mut object = object.clone();
    let applied = format!("{:08x}", fnv1a(&object.manifest.to_string()));
    object.manifest["metadata"]["annotations"][APPLIED] = applied.clone().into();
    object.metadata.annotations.get_or_insert_default().insert(APPLIED.to_owned(), applied);
    object
}

/// True if every field of `part` is in `whole`; elements of lists correspond by position.
pub(super) fn contains(whole: &Value, part: &Value) -> bool {
    use Value::{Array, Object};
    match (whole, part) {
        (Object(whole), Object(part)) => {
            part.iter().all(|(key, value)| match (key.as_str(), whole.get(key)) {
                (_, None) => false,
                ("requests" | "limits", Some(there)) => has_amounts(there, value),
                ("ipFamilies", Some(there)) => begins(there, value),
                (_, Some(there)) => contains(there, value),
            })
        }
        (Array(whole), Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(there, value)| contains(there, value))
        }
        (there, value) => there == value,
    }
}

/// Of the families of a Service, to whose first one the API server adds the second.
fn begins(there: &Value, desired: &Value) -> bool {
    let (Some(there), Some(desired)) = (there.as_array(), desired.as_array()) else {
        return there == desired;
    };
    there.starts_with(desired)
}

/// Of resources, where the API server writes `0.5` as `500m`: another way to write an amount is no
/// difference.
fn has_amounts(there: &Value, desired: &Value) -> bool {
    let (Some(there), Some(desired)) = (there.as_object(), desired.as_object()) else {
        return there == desired;
    };
    let amount = |quantity: Option<&Value>| quantity?.as_str().and_then(billionths);
    desired.iter().all(|(resource, quantity)| amount(there.get(resource)) == amount(Some(quantity)))
}
