use super::super::pace::FIRST_REST;
use super::*;
use portcullis_api::Kind;
use portcullis_gateway::Status;
use serde_json::json;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", name))
}

fn observed(version: &str, status: &Value) -> Observed {
    Observed::new(version.to_owned(), &json!({"status": status}))
}

fn status(reason: &str) -> Status {
    let status = json!({"parents": [{"parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"},
        "controllerName": "c", "conditions": [{"type": "Accepted", "status": "True", "reason": reason, "message": "",
        "lastTransitionTime": "1970-01-01T00:00:00Z"}]}]});
    Status::Route(serde_json::from_value(status).unwrap())
}

fn plan(queue: &Arc<StatusQueue>, name: &str, status: Option<Status>) {
    queue.clone().write(&[(key(name), status)].into());
}

async fn next(queue: &StatusQueue) -> Option<Job> {
    tokio::time::timeout(Duration::from_millis(1), queue.next()).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_plans_are_one_write() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    for round in 0..1000 {
        plan(&queue, "r", Some(status(&format!("Round{round}"))));
    }
    let job = next(&queue).await.unwrap();
    assert_eq!(job.planned(), Some(status("Round999").to_json()));
    assert!(next(&queue).await.is_none(), "while it is being written, it is no other writer's");
}

#[tokio::test(start_paused = true)]
async fn an_object_rests_between_writes_but_not_before_the_first() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    let job = next(&queue).await.unwrap();
    plan(&queue, "r", Some(status("B")));
    queue.wrote(&job);
    assert!(next(&queue).await.is_none());
    let began = Instant::now();
    assert_eq!(queue.next().await.planned(), Some(status("B").to_json()));
    assert!(began.elapsed() <= FIRST_REST + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_settled_is_left_alone_until_something_changes() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    let job = next(&queue).await.unwrap();
    let job = Job { observed: observed("2", &status("A").to_json()), ..job };
    queue.observe(&key("r"), job.observed.clone());
    queue.wrote(&job);
    tokio::time::advance(FIRST_REST).await;
    assert!(next(&queue).await.is_none());
    queue.observe(&key("r"), observed("1", &json!({})));
    assert!(next(&queue).await.is_none(), "a watch may tell of the past");
    queue.observe(&key("r"), observed("3", &json!({})));
    assert!(next(&queue).await.is_some(), "our entry was removed");
}

#[tokio::test(start_paused = true)]
async fn objects_that_do_not_exist_are_not_written_until_they_do() {
    let queue = StatusQueue::new("c");
    plan(&queue, "r", Some(status("A")));
    assert!(next(&queue).await.is_none());
    queue.observe(&key("r"), observed("1", &json!({})));
    assert!(next(&queue).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_is_not_ours_any_more_loses_our_entry() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &status("A").to_json()));
    let job = next(&queue).await.unwrap();
    assert_eq!(job.patch("c", "now"), Some(json!({"parents": []})));
}

/// Writes as they are asked for while a route changes at this pace; returns when they were made.
async fn writes_while_changing(every: Duration, lasting: Duration) -> Vec<Duration> {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    let (began, mut writes) = (Instant::now(), Vec::new());
    let mut change = tokio::time::interval(every);
    while began.elapsed() < lasting + Duration::from_secs(1) {
        tokio::select! {
            _ = change.tick(), if began.elapsed() < lasting => {
                plan(&queue, "r", Some(status(&format!("At{}", began.elapsed().as_millis()))));
            }
            job = queue.next() => {
                writes.push(began.elapsed());
                queue.wrote(&job);
            }
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
    writes
}

#[tokio::test(start_paused = true)]
async fn an_object_that_never_holds_still_is_written_now_and_then_and_at_last() {
    let lasting = Duration::from_secs(20);
    let writes = writes_while_changing(Duration::from_millis(8), lasting).await;
    assert!(writes.len() <= 20, "{writes:?}");
    let last = *writes.last().unwrap();
    assert!(last >= lasting && last - lasting < Duration::from_millis(210), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_now_and_then_is_written_each_time() {
    let writes = writes_while_changing(Duration::from_millis(300), Duration::from_secs(8)).await;
    assert!((24..=28).contains(&writes.len()), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_writer_takes_what_the_last_one_left_half_done() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    drop(next(&queue).await.unwrap());
    assert!(next(&queue).await.is_none());
    queue.review();
    assert!(next(&queue).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_was_made_again_during_a_write_is_written() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    let job = next(&queue).await.unwrap();
    queue.forget(&key("r"));
    queue.observe(&key("r"), observed("7", &json!({})));
    queue.gone(&job);
    let again = next(&queue).await.unwrap();
    assert_eq!(again.observed.version, "7");
    queue.gone(&again);
    assert!(next(&queue).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_what_is_gone() {
    let queue = StatusQueue::new("c");
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    queue.forget(&key("r"));
    plan(&queue, "r", None);
    assert!(queue.work().dirty.is_empty(), "an agent that writes nothing takes nothing out either");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_is_not_called_programmed_before_it_is_known_what_it_could_not_have() {
    let queue = StatusQueue::new("c");
    let gateway = ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "web"));
    let set = ObjectKey::new(Kind::ListenerSet, ObjectName::new("shop", "set"));
    for key in [&gateway, &set] {
        queue.observe(key, observed("1", &json!({})));
        queue.clone().write(&[(key.clone(), Some(status("A")))].into());
    }
    queue.observe(&key("r"), observed("1", &json!({})));
    plan(&queue, "r", Some(status("A")));
    queue.review();
    assert_eq!(next(&queue).await.unwrap().key, key("r"), "only Gateways depend on it");
    assert!(next(&queue).await.is_none());
    queue.clone().provisioned();
    assert_eq!(next(&queue).await.unwrap().key, gateway);
    assert_eq!(next(&queue).await.unwrap().key, set);

    queue.forget(&key("r"));
    queue.retract();
    queue.review();
    let began = Instant::now();
    assert_eq!(queue.next().await.key, gateway);
    assert!(began.elapsed() >= UNPROVISIONED, "the wait ends");
}
