//! Each arrow of the flow chart of GEP-3949 and each of its rules that can be broken by a plan.

use super::*;
use serde_json::{Value, json};

fn mesh(spec: Value, status: Value) -> XMesh {
    let metadata = json!({"name": "portcullis", "generation": 3});
    serde_json::from_value(json!({"apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XMesh",
        "metadata": metadata, "spec": spec, "status": status}))
    .unwrap()
}

fn ours(status: Value) -> XMesh {
    mesh(json!({"controllerName": MESH_CONTROLLER_NAME}), status)
}

fn referring_to(reference: Value) -> XMesh {
    mesh(json!({"controllerName": MESH_CONTROLLER_NAME, "parametersRef": reference}), Value::Null)
}

fn instance() -> Instance {
    Instance { version: "1.2.3".to_owned(), namespace: "edge".to_owned(), agents: Some(2) }
}

/// With one ConfigMap, `edge/mesh`, of this data.
fn planned_with(observed: Option<&XMesh>, data: Value) -> MeshPlan {
    let config_map: ConfigMap = serde_json::from_value(json!({"metadata": {}, "data": data})).unwrap();
    let find = |name: &ObjectName| (name.to_string() == "edge/mesh").then_some(&config_map);
    plan(observed, find, &instance(), &MeshSettings::default())
}

fn planned(observed: Option<&XMesh>) -> MeshPlan {
    planned_with(observed, json!({}))
}

fn status_of(plan: MeshPlan) -> Value {
    let MeshStep::WriteStatus(status) = plan.step else { panic!("{:?}", plan.step) };
    serde_json::to_value(status).unwrap()
}

/// The CRD's own default.
fn default_status() -> Value {
    let condition = |r#type: &str| {
        json!({"type": r#type, "status": "Unknown", "reason": "Pending", "message": "Waiting for controller",
            "lastTransitionTime": "1970-01-01T00:00:00Z"})
    };
    json!({"conditions": [condition("Accepted"), condition("Programmed")]})
}

#[test]
fn an_absent_resource_is_created_with_nothing_but_the_controller_name() {
    let MeshStep::Create(created) = planned(None).step else { panic!() };
    let created = serde_json::to_value(created).unwrap();
    assert_eq!(created["metadata"], json!({"name": "portcullis"}));
    assert_eq!(created["spec"], json!({"controllerName": "portcullis.dev/mesh"}));
    assert_eq!(created["status"], Value::Null);
}

#[test]
fn the_expected_name_can_be_chosen() {
    let settings = MeshSettings { name: "blue".to_owned(), ..MeshSettings::default() };
    let MeshStep::Create(created) = plan(None, |_| None, &instance(), &settings).step else { panic!() };
    assert_eq!(created.metadata.name.as_deref(), Some("blue"));
}

#[test]
fn a_resource_of_another_controller_causes_a_warning_and_no_write() {
    let other = mesh(json!({"controllerName": "example.com/other"}), default_status());
    let plan = planned(Some(&other));
    let MeshStep::Warn(message) = plan.step else { panic!() };
    assert!(message.contains("example.com/other") && message.contains("--mesh-name"), "{message}");
    assert_eq!(plan.parameters, MeshParameters::default());
}

#[test]
fn our_resource_is_accepted_and_says_by_whom() {
    let status = status_of(planned(Some(&ours(default_status()))));
    assert_eq!(
        status,
        json!({"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "observedGeneration": 3,
            "message": "Accepted by Portcullis 1.2.3 in namespace edge (2 agents)",
            "lastTransitionTime": "1970-01-01T00:00:00Z"}], "supportedFeatures": []})
    );
}

