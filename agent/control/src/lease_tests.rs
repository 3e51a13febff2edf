use super::*;
use crate::kube::fake::ApiServer;
use serde_json::json;

/// It has nothing to do but to renew when it is about to step down.
const TIMING: Timing = Timing {
    valid_for: Duration::from_secs(10),
    renew_within: Duration::from_secs(2),
    retry_every: Duration::from_secs(20),
};

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
    assert!(led < TIMING.renew_within + Duration::from_millis(500), "{led:?}");
    campaign.abort();
}
