//! The remainder of a policy in a file that the schema refuses: its name, its targets and the
//! reasons. Translation closes the targets, for the reasons or because a policy that says nothing
//! cannot be followed; if the policy were left out, what it protects would be open. Nothing here
//! knows what policies mean.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use portcullis_model::ObjectName;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::name::is_subdomain;
use crate::{Kind, Object, ObjectKey};

/// True for the kinds of policies without which something would be open, or in plaintext.
pub(crate) fn is_protecting(kind: Kind) -> bool {
    matches!(kind, Kind::TrafficPolicy | Kind::ListenerPolicy | Kind::BackendTlsPolicy)
}

/// The policy without anything that it says; `None` if none of its targets can be read.
pub(crate) fn closed_policy(key: &ObjectKey, written: &Value, reasons: &[String]) -> Option<Object> {
    let targets = targets(key.kind, written);
    if !targets.iter().any(|target| is_known(key.kind, target)) {
        return None;
    }
    let mut spec = json!({"targetRefs": targets});
    if key.kind == Kind::BackendTlsPolicy {
        spec["validation"] = json!({"hostname": ""});
    }
    let manifest = json!({
        "apiVersion": key.kind.api_version(),
        "kind": key.kind.as_str(),
        "metadata": metadata(key, &written["metadata"]),
        "spec": spec,
    });
    let refused = Some(reasons.join("; "));
    match Object::from_json(manifest).ok()?? {
        Object::TrafficPolicy(mut policy) => {
            Arc::make_mut(&mut policy).spec.refused = refused;
            Some(Object::TrafficPolicy(policy))
        }
        Object::ListenerPolicy(mut policy) => {
            Arc::make_mut(&mut policy).spec.refused = refused;
            Some(Object::ListenerPolicy(policy))
        }
        Object::BackendTlsPolicy(mut policy) => {
            Arc::make_mut(&mut policy).spec.refused = refused;
            Some(Object::BackendTlsPolicy(policy))
        }
        _ => None,
    }
}

/// A possible name for a policy whose own is not. No other has it: what is left out of a name, its
/// hash tells apart.
pub(crate) fn possible_name(written: &ObjectName) -> ObjectName {
    const LONGEST: usize = 200;
    let mut hasher = DefaultHasher::new();
    written.hash(&mut hasher);
    let possible = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let kept: String = written.name.chars().take(LONGEST).map(possible).collect();
    let name = format!("misnamed-{kept}-{:016x}", hasher.finish());
    ObjectName::new(written.namespace.clone(), name)
}

/// The name, and what statuses and precedence go by, as far as it is what it should be.
fn metadata(key: &ObjectKey, written: &Value) -> Value {
    let mut metadata = json!({"name": key.name.name, "namespace": key.name.namespace});
    if written["generation"].is_i64() {
        metadata["generation"] = written["generation"].clone();
    }
    if Time::deserialize(&written["creationTimestamp"]).is_ok() {
        metadata["creationTimestamp"] = written["creationTimestamp"].clone();
    }
    metadata
}

/// Those of which kind and name can be read; a single one may have been written without its list.
fn targets(policy: Kind, written: &Value) -> Vec<Value> {
    let spec = &written["spec"];
    let written = match spec.get("targetRefs").unwrap_or(&spec["targetRef"]) {
        Value::Array(targets) => targets.as_slice(),
        target @ Value::Object(_) => slice::from_ref(target),
        _ => &[],
    };
    written.iter().filter_map(|written| target(policy, written)).collect()
}

/// Without a section that can be there, all of the object is meant, and a kind that such a policy
/// can target is meant in whichever group: rather too much is closed than too little.
fn target(policy: Kind, written: &Value) -> Option<Value> {
    let text = |field: &str| written[field].as_str();
    let kind = text("kind")?;
    let meant = policy.targets().iter().find(|known| known.as_str() == kind);
    let group = meant.map(|known| known.group()).or_else(|| text("group"))?;
    let mut target = json!({"group": group, "kind": kind, "name": text("name")?});
    if let Some(section) = text("sectionName").filter(|section| is_subdomain(section)) {
        target["sectionName"] = section.into();
    }
    Some(target)
}

