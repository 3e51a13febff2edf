use serde_json::json;

use super::*;
use crate::kube::fake::{ApiServer, Asked};

fn key() -> ObjectKey {
    ObjectKey::new(Kind::Secret, ObjectName::new("shop", "certificate"))
}

async fn start() -> (ApiServer, Fetcher) {
    let server = ApiServer::start().await;
    let mut fetcher = Fetcher::new(server.client().await);
    fetcher.want([key()].into());
    (server, fetcher)
}

/// The next request, whatever else there is to hear.
async fn asked(server: &mut ApiServer, fetcher: &mut Fetcher) -> Asked {
    tokio::select! {
        asked = server.asked() => asked,
        fetched = fetcher.next() => panic!("{fetched:?}"),
    }
}

fn answer(asked: Asked, version: &str) {
    assert_eq!(asked.path, "/api/v1/namespaces/shop/secrets/certificate");
    asked.answer(
        200,
        json!({"metadata": {"name": "certificate", "namespace": "shop", "resourceVersion": version}}),
    );
}

fn version(fetched: Fetched) -> Option<String> {
    match fetched.answer {
        Answer::Found(manifest) => Some(version_of(&manifest)),
        Answer::Absent | Answer::Refused => None,
    }
}

#[tokio::test]
async fn an_answer_from_before_a_change_is_asked_for_again() {
    let (mut server, mut fetcher) = start().await;
    let early = asked(&mut server, &mut fetcher).await;
    fetcher.observe(&key(), "10".to_owned());
    answer(early, "9");
    let late = asked(&mut server, &mut fetcher).await;
    assert!(!fetcher.is_settled());
    answer(late, "10");
    assert_eq!(version(fetcher.next().await).unwrap(), "10");
    assert!(fetcher.is_settled());
    fetcher.observe(&key(), "10".to_owned());
    assert!(fetcher.requests.is_empty(), "it was read already");
}

#[tokio::test]
async fn an_object_that_was_made_while_the_answer_came_is_not_absent() {
    let (mut server, mut fetcher) = start().await;
    let early = asked(&mut server, &mut fetcher).await;
    fetcher.observe(&key(), "10".to_owned());
    early.answer(404, json!({"kind": "Status", "code": 404, "reason": "NotFound"}));
    answer(asked(&mut server, &mut fetcher).await, "10");
    assert_eq!(version(fetcher.next().await).unwrap(), "10");
}

#[tokio::test]
async fn the_answer_about_an_object_that_is_gone_meanwhile_does_not_count() {
    let (mut server, mut fetcher) = start().await;
    let early = asked(&mut server, &mut fetcher).await;
    fetcher.gone(&key());
    assert!(fetcher.is_settled());
    answer(early, "10");
    fetcher.observe(&key(), "11".to_owned());
    answer(asked(&mut server, &mut fetcher).await, "11");
    assert_eq!(version(fetcher.next().await).unwrap(), "11");
}

#[tokio::test]
async fn what_is_not_wanted_any_more_is_not_asked_for() {
    let (mut server, mut fetcher) = start().await;
    let early = asked(&mut server, &mut fetcher).await;
    assert_eq!(fetcher.others_than(&BTreeSet::new()), [key()].into());
    fetcher.unwant(&key());
    assert!(fetcher.others_than(&BTreeSet::new()).is_empty());
    assert!(fetcher.is_settled());
    answer(early, "10");
    fetcher.want([key()].into());
    answer(asked(&mut server, &mut fetcher).await, "11");
    assert_eq!(version(fetcher.next().await).unwrap(), "11");
}

#[tokio::test]
async fn what_the_api_server_will_not_give_is_not_waited_for() {
    let (mut server, mut fetcher) = start().await;
    asked(&mut server, &mut fetcher).await.answer(503, json!({"kind": "Status", "code": 503}));
    let again = asked(&mut server, &mut fetcher).await;
    assert!(!fetcher.is_settled());
    again.answer(403, json!({"kind": "Status", "code": 403}));
    assert_eq!(fetcher.next().await.answer, Answer::Refused);
    assert!(fetcher.is_settled() && !fetcher.requests.is_empty(), "but it is asked for again");
}
