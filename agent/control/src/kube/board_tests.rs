use super::*;
use crate::kube::pace::FIRST_REST;
use serde_json::json;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", name))
}

fn observed(version: &str, status: &Value) -> Observed {
    Observed { version: version.to_owned(), status: status.to_string().into() }
}

fn status(reason: &str) -> Value {
    json!({"parents": [{"parentRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"},
        "controllerName": "c", "conditions": [{"type": "Accepted", "status": "True", "reason": reason, "lastTransitionTime": "t"}]}]})
}

fn plan(board: &Arc<Board>, name: &str, status: Option<Value>) {
    board.statuses().write([(key(name), status)].into());
}

async fn next(board: &Board) -> Option<Job> {
    tokio::time::timeout(Duration::from_millis(1), board.next()).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_plans_are_one_write() {
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &json!({})));
    for round in 0..1000 {
        plan(&board, "r", Some(status(&format!("Round{round}"))));
    }
    let job = next(&board).await.unwrap();
    assert_eq!(job.planned(), Some(status("Round999")));
    assert!(next(&board).await.is_none(), "while it is being written, it is nobody else's");
}

#[tokio::test(start_paused = true)]
async fn an_object_rests_between_writes_but_not_before_the_first() {
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &json!({})));
    plan(&board, "r", Some(status("A")));
    let job = next(&board).await.unwrap();
    plan(&board, "r", Some(status("B")));
    board.wrote(&job);
    assert!(next(&board).await.is_none());
    let began = Instant::now();
    assert_eq!(board.next().await.planned(), Some(status("B")));
    assert!(began.elapsed() <= FIRST_REST + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn what_is_settled_is_left_alone_until_something_changes() {
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &json!({})));
    plan(&board, "r", Some(status("A")));
    let job = next(&board).await.unwrap();
    let job = Job { observed: observed("2", &status("A")), ..job };
    board.observe(&key("r"), job.observed.clone());
    board.wrote(&job);
    tokio::time::advance(FIRST_REST).await;
    assert!(next(&board).await.is_none());
    board.observe(&key("r"), observed("1", &json!({})));
    assert!(next(&board).await.is_none(), "a watch may tell of the past");
    board.observe(&key("r"), observed("3", &json!({})));
    assert!(next(&board).await.is_some(), "somebody removed our entry");
}

#[tokio::test(start_paused = true)]
async fn objects_that_do_not_exist_are_not_written_until_they_do() {
    let board = Board::new("c");
    plan(&board, "r", Some(status("A")));
    assert!(next(&board).await.is_none());
    board.observe(&key("r"), observed("1", &json!({})));
    assert!(next(&board).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_is_not_ours_any_more_loses_our_entry() {
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &status("A")));
    let job = next(&board).await.unwrap();
    assert_eq!(job.patch("c", "now"), Some(json!({"parents": []})));
}

/// Writes as they are asked for while a route changes at this pace; returns when they were made.
async fn writes_while_changing(every: Duration, lasting: Duration) -> Vec<Duration> {
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &json!({})));
    let (began, mut writes) = (Instant::now(), Vec::new());
    let mut change = tokio::time::interval(every);
    while began.elapsed() < lasting + Duration::from_secs(1) {
        tokio::select! {
            _ = change.tick(), if began.elapsed() < lasting => {
                plan(&board, "r", Some(status(&format!("At{}", began.elapsed().as_millis()))));
            }
            job = board.next() => {
                writes.push(began.elapsed());
                board.wrote(&job);
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
    let board = Board::new("c");
    board.observe(&key("r"), observed("1", &json!({})));
    plan(&board, "r", Some(status("A")));
    drop(next(&board).await.unwrap());
    assert!(next(&board).await.is_none());
    board.review();
    assert!(next(&board).await.is_some());
}
