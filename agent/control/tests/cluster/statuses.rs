//! Statuses: written, shared with others, restored, and then left alone.

use std::time::Instant;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use portcullis_api::Kind;
use serde_json::{Value, json};

use crate::agent::{Agent, has_all};
use crate::fixture::{Fixture, condition, version};

pub(crate) fn entry_of<'v>(route: &'v Value, controller: &str) -> &'v Value {
    static NONE: Value = Value::Null;
    let parents = route["status"]["parents"].as_array();
    parents.into_iter().flatten().find(|parent| parent["controllerName"] == controller).unwrap_or(&NONE)
}

pub(crate) fn foreign() -> Value {
    json!({"parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "theirs"},
        "controllerName": "example.com/theirs", "conditions": [{"type": "example.com/Odd", "status": "Unknown",
        "reason": "Odd", "message": "left alone", "lastTransitionTime": "2020-01-01T00:00:00Z"}]})
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn gateways_and_routes_are_told_what_they_are() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture.route("shop", "web").await;
    let class = fixture
        .until("GatewayClass", &fixture.name, |class| {
            condition(&class["status"], "Accepted")["status"] == "True"
        })
        .await;
    assert!(class["status"]["supportedFeatures"].as_array().unwrap().len() > 3);
    let gateway = fixture.until("Gateway", "web", |gateway| {
        condition(&gateway["status"], "Programmed")["status"] == "True"
            && gateway["status"]["listeners"][0]["attachedRoutes"] == 1
    });
    let gateway = gateway.await;
    let service = fixture.get("Service", &format!("web-{}", fixture.name)).await;
    assert_eq!(gateway["status"]["addresses"][0]["value"], service["spec"]["clusterIP"]);
    let route = fixture
        .until("HTTPRoute", "shop", |route| !entry_of(route, &fixture.controller_name).is_null())
        .await;
    let accepted = condition(entry_of(&route, &fixture.controller_name), "Accepted");
    assert_eq!((&accepted["status"], &accepted["observedGeneration"]), (&json!("True"), &json!(1)));

    fixture.delete("Gateway", "web").await;
    fixture.until("HTTPRoute", "shop", |route| entry_of(route, &fixture.controller_name).is_null()).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn entries_of_others_stay_and_ours_come_back() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture.route("shop", "web").await;
    let is_there = |route: &Value| !entry_of(route, &fixture.controller_name).is_null();
    fixture.until("HTTPRoute", "shop", is_there).await;
    // Another controller replaces the whole list.
    fixture.patch_status("HTTPRoute", "shop", json!({"parents": [foreign()]})).await;
    let route = fixture.until("HTTPRoute", "shop", is_there).await;
    assert_eq!(route["status"]["parents"][0], foreign());
    assert_eq!(route["status"]["parents"][0].to_string(), foreign().to_string(), "byte for byte");
    assert_eq!(route["status"]["parents"].as_array().unwrap().len(), 2);
    assert_eq!(agent.at_rest(&fixture, Kind::HttpRoute, "shop").await, route);
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn conflicts_are_resolved_from_a_fresh_read_and_then_there_is_peace() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture.route("shop", "web").await;
    // One client writes the status and another the spec, both as fast as they can.
    for round in 0..40 {
        let hostname = format!("r{round}.example.com");
        let (_, _) = tokio::join!(
            fixture.patch_status("HTTPRoute", "shop", json!({"parents": [foreign()]})),
            fixture.patch("HTTPRoute", "shop", json!({"spec": {"hostnames": [hostname]}})),
        );
    }
    let route = fixture.until("HTTPRoute", "shop", |route| {
        let accepted = condition(entry_of(route, &fixture.controller_name), "Accepted");
        accepted["observedGeneration"] == route["metadata"]["generation"]
    });
    let route = route.await;
    assert_eq!(route["status"]["parents"][0], foreign());
    assert_eq!(agent.at_rest(&fixture, Kind::HttpRoute, "shop").await, route);
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_thousand_routes_are_few_writes_of_their_gateway() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture
        .until("Gateway", "web", |gateway| condition(&gateway["status"], "Programmed")["status"] == "True")
        .await;
    let gateways = watcher::Config::default().fields("metadata.name=web");
    let mut events = std::pin::pin!(watcher::watcher(fixture.api("Gateway"), gateways));
    let create = futures::stream::iter(0..1000).for_each_concurrent(16, |n| {
        let fixture = &fixture;
        async move { drop(fixture.route(&format!("r{n}"), "web").await) }
    });
    let created = async {
        create.await;
        Instant::now()
    };
    let counted = async {
        let mut writes = 0;
        while let Some(event) = events.next().await {
            if let Ok(Event::Apply(gateway)) = event {
                writes += 1;
                if gateway.data["status"]["listeners"][0]["attachedRoutes"] == 1000 {
                    break;
                }
            }
        }
        (writes, Instant::now())
    };
    let began = Instant::now();
    let (last, (writes, right)) = tokio::join!(created, counted);
    let delay = right.saturating_duration_since(last);
    println!("1000 routes: {writes} writes of the Gateway, attachedRoutes right {delay:?} after the last");
    // A few at first, then one every two seconds for as long as routes keep coming.
    let taken = last - began;
    assert!(writes <= 20 + taken.as_secs(), "{writes} writes while routes were created for {taken:?}");
    let all = async {
        for n in 0..1000 {
            let is_there = |route: &Value| !entry_of(route, &fixture.controller_name).is_null();
            fixture.until("HTTPRoute", &format!("r{n}"), is_there).await;
        }
    };
    all.await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn two_controllers_of_a_route_leave_each_others_entries_alone() {
    let fixture = Fixture::new().await;
    let other = fixture.of_another_controller().await;
    fixture.gateway("ours", json!({})).await;
    fixture.gateway("theirs", json!({"gatewayClassName": format!("{}-other", fixture.name)})).await;
    let agents = [Agent::start(&fixture, "a"), Agent::start_as(&other, "b", "other-lease")];
    for n in 0..20 {
        let parents = json!([{"name": "ours"}, {"name": "theirs"}]);
        fixture.create("HTTPRoute", &format!("r{n}"), json!({"spec": {"parentRefs": parents}})).await;
    }
    let both = |route: &Value| {
        [&fixture, &other].iter().all(|seen| !entry_of(route, &seen.controller_name).is_null())
    };
    for n in 0..20 {
        let name = format!("r{n}");
        let route = fixture.until("HTTPRoute", &name, both).await;
        assert_eq!(route["status"]["parents"].as_array().unwrap().len(), 2);
        for agent in &agents {
            assert_eq!(agent.at_rest(&fixture, Kind::HttpRoute, &name).await, route);
        }
    }
    drop(agents);
    fixture.remove().await;
}

/// All conditions below a value that say which generation they are about, or do not.
fn generations(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(fields) if fields.contains_key("lastTransitionTime") => {
            found.push(fields.get("observedGeneration").cloned().unwrap_or_default());
        }
        Value::Object(fields) => fields.values().for_each(|value| generations(value, found)),
        Value::Array(values) => values.iter().for_each(|value| generations(value, found)),
        _ => {}
    }
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn every_condition_says_which_generation_it_is_about() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let from_all = json!({"namespaces": {"from": "All"}});
    fixture.gateway("web", json!({"allowedListeners": from_all})).await;
    let listeners = json!([{"name": "more", "port": 81, "protocol": "HTTP"}]);
    let set = json!({"parentRef": {"name": "web"}, "listeners": listeners});
    fixture.create("ListenerSet", "set", json!({"spec": set})).await;
    fixture.route("shop", "web").await;
    let current = |object: &Value| {
        let mut found = Vec::new();
        generations(&object["status"], &mut found);
        !found.is_empty() && found.iter().all(|generation| *generation == object["metadata"]["generation"])
    };
    let objects = [
        ("GatewayClass", fixture.name.as_str()),
        ("Gateway", "web"),
        ("ListenerSet", "set"),
        ("HTTPRoute", "shop"),
    ];
    for (kind, name) in objects {
        fixture.until(kind, name, current).await;
    }
    fixture.patch("GatewayClass", &fixture.name, json!({"spec": {"description": "changed"}})).await;
    fixture.patch("Gateway", "web", json!({"spec": {"infrastructure": {"labels": {"a": "b"}}}})).await;
    let listeners = json!([{"name": "more", "port": 82, "protocol": "HTTP"}]);
    fixture.patch("ListenerSet", "set", json!({"spec": {"listeners": listeners}})).await;
    fixture.patch("HTTPRoute", "shop", json!({"spec": {"hostnames": ["changed.example.com"]}})).await;
    for (kind, name) in objects {
        let object = fixture.until(kind, name, current).await;
        assert_eq!(object["metadata"]["generation"], 2, "{kind}");
    }
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_set_whose_gateway_goes_is_not_programmed_any_more() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let (bare, from_same) = (json!([]), json!({"namespaces": {"from": "Same"}}));
    let gateway = json!({"listeners": bare, "allowedListeners": from_same});
    fixture.gateway("web", gateway.clone()).await;
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let set = |gateway: &str| json!({"spec": {"parentRef": {"name": gateway}, "listeners": listeners}});
    fixture.create("ListenerSet", "set", set("web")).await;
    fixture.create("ListenerSet", "stray", set("no-such-gateway")).await;
    let is_programmed = |set: &Value| condition(&set["status"], "Programmed")["status"] == "True";
    fixture.until("ListenerSet", "set", is_programmed).await;

    fixture.delete("Gateway", "web").await;
    let is_told = |set: &Value| {
        ["Accepted", "Programmed"].iter().all(|it| {
            let condition = condition(&set["status"], it);
            condition["status"] == "False" && condition["reason"] == "ParentNotAccepted"
        })
    };
    let told = fixture.until("ListenerSet", "set", is_told).await;
    assert!(told["status"]["listeners"].is_null(), "{told:#}");
    let stray = fixture.get("ListenerSet", "stray").await;
    assert_eq!(condition(&stray["status"], "Accepted")["status"], "Unknown", "its owner is not known");

    fixture.gateway("web", gateway).await;
    fixture.until("ListenerSet", "set", is_programmed).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn no_gateway_of_another_controller_is_written() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let foreign = json!({"gatewayClassName": "somebody-elses"});
    fixture.gateway("theirs", foreign).await;
    fixture.gateway("ours", json!({})).await;
    fixture
        .until("Gateway", "ours", |gateway| condition(&gateway["status"], "Programmed")["status"] == "True")
        .await;
    let theirs = fixture.get("Gateway", "theirs").await;
    assert_eq!(condition(&theirs["status"], "Accepted")["status"], "Unknown", "as the CRD sets it");
    assert!(!version(&theirs).is_empty() && has_all(&agent.provisioning.borrow()));
    drop(agent);
    fixture.remove().await;
}

