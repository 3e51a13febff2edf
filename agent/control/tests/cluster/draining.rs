//! The agent as it is shipped, told to stop while a client waits for an answer.

use std::net::SocketAddr;
use std::time::Instant;

use portcullis_control::lease::{Elector, Timing};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::agent::{Agent, LEASE, until};
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::shipped::Shipped;
use crate::statuses::{entry_of, foreign};

/// Of the test cluster's only node, see docs/test-cluster.md.
const NODE: &str = "10.250.0.1";

fn is_programmed(gateway: &Value) -> bool {
    condition(&gateway["status"], "Programmed")["status"] == "True"
}

/// A backend that answers one request, when it is told to.
struct SlowBackend {
    asked: oneshot::Receiver<()>,
    answer: oneshot::Sender<()>,
    port: u16,
}

impl SlowBackend {
    async fn start() -> Self {
        let listener = TcpListener::bind((NODE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let ((is_asked, asked), (answer, may_answer)) = (oneshot::channel(), oneshot::channel::<()>());
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap() > 2 {
                line.clear();
            }
            is_asked.send(()).unwrap();
            may_answer.await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole";
            stream.write_all(answer).await.unwrap();
        });
        Self { asked, answer, port }
    }
}

/// Returns where the Gateway is reached once all of it is served.
async fn serve(fixture: &Fixture, port: u16) -> SocketAddr {
    let ports = json!({"ports": [{"port": 80, "targetPort": port}]});
    fixture.create("Service", "backend", json!({"spec": ports})).await;
    let slice = json!({"metadata": {"labels": {"kubernetes.io/service-name": "backend"}}, "addressType": "IPv4",
        "ports": [{"name": "", "port": port}], "endpoints": [{"addresses": [NODE], "conditions": {"ready": true}}]});
    fixture.create("EndpointSlice", "backend", slice).await;
    fixture.gateway("web", json!({})).await;
    let rules = json!([{"backendRefs": [{"name": "backend", "port": 80}]}]);
    fixture
        .create("HTTPRoute", "shop", json!({"spec": {"parentRefs": [{"name": "web"}], "rules": rules}}))
        .await;
    let gateway = fixture.until("Gateway", "web", is_programmed).await;
    fixture.until("HTTPRoute", "shop", |route| !entry_of(route, &fixture.controller_name).is_null()).await;
    let address = gateway["status"]["addresses"][0]["value"].as_str().unwrap();
    SocketAddr::new(address.parse().unwrap(), 80)
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_agent_that_drains_leads_and_writes_no_more() {
    let (fixture, directory) = (Fixture::new().await, tempfile::tempdir().unwrap());
    let other = fixture.of_another_controller().await;
    let bystander = Agent::start_as(&other, "bystander", "other-lease");
    let mut first = Shipped::start(&fixture, directory.path());
    let backend = SlowBackend::start().await;
    let mut client = TcpStream::connect(serve(&fixture, backend.port).await).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: shop.example.com\r\n\r\n").await.unwrap();
    tokio::time::timeout(DEADLINE, backend.asked).await.expect("the backend is not asked").unwrap();

    // One that leads and writes nothing: whatever is written is the first one's.
    let second = Elector::new(fixture.client.clone(), &fixture.name, LEASE, "second", Timing::default());
    let leading = second.leading();
    tokio::spawn(second.run(std::future::pending()));
    first.terminate();
    let told = Instant::now();
    until(leading, |leads| *leads).await;
    let waited = told.elapsed();
    println!("another leader {waited:?} after SIGTERM, with a connection open");
    assert!(waited < Timing::default().valid_for / 2, "{waited:?}");

    fixture.patch_status("HTTPRoute", "shop", json!({"parents": [foreign()]})).await;
    fixture.gateway("late", json!({})).await;
    // An agent that still wrote would have by the time that another has answered what came after.
    other.gateway("theirs", json!({"gatewayClassName": format!("{}-other", fixture.name)})).await;
    fixture.until("Gateway", "theirs", is_programmed).await;
    assert_eq!(first.ended(), None, "it waits for its client");
    backend.answer.send(()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("whole"), "{answer}");
    assert!(first.await_end().await.success());

    let late = fixture.get("Gateway", "late").await;
    assert_eq!(condition(&late["status"], "Accepted")["status"], "Unknown", "as the CRD sets it");
    assert_eq!(fixture.get("HTTPRoute", "shop").await["status"]["parents"], json!([foreign()]));
    drop(bystander);
    fixture.remove().await;
}
