//! Objects generated for Gateways (GEP-1762): made, followed, withdrawn, refused, removed.

use serde_json::{Value, json};

use crate::agent::{Agent, has_all};
use crate::fixture::{DEADLINE, Fixture};

fn label<'v>(service: &'v Value, name: &str) -> &'v Value {
    &service["metadata"]["labels"][name]
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_service_follows_its_gateway() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let name = format!("web-{}", fixture.name);
    let infrastructure = json!({"labels": {"team": "blue"}, "annotations": {"note": "x"}});
    fixture.gateway("web", json!({"infrastructure": infrastructure})).await;
    let service = fixture.until("Service", &name, |service| !service.is_null()).await;
    assert_eq!(label(&service, "gateway.networking.k8s.io/gateway-name"), "web");
    assert_eq!(label(&service, "gateway.networking.k8s.io/gateway-class-name"), fixture.name.as_str());
    assert_eq!(label(&service, "service.kubernetes.io/service-proxy-name"), "portcullis");
    assert_eq!(
        (label(&service, "team"), &service["metadata"]["annotations"]["note"]),
        (&json!("blue"), &json!("x"))
    );
    assert_eq!(service["spec"]["selector"], Value::Null);
    let address = service["spec"]["clusterIP"].clone();

    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "more", "port": 8080, "protocol": "HTTP"}]);
    fixture
        .patch(
            "Gateway",
            "web",
            json!({"spec": {"listeners": listeners, "infrastructure": {"labels": null}}}),
        )
        .await;
    let service = fixture
        .until("Service", &name, |service| service["spec"]["ports"].as_array().unwrap().len() == 2)
        .await;
    let service = if label(&service, "team").is_null() {
        service
    } else {
        fixture.until("Service", &name, |service| label(service, "team").is_null()).await
    };
    assert_eq!(service["spec"]["clusterIP"], address, "the address stays");

    // Others' labels stay, ours come back.
    fixture
        .patch(
            "Service",
            &name,
            json!({"metadata": {"labels": {"theirs": "1", "gateway.networking.k8s.io/gateway-name": "no"}}}),
        )
        .await;
    let restored = |service: &Value| label(service, "gateway.networking.k8s.io/gateway-name") == "web";
    let service = fixture.until("Service", &name, restored).await;
    assert_eq!(label(&service, "theirs"), "1");

    // Also the one by which we find what is ours.
    let unmarked = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}});
    fixture.patch("Service", &name, unmarked).await;
    let restored = |service: &Value| label(service, "app.kubernetes.io/managed-by") == "portcullis";
    let service = fixture.until("Service", &name, restored).await;
    assert_eq!(service["spec"]["clusterIP"], address, "the address stays");
    assert!(has_all(&agent.provisioning.borrow()));

    fixture.delete("Gateway", "web").await;
    fixture.until("Service", &name, Value::is_null).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_deleted_service_is_made_again_and_one_of_a_foreign_class_is_removed() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let name = format!("web-{}", fixture.name);
    fixture.gateway("web", json!({})).await;
    let first = fixture.until("Service", &name, |service| !service.is_null()).await;
    fixture.delete("Service", &name).await;
    let is_another =
        |service: &Value| !service.is_null() && service["metadata"]["uid"] != first["metadata"]["uid"];
    fixture.until("Service", &name, is_another).await;
    fixture.patch("Gateway", "web", json!({"spec": {"gatewayClassName": "somebody-elses"}})).await;
    fixture.until("Service", &name, Value::is_null).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_foreign_service_of_the_name_is_never_taken_over() {
    let fixture = Fixture::new().await;
    let name = format!("web-{}", fixture.name);
    let before = fixture
        .create("Service", &name, json!({"spec": {"ports": [{"port": 9}], "selector": {"app": "theirs"}}}))
        .await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let mut provisioning = agent.provisioning.clone();
    let waiting = provisioning.wait_for(|known| !has_all(known));
    let message = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap()
        .iter()
        .flatten()
        .next()
        .unwrap()
        .1
        .message
        .clone();
    assert!(message.contains(&name), "{message}");
    let programmed = |gateway: &Value| {
        let conditions = gateway["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == "Programmed").unwrap_or_default()
    };
    let told = fixture.until("Gateway", "web", |gateway| programmed(gateway)["message"] == message).await;
    assert_eq!(
        (&programmed(&told)["status"], &programmed(&told)["reason"]),
        (&json!("False"), &json!("AddressNotAssigned"))
    );
    assert_eq!(
        fixture.get("Service", &name).await["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );

    // Once it is out of the way, the Gateway gets its own.
    fixture.delete("Service", &name).await;
    fixture
        .until("Service", &name, |service| service["metadata"]["ownerReferences"][0]["name"] == "web")
        .await;
    fixture.until("Gateway", "web", |gateway| programmed(gateway)["status"] == "True").await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_requested_address_is_the_services() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let name = format!("web-{}", fixture.name);
    let address = "10.96.200.7";
    fixture.gateway("web", json!({"addresses": [{"type": "IPAddress", "value": address}]})).await;
    fixture.until("Service", &name, |service| service["spec"]["clusterIP"] == address).await;
    fixture.until("Gateway", "web", |gateway| gateway["status"]["addresses"][0]["value"] == address).await;

    // Another address is had by another Service, but only if it can be had.
    let asking = |address: &str| json!({"spec": {"addresses": [{"type": "IPAddress", "value": address}]}});
    fixture.patch("Gateway", "web", asking("192.0.2.1")).await;
    let is_refused = |gateway: &Value| {
        let programmed = crate::fixture::condition(&gateway["status"], "Programmed");
        programmed["reason"] == "AddressNotUsable"
    };
    fixture.until("Gateway", "web", is_refused).await;
    assert_eq!(fixture.get("Service", &name).await["spec"]["clusterIP"], address, "the old one stays");
    let other = "10.96.200.8";
    fixture.patch("Gateway", "web", asking(other)).await;
    fixture.until("Service", &name, |service| service["spec"]["clusterIP"] == other).await;
    fixture.until("Gateway", "web", |gateway| gateway["status"]["addresses"][0]["value"] == other).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn gateways_keep_their_addresses_over_an_uninstallation_where_they_can() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let address_of = |gateway: &Value| gateway["status"]["addresses"][0]["value"].clone();
    let mut addresses = Vec::new();
    for name in ["kept", "lost"] {
        fixture.gateway(name, json!({})).await;
        addresses.push(address_of(&fixture.until("Gateway", name, |it| address_of(it).is_string()).await));
    }
    drop(agent);
    let services = ["kept", "lost"].map(|name| format!("{name}-{}", fixture.name));
    for service in &services {
        fixture.delete("Service", service).await;
    }
    let taken = json!({"spec": {"clusterIP": addresses[1], "ports": [{"port": 9}]}});
    fixture.create("Service", "another", taken).await;

    let agent = Agent::start(&fixture, "a");
    let service = fixture.until("Service", &services[0], |service| !service.is_null()).await;
    assert_eq!(service["spec"]["clusterIP"], addresses[0]);
    let service = fixture.until("Service", &services[1], |service| !service.is_null()).await;
    assert_ne!(service["spec"]["clusterIP"], addresses[1]);
    let address = service["spec"]["clusterIP"].clone();
    fixture.until("Gateway", "lost", |gateway| address_of(gateway) == address).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn of_two_gateways_that_want_one_service_the_older_gets_it() {
    let fixture = Fixture::new().await;
    let class = format!("b-{}", fixture.name);
    fixture
        .create("GatewayClass", &class, json!({"spec": {"controllerName": fixture.controller_name}}))
        .await;
    // The API server's times have whole seconds; of the same age, the name decides.
    fixture.gateway("a", json!({"gatewayClassName": class})).await;
    fixture.gateway("a-b", json!({})).await;
    let agent = Agent::start(&fixture, "a");
    let owner = |service: &Value| service["metadata"]["ownerReferences"][0]["name"].clone();
    let name = format!("a-b-{}", fixture.name);
    let service = fixture.until("Service", &name, |service| !service.is_null()).await;
    assert_eq!(owner(&service), "a");
    let refused = |gateway: &Value| {
        let programmed = crate::fixture::condition(&gateway["status"], "Programmed");
        programmed["reason"] == "AddressNotAssigned" && programmed["message"].to_string().contains(&name)
    };
    fixture.until("Gateway", "a-b", refused).await;
    let served = |gateway: &Value| gateway["status"]["addresses"][0]["value"] == service["spec"]["clusterIP"];
    fixture.until("Gateway", "a", served).await;
    let there = fixture.get("Service", &name).await;
    assert_eq!((owner(&there), &there["metadata"]["uid"]), ("a".into(), &service["metadata"]["uid"]));

    fixture.delete("Gateway", "a").await;
    fixture.until("Service", &name, |service| owner(service) == "a-b").await;
    drop(agent);
    fixture.delete("GatewayClass", &class).await;
    fixture.remove().await;
}
