//! The GatewayClass that is taken for granted in directories and offline, where no chart installs
//! it, and Gateways whose class is missing all the same; addresses where no Service gives any.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portcullis_api::{Change, Kind, Object, ObjectKey};
use portcullis_model::ObjectName;

use super::Batch;

const CLASS: &str = "portcullis";

/// The manifest of the built-in class.
pub const BUILT_IN: &str = "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: portcullis
spec:
  controllerName: portcullis.dev/gateway
";

/// Addresses of the Gateways of a directory that have no `spec.addresses`: those that are given, or
/// all of the node's.
pub fn default_addresses(given: &[IpAddr]) -> Vec<IpAddr> {
    match given {
        [] => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        given => given.to_owned(),
    }
}

/// The changes of an input after those of the built-in objects, which they replace.
pub fn with_built_in(changes: Vec<Change>) -> Vec<Change> {
    let built_in =
        serde_saphyr::from_str(BUILT_IN).ok().and_then(|manifest| Object::from_json(manifest).ok()?);
    built_in.map(Change::Set).into_iter().chain(changes).collect()
}

/// Each Gateway whose GatewayClass the input lacks, and what follows from it. A cluster may hold
/// the class, and the status is not ours to write as long as that is unknown; but the author of a
/// directory needs to know.
pub fn gateways_without_class(batch: &Batch) -> Vec<(ObjectKey, String)> {
    let objects: Vec<_> = batch.manifests.iter().filter_map(|manifest| manifest.object.as_ref()).collect();
    let present: BTreeSet<_> = objects.iter().map(|object| object.key()).chain([class(CLASS)]).collect();
    let classes = objects.iter().filter_map(|object| match object {
        Object::Gateway(gateway) => Some((object.key(), class(&gateway.spec.gateway_class_name))),
        _ => None,
    });
    classes
        .filter(|(_, class)| !present.contains(class))
        .map(|(gateway, class)| (gateway, format!("{class} is not in the input: nothing is served there")))
        .collect()
}

fn class(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::GatewayClass, ObjectName::new("", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_class_comes_first_and_has_the_name() {
        let changes = with_built_in(Vec::new());
        let [Change::Set(object)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(object.key(), class(CLASS));
    }

    #[test]
    fn gateways_of_a_directory_are_everywhere_unless_addresses_are_given() {
        assert_eq!(default_addresses(&[]), [[0_u8; 4].into(), IpAddr::from([0_u16; 8])]);
        let one = [IpAddr::from([10, 0, 0, 1])];
        assert_eq!(default_addresses(&one), one);
    }
}
