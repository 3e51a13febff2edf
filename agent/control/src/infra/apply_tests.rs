use super::*;
use crate::kube::fake::{ApiServer, Asked};
use crate::status::{Observed, StatusSink};
use portcullis_api::{Kind, ObjectKey};
use serde_json::{Value, json};

fn wanted(name: &str) -> DesiredObjects {
    let owner = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": name, "uid": name,
        "controller": true});
    let metadata = json!({"name": name, "namespace": "n", "ownerReferences": [owner],
        "annotations": {infra::CONTROLLER_ANNOTATION: "c"}});
    let service =
        Generated::read(GeneratedKind::Service, json!({"metadata": metadata, "spec": {"type": "ClusterIP"}}));
    let (gateway, objects) = (ObjectName::new("n", name), service.map(|it| vec![it]));
    DesiredObjects { gateway, uid: name.to_owned(), created: 0, objects, rights: Vec::new() }
}

/// A queue on which these Gateways want a Service.
fn queue(gateways: &[&str]) -> Arc<StatusQueue> {
    let queue = StatusQueue::new("c");
    let wanted = gateways.iter().map(|name| (ObjectName::new("n", *name), wanted(name)));
    let mut statuses = queue.clone();
    statuses.generate_only(wanted.collect());
    statuses.complete();
    queue
}

/// Of these there are none.
const LISTED: [&str; 2] = ["/api/v1/services", "/api/v1/namespaces/agents/pods"];

/// The next write. Until then there are no Services or agents, and nothing happens to them.
async fn write(server: &mut ApiServer, watches: &mut Vec<Asked>) -> Asked {
    loop {
        let asked = server.asked().await;
        match &*asked.method {
            "GET" if asked.path.contains("watch=true") => watches.push(asked),
            "GET" if LISTED.iter().any(|list| asked.path.starts_with(list)) => {
                asked.answer(200, json!({"metadata": {"resourceVersion": "1"}, "items": []}));
            }
            "GET" => asked.answer_not_found(),
            _ => return asked,
        }
    }
}

#[tokio::test]
async fn an_agent_that_leads_no_longer_finishes_nothing() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let (queue, mut watches) = (queue(&["a", "b"]), Vec::new());
    let generator = Generator::new(server.client().await, queue.clone(), leading.subscribe(), "agents", None);
    let running = tokio::spawn(generator.run());
    let slow = write(&mut server, &mut watches).await;
    assert!(slow.path.starts_with("/api/v1/namespaces/n/services/a?"), "{slow:?}");
    leading.send_replace(false);
    slow.given_up().await;

    queue.clone().generate([(ObjectName::new("n", "a"), None)].into());
    leading.send_replace(true);
    let next = write(&mut server, &mut watches).await;
    assert!(
        next.path.starts_with("/api/v1/namespaces/n/services/b?"),
        "no Gateway wants the other: {next:?}"
    );
    running.abort();
}

#[tokio::test]
async fn refusals_are_the_leaders_to_say() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let mut watches = Vec::new();
    let generator = Generator::new(server.client().await, queue(&["a"]), leading.subscribe(), "agents", None);
    let mut provisioning = generator.provisioning();
    let running = tokio::spawn(generator.run());
    let refusing = async {
        loop {
            write(&mut server, &mut watches).await.answer(422, json!({"kind": "Status", "code": 422}));
        }
    };
    let is_refused = |known: &Provisioning| known.as_ref().is_some_and(|refused| !refused.is_empty());
    tokio::select! {
        () = refusing => {}
        refused = provisioning.wait_for(is_refused) => drop(refused.unwrap()),
    }
    leading.send_replace(false);
    provisioning.wait_for(Option::is_none).await.unwrap();
    running.abort();
}

#[tokio::test]
async fn a_service_that_is_made_again_asks_for_the_address_that_its_gateway_had() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let (queue, mut watches) = (queue(&["a"]), Vec::new());
    let gateway = ObjectKey::new(Kind::Gateway, ObjectName::new("n", "a"));
    let addresses = json!([{"type": "IPAddress", "value": "10.96.3.4"}]);
    queue.observe(&gateway, Observed::new("1".to_owned(), &json!({"status": {"addresses": addresses}})));
    let generator = Generator::new(server.client().await, queue, leading.subscribe(), "agents", None);
    let running = tokio::spawn(generator.run());
    let asking = write(&mut server, &mut watches).await;
    assert_eq!(asking.body["spec"]["clusterIP"], "10.96.3.4");
    asking.answer(422, json!({"kind": "Status", "code": 422, "message": "provided IP is already allocated"}));
    let plain = write(&mut server, &mut watches).await;
    assert_eq!((plain.method.as_str(), &plain.body["spec"]["clusterIP"]), ("PATCH", &Value::Null));
    running.abort();
}
