use std::collections::VecDeque;

use portcullis_api::{Change, Object, Objects};
use portcullis_gateway::infra::AssignedAddresses;
use serde_json::json;
use tokio::time::advance;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DRAIN: Duration = Duration::from_secs(30);

struct Scripted(VecDeque<Update>);

impl Source for Scripted {
    async fn next(&mut self) -> Update {
        match self.0.pop_front() {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}

/// A source whose Gateway has these addresses from a load balancer, and both ends of what it is
/// told.
struct Scene {
    source: Reaching<Scripted>,
    contact: watch::Sender<Contact>,
    addresses: watch::Sender<BTreeSet<IpAddr>>,
}

impl Scene {
    async fn new(published: &[&str]) -> Self {
        let contact = watch::Sender::new(Contact { answered: Some(Instant::now()), silent_since: None });
        let addresses = watch::Sender::new(BTreeSet::new());
        let update = Update { observed: vec![assigned(published)], ..Update::default() };
        let source = Scripted([update].into());
        let mut source = Reaching::new(source, contact.subscribe(), addresses.subscribe(), DRAIN);
        source.next().await;
        Self { source, contact, addresses }
    }

    fn answer(&self) {
        self.contact.send_replace(Contact { answered: Some(Instant::now()), silent_since: None });
    }

    fn fall_silent(&self) {
        self.contact.send_modify(|contact| contact.silent_since = Some(Instant::now()));
    }

    /// The next suspects, and after which time.
    async fn suspects(&mut self) -> (Vec<String>, Duration) {
        let began = Instant::now();
        let update = self.source.next().await;
        let Some(Feedback::ApiServer(now)) = update.observed.first() else { panic!("{update:?}") };
        (now.suspects.iter().map(ToString::to_string).collect(), began.elapsed())
    }

    async fn says_nothing_for(&mut self, time: Duration) {
        let said = tokio::time::timeout(time, self.source.next()).await;
        assert!(said.is_err(), "{said:?}");
    }
}

fn assigned(published: &[&str]) -> Feedback {
    let ingress: Vec<_> = published.iter().map(|address| json!({"ip": address})).collect();
    let name = ObjectName::new("edge", "web");
    let owner = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web", "uid": "u",
        "controller": true});
    let mut objects = Objects::default();
    for manifest in [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "edge", "uid": "u"},
            "spec": {"gatewayClassName": "c", "listeners": []}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web-c", "namespace": "edge",
            "labels": {"app.kubernetes.io/managed-by": "portcullis"}, "ownerReferences": [owner]},
            "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": ingress}}}),
    ] {
        objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
    }
    Feedback::Assigned([(name.clone(), AssignedAddresses::of(&name, &objects))].into())
}

#[tokio::test(start_paused = true)]
async fn an_address_without_which_there_is_an_answer_is_withheld_for_ever_longer() {
    let mut scene = Scene::new(&["203.0.113.7"]).await;
    for pause in [PAUSE, PAUSE * 2, PAUSE * 4] {
        scene.fall_silent();
        assert_eq!(scene.suspects().await, (vec!["203.0.113.7".to_owned()], SILENCE_TIMEOUT));
        advance(SECOND).await;
        scene.answer();
        let (suspects, after) = scene.suspects().await;
        assert!(suspects.is_empty() && after == pause, "{suspects:?} after {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_not_the_reason_is_served_again() {
    let mut scene = Scene::new(&["203.0.113.7"]).await;
    scene.fall_silent();
    assert_eq!(scene.suspects().await, (vec!["203.0.113.7".to_owned()], SILENCE_TIMEOUT));
    assert_eq!(scene.suspects().await, (vec![], DRAIN + TRIAL));
    scene.says_nothing_for(LONGEST_PAUSE * 2).await;
    // In the next outage it is proved.
    scene.answer();
    scene.fall_silent();
    scene.says_nothing_for(LONGEST_PAUSE).await;
}

#[tokio::test(start_paused = true)]
async fn addresses_with_which_there_was_an_answer_are_not_suspected() {
    let mut scene = Scene::new(&["203.0.113.7"]).await;
    advance(SETTLING).await;
    scene.answer();
    scene.fall_silent();
    scene.says_nothing_for(LONGEST_PAUSE).await;
    scene.answer();
    let update = Update { observed: vec![assigned(&["203.0.113.7", "203.0.113.8"])], ..Update::default() };
    scene.source.source.0.push_back(update);
    scene.source.next().await;
    scene.fall_silent();
    assert_eq!(scene.suspects().await.0, ["203.0.113.8"]);
}

#[tokio::test(start_paused = true)]
async fn short_outages_and_addresses_of_the_cluster_cost_nothing() {
    let mut scene = Scene::new(&["203.0.113.7"]).await;
    scene.fall_silent();
    scene.says_nothing_for(SILENCE_TIMEOUT - SECOND).await;
    scene.answer();
    scene.says_nothing_for(LONGEST_PAUSE).await;

    let mut scene = Scene::new(&[]).await;
    scene.fall_silent();
    scene.says_nothing_for(LONGEST_PAUSE).await;
}

#[tokio::test(start_paused = true)]
async fn other_addresses_of_the_api_server_are_told() {
    let mut scene = Scene::new(&[]).await;
    let address: IpAddr = "203.0.113.7".parse().unwrap();
    scene.addresses.send_replace([address].into());
    let update = scene.source.next().await;
    let expected = ApiServer { addresses: [address].into(), ..ApiServer::default() };
    assert_eq!(update.observed, [Feedback::ApiServer(expected)]);
}
