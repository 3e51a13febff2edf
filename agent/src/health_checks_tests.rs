use std::io::{Read, Write};
use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use portcullis_api::{Change, Object};
use portcullis_gateway::{Feedback, Settings, Translator};
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::*;

/// The state in which a Gateway is served whose Service has this `healthCheckNodePort`.
fn state(port: u16) -> State {
    let owner = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web", "uid": "u",
        "controller": true});
    let objects = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra", "uid": "u"}, "spec": {"gatewayClassName": "c",
                "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web-c", "namespace": "infra",
                "labels": {"app.kubernetes.io/managed-by": "portcullis"}, "ownerReferences": [owner]},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
                "clusterIPs": ["10.96.3.4"], "ports": [{"port": 80}]}}),
    ];
    let mut translator = Translator::new(Settings::default());
    let assigned = ["10.96.3.4".parse().unwrap()].into_iter().collect();
    translator.observe(Feedback::Assigned([(ObjectName::new("infra", "web"), assigned)].into()));
    let set = |manifest: Value| Change::Set(Object::from_json(manifest).unwrap().unwrap());
    let snapshot = translator.apply(objects.into_iter().map(set).collect()).snapshot;
    assert_eq!(snapshot.health_checks.keys().collect::<Vec<_>>(), [&port]);
    State { snapshot, ..State::default() }
}

/// One that no process has at the moment, and that none is given which asks for any.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if StdTcpListener::bind(("::", port)).is_ok() {
            return port;
        }
    }
}

/// Head and body of the answer, once there is one.
async fn ask(port: u16) -> (String, String) {
    let asked = spawn_blocking(move || {
        loop {
            let Ok(mut stream) = StdTcpStream::connect(("127.0.0.1", port)) else {
                std::thread::yield_now();
                continue;
            };
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            return (head.to_owned(), body.to_owned());
        }
    });
    timeout(Duration::from_secs(60), asked).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_node_is_healthy_for_a_service_while_it_serves_the_gateway() {
    let port = free_port();
    let served = state(port);
    let (sender, receiver) = watch::channel(served.clone());
    let answering = tokio::spawn(answer_as(receiver));
    let (head, body) = ask(port).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
    assert!(head.contains("x-load-balancing-endpoint-weight: 1"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let service = json!({"namespace": "infra", "name": "web-c"});
    assert_eq!(body, json!({"service": service, "localEndpoints": 1, "serviceProxyHealthy": true}));

    // The node cannot serve it: another process has the port.
    let mut refused = served.clone();
    let frontends = served.snapshot.frontends.keys();
    refused.refused.frontends = frontends.map(|frontend| (*frontend, "in use".to_owned())).collect();
    sender.send_replace(refused);
    let (head, body) = ask(port).await;
    assert!(head.starts_with("HTTP/1.1 503 ") && body.contains("\"localEndpoints\":0"), "{head}\n{body}");

    // Nothing is left when there is no such Service any more.
    sender.send_replace(State { snapshot: Arc::default(), ..State::default() });
    let gone = spawn_blocking(move || {
        while StdTcpStream::connect(("127.0.0.1", port)).is_ok() {
            std::thread::yield_now();
        }
    });
    timeout(Duration::from_secs(60), gone).await.unwrap().unwrap();
    answering.abort();
}

#[tokio::test]
async fn a_port_that_another_process_has_is_its_own_until_it_is_free() {
    let other = StdTcpListener::bind("[::]:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let (_sender, receiver) = watch::channel(state(port));
    let answering = tokio::spawn(answer_as(receiver));
    let (mut met, _) = spawn_blocking(move || {
        drop(StdTcpStream::connect(("127.0.0.1", port)).unwrap());
        other.accept().unwrap()
    })
    .await
    .unwrap();
    assert_eq!(met.read(&mut [0]).unwrap(), 0, "the other one answers");
    let (head, _) = ask(port).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    answering.abort();
}

#[tokio::test]
async fn connections_that_ask_nothing_keep_no_load_balancer_out() {
    let port = free_port();
    let (_sender, receiver) = watch::channel(state(port));
    let answering = tokio::spawn(answer_as(receiver));
    ask(port).await;
    let silent: Vec<_> =
        (0..2 * MAX_CONNECTIONS).map(|_| StdTcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let (head, _) = ask(port).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop((silent, answering));
}
