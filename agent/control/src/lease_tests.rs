use super::*;
use crate::kube::fake::ApiServer;
use portcullis_gateway::infra::AgentPod;
use serde_json::json;

/// It has nothing to do but to renew when it is about to step down.
const TIMING: Timing = Timing {
    valid_for: Duration::from_secs(10),
    renew_within: Duration::from_secs(2),
    retry_every: Duration::from_secs(20),
};

#[tokio::test]
async fn the_number_of_agents_is_what_the_leader_wrote_last() {
    const OFTEN: Timing = Timing { retry_every: Duration::from_millis(10), ..TIMING };
    let pod = |name: &str| {
        let pod = serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"nodeName": name}, "status": {"hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}],
            "conditions": [{"type": "Ready", "status": "True"}]}}));
        AgentPod::of(&pod.unwrap()).unwrap()
    };
    let pods = [pod("a"), pod("b")];
    let mut server = ApiServer::start().await;
    let agents = watch::Sender::new(Some(pods.iter().collect()));
    let elector = Elector::new(server.client().await, "n", "lease", "a", OFTEN).counting(agents.subscribe());
    let mut ready = elector.ready_agents();
    let campaign = tokio::spawn(elector.run(std::future::pending()));
    let lease = |holder: &str, renewed: u32, ready: &str| {
        json!({"metadata": {"name": "lease", "annotations": {"portcullis.dev/ready-agents": ready}},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 60, "leaseTransitions": renewed}})
    };
    // Of another leader, who knows; then of one who writes what cannot be.
    server.asked().await.answer(200, lease("b", 1, "5"));
    assert_eq!(ready.wait_for(Option::is_some).await.unwrap().unwrap().get(), 5);
    server.asked().await.answer(200, lease("b", 2, "0"));
    server.asked().await.answer(200, lease("b", 3, "7"));
    assert_eq!(ready.wait_for(|it| it.unwrap().get() != 5).await.unwrap().unwrap().get(), 7);
    // This one leads, keeps what is there until it is known to lead, and then says what it knows.
    server.asked().await.answer(200, lease("", 4, "7"));
    for expected in ["7", "2"] {
        let asked = loop {
            let asked = server.asked().await;
            if asked.method == "PUT" {
                break asked;
            }
            asked.answer(200, lease("a", 5, "7"));
        };
        let written = asked.body.clone();
        assert_eq!(written["metadata"]["annotations"]["portcullis.dev/ready-agents"], expected);
        asked.answer(200, written);
    }
    assert_eq!(ready.wait_for(|it| it.unwrap().get() != 7).await.unwrap().unwrap().get(), 2);
    campaign.abort();
}

#[tokio::test]
async fn a_leader_does_not_wait_for_an_answer_when_it_must_step_down() {
    let mut server = ApiServer::start().await;
    let elector = Elector::new(server.client().await, "n", "lease", "a", TIMING);
    let mut leading = elector.leading();
    let campaign = tokio::spawn(elector.run(std::future::pending()));
    server.asked().await.answer_not_found();
    let created = json!({"metadata": {"name": "lease"}, "spec": {"holderIdentity": "a"}});
    server.asked().await.answer(201, created);
    leading.wait_for(|leads| *leads).await.unwrap();
    let began = Instant::now();
    leading.wait_for(|leads| !*leads).await.unwrap();
    let led = began.elapsed();
    assert!(led < TIMING.valid_for / 2, "{led:?}");
    campaign.abort();
}
