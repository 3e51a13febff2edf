use super::*;
use k8s_openapi::api::core::v1::Service;
use portcullis_api::{Change, Kind, Object, ObjectKey, Objects};
use serde_json::{Value, json};

use crate::{Feedback, Settings, Status, Translator};

fn changes<'s>(
    desired: &[DesiredObjects],
    observed: impl IntoIterator<Item = &'s Generated>,
) -> Vec<Operation> {
    diff(desired, observed, crate::CONTROLLER_NAME)
}

fn gateway(spec: Value) -> Gateway {
    let mut spec = spec;
    spec["gatewayClassName"] = "example".into();
    serde_json::from_value(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "my-gateway", "namespace": "edge", "uid": "u-1"}, "spec": spec}))
    .unwrap()
}

fn ports(numbers: &[u16]) -> Merged {
    let ports = numbers.iter().map(|&number| PortKey::tcp(number)).collect();
    Merged { ports, ..Merged::default() }
}

fn desired(spec: Value) -> DesiredObjects {
    plan(&gateway(spec), &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME).unwrap()
}

fn service(desired: &DesiredObjects) -> Value {
    desired.object(GeneratedKind::Service).unwrap().manifest.clone()
}

fn changed(object: &Generated, change: impl FnOnce(&mut Value)) -> Generated {
    let mut manifest = object.manifest.clone();
    change(&mut manifest);
    Generated::read(object.kind, manifest).unwrap()
}

fn typed(object: &Generated) -> Service {
    serde_json::from_value(object.manifest.clone()).unwrap()
}

/// As the API server would return it.
fn applied(desired: &DesiredObjects) -> Generated {
    let operations = changes(std::slice::from_ref(desired), []);
    let [Operation::Apply(service)] = operations.as_slice() else { panic!("{operations:?}") };
    changed(service, |service| {
        service["metadata"]["uid"] = "s-1".into();
        service["spec"]["clusterIP"] = "10.96.3.4".into();
        service["spec"]["sessionAffinity"] = "None".into();
    })
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
    let service = service(&desired(infrastructure));
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
    let spec = &service(&desired(addresses))["spec"];
    assert_eq!(
        (&spec["clusterIP"], &spec["clusterIPs"]),
        (&json!("1.1.1.1"), &json!(["1.1.1.1", "fd00::1"]))
    );
    let balanced = Parameters { service_type: ServiceType::LoadBalancer, ..Parameters::default() };
    let addresses = gateway(json!({"addresses": [{"value": "1.1.1.1"}]}));
    let spec = &service(&plan(&addresses, &ports(&[80]), &balanced, crate::CONTROLLER_NAME).unwrap())["spec"];
    assert_eq!((&spec["loadBalancerIP"], &spec["clusterIP"]), (&json!("1.1.1.1"), &Value::Null));
    assert_eq!(spec["allocateLoadBalancerNodePorts"], false);
    let asks = |spec: Value| desired(spec).object(GeneratedKind::Service).unwrap().asks_for_address();
    assert!(asks(json!({"addresses": [{"value": "1.1.1.1"}]})) && !asks(json!({})));
}

#[test]
fn another_cluster_ip_takes_another_service() {
    let asking = |address: &str| desired(json!({"addresses": [{"value": address}]}));
    let there = applied(&desired(json!({})));
    assert_eq!(there.manifest["spec"]["clusterIP"], "10.96.3.4");
    let operations = changes(&[asking("10.96.3.5")], [&there]);
    let [Operation::Replace { object, uid }] = operations.as_slice() else { panic!("{operations:?}") };
    assert_eq!((&object.manifest["spec"]["clusterIP"], uid.as_str()), (&json!("10.96.3.5"), "s-1"));
    for desired in [asking("10.96.3.4"), desired(json!({"infrastructure": {"labels": {"a": "b"}}}))] {
        let operations = changes(&[desired], [&there]);
        assert!(matches!(operations.as_slice(), [Operation::Apply(_)]), "{operations:?}");
    }
}

