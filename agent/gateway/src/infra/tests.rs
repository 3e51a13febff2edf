use super::*;
use serde_json::{Value, json};

fn changes<'s>(wanted: &[Wanted], observed: impl IntoIterator<Item = &'s Service>) -> Vec<Operation> {
    diff(wanted, observed, crate::CONTROLLER_NAME)
}

fn gateway(spec: Value) -> Gateway {
    let mut spec = spec;
    spec["gatewayClassName"] = "example".into();
    serde_json::from_value(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "my-gateway", "namespace": "edge", "uid": "u-1"}, "spec": spec}))
    .unwrap()
}

fn ports(numbers: &[u16]) -> BTreeSet<Port> {
    numbers.iter().map(|&number| Port { number, protocol: L4Protocol::Tcp }).collect()
}

fn wanted(spec: Value) -> Wanted {
    plan(&gateway(spec), &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME).unwrap()
}

fn service(wanted: &Wanted) -> Value {
    serde_json::to_value(wanted.service.as_ref().unwrap()).unwrap()
}

/// As the API server would return it.
fn applied(wanted: &Wanted) -> Service {
    let operations = changes(std::slice::from_ref(wanted), []);
    let [Operation::Apply(service)] = operations.as_slice() else { panic!("{operations:?}") };
    let mut service = service.clone();
    service.metadata.uid = Some("s-1".to_owned());
    service.spec.as_mut().unwrap().cluster_ip = Some("10.96.3.4".to_owned());
    service.spec.as_mut().unwrap().session_affinity = Some("None".to_owned());
    *service
}

#[test]
fn a_gateway_gets_a_service_without_selector() {
    let plan = plan(&gateway(json!({})), &ports(&[443, 80]), &Parameters::default(), crate::CONTROLLER_NAME)
        .unwrap();
    assert_eq!(
        service(&plan),
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "my-gateway-example", "namespace": "edge",
                "annotations": {"portcullis.dev/controller": "portcullis.dev/gateway"},
                "labels": {"gateway.networking.k8s.io/gateway-name": "my-gateway",
                    "gateway.networking.k8s.io/gateway-class-name": "example",
                    "service.kubernetes.io/service-proxy-name": "portcullis",
                    "app.kubernetes.io/managed-by": "portcullis"},
                "ownerReferences": [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                    "name": "my-gateway", "uid": "u-1", "controller": true}]},
            "spec": {"type": "ClusterIP", "ports": [
                {"name": "tcp-80", "port": 80, "protocol": "TCP"},
                {"name": "tcp-443", "port": 443, "protocol": "TCP"}]}})
    );
}

#[test]
fn infrastructure_labels_and_annotations_go_on_it_but_cannot_change_whose_it_is() {
    let infrastructure = json!({"infrastructure": {"annotations": {"name": "my-annotation"},
        "labels": {"foo": "bar", "gateway.networking.k8s.io/gateway-name": "other"}}});
    let service = service(&wanted(infrastructure));
    assert_eq!(
        service["metadata"]["annotations"],
        json!({"name": "my-annotation", "portcullis.dev/controller": "portcullis.dev/gateway"})
    );
    assert_eq!(service["metadata"]["labels"]["foo"], "bar");
    assert_eq!(service["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"], "my-gateway");
}

#[test]
fn addresses_become_cluster_ip_or_load_balancer_ip() {
    let addresses = json!({"addresses": [{"type": "IPAddress", "value": "1.1.1.1"}, {"value": "fd00::1"},
        {"value": "1.1.1.2"}, {"type": "Hostname", "value": "a.example"}, {"type": "IPAddress"}]});
    let spec = &service(&wanted(addresses))["spec"];
    assert_eq!(
        (&spec["clusterIP"], &spec["clusterIPs"]),
        (&json!("1.1.1.1"), &json!(["1.1.1.1", "fd00::1"]))
    );
    let balanced = Parameters { service_type: ServiceType::LoadBalancer, ..Parameters::default() };
    let addresses = gateway(json!({"addresses": [{"value": "1.1.1.1"}]}));
    let spec = &service(&plan(&addresses, &ports(&[80]), &balanced, crate::CONTROLLER_NAME).unwrap())["spec"];
    assert_eq!((&spec["loadBalancerIP"], &spec["clusterIP"]), (&json!("1.1.1.1"), &Value::Null));
    assert_eq!(spec["allocateLoadBalancerNodePorts"], false);
}

