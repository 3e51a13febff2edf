//! A test's own part of the cluster, removed when the test ends.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Config, ResourceExt};
use portcullis_api::Kind;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Far more than anything takes, also on a machine with several tests and builds at a time: it only
/// says when a test has failed. Beside the siege of hostile tenants a status took a minute.
pub(crate) const DEADLINE: Duration = Duration::from_secs(240);

/// Names of tests' namespaces begin with it.
pub(crate) const NAMESPACE_PREFIX: &str = "portcullis-test-";
/// On the namespaces of tests.
const LABEL: &str = "portcullis.dev/test";
/// No test takes this long.
const ABANDONED: Duration = Duration::from_secs(600);

/// Objects that tests make outside of their namespace, named after it.
const NOT_NAMESPACED: [(&str, &str); 9] = [
    ("GatewayClass", ""),
    ("GatewayClass", "-other"),
    ("XMesh", ""),
    ("ClusterRole", ""),
    ("ClusterRoleBinding", ""),
    ("ClusterRole", "-pods"),
    ("ClusterRoleBinding", "-pods"),
    ("ClusterTrustBundle", ""),
    ("ClusterTrustBundle", ".example.com:ca:one"),
];

pub(crate) struct Fixture {
    pub(crate) client: Client,
    /// The namespace, and the name of the GatewayClass and the Mesh.
    pub(crate) name: String,
    pub(crate) controller_name: String,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let client = Client::try_from(config().await).unwrap();
        remove_leftovers(&client).await;
        let generated = json!({"metadata": {"generateName": NAMESPACE_PREFIX, "labels": {LABEL: ""}}});
        let namespace: Namespace = serde_json::from_value(generated).unwrap();
        let namespace = Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let name = namespace.name_any();
        let fixture = Self::existing(client, name);
        let spec = json!({"controllerName": fixture.controller_name});
        fixture.create("GatewayClass", &fixture.name, json!({"spec": spec})).await;
        fixture
    }

    /// Of a test that made it.
    pub(crate) fn existing(client: Client, name: String) -> Self {
        Self { client, controller_name: format!("{name}.example.com/gateway"), name }
    }

    /// The same for a client that reaches the API server in another way.
    pub(crate) fn seen_by(&self, client: Client) -> Self {
        Self { client, name: self.name.clone(), controller_name: self.controller_name.clone() }
    }

    /// The same for the agents of another controller.
    pub(crate) async fn of_another_controller(&self) -> Self {
        let name = format!("{}-other", self.name);
        let other = Self {
            client: self.client.clone(),
            name: self.name.clone(),
            controller_name: format!("{name}.example.com/gateway"),
        };
        other.create("GatewayClass", &name, json!({"spec": {"controllerName": other.controller_name}})).await;
        other
    }

    /// One more namespace, with labels, in which the same is done.
    pub(crate) async fn another_namespace(&self, suffix: &str, labels: Value) -> Self {
        let mut metadata = json!({"name": format!("{}-{suffix}", self.name), "labels": labels});
        metadata["labels"][LABEL] = "".into();
        let namespace: Namespace = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        self.named(&namespace.name_any())
    }

    /// The same in a namespace that is there.
    pub(crate) fn named(&self, namespace: &str) -> Self {
        Self {
            client: self.client.clone(),
            name: namespace.to_owned(),
            controller_name: self.controller_name.clone(),
        }
    }

    pub(crate) async fn remove_namespaces(&self, names: &[String], limit: Duration) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in names {
            let _ = namespaces.delete(name, &DeleteParams::default()).await;
        }
        let deadline = Instant::now() + limit;
        for name in names {
            while namespaces.get_opt(name).await.unwrap().is_some() {
                assert!(Instant::now() < deadline, "namespace {name} does not go");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        match kind {
            "GatewayClass"
            | "XMesh"
            | "CustomResourceDefinition"
            | "ClusterRole"
            | "ClusterRoleBinding"
            | "ClusterTrustBundle" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), &self.name, &resource),
        }
    }

    pub(crate) async fn create(&self, kind: &str, name: &str, rest: Value) -> Value {
        let mut manifest = rest;
        manifest["metadata"]["name"] = name.into();
        manifest["apiVersion"] = resource(kind).api_version.into();
        manifest["kind"] = kind.into();
        let object: DynamicObject = serde_json::from_value(manifest).unwrap();
        value(self.api(kind).create(&PostParams::default(), &object).await.unwrap())
    }

    pub(crate) async fn patch(&self, kind: &str, name: &str, patch: Value) -> Value {
        value(self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap())
    }

    pub(crate) async fn patch_status(&self, kind: &str, name: &str, status: Value) -> Value {
        let patch = Patch::Merge(json!({"status": status}));
        value(self.api(kind).patch_status(name, &PatchParams::default(), &patch).await.unwrap())
    }

    pub(crate) async fn delete(&self, kind: &str, name: &str) {
        self.api(kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// `null` if there is no such object.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Value {
        self.api(kind).get_opt(name).await.unwrap().map_or(Value::Null, value)
    }

    /// Waits until the object is as expected, and returns it.
    pub(crate) async fn until(&self, kind: &str, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let object = self.get(kind, name).await;
            if holds(&object) {
                return object;
            }
            assert!(Instant::now() < deadline, "{kind} {name} stays as it is: {object:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn gateway(&self, name: &str, spec: Value) -> Value {
        let mut whole = json!({"gatewayClassName": self.name,
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        self.create("Gateway", name, json!({"spec": whole})).await
    }

    pub(crate) async fn route(&self, name: &str, gateway: &str) -> Value {
        self.create(
            "HTTPRoute",
            name,
            json!({"spec": {"parentRefs": [{"name": gateway}],
            "hostnames": [format!("{name}.example.com")]}}),
        )
        .await
    }

    /// Everything that is not in the namespace, and the namespace.
    pub(crate) async fn remove(self) {
        for (kind, suffix) in NOT_NAMESPACED {
            let _ = self.api(kind).delete(&format!("{}{suffix}", self.name), &DeleteParams::default()).await;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let _ = namespaces.delete(&self.name, &DeleteParams::default()).await;
    }
}

/// The configuration of a client that is the administrator.
pub(crate) async fn config() -> Config {
    let path = std::env::var_os("KUBECONFIG")
        .expect("KUBECONFIG is not set: run this by `cargo xtask cluster exec`, see docs/test-cluster.md");
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

/// Removes what killed runs left behind.
async fn remove_leftovers(client: &Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    for namespace in namespaces.list(&ListParams::default().labels(LABEL)).await.unwrap() {
        let created = namespace.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0.as_second());
        if now - created > ABANDONED.as_secs() as i64 {
            let name = namespace.name_any();
            Fixture::existing(client.clone(), name).remove().await;
        }
    }
}

pub(crate) fn resource(kind: &str) -> ApiResource {
    // The other versions are served only if the API server is told to.
    if kind == "ClusterTrustBundle" {
        let gvk = GroupVersionKind::gvk("certificates.k8s.io", "v1", kind);
        return ApiResource::from_gvk(&gvk);
    }
    if let Some(known) = Kind::ALL.iter().find(|known| known.as_str() == kind) {
        let gvk = GroupVersionKind::gvk(known.group(), known.versions()[0], kind);
        return ApiResource::from_gvk_with_plural(&gvk, known.resource());
    }
    let (group, version) = match kind {
        "Pod" | "ServiceAccount" => ("", "v1"),
        "Deployment" => ("apps", "v1"),
        "Event" => ("events.k8s.io", "v1"),
        "Lease" => ("coordination.k8s.io", "v1"),
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => ("rbac.authorization.k8s.io", "v1"),
        "XMesh" => ("gateway.networking.x-k8s.io", "v1alpha1"),
        _ => ("gateway.networking.k8s.io", "v1"),
    };
    let plural = match kind {
        "XMesh" => "xmeshes".to_owned(),
        _ => format!("{}s", kind.to_lowercase()),
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}

pub(crate) fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// A condition of a status, or of a part of one.
pub(crate) fn condition<'v>(holder: &'v Value, r#type: &str) -> &'v Value {
    static NONE: Value = Value::Null;
    let conditions = holder["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == r#type).unwrap_or(&NONE)
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}