/// The address asked for once is neither withdrawn nor another than the one desired.
#[test]
fn an_address_that_was_had_before_is_asked_for_and_makes_no_difference_later() {
    let operations = changes(&[desired(json!({}))], []);
    let [Operation::Apply(service)] = operations.as_slice() else { panic!("{operations:?}") };
    let former = ["10.96.3.9".parse().unwrap(), "fd00::9".parse().unwrap()];
    let asking = service.asking_for(&former).unwrap();
    assert_eq!(asking.manifest["spec"]["clusterIP"], "10.96.3.9");
    assert_eq!(changes(&[desired(json!({}))], [&asking]), []);
    assert_eq!(service.asking_for(&[]), None);
    let dual = Parameters {
        ip_family_policy: Some("PreferDualStack".to_owned()),
        ip_families: vec!["IPv6".to_owned()],
        ..Parameters::default()
    };
    let dual = plan(&gateway(json!({})), &ports(&[80]), &dual, crate::CONTROLLER_NAME).unwrap();
    let asking = dual.object(GeneratedKind::Service).unwrap().asking_for(&former).unwrap();
    assert_eq!(asking.manifest["spec"]["clusterIPs"], json!(["fd00::9", "10.96.3.9"]));
    let wishing = desired(json!({"addresses": [{"value": "10.96.3.5"}]}));
    assert_eq!(wishing.object(GeneratedKind::Service).unwrap().asking_for(&former), None);
    let parameters = Parameters { service_type: ServiceType::LoadBalancer, ..Parameters::default() };
    let balanced = plan(&gateway(json!({})), &ports(&[80]), &parameters, crate::CONTROLLER_NAME).unwrap();
    assert_eq!(balanced.object(GeneratedKind::Service).unwrap().asking_for(&former), None);
}

#[test]
fn what_is_as_wanted_is_left_alone() {
    let desired = desired(json!({"infrastructure": {"labels": {"foo": "bar"}}}));
    assert_eq!(changes(std::slice::from_ref(&desired), [&applied(&desired)]), []);
}

#[test]
fn what_others_changed_or_we_want_otherwise_is_applied_again() {
    let before = desired(json!({"infrastructure": {"labels": {"foo": "bar"}}}));
    let relabelled =
        changed(&applied(&before), |service| service["metadata"]["labels"]["foo"] = "baz".into());
    for (desired, there) in [(&before, &relabelled), (&desired(json!({})), &applied(&before))] {
        let operations = changes(std::slice::from_ref(desired), [there]);
        assert!(matches!(operations.as_slice(), [Operation::Apply(_)]), "{operations:?}");
    }
}

#[test]
fn an_object_that_lost_a_label_is_still_ours() {
    let desired = desired(json!({}));
    let unlabelled = changed(&applied(&desired), |service| service["metadata"]["labels"] = json!({}));
    let operations = changes(std::slice::from_ref(&desired), [&unlabelled]);
    assert!(matches!(operations.as_slice(), [Operation::Apply(_)]), "{operations:?}");
    assert_eq!(generated_for(&typed(&unlabelled)).unwrap().to_string(), "edge/my-gateway");
}

#[test]
fn foreign_objects_of_the_name_are_refused_and_never_deleted() {
    let desired = desired(json!({}));
    let hand_made = changed(&applied(&desired), |it| it["metadata"]["ownerReferences"] = json!([]));
    let earlier =
        changed(&applied(&desired), |it| it["metadata"]["ownerReferences"][0]["uid"] = "u-0".into());
    for (there, deletes) in [(hand_made, 0), (earlier, 1)] {
        let operations = changes(std::slice::from_ref(&desired), [&there]);
        assert!(
            matches!(&operations[0], Operation::Refuse { message, .. } if message.contains("my-gateway-example"))
        );
        assert_eq!(operations.len(), 1 + deletes, "what an earlier Gateway of the name left is pruned");
    }
}

#[test]
fn what_is_no_longer_wanted_is_deleted() {
    let before = desired(json!({}));
    let there = applied(&before);
    let name = ObjectName::new("edge", "my-gateway-example");
    let gone = Operation::Delete { kind: GeneratedKind::Service, name, uid: "s-1".to_owned() };
    assert_eq!(changes(&[], [&there]), std::slice::from_ref(&gone));
    let mut reclassed = gateway(json!({}));
    reclassed.spec.gateway_class_name = "other".to_owned();
    let reclassed = plan(&reclassed, &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME).unwrap();
    assert!(changes(&[reclassed], [&there]).contains(&gone));
}

