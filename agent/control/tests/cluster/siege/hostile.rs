//! A tenant whose account may do in its own namespace what a tenant's account ordinarily may, and
//! nothing elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::Size;
use super::deeds::{self, Deed, Intent, Scene};
use super::good;
use super::platform::{EDGE, ROLE, address};
use crate::fixture::{Fixture, config, resource};

const ACCOUNT: &str = "tenant";
/// An object that is made last.
const LAST: &str = "last";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Kinds that a tenant owns.
const GATEWAY_API: [&str; 9] = [
    "gateways",
    "listenersets",
    "httproutes",
    "grpcroutes",
    "tlsroutes",
    "tcproutes",
    "udproutes",
    "referencegrants",
    "backendtlspolicies",
];
const CORE: [&str; 3] = ["services", "secrets", "configmaps"];

pub(super) struct Tenant {
    /// As the tenant's account.
    fixture: Fixture,
    scene: Scene,
}

/// Counts of what the API server did with writes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Writes {
    pub(crate) taken: u64,
    /// For want of a right.
    pub(crate) forbidden: u64,
    /// By a schema or rule.
    pub(crate) invalid: u64,
    /// It was gone, or there, already.
    pub(crate) late: u64,
}

impl Writes {
    pub(super) fn count(&mut self, result: kube::Result<()>) {
        match result {
            Ok(()) => self.taken += 1,
            Err(kube::Error::Api(error)) if error.code == 403 => self.forbidden += 1,
            Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => self.late += 1,
            Err(kube::Error::Api(error)) if matches!(error.code, 400 | 422) => self.invalid += 1,
            other => other.expect("the API server answers"),
        }
    }

    pub(super) fn add(&mut self, more: Self) {
        self.taken += more.taken;
        self.forbidden += more.forbidden;
        self.invalid += more.invalid;
        self.late += more.late;
    }
}

impl Tenant {
    pub(super) async fn create(platform: &Fixture, number: usize) -> Self {
        let namespace = platform.another_namespace(&format!("evil-{number}"), json!({ROLE: "evil"})).await;
        let own = json!([
            {"apiGroups": ["gateway.networking.k8s.io"], "resources": GATEWAY_API, "verbs": ["*"]},
            {"apiGroups": ["portcullis.dev"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": CORE, "verbs": ["*"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["*"]}
        ]);
        namespace.create("ServiceAccount", ACCOUNT, json!({})).await;
        namespace.create("Role", ACCOUNT, json!({"rules": own})).await;
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT});
        let subjects = json!([{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace.name}]);
        namespace.create("RoleBinding", ACCOUNT, json!({"roleRef": role, "subjects": subjects})).await;
        let fixture = namespace.seen_by(account(&namespace.name).await);
        let scene = Scene {
            namespace: namespace.name.clone(),
            platform: platform.name.clone(),
            class: platform.name.clone(),
            number,
            edge: address(platform, EDGE).await,
        };
        let tenant = Self { fixture, scene };
        tenant.await_rights().await;
        tenant
    }

    pub(super) fn name(&self) -> String {
        self.scene.namespace.clone()
    }

    pub(super) fn scene(&self) -> Scene {
        self.scene.clone()
    }

