//! Taking a CRD away for a while. Tests run in parallel, so only those of kinds that no other test
//! needs meanwhile.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::fixture::{Fixture, condition};

/// Held by every test that needs XMesh, and alone by the one that takes it away.
pub(crate) static XMESH: RwLock<()> = RwLock::const_new(());

const KIND: &str = "CustomResourceDefinition";

/// Without the CRD at the beginning of `body`, which is given it, and with it as it was at the end.
pub(crate) async fn without(fixture: &Fixture, name: &str, body: impl AsyncFnOnce(Value)) {
    let crd = fixture.get(KIND, name).await;
    let crd = json!({"metadata": {"annotations": crd["metadata"]["annotations"]}, "spec": crd["spec"]});
    remove(fixture, name).await;
    let result = AssertUnwindSafe(body(crd.clone())).catch_unwind().await;
    if !fixture.get(KIND, name).await.is_null() {
        remove(fixture, name).await;
    }
    install(fixture, name, crd).await;
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

pub(crate) async fn install(fixture: &Fixture, name: &str, crd: Value) {
    fixture.create(KIND, name, crd).await;
    let is_served = |crd: &Value| condition(&crd["status"], "Established")["status"] == "True";
    fixture.until(KIND, name, is_served).await;
}

pub(crate) async fn remove(fixture: &Fixture, name: &str) {
    fixture.delete(KIND, name).await;
    fixture.until(KIND, name, Value::is_null).await;
}