#[test]
fn without_ports_a_service_stays_but_none_is_made() {
    let idle = plan(&gateway(json!({})), &Merged::default(), &Parameters::default(), crate::CONTROLLER_NAME)
        .unwrap();
    assert_eq!(changes(std::slice::from_ref(&idle), []), []);
    assert_eq!(changes(&[idle], [&applied(&desired(json!({})))]), []);
}

fn assigned(gateway: &Gateway, service: Option<&Service>) -> AssignedAddresses {
    let mut objects = Objects::default();
    objects.apply(Change::Set(Object::Gateway(gateway.clone().into())));
    if let Some(service) = service {
        objects.apply(Change::Set(Object::Service(service.clone().into())));
    }
    AssignedAddresses::of(&object::name_of(&gateway.metadata), &objects)
}

#[test]
fn the_addresses_of_its_service_are_the_gateways() {
    let mut service = typed(&applied(&desired(json!({}))));
    service.spec.as_mut().unwrap().cluster_ips = Some(vec!["10.96.3.4".to_owned()]);
    let usable = |gateway: &Gateway, assigned: Option<&AssignedAddresses>| -> Vec<String> {
        let addresses = crate::parent::Addresses::of(gateway, assigned, &Settings::default(), |_| None);
        addresses.usable.iter().map(ToString::to_string).collect()
    };
    for (spec, of_the_service, without_cluster) in [
        (json!({}), vec!["10.96.3.4"], vec![]),
        (json!({"addresses": [{"value": "1.1.1.1"}]}), vec![], vec!["1.1.1.1"]),
        (
            json!({"addresses": [{"value": "1.1.1.1"}, {"type": "IPAddress"}]}),
            vec!["10.96.3.4"],
            vec!["1.1.1.1"],
        ),
        (
            json!({"addresses": [{"value": "10.96.3.4"}, {"type": "IPAddress"}]}),
            vec!["10.96.3.4"],
            vec!["10.96.3.4"],
        ),
    ] {
        let gateway = gateway(spec);
        assert_eq!(usable(&gateway, Some(&assigned(&gateway, Some(&service)))), of_the_service);
        assert!(usable(&gateway, Some(&assigned(&gateway, None))).is_empty());
        assert_eq!(usable(&gateway, None), without_cluster);
    }
    let of_both: Vec<_> = cluster_addresses(&service).collect();
    let spec = service.spec.as_mut().unwrap();
    (spec.cluster_ip, spec.cluster_ips) = (Some("10.96.3.4".to_owned()), None);
    assert_eq!(cluster_addresses(&service).collect::<Vec<_>>(), of_both, "a file may have one field alone");
    service.spec.as_mut().unwrap().cluster_ip = Some("None".to_owned());
    assert_eq!(cluster_addresses(&service).count(), 0);

    assert_eq!(generated_for(&service).unwrap().to_string(), "edge/my-gateway");
    service.metadata.owner_references.as_mut().unwrap()[0].uid = "u-0".to_owned();
    assert_eq!(assigned(&gateway(json!({})), Some(&service)), AssignedAddresses::default());
}

#[test]
fn a_gateway_without_service_is_not_asked_to_request_an_address() {
    let nothing = AssignedAddresses::default();
    let addresses =
        crate::parent::Addresses::of(&gateway(json!({})), Some(&nothing), &Settings::default(), |_| None);
    let fault = addresses.unusable.unwrap();
    assert_eq!(fault.reason, crate::Reason::AddressNotAssigned);
    assert!(fault.message.contains("made as soon as a listener"), "{}", fault.message);
}

