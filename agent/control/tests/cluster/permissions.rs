//! The chart's roles are enough for everything, and too little of it hurts only what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portcullis_api::{GATEWAY_GROUP, Kind, Readers, StatusUse};
use portcullis_control::applier::State;
use portcullis_control::source::LastGood;
use portcullis_control::uninstall::{Installation, uninstall};
use portcullis_gateway::mesh::MeshSettings;
use portcullis_inspect::dump_snapshot;
use serde_json::{Value, json};

use crate::account;
use crate::agent::{Agent, LEASE, serves, until};
use crate::crds::XMESH;
use crate::endpoints;
use crate::fixture::{Fixture, condition};
use crate::logs::Logs;
use crate::meshes;
use crate::outages::{certificate, has_certificate, kept};

/// The chart as it is installed without values.
const CHART: &str = include_str!("../../../../deploy/kustomize/portcullis.yaml");

/// And with everything that it can do.
const FULL_CHART: &str = include_str!("../../../../tests/chart/cases/everything-set/rendered.yaml");

/// The Job that cleans up is Helm's.
const CHART_WITH_HOOKS: &str = include_str!("../../../../tests/chart/cases/defaults/rendered.yaml");

/// Of the agents' roles, not those of the job that cleans up.
pub(crate) fn rules(kind: &str) -> Value {
    rules_in(CHART, kind, "portcullis")
}

/// With mode Dedicated: `portcullis` are the agents' roles, `portcullis-dedicated` the one of all
/// pods.
pub(crate) fn rules_with_dedicated(kind: &str, name: &str) -> Value {
    rules_in(FULL_CHART, kind, name)
}

fn rules_in(chart: &str, kind: &str, name: &str) -> Value {
    let documents = chart.split("\n---\n").filter_map(|text| serde_saphyr::from_str::<Value>(text).ok());
    let mut roles = documents.filter(|it| it["kind"] == kind && it["metadata"]["name"] == name);
    roles.next().expect("the chart has the role")["rules"].clone()
}

/// The operator's pages on rights.
const RIGHTS: &str = concat!(
    include_str!("../../../../docs/cluster/reading.md"),
    include_str!("../../../../docs/cluster/dedicated.md")
);

type Verbs = BTreeSet<&'static str>;

/// Verbs by API group and resource.
fn granted(rules: &Value) -> BTreeMap<(String, String), BTreeSet<String>> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeMap::<_, BTreeSet<_>>::new();
    for rule in rules.as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.entry((group.clone(), resource)).or_default().extend(texts(&rule["verbs"]));
            }
        }
    }
    granted
}

/// Verbs that reading a kind takes.
fn reads(kind: Kind) -> Verbs {
    // An object is read anew after a conflict with another writer of its status.
    let is_read_alone = kind.reading().is_one_by_one() || kind.status() == StatusUse::Written;
    let watches = ["list", "watch"].into_iter().filter(|_| kind.reading().is_by_watch());
    watches.chain(is_read_alone.then_some("get")).collect()
}

/// Needs no cluster.
#[test]
fn the_agents_rights_follow_from_the_table_of_kinds() {
    let granted = granted(&rules("ClusterRole"));
    let verbs_on = |group: &str, resource: String| -> BTreeSet<&str> {
        let verbs = granted.get(&(group.to_owned(), resource));
        verbs.into_iter().flatten().map(String::as_str).collect()
    };
    for kind in Kind::ALL {
        let on_objects = verbs_on(kind.group(), kind.resource().to_owned());
        assert!(on_objects.is_superset(&reads(*kind)), "{kind}: {on_objects:?}");
        let on_status = verbs_on(kind.group(), format!("{}/status", kind.resource()));
        let expected = (kind.status() == StatusUse::Written).then_some("patch");
        assert_eq!(on_status, expected.into_iter().collect(), "{kind}");
    }
}