/// "A controller that manages the Backend must add an entry for each ancestor it manages and remove
/// the entry when the controller no longer considers the Backend to be associated with that
/// ancestor" (Gateway API v1.7, BackendStatus). Entries of others stay.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_host_outside_the_cluster_has_an_entry_for_each_gateway_that_uses_it() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let spec = json!({"type": "ExternalHostname", "externalHostname": {"hostname": "api.example.com"},
        "port": {"number": 443}});
    fixture.create("XBackend", "api", json!({"spec": spec})).await;
    let mut theirs = foreign();
    theirs["ancestorRef"] = theirs.as_object_mut().unwrap().remove("parentRef").unwrap();
    fixture.patch_status("XBackend", "api", json!({"ancestors": [theirs.clone()]})).await;
    let rules = json!([{"backendRefs": [{"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "api"}]}]);
    fixture
        .create("HTTPRoute", "api", json!({"spec": {"parentRefs": [{"name": "web"}], "rules": rules}}))
        .await;
    let ours = |backend: &Value| -> Vec<Value> {
        let entries = backend["status"]["ancestors"].as_array();
        let is_ours = |entry: &&Value| entry["controllerName"] == fixture.controller_name.as_str();
        entries.into_iter().flatten().filter(is_ours).cloned().collect()
    };
    let backend = fixture.until("XBackend", "api", |backend| !ours(backend).is_empty()).await;
    let entries = ours(&backend);
    assert_eq!((entries.len(), &entries[0]["ancestorRef"]["name"]), (1, &json!("web")));
    assert_eq!(condition(&entries[0], "Accepted")["status"], "True");

    fixture.delete("HTTPRoute", "api").await;
    let backend = fixture.until("XBackend", "api", |backend| ours(backend).is_empty()).await;
    assert_eq!(backend["status"]["ancestors"], json!([theirs]));
    drop(agent);
    fixture.remove().await;
}