/// The addresses and the status of the Gateway of these tests with a load balancer that publishes
/// three addresses.
fn served_with(balancer: Value, nodes: &[Object]) -> (BTreeSet<String>, Vec<String>) {
    let mut service = applied(&desired(json!({}))).manifest;
    service["spec"]["clusterIPs"] = json!(["10.96.3.4"]);
    service["spec"]["type"] = "LoadBalancer".into();
    service["status"] = json!({"loadBalancer": {"ingress": balancer}});
    let service: Service = serde_json::from_value(service).unwrap();
    let listeners = json!({"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]});
    let gateway = gateway(listeners);
    let key = ObjectKey::new(Kind::Gateway, object::name_of(&gateway.metadata));
    let assigned = [(key.name.clone(), assigned(&gateway, Some(&service)))].into();
    let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "example"}, "spec": {"controllerName": crate::CONTROLLER_NAME}});
    let class = Object::from_json(class).unwrap().unwrap();
    let objects = [class, Object::Gateway(gateway.into()), Object::Service(service.into())];
    let changes = objects.into_iter().chain(nodes.iter().cloned()).map(Change::Set);
    let load_balancers = vec!["0.0.0.0/0".parse().unwrap()];
    let mut translator = Translator::new(Settings { load_balancers, ..Settings::default() });
    translator.observe(Feedback::Assigned(assigned));
    let outcome = translator.apply(changes.collect());
    let served = outcome.snapshot.frontends.keys().map(|frontend| frontend.address.to_string()).collect();
    let Some(Status::Gateway(status)) = outcome.statuses.get(&key) else { panic!("no status") };
    let said = status.addresses.iter().flatten().map(|address| address.value.clone());
    (served, said.collect())
}

#[test]
fn an_address_that_no_packet_will_have_is_published_and_not_served() {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": "node-2"}]}});
    let node = Object::from_json(node).unwrap().unwrap();
    let balancer =
        json!([{"ip": "192.0.2.10"}, {"ip": "192.0.2.20"}, {"ip": "192.0.2.30", "ipMode": "Proxy"}]);
    let (served, said) = served_with(balancer.clone(), &[node]);
    assert_eq!(served, ["10.96.3.4", "192.0.2.20"].map(str::to_owned).into());
    assert_eq!(said, ["192.0.2.10", "192.0.2.20", "192.0.2.30"]);
    let (served, _) = served_with(balancer, &[]);
    assert_eq!(served, ["10.96.3.4", "192.0.2.10", "192.0.2.20"].map(str::to_owned).into());
}

#[test]
fn what_another_controller_had_generated_stays() {
    let there = applied(&desired(json!({})));
    assert_eq!(diff(&[], [&there], "example.com/other"), []);
}

fn dedicated() -> Parameters {
    let pods = Some(Pods::new("example.org/portcullis:1"));
    let resource_requests = [("cpu", "0.5"), ("memory", "1024Mi")];
    let resource_requests =
        resource_requests.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    Parameters { mode: Mode::Dedicated, pods, resource_requests, ..Parameters::default() }
}

fn as_the_api_server_writes_amounts(manifest: &mut Value) {
    if let Some(requests) = manifest.pointer_mut("/spec/template/spec/containers/0/resources/requests") {
        assert_eq!(*requests, json!({"cpu": "0.5", "memory": "1024Mi"}));
        *requests = json!({"cpu": "500m", "memory": "1Gi"});
    }
}

/// The manifests of GEP-1762: `scaleTargetRef: {kind: Deployment, name: gateway-example}`, and of
/// the PodDisruptionBudget `matchLabels: {gateway.networking.k8s.io/metadata.name: gateway}`.
#[test]
fn the_specifications_autoscaler_and_disruption_budget_fit() {
    let mut gateway = gateway(json!({}));
    gateway.metadata.name = Some("gateway".to_owned());
    let desired = plan(&gateway, &ports(&[80]), &dedicated(), crate::CONTROLLER_NAME).unwrap();
    let deployment = &desired.object(GeneratedKind::Deployment).unwrap().manifest;
    assert_eq!(deployment["metadata"]["name"], "gateway-example");
    assert_eq!(deployment["spec"].get("replicas"), None, "the autoscaler decides");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["gateway.networking.k8s.io/metadata.name"], "gateway");
    assert_eq!(labels["gateway.networking.k8s.io/gateway-name"], "gateway");
    let selector = &deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(&service(&desired)["spec"]["selector"], selector);
    assert_eq!(labels[GATEWAY_NAME_LABEL], selector[GATEWAY_NAME_LABEL]);
    assert_eq!(
        service(&desired)["metadata"]["labels"].get(SERVICE_PROXY_LABEL),
        None,
        "kube-proxy serves it"
    );
}