/// Rights that do not follow from reading kinds and writing their statuses: group, resource, verbs.
const OTHER_RIGHTS: [(&str, &str, &[&str]); 6] = [
    // Generated for Gateways.
    ("", "services", &["get", "create", "patch", "delete"]),
    ("discovery.k8s.io", "endpointslices", &["get", "create", "patch", "delete"]),
    // The agent reads its own.
    ("", "nodes", &["get"]),
    ("events.k8s.io", "events", &["create"]),
    // The mesh has a watch of its own.
    ("gateway.networking.x-k8s.io", "xmeshes", &["list", "watch", "create"]),
    ("gateway.networking.x-k8s.io", "xmeshes/status", &["patch"]),
];

/// Needs no cluster.
#[test]
fn there_are_no_rights_on_kinds_that_are_not_read() {
    let of_kinds = Kind::ALL.iter().flat_map(|kind| {
        let objects = (kind.group(), kind.resource().to_owned(), reads(*kind));
        let is_written = kind.status() == StatusUse::Written;
        let status =
            is_written.then(|| (kind.group(), format!("{}/status", kind.resource()), ["patch"].into()));
        [Some(objects), status].into_iter().flatten()
    });
    let others = OTHER_RIGHTS.map(|(group, resource, verbs)| {
        (group, resource.to_owned(), verbs.iter().copied().collect::<Verbs>())
    });
    let mut expected = BTreeMap::<_, BTreeSet<_>>::new();
    for (group, resource, verbs) in of_kinds.chain(others) {
        let verbs = verbs.into_iter().map(str::to_owned);
        expected.entry((group.to_owned(), resource)).or_default().extend(verbs);
    }
    assert_eq!(granted(&rules("ClusterRole")), expected);
}

/// Needs no cluster.
#[test]
fn pods_of_one_gateway_may_read_what_is_meant_for_them_and_nothing_else() {
    let granted = granted(&rules_with_dedicated("ClusterRole", "portcullis-dedicated"));
    let expected = Kind::ALL.iter().filter(|kind| kind.readers() == Readers::All);
    let expected = expected.map(|kind| {
        let verbs = ["list", "watch"].map(str::to_owned);
        ((kind.group().to_owned(), kind.resource().to_owned()), BTreeSet::from(verbs))
    });
    assert_eq!(granted, expected.collect());
}

/// Resources in an item of the operator's pages.
fn documented(begin: &str) -> BTreeSet<&'static str> {
    let (_, rest) = RIGHTS.split_once(begin).expect("the pages have an item for it");
    let item =
        ["\n- ", "\n\n"].iter().filter_map(|end| rest.find(end)).min().map_or(rest, |end| &rest[..end]);
    let is_resource = |word: &&str| word.len() > 3 && word.chars().all(|c| c.is_ascii_lowercase());
    item.split([' ', '\n', ',', ':', ';', '(', ')']).filter(is_resource).collect()
}

