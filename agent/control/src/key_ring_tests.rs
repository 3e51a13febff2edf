use serde_json::{Value, json};

use super::*;
use crate::kube::fake::ApiServer;

const WEEK: u64 = 7 * 24 * 3600;

fn created(secret: &Secret) -> Vec<u64> {
    ring(secret).keys().iter().map(|key| key.created).collect()
}

#[test]
fn keys_are_added_once_a_week_and_the_oldest_go() {
    assert!(is_key_due(None, 0));
    let mut secret = with_key(None, 10).unwrap();
    secret.data.as_mut().unwrap().insert("note".to_owned(), ByteString(b"an operator's".to_vec()));
    assert_eq!(created(&secret), [10]);
    assert!(!is_key_due(Some(&secret), 10 + WEEK - 1) && is_key_due(Some(&secret), 10 + WEEK));
    for week in 1..20 {
        secret = with_key(Some(&secret), 10 + week * WEEK).unwrap();
    }
    let all = created(&secret);
    assert_eq!((all.len(), all[0], all[8]), (KEPT, 10 + 19 * WEEK, 10 + 11 * WEEK));
    assert!(secret.data.unwrap().contains_key("note"));
}

#[test]
fn what_is_no_key_is_passed_over() {
    let secret: Secret = serde_json::from_value(json!({"data": {
        "key-5": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "key-6": "AAAA", "key-x": "AAAA", "other": ""}}))
    .unwrap();
    assert_eq!(created(&secret), [5]);
    assert!(is_key_due(Some(&Secret::default()), 0));
}

#[tokio::test]
async fn a_file_is_made_once_and_kept_from_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state/keys");
    let ring = follow_file(path.clone()).borrow().clone().unwrap();
    assert_eq!(ring.keys().len(), 1);
    assert_eq!(follow_file(path.clone()).borrow().clone(), Some(ring));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

    let another = format!("key-1 {}\n", "ab".repeat(32));
    fs::write(&path, fs::read_to_string(&path).unwrap() + &another).unwrap();
    assert_eq!(read_file(&path).unwrap().keys()[1], RingKey { created: 1, secret: [0xab; 32] });
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(read_file(&path), Err(KeyFileError::Public)));
    assert!(follow_file(path.clone()).borrow().is_none());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "key-1 abcd\n").unwrap();
    assert!(matches!(read_file(&path), Err(KeyFileError::NoKey)));
}

#[test]
fn keys_that_cannot_be_read_any_more_stay_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let (path, ring) = (directory.path().join("keys"), watch::Sender::default());
    let mut file = KeyFile { path: path.clone(), ring, problem: LastLogged::default() };
    let mut known = file.ring.subscribe();
    make_file(&path).unwrap();
    for (contents, is_another) in [(None, true), (None, false), (Some("nonsense"), false), (Some(""), false)]
    {
        contents.into_iter().for_each(|text| fs::write(&path, text).unwrap());
        file.take(read_file(&path));
        assert_eq!(known.has_changed().unwrap(), is_another, "{contents:?}");
        assert!(known.borrow_and_update().is_some());
    }
    fs::remove_file(&path).unwrap();
    file.take(read_file(&path));
    assert!(!known.has_changed().unwrap() && !path.exists(), "nothing is made in its place");
    fs::write(&path, format!("key-9 {}", "ab".repeat(32))).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    file.take(read_file(&path));
    assert_eq!(known.borrow_and_update().as_ref().unwrap().keys()[0].created, 9);
}

fn list(items: Value) -> Value {
    json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
}

/// Answers the list and returns what is asked for besides the watch.
async fn asked_after_list(server: &mut ApiServer, items: Value) -> crate::kube::fake::Asked {
    loop {
        let asked = server.asked().await;
        match (&*asked.method, asked.path.contains("watch=true")) {
            ("GET", true) => drop(tokio::spawn(asked.given_up())),
            ("GET", false) => {
                assert!(asked.path.starts_with("/api/v1/namespaces/agents/secrets?"), "{}", asked.path);
                assert!(asked.path.contains("metadata.name%3Dportcullis-keys"), "{}", asked.path);
                asked.answer(200, list(items.clone()));
            }
            _ => return asked,
        }
    }
}

#[tokio::test]
async fn the_leader_makes_the_secret_if_it_is_missing() {
    let mut server = ApiServer::start().await;
    let (leads, leading) = watch::channel(true);
    let keys = KeyRingWatch::new(server.client().await, "agents", leading);
    let ring = keys.ring();
    let running = tokio::spawn(keys.run());
    let asked = asked_after_list(&mut server, json!([])).await;
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/api/v1/namespaces/agents/secrets?"));
    let made: Secret = serde_json::from_value(asked.body.clone()).unwrap();
    assert_eq!((made.metadata.name.as_deref(), created(&made).len()), (Some(KEYS), 1));
    assert!(ring.borrow().is_none(), "what was not written is not used");
    running.abort();
    drop(leads);
}

#[tokio::test]
async fn every_agent_follows_the_secret_and_others_than_the_leader_leave_it_alone() {
    for leads in [false, true] {
        let mut server = ApiServer::start().await;
        let (_leads, leading) = watch::channel(leads);
        let keys = KeyRingWatch::new(server.client().await, "agents", leading);
        let mut ring = keys.ring();
        let running = tokio::spawn(keys.run());
        let mut secret = with_key(None, 10).unwrap();
        secret.metadata.resource_version = Some("7".to_owned());
        let serving = tokio::spawn(async move { asked_after_list(&mut server, json!([secret])).await });
        let known = tokio::time::timeout(Duration::from_secs(60), ring.wait_for(Option::is_some)).await;
        assert_eq!(known.unwrap().unwrap().as_ref().unwrap().keys()[0].created, 10);
        if leads {
            // The key is of 1970: another is due.
            let asked = serving.await.unwrap();
            assert_eq!(asked.method, "PUT");
            let written: Secret = serde_json::from_value(asked.body.clone()).unwrap();
            assert_eq!(written.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!(created(&written).len(), 2);
        } else {
            serving.abort();
        }
        running.abort();
    }
}