#[test]
fn what_is_as_wanted_is_left_alone() {
    let wanted = wanted(json!({"infrastructure": {"labels": {"foo": "bar"}}}));
    assert_eq!(changes(std::slice::from_ref(&wanted), [&applied(&wanted)]), []);
}

#[test]
fn what_somebody_changed_or_we_want_otherwise_is_applied_again() {
    let before = wanted(json!({"infrastructure": {"labels": {"foo": "bar"}}}));
    let mut changed = applied(&before);
    changed.metadata.labels.as_mut().unwrap().insert("foo".to_owned(), "baz".to_owned());
    for (wanted, there) in [(&before, &changed), (&wanted(json!({})), &applied(&before))] {
        let operations = changes(std::slice::from_ref(wanted), [there]);
        assert!(matches!(operations.as_slice(), [Operation::Apply(_)]), "{operations:?}");
    }
}

#[test]
fn foreign_objects_of_the_name_are_refused_and_never_deleted() {
    let wanted = wanted(json!({}));
    let mut hand_made = applied(&wanted);
    hand_made.metadata.owner_references = None;
    let mut earlier = applied(&wanted);
    earlier.metadata.owner_references.as_mut().unwrap()[0].uid = "u-0".to_owned();
    for (there, deletes) in [(hand_made, 0), (earlier, 1)] {
        let operations = changes(std::slice::from_ref(&wanted), [&there]);
        assert!(
            matches!(&operations[0], Operation::Refuse { message, .. } if message.contains("my-gateway-example"))
        );
        assert_eq!(operations.len(), 1 + deletes, "what an earlier Gateway of the name left is pruned");
    }
}

#[test]
fn what_is_no_longer_wanted_is_deleted() {
    let before = wanted(json!({}));
    let there = applied(&before);
    let gone =
        Operation::Delete { name: ObjectName::new("edge", "my-gateway-example"), uid: "s-1".to_owned() };
    assert_eq!(changes(&[], [&there]), std::slice::from_ref(&gone));
    let mut reclassed = gateway(json!({}));
    reclassed.spec.gateway_class_name = "other".to_owned();
    let reclassed = plan(&reclassed, &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME).unwrap();
    assert!(changes(&[reclassed], [&there]).contains(&gone));
}

#[test]
fn without_ports_a_service_stays_but_none_is_made() {
    let idle =
        plan(&gateway(json!({})), &BTreeSet::new(), &Parameters::default(), crate::CONTROLLER_NAME).unwrap();
    assert_eq!(changes(std::slice::from_ref(&idle), []), []);
    assert_eq!(changes(&[idle], [&applied(&wanted(json!({})))]), []);
}

#[test]
fn the_addresses_of_its_service_are_the_gateways() {
    let mut service = applied(&wanted(json!({})));
    service.spec.as_mut().unwrap().cluster_ips = Some(vec!["10.96.3.4".to_owned()]);
    let values = |gateway: &Gateway| -> Vec<String> {
        gateway.spec.addresses.iter().flatten().filter_map(|address| address.value.clone()).collect()
    };
    for (spec, expected) in [
        (json!({}), vec!["10.96.3.4"]),
        (json!({"addresses": [{"value": "1.1.1.1"}]}), vec!["1.1.1.1"]),
        (json!({"addresses": [{"value": "1.1.1.1"}, {"type": "IPAddress"}]}), vec!["1.1.1.1", "10.96.3.4"]),
    ] {
        let gateway = std::sync::Arc::new(gateway(spec));
        let addressed = with_assigned_addresses(&gateway, Some(&service));
        assert_eq!(values(&addressed), expected);
        let plan =
            |gateway: &Gateway| plan(gateway, &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME);
        assert_eq!(plan(&addressed), plan(&gateway), "what was assigned is not asked for");
        assert!(std::sync::Arc::ptr_eq(&with_assigned_addresses(&gateway, None), &gateway));
    }
    assert_eq!(generated_for(&service).unwrap().to_string(), "edge/my-gateway");
    service.metadata.owner_references.as_mut().unwrap()[0].uid = "u-0".to_owned();
    assert!(
        values(&with_assigned_addresses(&std::sync::Arc::new(gateway(json!({}))), Some(&service))).is_empty()
    );
}

#[test]
fn what_another_controller_had_generated_stays() {
    let there = applied(&wanted(json!({})));
    assert_eq!(diff(&[], [&there], "example.com/other"), []);
}