/// Needs no cluster.
#[test]
fn the_documented_rights_are_those_of_the_table_of_kinds() {
    const XMESHES: &str = "xmeshes";
    let resources = |is_meant: fn(Kind) -> bool| -> BTreeSet<&str> {
        Kind::ALL.iter().copied().filter(|kind| is_meant(*kind)).map(Kind::resource).collect()
    };
    let with_xmeshes = |mut resources: BTreeSet<&'static str>| {
        resources.insert(XMESHES);
        resources
    };
    let mut watched = documented("\n- list, watch: ");
    // In brackets: how they are read.
    watched.remove("metadata");
    assert_eq!(watched, with_xmeshes(resources(|kind| kind.reading().is_by_watch())));
    let read_alone = resources(|kind| reads(kind).contains("get"));
    assert!(documented("\n- get: ").is_superset(&read_alone), "{read_alone:?}");
    let written = resources(|kind| kind.status() == StatusUse::Written);
    assert_eq!(documented("\n- patch: `status` of "), with_xmeshes(written));
    let for_pods = resources(|kind| kind.readers() == Readers::All);
    assert_eq!(documented("\n- the pods' ServiceAccounts, list, watch: "), for_pods);
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_charts_roles_are_enough() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let account = account::with_rules(&fixture, rules("ClusterRole"), rules("Role")).await;
    endpoints::agent_pod(&fixture, "a", "192.0.2.1").await;
    let logs = Logs::capture();
    let (agent, mesh) = (Agent::start(&account, "a"), meshes::start(&account));
    let tls = json!({"certificateRefs": [{"name": "certificate"}]});
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}]);
    fixture.create("Secret", "certificate", json!({"data": {"tls.crt": "MQ=="}})).await;
    fixture.gateway("web", json!({"listeners": listeners})).await;
    fixture.route("shop", "web").await;
    let is_told = |route: &Value| condition(&route["status"]["parents"][0], "Accepted")["status"] == "True";
    fixture.until("HTTPRoute", "shop", is_told).await;
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    fixture.until("Gateway", "web", has_address).await;
    fixture.until("XMesh", &fixture.name, meshes::is_accepted).await;
    let slice = format!("web-{}-ipv4-0", fixture.name);
    fixture.until("EndpointSlice", &slice, |slice| !slice.is_null()).await;
    fixture.delete("Gateway", "web").await;
    fixture.until("EndpointSlice", &slice, Value::is_null).await;
    fixture.until("Service", &format!("web-{}", fixture.name), Value::is_null).await;
    assert_eq!(logs.with("forbidden"), Vec::<String>::new());
    drop((agent, mesh));
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_kind_that_may_not_be_read_does_not_stop_the_others() {
    let fixture = Fixture::new().await;
    let of_cluster = without(rules("ClusterRole"), "grpcroutes", &["get", "list", "watch"]);
    let account = account::with_rules(&fixture, of_cluster, rules("Role")).await;
    let (logs, agent) = (Logs::capture(), Agent::start(&account, "a"));
    fixture.gateway("web", json!({})).await;
    until(agent.current.clone(), |current| *current).await;
    fixture
        .until("Gateway", "web", |gateway| condition(&gateway["status"], "Programmed")["status"] == "True")
        .await;
    let told = logs.with("grpcroutes");
    assert!(told.len() == 1 && told[0].contains("forbidden") && told[0].contains("clusterrole"), "{told:?}");
    drop(agent);
    fixture.remove().await;
}

/// There may be one for the Service: it must not be spoken to in plaintext.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn policies_that_may_not_be_read_are_not_taken_for_none() {
    let fixture = Fixture::new().await;
    let of_cluster = without(rules("ClusterRole"), "backendtlspolicies", &["get", "list", "watch"]);
    let account = account::with_rules(&fixture, of_cluster, rules("Role")).await;
    fixture.create("Service", "app", json!({"spec": {"ports": [{"port": 80}]}})).await;
    fixture.gateway("web", json!({})).await;
    let rule = json!({"backendRefs": [{"name": "app", "port": 80}]});
    fixture
        .create("HTTPRoute", "r", json!({"spec": {"parentRefs": [{"name": "web"}], "rules": [rule]}}))
        .await;
    let agent = Agent::start(&account, "a");
    let resolved = |route: &Value| condition(&route["status"]["parents"][0], "ResolvedRefs").clone();
    let unread = "rule 0: the agents cannot read BackendTLSPolicies, and one may be about it";
    let is_unread = |route: &Value| {
        let resolved = resolved(route);
        resolved["status"] == "False"
            && resolved["message"].as_str().is_some_and(|text| text.starts_with(unread))
    };
    fixture.until("HTTPRoute", "r", is_unread).await;
    let is_told = |state: &State| {
        state.problems.iter().any(|problem| problem.to_string().contains("BackendTLSPolicy: it may not"))
    };
    until(agent.state.clone(), is_told).await;

    account::set_rules(&fixture, rules("ClusterRole")).await;
    fixture.until("HTTPRoute", "r", |route| resolved(route)["status"] == "True").await;
    until(agent.state.clone(), |state| state.problems.is_empty()).await;
    drop(agent);
    fixture.remove().await;
}

