//! Objects of our own kinds that an API server refuses, so that no agent ever sees them, and those
//! next to them that it takes: the schema, and its CEL rules.

use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Words of a refusal, with a specification that is taken, and one next to it that is not.
pub(crate) type Row = (&'static str, Value, Value);

/// The words with which the object is refused, or `None`. Nothing is kept.
pub(crate) async fn refusal(fixture: &Fixture, kind: &str, spec: Value) -> Option<String> {
    let metadata = json!({"name": "own", "namespace": fixture.name});
    let object = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": kind,
        "metadata": metadata, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    fixture.api(kind).create(&dry, &object).await.err().map(|error| error.to_string())
}

/// Panics unless of each row the one is taken and the other refused, in these words.
pub(crate) async fn tell_apart(kind: &str, rows: impl IntoIterator<Item = Row>) {
    let fixture = Fixture::new().await;
    for (words, fine, wrong) in rows {
        assert_eq!(refusal(&fixture, kind, fine.clone()).await, None, "{fine}");
        let refusal = refusal(&fixture, kind, wrong.clone()).await;
        assert!(refusal.as_ref().is_some_and(|refusal| refusal.contains(words)), "{wrong}: {refusal:?}");
    }
    fixture.remove().await;
}

/// Panics unless the objects of a kind that a page and an example show are taken: more than
/// `least`, in the words of those who copy them.
pub(crate) async fn take_what_is_shown(kind: &str, page: &str, example: &str, least: usize) {
    let fixture = Fixture::new().await;
    let shown = page.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let manifests = shown.chain(example.split("\n---\n"));
    let specs = manifests.filter_map(|manifest| {
        let manifest: Value = serde_saphyr::from_str(manifest).unwrap();
        (manifest["kind"] == kind).then(|| manifest["spec"].clone())
    });
    let specs: Vec<_> = specs.collect();
    assert!(specs.len() > least, "of the page and of the example: {specs:?}");
    for spec in specs {
        assert_eq!(refusal(&fixture, kind, spec.clone()).await, None, "{spec}");
    }
    fixture.remove().await;
}