#[test]
fn a_change_of_mode_makes_and_removes_what_it_takes() {
    let node = desired(json!({}));
    let pods = plan(&gateway(json!({})), &ports(&[80]), &dedicated(), crate::CONTROLLER_NAME).unwrap();
    let kinds = |operations: Vec<Operation>| -> Vec<GeneratedKind> {
        let kind = |operation: &Operation| match operation {
            Operation::Apply(object) => object.kind,
            Operation::Delete { kind, .. } => *kind,
            Operation::Replace { object, .. } => object.kind,
            Operation::Refuse { message, .. } => panic!("{message}"),
        };
        operations.iter().map(kind).collect()
    };
    let all = [GeneratedKind::ServiceAccount, GeneratedKind::Deployment, GeneratedKind::Service];
    assert_eq!(kinds(changes(std::slice::from_ref(&pods), [&applied(&node)])), all);
    let operations = changes(std::slice::from_ref(&pods), []);
    let there: Vec<_> = operations
        .into_iter()
        .filter_map(|operation| match operation {
            Operation::Apply(object) => Some(*object),
            _ => None,
        })
        .collect();
    assert_eq!(changes(std::slice::from_ref(&pods), &there), [], "all of it is there");
    let rewritten: Vec<_> =
        there.iter().map(|object| changed(object, as_the_api_server_writes_amounts)).collect();
    assert_eq!(changes(std::slice::from_ref(&pods), &rewritten), [], "amounts are compared by what they are");
    let back = kinds(changes(&[node], &there));
    assert_eq!(back, [GeneratedKind::Service, GeneratedKind::ServiceAccount, GeneratedKind::Deployment]);
}

fn with_secrets(secrets: &[(&str, &str)]) -> DesiredObjects {
    on_ports(&[443], secrets)
}

fn key(kind: Kind, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { kind, name: ObjectName::new(namespace, name) }
}

fn on_ports(numbers: &[u16], secrets: &[(&str, &str)]) -> DesiredObjects {
    let needs = secrets.iter().map(|(namespace, name)| key(Kind::Secret, namespace, name)).collect();
    let merged = Merged { needs, ..ports(numbers) };
    plan(&gateway(json!({})), &merged, &dedicated(), crate::CONTROLLER_NAME).unwrap()
}

fn as_applied(desired: &DesiredObjects) -> Vec<Generated> {
    let operations = changes(std::slice::from_ref(desired), []).into_iter();
    let objects = operations.map(|operation| match operation {
        Operation::Apply(object) => changed(&object, |it| it["metadata"]["uid"] = "x-1".into()),
        other => panic!("{other:?}"),
    });
    objects.collect()
}