/// True if there can be such an object, and the policy can be about it.
fn is_known(policy: Kind, target: &Value) -> bool {
    let text = |field: &str| target[field].as_str().unwrap_or_default();
    let kind = Kind::of(text("group"), text("kind"));
    kind.is_some_and(|kind| policy.targets().contains(&kind)) && is_subdomain(text("name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Admission, admit};

    fn policy(kind: &str, metadata: &Value, spec: &Value) -> Value {
        let kinds = [Kind::TrafficPolicy, Kind::ListenerPolicy, Kind::BackendTlsPolicy, Kind::BackendPolicy];
        let known = kinds.into_iter().find(|known| known.as_str() == kind).unwrap();
        json!({"apiVersion": known.api_version(), "kind": kind, "metadata": metadata, "spec": spec})
    }

    /// The remainder of a manifest that is refused.
    fn left(manifest: Value) -> Option<Object> {
        match admit(manifest) {
            Admission::Refused(refusal) => {
                let reasons = refusal.reasons.join("; ");
                assert!(refusal.closed.iter().all(|left| left.refused() == Some(reasons.as_str())));
                assert!(refusal.closed.iter().all(|left| Some(left.key()) == refusal.key));
                refusal.closed
            }
            other => panic!("{other:?}"),
        }
    }

    /// Of a TrafficPolicy whose `deny` is no list.
    fn targets_left(targets: &Value) -> Option<Value> {
        let spec = json!({"targetRefs": targets, "deny": "127.0.0.0/8"});
        let left = left(policy("TrafficPolicy", &json!({"name": "p"}), &spec))?;
        Some(left.to_json().unwrap()["spec"]["targetRefs"].clone())
    }

    #[test]
    fn the_targets_of_a_refused_policy_are_left() {
        let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"});
        let section = |section: Value| {
            let mut target = gateway.clone();
            target["sectionName"] = section;
            target
        };
        let http = section("http".into());
        for (written, expected) in [
            (json!([gateway, http]), Some(json!([gateway, http]))),
            (json!(gateway), Some(json!([gateway]))),
            (json!([section("Http".into()), section(1.into())]), Some(json!([gateway, gateway]))),
            (json!([{"kind": "Gateway", "name": "web"}, {"name": "x"}, 1]), Some(json!([gateway]))),
            (json!([{"kind": "Gatewya", "name": "web"}]), None),
            (
                json!([{"group": "gateway.networking.k8s.oi", "kind": "Gateway", "name": "web"}]),
                Some(json!([gateway])),
            ),
            (
                json!([{"group": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web"}]),
                Some(json!([gateway])),
            ),
            (json!([{"group": "", "kind": "Gateway", "name": "web"}]), Some(json!([gateway]))),
            (json!([{"group": "example.com", "kind": "Mesh", "name": "web"}]), None),
            (json!([{"group": "", "kind": "Service", "name": "web"}]), None),
            (json!([{"kind": "Gateway", "name": "Web"}]), None),
            (json!([]), None),
            (json!("web"), None),
        ] {
            assert_eq!(targets_left(&written), expected, "{written}");
        }
    }

    #[test]
    fn a_single_target_may_have_a_field_of_its_own() {
        let target = json!({"kind": "HTTPRoute", "name": "r"});
        let spec = json!({"targetRef": target, "deny": ["127.0.0.0/8"]});
        assert!(left(policy("TrafficPolicy", &json!({"name": "p"}), &spec)).is_some());
    }

    #[test]
    fn metadata_and_versions_may_be_what_is_wrong() {
        let targets = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "deny": ["127.0.0.0/8"]});
        let metadata = json!({"name": "p", "namespace": "infra", "generation": 3, "labels": [1],
            "creationTimestamp": "2026-01-02T03:04:05Z"});
        let kept = left(policy("ListenerPolicy", &metadata, &spec)).unwrap();
        let kept = kept.metadata();
        assert_eq!((kept.generation, crate::created(&kept)), (Some(3), 1_767_323_045));
        let metadata = json!({"name": "p", "generation": "x", "creationTimestamp": "yesterday"});
        let kept = left(policy("ListenerPolicy", &metadata, &spec)).unwrap();
        assert_eq!((kept.metadata().generation, &kept.metadata().creation_timestamp), (None, &None));

        let mut manifest = policy("TrafficPolicy", &json!({"name": "p"}), &spec);
        manifest["apiVersion"] = "portcullis.dev/v9".into();
        assert!(left(manifest).is_some());
    }

    #[test]
    fn a_policy_with_an_impossible_name_closes_its_targets_under_a_possible_one() {
        let targets = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "deny": ["127.0.0.0/8"]});
        let name = |name: &str| {
            let metadata = json!({"name": name, "namespace": "infra"});
            left(policy("TrafficPolicy", &metadata, &spec)).map(|left| left.key().name)
        };
        let long = "A".repeat(300);
        for written in ["Good", "good_", "/../é", long.as_str()] {
            let closed = name(written).unwrap();
            assert!(is_subdomain(&closed.name), "{closed}");
            assert_eq!((&*closed.namespace, Some(&closed)), ("infra", name(written).as_ref()));
        }
        assert!(name("Good").unwrap().name.starts_with("misnamed-good-"));
        assert_ne!(name("Good"), name("GOOD"));
        let written = admit(policy("TrafficPolicy", &json!({"name": "Good"}), &spec));
        let Admission::Refused(refusal) = written else { panic!("not refused") };
        assert_eq!(refusal.object, "TrafficPolicy default/Good");

        let elsewhere = json!({"name": "p", "namespace": "Infra"});
        assert!(left(policy("TrafficPolicy", &elsewhere, &spec)).is_none(), "nothing is there");
    }

    #[test]
    fn other_kinds_leave_nothing_and_no_manifest_says_that_it_was_refused() {
        let service = json!([{"group": "", "kind": "Service", "name": "s"}]);
        let spec = json!({"targetRefs": service});
        assert!(left(policy("BackendTLSPolicy", &json!({"name": "p"}), &spec)).is_some());
        let spec = json!({"targetRefs": service, "timeouts": 1});
        assert!(left(policy("BackendPolicy", &json!({"name": "p"}), &spec)).is_none());

        let targets = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "deny": ["127.0.0.0/8"], "refused": "x"});
        let manifest = policy("TrafficPolicy", &json!({"name": "p"}), &spec);
        assert_eq!(Object::from_json(manifest.clone()).unwrap().unwrap().refused(), None);
        assert_eq!(left(manifest).unwrap().refused(), Some("spec.refused: unknown field"));
    }

    /// The rest of it would protect less than was meant.
    #[test]
    fn a_policy_with_a_field_that_is_misspelt_closes_its_targets() {
        let targets = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}]);
        let spec = json!({"targetRefs": targets, "allow": ["10.0.0.0/8"], "denny": ["10.1.0.0/16"]});
        let closed = left(policy("TrafficPolicy", &json!({"name": "p"}), &spec)).unwrap();
        assert_eq!(closed.refused(), Some("spec.denny: unknown field"));
        let spec = json!({"targetRefs": targets, "allow": ["10.0.0.0/8"]});
        let mut not_indented = policy("TrafficPolicy", &json!({"name": "p"}), &spec);
        not_indented["deny"] = json!(["10.1.0.0/16"]);
        assert_eq!(left(not_indented).unwrap().refused(), Some("deny: unknown field"));
        let elsewhere = json!({"name": "p", "typo": 1});
        assert!(matches!(admit(policy("TrafficPolicy", &elsewhere, &spec)), Admission::Admitted { .. }));
    }
}
