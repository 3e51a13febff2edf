//! Tenants who do all the harm they can beside others, in short: `cargo xtask bench cluster
//! tenants` is the long form, and measures.

use std::time::Duration;

use crate::fixture::Fixture;
use crate::shipped::Shipped;
use crate::siege::{Intent, Node, Siege, Size};

const SIZE: Size = Size { good: 4, hostile: 4, children: 20, refused: 12, lasting: Duration::from_secs(8) };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn hostile_tenants_change_nothing_for_others() {
    let (fixture, directories) = (Fixture::new().await, Node::ALL.map(|_| tempfile::tempdir().unwrap()));
    let start =
        |(node, directory): (_, &tempfile::TempDir)| Shipped::start_on(node, &fixture, directory.path());
    let agents: Vec<_> = Node::ALL.into_iter().zip(&directories).map(start).collect();
    let siege = Siege::prepare(fixture, SIZE).await;
    let outcome = siege.lay(Intent::Hostile, || agents.iter().map(Shipped::resident).collect()).await;
    let seen = &outcome.seen;
    let (writes, refused) = (&outcome.writes, &outcome.refused);
    println!("{} requests, {} writes, {} forbidden", seen.answered, writes.taken, writes.forbidden);
    println!("{:.0?} MB, at most {:.0?}; refused: {refused:?}", outcome.settled, outcome.peak);
    assert_eq!((seen.failed, &seen.failures), (0, &Vec::new()));
    assert_eq!(outcome.changed, Vec::<String>::new());
    assert_eq!(outcome.leaks, Vec::<String>::new());
    assert!(seen.answered > 500, "the load was no load: {}", seen.answered);
    assert!(writes.forbidden >= 4, "a tenant has more rights than in its namespace");
    for reason in ["Conflicted", "Invalid", "TargetNotFound"] {
        assert!(refused.contains_key(&format!("ListenerPolicy {reason}")), "{reason}: {refused:?}");
    }
    assert!(writes.invalid >= 4 * 4, "the API server took what means nothing: {}", writes.invalid);
    drop(agents);
    siege.remove().await;
}