/// A tenant who may run pods in the Gateway's namespace may run them as its ServiceAccount.
#[test]
fn pods_may_read_what_their_gateway_is_served_with_and_nothing_else() {
    let secrets = [("certs", "b"), ("edge", "a"), ("edge", "c")];
    let secrets = secrets.iter().map(|(namespace, name)| key(Kind::Secret, namespace, name));
    let needs = secrets.chain([key(Kind::ConfigMap, "certs", "ca")]).collect();
    let merged = Merged { needs, ..ports(&[443]) };
    let desired = plan(&gateway(json!({})), &merged, &dedicated(), crate::CONTROLLER_NAME).unwrap();
    let roles = desired.objects().iter().filter(|object| object.kind == GeneratedKind::Role);
    let roles: Vec<_> = roles.map(|role| (role.name().to_string(), role.manifest["rules"].clone())).collect();
    let reading = |resource: &str, names: Value| json!({"apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["get"]});
    assert_eq!(
        roles,
        [
            (
                "certs/edge.my-gateway-example".to_owned(),
                json!([reading("configmaps", json!(["ca"])), reading("secrets", json!(["b"]))]),
            ),
            ("edge/my-gateway-example".to_owned(), json!([reading("secrets", json!(["a", "c"]))])),
        ]
    );
    for binding in desired.objects().iter().filter(|object| object.kind == GeneratedKind::RoleBinding) {
        let subjects = &binding.manifest["subjects"];
        assert_eq!(
            *subjects,
            json!([{"kind": "ServiceAccount", "name": "my-gateway-example", "namespace": "edge"}])
        );
        assert_eq!(binding.manifest["roleRef"]["name"], *binding.name().name);
    }
    let kinds: Vec<_> = with_secrets(&[]).objects().iter().map(|object| object.kind).collect();
    assert_eq!(kinds, [GeneratedKind::ServiceAccount, GeneratedKind::Deployment, GeneratedKind::Service]);
}

/// "Any labels or annotations here are added to all generated resources": but annotations, which
/// may instruct controllers of the other namespace's owner.
#[test]
fn rights_in_other_namespaces_have_the_infrastructure_labels() {
    let infrastructure = json!({"labels": {"team": "blue"}, "annotations": {"note": "x"}});
    let needs = BTreeSet::from([key(Kind::Secret, "certs", "b")]);
    let merged = Merged { needs, ..ports(&[443]) };
    let gateway = gateway(json!({"infrastructure": infrastructure}));
    let desired = plan(&gateway, &merged, &dedicated(), crate::CONTROLLER_NAME).unwrap();
    let rights = desired.objects().iter().filter(|object| object.kind.gives_rights());
    let metadata: Vec<_> = rights.map(|object| &object.manifest["metadata"]).collect();
    assert_eq!(metadata.len(), 2);
    for metadata in metadata {
        assert_eq!((&metadata["namespace"], &metadata["labels"]["team"]), (&json!("certs"), &json!("blue")));
        assert_eq!(metadata["labels"]["gateway.networking.k8s.io/gateway-name"], "my-gateway");
        assert_eq!(metadata["annotations"].get("note"), None);
    }
}

#[test]
fn rights_in_other_namespaces_are_recognised_and_removed_without_owner() {
    let there = as_applied(&with_secrets(&[("certs", "b")]));
    assert_eq!(changes(&[with_secrets(&[("certs", "b")])], &there), [], "all of it is there");
    assert!(there.iter().all(|it| it.gateway() == Some(ObjectName::new("edge", "my-gateway"))));
    let elsewhere = ["Role certs/edge.my-gateway-example", "RoleBinding certs/edge.my-gateway-example"];
    assert_eq!(deleted(&[with_secrets(&[])], &there), elsewhere);
    assert_eq!(deleted(&[], &there).len(), 5, "nothing is left of a Gateway that is gone");
    assert_eq!(deleted(&[untouched(&gateway(json!({}))).unwrap()], &there), elsewhere, "the rest stays");
    // A Gateway without port may have lost its Secret, or the permission to refer to it.
    assert_eq!(deleted(&[on_ports(&[], &[("certs", "b")])], &there), [""; 0]);
    assert_eq!(deleted(&[on_ports(&[], &[])], &there), elsewhere);
}

fn deleted(desired: &[DesiredObjects], there: &[Generated]) -> Vec<String> {
    let names = changes(desired, there).into_iter().map(|operation| match operation {
        Operation::Delete { kind, name, .. } => format!("{kind} {name}"),
        other => panic!("{other:?}"),
    });
    names.collect()
}

/// Annotations count where ownerReferences cannot be, and nowhere else.
#[test]
fn no_tenant_can_pass_a_service_of_another_namespace_off_as_a_gateways() {
    let ours = applied(&desired(json!({})));
    let forged = changed(&ours, |it| {
        it["metadata"]["ownerReferences"] = json!([]);
        it["metadata"]["namespace"] = "elsewhere".into();
        it["metadata"]["annotations"]["portcullis.dev/gateway"] = "edge/my-gateway".into();
        it["metadata"]["annotations"]["portcullis.dev/gateway-uid"] = "u-1".into();
    });
    assert!(!forged.is_generated() && forged.gateway().is_none());
}

#[test]
fn pods_get_the_agents_settings_and_run_where_the_operator_says() {
    let mut pods =
        Pods { log: "debug".to_owned(), drain_seconds: 60, ..Pods::new("example.org/portcullis:1") };
    pods.telemetry = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/".to_owned())];
    pods.endpoint_namespaces = ["default", "kube-system"].map(str::to_owned).into();
    pods.load_balancers = vec!["203.0.113.0/24".parse().unwrap()];
    for (field, value) in
        [("imagePullSecrets", json!([{"name": "registry"}])), ("serviceAccountName", json!("another"))]
    {
        pods.spec.insert(field.to_owned(), value);
    }
    let parameters = Parameters { service_type: ServiceType::LoadBalancer, pods: Some(pods), ..dedicated() };
    let desired = plan(&gateway(json!({})), &ports(&[80]), &parameters, crate::CONTROLLER_NAME).unwrap();
    let spec = &desired.object(GeneratedKind::Deployment).unwrap().manifest["spec"]["template"]["spec"];
    assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
    assert_eq!(spec["serviceAccountName"], "my-gateway-example", "what is ours to say stays ours");
    assert_eq!(spec["terminationGracePeriodSeconds"], 75);
    let variables = spec["containers"][0]["env"].as_array().unwrap();
    for variable in [
        json!({"name": "PORTCULLIS_SERVICE_TYPE", "value": "LoadBalancer"}),
        json!({"name": "PORTCULLIS_LOG", "value": "debug"}),
        json!({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318/"}),
        json!({"name": "PORTCULLIS_DRAIN_TIMEOUT", "value": "60"}),
        json!({"name": "PORTCULLIS_ENDPOINT_NAMESPACES", "value": "default,kube-system"}),
        json!({"name": "PORTCULLIS_LOAD_BALANCER_ADDRESSES", "value": "203.0.113.0/24"}),
    ] {
        assert!(variables.contains(&variable), "{variable} is not in {variables:#?}");
    }
}

#[test]
fn pods_show_their_metrics_on_a_port_that_no_listener_has() {
    let container = |numbers: &[u16]| {
        let pods = Pods { metrics_port: Some(9271), ..Pods::new("example.org/portcullis:1") };
        let parameters = Parameters { pods: Some(pods), ..dedicated() };
        let desired =
            plan(&gateway(json!({})), &ports(numbers), &parameters, crate::CONTROLLER_NAME).unwrap();
        let deployment = &desired.object(GeneratedKind::Deployment).unwrap().manifest;
        deployment["spec"]["template"]["spec"]["containers"][0].clone()
    };
    let address = json!({"name": "PORTCULLIS_METRICS_ADDRESS", "value": "[::]:9271"});
    let shown = container(&[80]);
    assert!(shown["env"].as_array().unwrap().contains(&address), "{shown:#}");
    let named = json!({"name": "metrics", "containerPort": 9271, "protocol": "TCP"});
    assert!(shown["ports"].as_array().unwrap().contains(&named), "{shown:#}");
    let taken = container(&[80, 9271]);
    assert!(!taken["env"].as_array().unwrap().contains(&address), "{taken:#}");
    assert_eq!(taken["ports"].as_array().unwrap().len(), 2, "{taken:#}");
}

/// `a-b` of class `c` and `a` of class `b-c` want objects of one name.
fn of_one_name(gateway: &str, class: &str, uid: &str, created: &str) -> DesiredObjects {
    let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": gateway, "namespace": "edge", "uid": uid, "creationTimestamp": created},
        "spec": {"gatewayClassName": class, "listeners": []}});
    let gateway: Gateway = serde_json::from_value(manifest).unwrap();
    plan(&gateway, &ports(&[80]), &Parameters::default(), crate::CONTROLLER_NAME).unwrap()
}

#[test]
fn of_two_gateways_that_want_one_name_the_older_gets_it() {
    let older = of_one_name("my-gateway", "example", "u-1", "2026-01-01T00:00:00Z");
    let younger = of_one_name("my", "gateway-example", "u-2", "2026-01-02T00:00:00Z");
    let there = applied(&younger);
    for desired in [[older.clone(), younger.clone()], [younger, older]] {
        for (there, owner, other) in [(None, "my-gateway", "my"), (Some(&there), "my", "my-gateway")] {
            let refused = changes(&desired, there).into_iter().filter_map(|operation| match operation {
                Operation::Refuse { gateway, message, .. } => Some((gateway, message)),
                Operation::Apply(object) => {
                    assert_eq!(object.gateway(), Some(ObjectName::new("edge", owner)));
                    None
                }
                other => panic!("{other:?}"),
            });
            let refused: Vec<_> = refused.collect();
            let message = format!(
                "Service edge/my-gateway-example is Gateway edge/{owner}'s, and Gateway edge/{other} would need one of the \
                 same name (<Gateway>-<GatewayClass>): rename the Gateway"
            );
            assert_eq!(refused, [(ObjectName::new("edge", other), message)]);
        }
        let (objects, clashes) = without_clashes(&desired);
        assert_eq!((objects.len(), clashes.len()), (1, 1));
        assert_eq!(objects[0].gateway(), Some(ObjectName::new("edge", "my-gateway")));
    }
}
