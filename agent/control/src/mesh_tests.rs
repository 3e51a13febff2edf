use super::*;
use crate::kube::fake::{ApiServer, Asked};

/// The next status. Until then there is one XMesh: of our controller, and by this name.
async fn written(server: &mut ApiServer, watches: &mut Vec<Asked>, name: &str) -> Asked {
    let spec = json!({"controllerName": MeshSettings::default().controller_name});
    let mesh = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec});
    let resource =
        json!({"name": "xmeshes", "singularName": "", "namespaced": false, "kind": "XMesh", "verbs": []});
    loop {
        let asked = server.asked().await;
        match &*asked.method {
            "PATCH" => return asked,
            "POST" => asked.answer(409, json!({"kind": "Status", "code": 409})),
            _ if asked.path.contains("watch=true") => watches.push(asked),
            _ if asked.path.contains("xmeshes") => {
                asked.answer(200, json!({"metadata": {"resourceVersion": "1"}, "items": [mesh]}));
            }
            _ => asked.answer(200, json!({"groupVersion": "", "resources": [resource]})),
        }
    }
}

#[tokio::test]
async fn an_unexpected_mesh_is_answered_until_the_answer_is_written() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let settings = MeshSettings::default();
    let instance = Instance { version: "1".to_owned(), namespace: "n".to_owned(), agents: None };
    let mesh = Mesh::new(server.client().await, settings, instance, "", leading.subscribe());
    let (running, mut watches) = (tokio::spawn(mesh.run()), Vec::new());
    for _ in 0..2 {
        let write =
            tokio::time::timeout(RECHECK * 2, written(&mut server, &mut watches, "stray")).await.unwrap();
        assert!(
            write.path.starts_with("/apis/gateway.networking.x-k8s.io/v1alpha1/xmeshes/stray/status"),
            "{write:?}"
        );
        write.answer(500, json!({"kind": "Status", "code": 500, "message": "etcd is away"}));
    }
    running.abort();
}

#[tokio::test]
async fn agents_are_counted_before_the_first_status() {
    let (mut server, leading) = (ApiServer::start().await, watch::Sender::new(true));
    let settings = MeshSettings::default();
    let name = settings.name.clone();
    let instance = Instance { version: "1".to_owned(), namespace: "n".to_owned(), agents: None };
    let mesh = Mesh::new(server.client().await, settings, instance, "app=a", leading.subscribe());
    let (running, mut watches) = (tokio::spawn(mesh.run()), Vec::new());
    // The kinds of the group, then the agents.
    let discovery = server.asked().await;
    let resource =
        json!({"name": "xmeshes", "singularName": "", "namespaced": false, "kind": "XMesh", "verbs": []});
    discovery.answer(200, json!({"groupVersion": "", "resources": [resource]}));
    let pods = server.asked().await;
    assert!(pods.path.starts_with("/api/v1/namespaces/n/pods?"), "{pods:?}");
    pods.answer(200, json!({"metadata": {}, "items": []}));
    let write = written(&mut server, &mut watches, &name).await;
    assert!(write.path.ends_with(&format!("/xmeshes/{name}/status?&fieldManager=portcullis")), "{write:?}");
    running.abort();
}