#[test]
fn a_status_that_says_it_all_is_not_written_again() {
    let mut status = status_of(planned(Some(&ours(Value::Null))));
    status["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(planned(Some(&ours(status.clone()))).step, MeshStep::Nothing);
    status["conditions"][0]["observedGeneration"] = 2.into();
    assert!(matches!(planned(Some(&ours(status))).step, MeshStep::WriteStatus(_)));
}

#[test]
fn a_missing_feature_list_is_written_even_if_it_is_empty() {
    let mut status = status_of(planned(Some(&ours(Value::Null))));
    status.as_object_mut().unwrap().remove("supportedFeatures");
    assert_eq!(status_of(planned(Some(&ours(status))))["supportedFeatures"], json!([]));
}

#[test]
fn conditions_that_others_added_stay() {
    let mut status = default_status();
    status["conditions"][1]["status"] = "True".into();
    let written = status_of(planned(Some(&ours(status.clone()))));
    assert_eq!(written["conditions"][1], status["conditions"][1]);
}

#[test]
fn features_are_sorted_and_unique() {
    assert!(SUPPORTED_FEATURES.is_sorted_by(|a, b| a < b));
}

#[test]
fn parameters_that_cannot_be_used_reject_the_resource() {
    let config_map = json!({"group": "", "kind": "ConfigMap", "name": "mesh", "namespace": "edge"});
    let with = |field: &str, value: Value| {
        let mut reference = config_map.clone();
        reference[field] = value;
        reference
    };
    for (reference, data, expected) in [
        (with("name", "absent".into()), json!({}), "there is no ConfigMap edge/absent"),
        (with("namespace", Value::Null), json!({}), "set parametersRef.namespace"),
        (with("kind", "Secret".into()), json!({}), "kind Secret is not supported"),
        (with("group", "example.com".into()), json!({}), "kind ConfigMap.example.com is not supported"),
        // cluster-scoped, but with a namespace
        (with("kind", "Namespace".into()), json!({}), "kind Namespace is not supported"),
        (config_map.clone(), json!({"reportAgents": "maybe"}), "reportAgents is \"maybe\""),
        (config_map.clone(), json!({"other": "1"}), "other is no parameter"),
    ] {
        let plan = planned_with(Some(&referring_to(reference)), data);
        assert_eq!(plan.parameters, MeshParameters::default());
        let status = status_of(plan);
        let condition = &status["conditions"][0];
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("False"), &json!("InvalidParameters"))
        );
        assert!(condition["message"].as_str().unwrap().contains(expected), "{condition}");
        assert_eq!(status["supportedFeatures"], json!([]));
    }
}

#[test]
fn report_agents_decides_whether_the_message_counts() {
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "mesh", "namespace": "edge"});
    let observed = referring_to(reference);
    assert_eq!(parameters_of(&observed).unwrap().to_string(), "edge/mesh");
    let plan = planned_with(Some(&observed), json!({"reportAgents": "false"}));
    assert!(!plan.parameters.report_agents);
    assert_eq!(status_of(plan)["conditions"][0]["message"], "Accepted by Portcullis 1.2.3 in namespace edge");
}

/// As it would be written to an XMesh that Portcullis does not look for.
fn unexpected(mesh: &XMesh) -> Option<Value> {
    let settings = MeshSettings { name: "blue".to_owned(), ..MeshSettings::default() };
    plan_unexpected(mesh, &instance(), &settings).map(|status| serde_json::to_value(status).unwrap())
}

#[test]
fn ours_of_another_name_says_that_it_is_not_used() {
    let status = unexpected(&ours(default_status())).unwrap();
    let conditions = status["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1, "{status}");
    let accepted = &conditions[0];
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("False"), &json!("UnexpectedName")));
    let message = accepted["message"].as_str().unwrap();
    assert!(message.contains("XMesh blue") && message.contains("--mesh-name"), "{message}");
    assert_eq!(unexpected(&ours(status)), None, "said once");
}

#[test]
fn what_another_installation_says_of_its_own_is_left_to_it() {
    let claimed = |status: &str, reason: &str, generation: u32| {
        json!({"conditions": [{"type": "Accepted", "status": status, "reason": reason, "message": "",
            "observedGeneration": generation, "lastTransitionTime": "1970-01-01T00:00:00Z"}]})
    };
    assert_eq!(unexpected(&ours(claimed("True", "Accepted", 3))), None);
    assert_eq!(unexpected(&ours(claimed("True", "Accepted", 2))), None, "they will see to it");
    assert_eq!(unexpected(&ours(claimed("False", "InvalidParameters", 2))), None);
    assert!(unexpected(&ours(claimed("False", "UnexpectedName", 2))).is_some());
    assert_eq!(unexpected(&mesh(json!({"controllerName": "example.com/other"}), default_status())), None);
}