/// These rules without these verbs on this resource.
fn without(mut rules: Value, resource: &str, verbs: &[&str]) -> Value {
    let mut left = Vec::new();
    for rule in rules.as_array_mut().unwrap() {
        let resources = rule["resources"].as_array_mut().unwrap();
        if resources.iter().any(|it| it == resource) {
            resources.retain(|it| it != resource);
            let mut one = rule.clone();
            one["resources"] = json!([resource]);
            one["verbs"].as_array_mut().unwrap().retain(|verb| !verbs.contains(&verb.as_str().unwrap()));
            left.push(one);
        }
    }
    let rules = rules.as_array().unwrap().iter().cloned().chain(left);
    let has_any = |rule: &Value, field: &str| !rule[field].as_array().unwrap().is_empty();
    rules.filter(|rule| has_any(rule, "resources") && has_any(rule, "verbs")).collect()
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn secrets_that_cannot_be_read_do_not_keep_an_agent_from_being_ready() {
    let fixture = Fixture::new().await;
    let too_few = without(rules("ClusterRole"), "secrets", &["get"]);
    let account = account::with_rules(&fixture, too_few, rules("Role")).await;
    fixture.create("Secret", "certificate", certificate()).await;
    for (gateway, secret) in [("one", "certificate"), ("two", "no such/../name")] {
        let tls = json!({"certificateRefs": [{"name": secret}]});
        let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls});
        fixture.gateway(gateway, json!({"listeners": [listener]})).await;
    }
    let (logs, agent) = (Logs::capture(), Agent::start(&account, "a"));
    until(agent.current.clone(), |current| *current).await;
    let is_missing = |gateway: &Value| {
        condition(&gateway["status"]["listeners"][0], "ResolvedRefs")["reason"] == "InvalidCertificateRef"
    };
    for gateway in ["one", "two"] {
        fixture.until("Gateway", gateway, is_missing).await;
    }
    logs.until("configmaps not read").await;
    let told = logs.with("configmaps not read");
    assert!(
        told.len() == 1 && told[0].contains("/certificate: ") && told[0].contains("clusterrole"),
        "{told:?}"
    );

    account::set_rules(&fixture, rules("ClusterRole")).await;
    until(agent.state.clone(), has_certificate).await;
    assert_eq!(logs.with("configmaps: read again").len(), 1);
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn gateways_that_may_not_be_read_after_a_restart_stay_as_they_were() {
    let fixture = Fixture::new().await;
    let account = account::with_rules(&fixture, rules("ClusterRole"), rules("Role")).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last-good");
    let last_good = || Some(LastGood::new(path.clone()));
    fixture.gateway("web", json!({})).await;
    fixture.route("old", "web").await;
    let agent = Agent::start_with(&account, "a", last_good());
    fixture.until("HTTPRoute", "old", |route| !route["status"]["parents"][0].is_null()).await;
    let state = until(agent.state.clone(), serves).await;
    let address = state.snapshot.frontends.keys().next().unwrap().address.to_string();
    kept(&path, &address).await;
    let service = format!("web-{}", fixture.name);
    let before =
        [fixture.get("Service", &service).await, agent.at_rest(&fixture, Kind::HttpRoute, "old").await];
    drop(agent);

    account::set_rules(&fixture, without(rules("ClusterRole"), "gateways", &["get", "list", "watch"])).await;
    while account.api("Gateway").get_opt("web").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fixture.route("new", "web").await;
    let agent = Agent::start_with(&account, "a", last_good());
    let state = until(agent.state.clone(), |state| {
        dump_snapshot(&state.snapshot).to_string().contains("new.example.com")
    })
    .await;
    assert!(state.snapshot.frontends.keys().any(|key| key.address.to_string() == address));
    kept(&path, "new.example.com").await;
    kept(&path, &address).await;
    assert!(*agent.leading.borrow() && !*agent.current.borrow(), "it would write for no Gateway");
    let after = [fixture.get("Service", &service).await, fixture.get("HTTPRoute", "old").await];
    assert_eq!(after, before);

    account::set_rules(&fixture, rules("ClusterRole")).await;
    until(agent.current.clone(), |current| *current).await;
    fixture.until("HTTPRoute", "new", |route| !route["status"]["parents"][0].is_null()).await;
    assert_eq!(fixture.get("Service", &service).await, before[0]);
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn statuses_that_may_not_be_written_are_one_line_in_the_log_and_written_once_they_may() {
    let fixture = Fixture::new().await;
    let mut too_few = rules("ClusterRole");
    for rule in too_few.as_array_mut().unwrap() {
        rule["resources"].as_array_mut().unwrap().retain(|resource| resource != "httproutes/status");
    }
    let account = account::with_rules(&fixture, too_few, rules("Role")).await;
    let (logs, agent) = (Logs::capture(), Agent::start(&account, "a"));
    for name in ["one", "two", "three"] {
        fixture.route(name, "web").await;
    }
    fixture.gateway("web", json!({})).await;
    let has_routes = |gateway: &Value| gateway["status"]["listeners"][0]["attachedRoutes"] == 3;
    fixture.until("Gateway", "web", has_routes).await;
    logs.until("cannot write its status").await;

    account::set_rules(&fixture, rules("ClusterRole")).await;
    for name in ["one", "two", "three"] {
        let is_told = |route: &Value| !route["status"]["parents"][0].is_null();
        fixture.until("HTTPRoute", name, is_told).await;
    }
    let told = logs.with("cannot write its status");
    assert!(told.len() == 1 && told[0].contains("clusterrole"), "{told:?}");
    assert_eq!(logs.with("httproute: statuses are written again").len(), 1);
    drop(agent);
    fixture.remove().await;
}

/// Without mode Dedicated it may not even look for what the mode generates.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_rights_of_the_cleanup_job_are_enough() {
    let fixture = Fixture::new().await;
    endpoints::agent_pod(&fixture, "a", "192.0.2.1").await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let service = format!("web-{}", fixture.name);
    let slice = format!("{service}-ipv4-0");
    fixture.until("EndpointSlice", &slice, |slice| !slice.is_null()).await;
    drop(agent);
    let rules = |kind| rules_in(CHART_WITH_HOOKS, kind, "portcullis-cleanup");
    let mut of_cluster = rules("ClusterRole");
    for rule in of_cluster.as_array_mut().unwrap() {
        if rule["resources"] == json!(["xmeshes"]) {
            rule["resourceNames"] = json!([fixture.name]);
        }
    }
    // For the test to see when they are in force.
    let own = json!({"apiGroups": [GATEWAY_GROUP], "resources": ["gatewayclasses"], "verbs": ["get"]});
    of_cluster.as_array_mut().unwrap().push(own);
    let account = account::with_rules(&fixture, of_cluster, rules("Role")).await;
    let installation = Installation {
        controller_name: fixture.controller_name.clone(),
        mesh: MeshSettings { name: fixture.name.clone(), ..MeshSettings::default() },
        namespace: fixture.name.clone(),
        lease: LEASE.to_owned(),
    };
    let removed = uninstall(&account.client, &installation).await.unwrap();
    let name = &fixture.name;
    let [slice, service] = [format!("EndpointSlice {name}/{slice}"), format!("Service {name}/{service}")];
    assert_eq!(removed, [service, slice, format!("Lease {name}/{LEASE}")]);
    fixture.remove().await;
}
