use super::super::pace::FIRST_REST;
use super::*;
use portcullis_api::Kind;
use portcullis_gateway::Status;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
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

fn route(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(Kind::HttpRoute, ObjectName::new(namespace, name))
}

fn class() -> ObjectKey {
    ObjectKey::new(Kind::GatewayClass, ObjectName::new("", "class"))
}

/// Something else is planned for each of them.
fn change(queue: &StatusQueue, keys: &[ObjectKey], round: usize) {
    let mut work = queue.work();
    keys.iter().for_each(|key| work.plan(key, Some(round.to_string().into())));
}

fn exist(queue: &StatusQueue, keys: &[ObjectKey]) {
    keys.iter().for_each(|key| queue.observe(key, observed("1", &json!({}))));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_who_changes_many_objects_all_the_time_delays_others_by_one_write() {
    let queue = StatusQueue::new("c");
    let many: Vec<_> = (0..10_000).map(|number| route("m", &number.to_string())).collect();
    let others = [class(), route("a", "r"), route("z", "r")];
    exist(&queue, &many);
    exist(&queue, &others);
    for round in 0..3 {
        change(&queue, &many, round);
        for _ in 0..8 {
            let job = next(&queue).await.unwrap();
            assert_eq!(&*job.key.name.namespace, "m");
            change(&queue, std::slice::from_ref(&job.key), 100 + round);
            queue.wrote(&job);
        }
        change(&queue, &others, round);
        let mut written = BTreeSet::new();
        for _ in 0..=others.len() {
            let job = next(&queue).await.unwrap();
            queue.wrote(&job);
            written.insert(job.key);
        }
        assert!(others.iter().all(|key| written.contains(key)), "{written:?}");
        tokio::time::advance(Duration::from_secs(4)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_once_more_does_not_lose_its_turn() {
    let queue = StatusQueue::new("c");
    for name in ["c", "a", "b"] {
        exist(&queue, &[key(name)]);
        plan(&queue, name, Some(status("A")));
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    plan(&queue, "c", Some(status("B")));
    for name in ["c", "a", "b"] {
        assert_eq!(next(&queue).await.unwrap().key, key(name));
    }
}

#[tokio::test(start_paused = true)]
async fn objects_that_never_hold_still_are_written_in_turns_with_those_of_their_namespace() {
    let queue = StatusQueue::new("c");
    let many: Vec<_> = (0..100).map(|number| key(&format!("a{number}"))).collect();
    exist(&queue, &many);
    exist(&queue, &[key("z")]);
    change(&queue, &many, 0);
    for round in 1.. {
        tokio::time::advance(Duration::from_millis(10)).await;
        change(&queue, &many, round);
        if round == 1 {
            change(&queue, &[key("z")], round);
        }
        let job = next(&queue).await.unwrap();
        if job.key == key("z") {
            break;
        }
        queue.wrote(&job);
        assert!(round <= many.len(), "one write of each of the others");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Observe(ObjectKey, &'static str),
    Plan(ObjectKey, Option<&'static str>),
    Forget(ObjectKey),
    Take,
    /// Of the jobs taken and not yet finished, that one.
    Finish(usize, Outcome),
    Review,
    Retract,
    Provision,
    Pass(Duration),
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Wrote,
    Settled,
    Gone,
    Unanswered,
    Refused,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gateway = ObjectKey::new(Kind::Gateway, ObjectName::new("a", "gateway"));
    let object = select(vec![class(), gateway, route("a", "r"), route("b", "r")]);
    let planned = select(vec![None, Some("1"), Some("2")]);
    let outcome =
        select(vec![Outcome::Wrote, Outcome::Settled, Outcome::Gone, Outcome::Unanswered, Outcome::Refused]);
    let passed = select(vec![1, 30, 250, 2_000, 31_000]).prop_map(Duration::from_millis);
    let step = prop_oneof![
        4 => (object.clone(), select(vec!["", "c"])).prop_map(|(key, status)| Step::Observe(key, status)),
        4 => (object.clone(), planned).prop_map(|(key, planned)| Step::Plan(key, planned)),
        1 => object.prop_map(Step::Forget),
        6 => Just(Step::Take),
        6 => (0..4usize, outcome).prop_map(|(job, outcome)| Step::Finish(job, outcome)),
        1 => Just(Step::Review),
        1 => Just(Step::Retract),
        1 => Just(Step::Provision),
        6 => passed.prop_map(Step::Pass),
    ];
    vec(step, 0..100)
}

async fn apply(queue: &Arc<StatusQueue>, step: Step, number: usize, jobs: &mut Vec<Job>) {
    match step {
        Step::Observe(key, status) => queue.observe(&key, observed(&number.to_string(), &json!(status))),
        Step::Plan(key, planned) => queue.work().plan(&key, planned.map(Into::into)),
        Step::Forget(key) => queue.forget(&key),
        Step::Take => jobs.extend(queue.work().take()),
        Step::Finish(job, outcome) if job < jobs.len() => {
            let job = jobs.remove(job);
            match outcome {
                Outcome::Wrote => _ = queue.wrote(&job),
                Outcome::Settled => queue.settle(&job),
                Outcome::Gone => queue.gone(&job),
                Outcome::Unanswered => queue.unanswered(&job.key),
                Outcome::Refused => queue.refused_write(&job.key),
            }
        }
        Step::Finish(..) => {}
        Step::Review => queue.review(),
        Step::Retract => queue.retract(),
        Step::Provision => queue.clone().provisioned(),
        Step::Pass(passed) => tokio::time::advance(passed).await,
    }
}

proptest! {
    /// The schedule has what a look at all objects would find.
    #[test]
    fn the_schedule_follows_what_it_is_made_of(steps in steps()) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let queue = StatusQueue::new("c");
        runtime.block_on(async {
            let mut jobs = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                apply(&queue, step, number, &mut jobs).await;
                let (work, now) = (queue.work(), Instant::now());
                // The order of those whose time has come may be of before a pace was over.
                let times = work.schedule.times().iter().map(|(key, due)| (key, now.max(*due)));
                let due = work.dirty.keys().filter_map(|key| Some((key, now.max(work.due(key)?))));
                prop_assert!(times.eq(due));
            }
            Ok(())
        })?;
    }
}