    /// Roles take effect a little later.
    async fn await_rights(&self) {
        let deadline = Instant::now() + TIMEOUT;
        while self.fixture.api("Gateway").get_opt("none").await.is_err() {
            assert!(Instant::now() < deadline, "{} has no rights", self.name());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn create_object(&self, deed: Deed) -> kube::Result<()> {
        let api = self.fixture.api(deed.kind);
        api.create(&PostParams::default(), &object(&deed)).await.map(drop)
    }

    async fn delete(&self, deed: &Deed) -> kube::Result<()> {
        self.fixture.api(deed.kind).delete(&deed.name, &DeleteParams::default()).await.map(drop)
    }

    /// To and fro: what it is then was never the same.
    async fn edit(&self, deed: &Deed, turn: usize) -> kube::Result<()> {
        let metadata =
            json!({"annotations": {"turn": turn.to_string()}, "labels": {"turn": (turn % 7).to_string()}});
        let patch = Patch::Merge(json!({"metadata": metadata, "spec": deed.edited(turn)}));
        self.fixture.api(deed.kind).patch(&deed.name, &PatchParams::default(), &patch).await.map(drop)
    }

    /// Until a route that was made after everything else is told of.
    pub(super) async fn is_told(&self) -> bool {
        let Ok(found) = self.fixture.api("HTTPRoute").get_opt(LAST).await else { return false };
        if found.is_none() {
            let _ = self.create_object(deeds::last(&self.scene, LAST)).await;
            return false;
        }
        found.is_some_and(|route| !route.data["status"]["parents"][0].is_null())
    }

    /// Counts of reasons in the statuses of its objects.
    pub(super) async fn add_reasons(&self, reasons: &mut BTreeMap<String, usize>) {
        for kind in [
            "Gateway",
            "ListenerSet",
            "HTTPRoute",
            "GRPCRoute",
            "TLSRoute",
            "TCPRoute",
            "UDPRoute",
            "BackendTLSPolicy",
            "ListenerPolicy",
            "BackendPolicy",
        ] {
            let objects = self.fixture.api(kind).list(&ListParams::default()).await.unwrap();
            for object in objects {
                let told: BTreeSet<_> = refusals(&object.data["status"]).into_iter().collect();
                told.into_iter()
                    .for_each(|reason| *reasons.entry(format!("{kind} {reason}")).or_default() += 1);
            }
        }
    }

    /// Writes for which it has no right: statuses, and objects of others.
    pub(super) async fn overreach(&self, platform: &Fixture, good: &[good::Tenant]) -> Writes {
        let mut writes = Writes::default();
        let victim = good.first().map(|tenant| self.fixture.named(&tenant.name()));
        for address in ["8.8.8.8", "10.96.0.1", "10.250.0.1", super::pod::POD] {
            let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
            let api = self.fixture.api("Service");
            let patched =
                api.patch_status("backend", &PatchParams::default(), &Patch::Merge(status)).await.map(drop);
            writes.count(patched);
        }
        for other in victim.iter().chain([&self.fixture.named(&platform.name)]) {
            let deed = deeds::last(&self.scene, "intruder");
            let made = other.api(deed.kind).create(&PostParams::default(), &object(&deed)).await;
            writes.count(made.map(drop));
            writes.count(other.api("HTTPRoute").delete("web", &DeleteParams::default()).await.map(drop));
        }
        writes
    }
}

/// One after the other object of each tenant is deleted and made again, or edited.
pub(super) async fn harass(
    tenants: &[Tenant],
    intent: Intent,
    size: Size,
    look: &mut impl FnMut(),
) -> Writes {
    let until = Instant::now() + size.lasting;
    let turns = tenants.iter().map(|tenant| {
        let deeds = deeds::all(&tenant.scene, intent, size);
        turn_over(tenant, deeds, until)
    });
    let mut writes = Writes::default();
    let mut turns = std::pin::pin!(futures::stream::iter(turns).buffer_unordered(tenants.len()));
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            done = turns.next() => match done {
                Some(done) => writes.add(done),
                None => return writes,
            },
            _ = tick.tick() => look(),
        }
    }
}

/// Steps through the objects in a stride that has no divisor in common with their number.
async fn turn_over(tenant: &Tenant, deeds: Vec<Deed>, until: Instant) -> Writes {
    let mut writes = Writes::default();
    let stride = [37, 41, 43].into_iter().find(|stride| !deeds.len().is_multiple_of(*stride)).unwrap_or(1);
    for turn in 0_usize.. {
        if Instant::now() >= until {
            break;
        }
        let deed = &deeds[turn * stride % deeds.len()];
        if turn.is_multiple_of(3) {
            writes.count(tenant.edit(deed, turn).await);
        } else {
            writes.count(tenant.delete(deed).await);
            writes.count(tenant.create_object(deed.clone()).await);
        }
    }
    writes
}

/// Reasons of conditions that are False and should not be.
fn refusals(status: &Value) -> Vec<String> {
    let is_refusal = |condition: &&Value| {
        let is_good =
            ["Accepted", "ResolvedRefs", "Programmed", "Attached"].iter().any(|it| condition["type"] == *it);
        is_good && condition["status"] == "False"
    };
    match status {
        Value::Object(fields) => {
            let conditions = fields.get("conditions").and_then(Value::as_array);
            let own = conditions.into_iter().flatten().filter(is_refusal);
            let own = own.filter_map(|condition| condition["reason"].as_str().map(str::to_owned));
            own.chain(fields.values().flat_map(refusals)).collect()
        }
        Value::Array(values) => values.iter().flat_map(refusals).collect(),
        _ => Vec::new(),
    }
}

fn object(deed: &Deed) -> DynamicObject {
    let mut manifest = deed.body.clone();
    manifest["metadata"]["name"] = deed.name.clone().into();
    manifest["apiVersion"] = resource(deed.kind).api_version.into();
    manifest["kind"] = deed.kind.into();
    serde_json::from_value(manifest).unwrap()
}

/// A client that the API server takes for the tenant's account.
async fn account(namespace: &str) -> Client {
    let mut config = config().await;
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{ACCOUNT}"));
    Client::try_from(config).unwrap()
}
