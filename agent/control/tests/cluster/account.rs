//! A user who may do less than the administrator: a ServiceAccount with a role of its own, and
//! its token.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::AuthInfo;
use serde_json::{Value, json};

use crate::fixture::{Fixture, config};

const NAME: &str = "agent";

/// With these rules in the whole cluster, which let it get GatewayClasses, and these in the test's
/// namespace.
pub(crate) async fn with_rules(fixture: &Fixture, rules: Value, of_namespace: Value) -> Fixture {
    fixture.create("ServiceAccount", NAME, json!({})).await;
    grant(fixture, "ClusterRole", &fixture.name, rules).await;
    grant(fixture, "Role", NAME, of_namespace).await;
    let account = named(fixture, NAME).await;
    // Roles take effect a little later.
    while account.api("GatewayClass").get_opt(&fixture.name).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    account
}

async fn grant(fixture: &Fixture, kind: &str, name: &str, rules: Value) {
    fixture.create(kind, name, json!({"rules": rules})).await;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let subjects = json!([{"kind": "ServiceAccount", "name": NAME, "namespace": fixture.name}]);
    fixture.create(&format!("{kind}Binding"), name, json!({"roleRef": role, "subjects": subjects})).await;
}

pub(crate) async fn set_rules(fixture: &Fixture, rules: Value) {
    fixture.patch("ClusterRole", &fixture.name, json!({"rules": rules})).await;
}

/// With a ServiceAccount that is there already.
pub(crate) async fn named(fixture: &Fixture, name: &str) -> Fixture {
    fixture.seen_by(client(fixture, name).await)
}

async fn client(fixture: &Fixture, name: &str) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(fixture.client.clone(), &fixture.name);
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await.unwrap();
    let mut config = config().await;
    config.auth_info = AuthInfo::default();
    config.auth_info.token = Some(answer.status.unwrap().token.into());
    Client::try_from(config).unwrap()
}
