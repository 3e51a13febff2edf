use super::*;
use crate::kube::fake::{ApiServer, Asked};
use crate::status::StatusSink;
use portcullis_gateway::Status;
use portcullis_model::ObjectName;

/// A queue with the status of a GRPCRoute to be written.
fn queue() -> Arc<StatusQueue> {
    let queue = StatusQueue::new("c");
    let key = ObjectKey::new(Kind::GrpcRoute, ObjectName::new("n", "r"));
    queue.observe(&key, Observed::new("1".to_owned(), &json!({})));
    let entry = json!({"parentRef": {"name": "g"}, "controllerName": "c", "conditions": []});
    let mut statuses = queue.clone();
    let status = Status::Route(serde_json::from_value(json!({"parents": [entry]})).unwrap());
    statuses.write(&[(key, Some(status))].into());
    statuses.complete();
    queue
}

fn discovered(asked: Asked, version: &str) {
    assert_eq!(asked.path, format!("/apis/gateway.networking.k8s.io/{version}"));
    let resource = json!({"name": "grpcroutes", "singularName": "", "namespaced": true, "kind": "GRPCRoute", "verbs": []});
    asked.answer(200, json!({"groupVersion": "", "resources": [resource]}));
}

/// As an API server does.
fn not_served(asked: Asked) {
    asked.answer(404, json!("404 page not found"));
}

#[tokio::test]
async fn statuses_are_written_in_the_version_that_is_served_now() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let writer = StatusWriter::new(server.client().await, queue(), leading.subscribe());
    let running = tokio::spawn(writer.run());
    not_served(server.asked().await);
    discovered(server.asked().await, "v1alpha2");
    let write = server.asked().await;
    assert_eq!(
        write.path,
        "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/n/grpcroutes/r/status?&fieldManager=portcullis"
    );
    // Meanwhile, the CRD has become another.
    not_served(write);
    discovered(server.asked().await, "v1");
    let write = server.asked().await;
    assert_eq!(write.method, "PATCH");
    assert_eq!(
        write.path,
        "/apis/gateway.networking.k8s.io/v1/namespaces/n/grpcroutes/r/status?&fieldManager=portcullis"
    );
    running.abort();
}
