//! Families as a whole. Objects are given as JSON; routing is asked through real route tables.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::api::core::v1::Service;
use portcullis_api::{Change, Object, Objects};
use portcullis_model::{
    Action, BackendTarget, Entry, PathTable, RequestHead, RouteTable, RuleId, TrafficPolicy,
};
use serde_json::{Value, json};

use super::*;
use crate::policy::backend_tls::TlsPolicy;
use crate::route::{Extension, Resolver, Services, compile, parse, resolve, table_entries};
use crate::{ConditionType, Fault, Grants, Reason};

/// Every Service exists, and is referred to across namespaces as the objects allow; children are as
/// `children` says.
pub(super) struct World {
    children: Granting,
    pub(super) objects: Objects,
    service: Service,
    filters: BTreeMap<ObjectName, Result<Extension, Fault>>,
}

/// The children of other namespaces that ReferenceGrants allow to list.
#[derive(PartialEq)]
pub(super) enum Granting {
    All,
    None,
}

impl World {
    pub(super) fn new(children: Granting) -> Self {
        let service = json!({"metadata": {"name": "any"}, "spec": {"ports": [{"port": 80}]}});
        let service = serde_json::from_value(service).unwrap();
        let mut world = Self { children, objects: Objects::default(), service, filters: BTreeMap::new() };
        for namespace in ["gw", "shop", "third"] {
            let header = json!({"set": [{"name": format!("x-of-{namespace}"), "value": "1"}]});
            let path = json!({"pattern": "/(.*)", "substitution": format!("/{namespace}/$1")});
            for (name, spec) in [
                ("headers", json!({"type": "RequestHeaders", "requestHeaders": header})),
                ("path", json!({"type": "PathRewrite", "pathRewrite": path})),
                (
                    "response",
                    json!({"type": "DirectResponse", "directResponse": {"statusCode": 299, "body": namespace}}),
                ),
                (
                    "broken",
                    json!({"type": "PathRewrite", "pathRewrite": {"pattern": "(", "substitution": "/"}}),
                ),
            ] {
                let filter = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
                    "metadata": {"namespace": namespace, "name": name}, "spec": spec});
                world.apply(Object::from_json(filter).unwrap().unwrap());
            }
        }
        world
    }

    pub(super) fn apply(&mut self, object: Object) {
        if let Object::RouteFilter(filter) = &object {
            self.filters.insert(object.key().name, compile(filter).map(|it| it.extension));
        }
        self.objects.apply(Change::Set(object));
    }

    /// HTTPRoutes of a namespace may refer to all Services of another.
    pub(super) fn granting(mut self, pairs: &[(&str, &str)]) -> Self {
        for (from, to) in pairs {
            let from =
                json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": from}]);
            let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
                "metadata": {"namespace": to, "name": format!("from-{}", from[0]["namespace"].as_str().unwrap())},
                "spec": {"from": from, "to": [{"group": "", "kind": "Service"}]}});
            self.objects.apply(Change::Set(Object::from_json(grant).unwrap().unwrap()));
        }
        self
    }
}

impl Services for World {
    fn service(&self, _: &ObjectName) -> Option<&Service> {
        Some(&self.service)
    }
    fn served_gateway(&self, _: &Service) -> Option<ObjectName> {
        None
    }
    fn permits(&self, kind: Kind, namespace: &str, service: &ObjectName) -> bool {
        let grants = Grants::new(&self.objects);
        grants.permits(kind, namespace, Kind::Service, &service.namespace, &service.name)
    }

    fn tls_policy(&self, _: &ObjectName, _: Option<&str>) -> TlsPolicy<'_> {
        TlsPolicy::None
    }
}

impl Resolver for World {
    fn services(&self) -> &impl Services {
        self
    }
    fn traffic_policy(&self, _: &RuleId, _: &[Arc<RuleId>]) -> Option<Arc<TrafficPolicy>> {
        None
    }
    fn sessions(&self, _: &ObjectName) -> Option<&portcullis_api::types::shared::SessionPersistence> {
        None
    }
    fn route_filter(&self, name: &ObjectName) -> Option<&Result<Extension, Fault>> {
        self.filters.get(name)
    }

    fn external(&self, _: &ObjectName) -> Option<Result<crate::route::ExternalTerms, &crate::Fault>> {
        None
    }
}

impl Surroundings for World {
    fn admits(&self, rule: &NamespaceRule, parent: &str, child: &str) -> bool {
        let name = |key: &str| (key == "kubernetes.io/metadata.name").then_some(child);
        match rule {
            NamespaceRule::None => false,
            NamespaceRule::Same => parent == child,
            NamespaceRule::All => true,
            NamespaceRule::Selector(selector) => selector.matches(name),
        }
    }
    fn permits(&self, _: Kind, _: &str, _: &ObjectName) -> bool {
        self.children == Granting::All
    }
    fn route_filter(&self, name: &ObjectName) -> Option<&Extension> {
        self.filters.get(name)?.as_ref().ok()
    }
    fn version(&self, _: &str, _: &str) -> u64 {
        0
    }
}

pub(super) struct Get<'r> {
    pub(super) method: Method,
    pub(super) host: &'r str,
    pub(super) path: &'r str,
    pub(super) headers: Vec<(&'r str, &'r str)>,
    /// The value of the only query parameter.
    pub(super) query: Option<&'r str>,
}

impl RequestHead for Get<'_> {
    fn method(&self) -> &Method {
        &self.method
    }
    fn host(&self) -> &str {
        self.host
    }
    fn path(&self) -> &str {
        self.path
    }
    fn header(&self, name: &http::HeaderName) -> Option<Cow<'_, [u8]>> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| Cow::Borrowed(value.as_bytes()))
    }
    fn query_param(&self, _: &str) -> Option<Cow<'_, str>> {
        self.query.map(Cow::Borrowed)
    }
}

pub(super) fn get(path: &str) -> Get<'_> {
    Get { method: Method::GET, host: "www.example.com", path, headers: Vec::new(), query: None }
}

pub(super) fn parsed(manifest: Value) -> Arc<ParsedRoute> {
    match Object::from_json(manifest) {
        Ok(Some(object)) => Arc::new(parse(&object).unwrap()),
        other => panic!("{other:?}"),
    }
}

pub(super) fn route(name: &str, spec: Value) -> Arc<ParsedRoute> {
    let (namespace, name) = name.split_once('/').unwrap();
    parsed(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": namespace, "name": name, "generation": 1}, "spec": spec}))
}

pub(super) fn table<'r>(routes: impl IntoIterator<Item = &'r Arc<ParsedRoute>>, world: &World) -> RouteTable {
    let mut by_host = BTreeMap::<HostPattern, Vec<Entry>>::new();
    for route in routes {
        let entries = table_entries(route, &resolve(route, world).rules);
        for hostname in &route.hostnames {
            by_host.entry(hostname.clone()).or_default().extend(entries.clone());
        }
    }
    let mut table = RouteTable::default();
    for (host, entries) in by_host {
        table.insert(&host, Arc::new(PathTable::new(entries)));
    }
    table
}

/// The backend's name, the status of a failure, or `404`.
pub(super) fn answer(table: &RouteTable, request: &Get<'_>) -> String {
    let Some(found) = table.find(request) else { return "404".to_owned() };
    match &found.rule.action {
        Action::Fail(failure) => failure.status.as_str().to_owned(),
        Action::Redirect(redirect) => format!("redirect {}", redirect.status.as_str()),
        Action::Respond(response) => format!("response {}", response.status.as_str()),
        Action::Forward(split) => match &split.backends()[0].target {
            BackendTarget::Known(name) => name.to_string(),
            BackendTarget::Respond(response) => format!("response {}", response.status.as_str()),
            BackendTarget::Invalid(failure) => failure.status.as_str().to_owned(),
        },
    }
}

pub(super) fn to(name: &str) -> Value {
    json!([{"name": name, "port": 80}])
}

pub(super) fn prefix(value: &str) -> Value {
    json!([{"path": {"type": "PathPrefix", "value": value}}])
}

pub(super) fn child_of(parent: &str, section: Option<&str>) -> Value {
    let (namespace, name) = parent.split_once('/').unwrap();
    let mut reference = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace, "name": name});
    if let Some(section) = section {
        reference["sectionName"] = json!(section);
    }
    json!([reference])
}

pub(super) fn printed(family: &Family) -> Vec<Value> {
    family.objects(&mut Names::default(), Grants::new(&Objects::default()))
}

pub(super) fn serve(family: &Family, path: &str) -> String {
    answer(&table(family.routes(), &World::new(Granting::None)), &get(path))
}

pub(super) fn bind_all(parent: &Arc<ParsedRoute>, children: &[Arc<ParsedRoute>]) -> Arc<Family> {
    bind(parent, children, &World::new(Granting::None), None)
}

pub(super) fn refusal<'f>(family: &'f Family, name: &str) -> &'f Fault {
    let report = family.children.iter().find(|report| &*report.child.name.name == name).unwrap();
    report.attempts[0].result.as_ref().unwrap_err()
}

pub(super) fn shop(rules: Value) -> Arc<ParsedRoute> {
    route("gw/parent", json!({"parentRefs": [{"name": "edge"}], "rules": rules}))
}

pub(super) fn open() -> Value {
    json!({"namespaces": {"from": "All"}})
}

#[test]
fn a_family_is_flattened_in_order_with_its_sources() {
    let parent = shop(json!([
        {"name": "store", "matches": prefix("/store"), "allowedRoutes": open()},
        {"matches": prefix("/"), "backendRefs": to("site")}]));
    let cart = route(
        "shop/cart",
        json!({"parentRefs": child_of("gw/parent", Some("store")),
        "rules": [{"matches": prefix("/cart"), "backendRefs": to("cart")}]}),
    );
    let family = bind_all(&parent, &[cart]);
    assert_eq!(serve(&family, "/store/cart/1"), "shop/cart:80");
    assert_eq!(serve(&family, "/store"), "gw/site:80");
    let objects = printed(&family);
    assert_eq!(objects.len(), 1);
    assert_eq!(objects[0]["spec"]["rules"][0]["backendRefs"][0]["namespace"], "shop");
    assert_eq!(
        objects[0]["metadata"]["annotations"][SOURCES_ANNOTATION],
        "rules[0]: HTTPRoute gw/parent rule 0 (store) > HTTPRoute shop/cart rule 0\nrules[1]: HTTPRoute gw/parent rule 1\n"
    );
    assert_eq!(
        family.grants(&mut Names::default(), Grants::new(&Objects::default()))[0]["metadata"]["namespace"],
        "shop"
    );
}

#[test]
fn a_rule_without_children_fails_and_never_falls_through() {
    let parent = shop(json!([
        {"matches": prefix("/store"), "allowedRoutes": {},
         "filters": [{"type": "RequestRedirect", "requestRedirect": {}}]},
        {"matches": prefix("/"), "backendRefs": to("site")}]));
    let family = bind_all(&parent, &[]);
    assert_eq!(serve(&family, "/store/x"), "500");
    assert_eq!(serve(&family, "/x"), "gw/site:80");
    let printed = printed(&family).into_iter().map(parsed).collect::<Vec<_>>();
    assert_eq!(answer(&table(&printed, &World::new(Granting::None)), &get("/store/x")), "500");
}

#[test]
fn a_failed_binding_changes_nothing_for_others() {
    let parent = shop(json!([
        {"matches": prefix("/store"), "allowedRoutes": open(), "filters": [
            {"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}}]},
        {"matches": prefix("/"), "backendRefs": to("site")}]));
    let good = route(
        "shop/good",
        json!({"parentRefs": child_of("gw/parent", None),
        "rules": [{"matches": prefix("/good"), "backendRefs": to("good")}]}),
    );
    let bad = route(
        "shop/bad",
        json!({"parentRefs": child_of("gw/parent", None), "rules": [
        {"matches": prefix("/fine"), "backendRefs": to("bad")},
        {"matches": prefix("/bad"), "backendRefs": to("bad"), "filters": [
            {"type": "URLRewrite", "urlRewrite": {"hostname": "b.example"}}]}]}),
    );
    let alone = bind_all(&parent, std::slice::from_ref(&good));
    let family = bind_all(&parent, &[bad, good]);
    assert_eq!(printed(&family), printed(&alone));
    assert_eq!(serve(&family, "/store/good"), "shop/good:80");
    // All or nothing; what the broken child asks for is answered as if it were not there.
    for path in ["/store/fine", "/store/bad"] {
        assert_eq!(serve(&family, path), "gw/site:80");
    }
    assert_eq!(serve(&family, "/store/other"), "gw/site:80");
    let refusal = refusal(&family, "bad");
    assert_eq!((refusal.condition, refusal.reason), (ConditionType::Conflicted, Reason::Conflicted));
    assert!(refusal.message.contains("rule 1 of HTTPRoute shop/bad"), "{}", refusal.message);
    // Across namespaces each side is told what it wrote itself; the parent's owner, of which child.
    let public = refusal.public_message().unwrap();
    assert!(!refusal.message.contains("gw/parent") && !refusal.message.contains("a.example"), "{refusal:?}");
    assert!(public.ends_with("and filters of HTTPRoute shop/bad"), "{public}");
}

#[test]
fn within_a_namespace_both_sides_are_named() {
    let parent = shop(
        json!([{"name": "a", "matches": [{"headers": [{"name": "x", "value": "1"}]}], "allowedRoutes": {}}]),
    );
    let child = route(
        "gw/child",
        json!({"parentRefs": child_of("gw/parent", Some("a")),
        "rules": [{"matches": [{"headers": [{"name": "X", "value": "2"}]}], "backendRefs": to("app")}]}),
    );
    let family = bind_all(&parent, &[child]);
    let message = refusal(&family, "child").public_message().unwrap();
    assert_eq!(
        message,
        "no request can meet both: headers x Exact \"1\" in rule 0 (a) of HTTPRoute gw/parent, and headers X Exact \"2\" in \
         rule 0 of HTTPRoute gw/child"
    );
}

#[test]
fn consent_is_needed_from_both_sides() {
    let parent = shop(json!([
        {"name": "same", "matches": prefix("/same"), "allowedRoutes": {}},
        {"name": "plain", "matches": prefix("/plain"), "backendRefs": to("site")}]));
    let child = |name: &str, section: Option<&str>| {
        route(
            name,
            json!({"parentRefs": child_of("gw/parent", section), "rules": [{"backendRefs": to("x")}]}),
        )
    };
    let family = bind_all(
        &parent,
        &[
            child("other/foreign", Some("same")),
            child("gw/plain", Some("plain")),
            child("gw/nowhere", Some("none")),
        ],
    );
    let reasons: Vec<_> =
        ["plain", "nowhere", "foreign"].iter().map(|name| refusal(&family, name).reason).collect();
    assert_eq!(reasons, [Reason::NotAllowedByParent, Reason::NoMatchingParent, Reason::NotAllowedByParent]);
    assert!(family.children.iter().all(|child| !child.is_bound()));
    // Strangers cannot spoil the parent's status.
    let attached = &family.parent_conditions(|_| true)[0];
    assert_eq!(
        (attached.reason.as_str(), attached.message.as_str()),
        (
            "NotAttached",
            "0 child routes attached; without a child route, and failing its requests: rule 0 (same)."
        )
    );
}

#[test]
fn children_named_by_backend_refs_need_their_own_consent() {
    let listed = |name: &str, namespace: &str| json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name, "namespace": namespace});
    let parent = shop(json!([{"matches": prefix("/a"), "backendRefs": [
        listed("*", "gw"), listed("lister", "shop"), listed("silent", "shop"), listed("gone", "gw")]}]));
    let plain = |name: &str, path: &str| {
        route(name, json!({"rules": [{"matches": prefix(path), "backendRefs": to("x")}]}))
    };
    let lister = route(
        "shop/lister",
        json!({"parentRefs": child_of("gw/parent", None),
        "rules": [{"matches": prefix("/lister"), "backendRefs": to("x")}]}),
    );
    let elsewhere = route(
        "gw/elsewhere",
        json!({"parentRefs": child_of("gw/another", None),
        "rules": [{"matches": prefix("/elsewhere"), "backendRefs": to("x")}]}),
    );
    let attached = route(
        "gw/attached",
        json!({"parentRefs": [{"name": "edge"}],
        "rules": [{"matches": prefix("/attached"), "backendRefs": to("x")}]}),
    );
    let children = [
        plain("gw/own", "/own"),
        plain("shop/silent", "/silent"),
        lister,
        elsewhere,
        attached,
        parent.clone(),
    ];
    let family = bind_all(&parent, &children);
    let found: Vec<_> = ["own", "lister", "silent", "elsewhere", "attached"]
        .iter()
        .map(|name| serve(&family, &format!("/a/{name}")))
        .collect();
    assert_eq!(found, ["gw/x:80", "shop/x:80", "404", "404", "404"]);
    let reasons: Vec<_> = family.unresolved.iter().map(|fault| fault.reason).collect();
    assert_eq!(reasons, [Reason::RefNotPermitted, Reason::BackendNotFound]);
    let granted = bind(&parent, &children, &World::new(Granting::All), None);
    assert_eq!(serve(&granted, "/a/silent"), "shop/x:80");
}

#[test]
fn a_third_tier_is_refused_without_harm() {
    let parent = shop(json!([{"matches": prefix("/a"), "allowedRoutes": {}}]));
    let middle = route(
        "gw/middle",
        json!({"parentRefs": child_of("gw/parent", None), "rules": [
        {"matches": prefix("/m"), "allowedRoutes": {}}]}),
    );
    let good = route(
        "gw/good",
        json!({"parentRefs": child_of("gw/parent", None),
        "rules": [{"matches": prefix("/g"), "backendRefs": to("x")}]}),
    );
    let leaf = route(
        "gw/leaf",
        json!({"parentRefs": child_of("gw/middle", None), "rules": [{"backendRefs": to("x")}]}),
    );
    let family = bind_all(&parent, &[middle.clone(), good]);
    assert_eq!(refusal(&family, "middle").condition, ConditionType::NotSupported);
    assert_eq!((serve(&family, "/a/g"), serve(&family, "/a/m")), ("gw/x:80".into(), "404".into()));
    let below = bind_all(&middle, &[leaf, middle.clone()]);
    assert_eq!(refusal(&below, "leaf").reason, Reason::NotSupported);
    assert_eq!(serve(&below, "/m"), "500");
}

#[test]
fn hostnames_narrow_from_parent_to_child_and_make_routes_of_their_own() {
    let parent = route(
        "gw/parent",
        json!({"hostnames": ["*.example.com"], "rules": [
        {"allowedRoutes": {}}, {"backendRefs": to("site")}]}),
    );
    let child = |name: &str, hostname: &str| {
        route(
            name,
            json!({"parentRefs": child_of("gw/parent", None), "hostnames": [hostname],
            "rules": [{"backendRefs": to(name.trim_start_matches("gw/"))}]}),
        )
    };
    let family =
        bind_all(&parent, &[child("gw/www", "www.example.com"), child("gw/other", "www.example.net")]);
    let table = table(family.routes(), &World::new(Granting::None));
    let ask = |host| answer(&table, &Get { host, ..get("/") });
    assert_eq!(ask("www.example.com"), "gw/www:80");
    assert_eq!(ask("x.example.com"), "gw/site:80");
    assert_eq!(ask("www.example.net"), "404");
    assert_eq!(refusal(&family, "other").reason, Reason::HostnameMismatch);
    let names: Vec<_> = printed(&family).iter().map(|object| object["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["parent", "parent-e0001"]);
}

#[test]
fn an_invalid_match_never_widens() {
    let parent = shop(json!([{"matches": prefix("/a"), "allowedRoutes": {}}, {"backendRefs": to("site")}]));
    let child = route(
        "gw/child",
        json!({"parentRefs": child_of("gw/parent", None), "rules": [
        {"matches": [{"path": {"type": "RegularExpression", "value": "("}}], "backendRefs": to("bad")},
        {"matches": prefix("/ok"), "backendRefs": to("ok")}]}),
    );
    let family = bind_all(&parent, &[child]);
    assert_eq!(serve(&family, "/a/ok"), "gw/ok:80");
    for path in ["/", "/a", "/a/x", "/x"] {
        assert_ne!(serve(&family, path), "gw/bad:80", "{path}");
    }
    assert!(family.children[0].partly_invalid.as_ref().unwrap().message.starts_with("Dropped Rule: rule 0"));
}

/// In the place of the rule in the child: first for what it takes, and printed so.
#[test]
fn an_invalid_rule_of_a_bound_child_fails_its_requests() {
    let parent = shop(json!([{"matches": prefix("/a"), "allowedRoutes": {}}, {"backendRefs": to("site")}]));
    let child = route(
        "gw/child",
        json!({"parentRefs": child_of("gw/parent", None), "rules": [
        {"matches": [{"path": {"type": "PathPrefix", "value": "/later"}}, {"path": {"value": "no-slash"}}],
         "filters": [{"type": "Later"}], "backendRefs": to("later")},
        {"matches": prefix("/later"), "backendRefs": to("shadowed")},
        {"matches": prefix("/ok"), "backendRefs": to("ok")}]}),
    );
    let family = bind_all(&parent, &[child]);
    let printed: Vec<_> = printed(&family).into_iter().map(parsed).collect();
    let printed = table(&printed, &World::new(Granting::None));
    for (path, expected) in
        [("/a/later", "500"), ("/a/ok", "gw/ok:80"), ("/a/other", "gw/site:80"), ("/ano-slash", "gw/site:80")]
    {
        assert_eq!((serve(&family, path), answer(&printed, &get(path))), (expected.into(), expected.into()));
    }
}

#[test]
fn the_owner_of_a_refused_child_reads_what_answers_instead() {
    let parent = shop(json!([
        {"name": "a", "matches": prefix("/a"), "allowedRoutes": open()},
        {"name": "b", "matches": prefix("/b"), "allowedRoutes": open()}]));
    let child = |name: &str, path: &str, section: Option<&str>| {
        let rules = json!([{"matches": [{"path": {"type": path, "value": "/x"}}], "backendRefs": to("x")}]);
        route(name, json!({"parentRefs": child_of("gw/parent", section), "rules": rules}))
    };
    let refused =
        [child("gw/refused", "RegularExpression", None), child("shop/refused", "RegularExpression", None)];
    let bound = [child("gw/a", "PathPrefix", Some("a")), child("gw/b", "PathPrefix", Some("b"))];
    let told = |bound: &[Arc<ParsedRoute>]| {
        let family = bind_all(&parent, &[&refused, bound].concat());
        [0, 1].map(|at| family.report(&refused[at].key).unwrap().instead.clone().unwrap())
    };
    let others = "requests go to other rules that match them, and are answered 404 if none does";
    let [own, foreign] = told(&[]);
    assert_eq!(
        own,
        "until a child route attaches, rule 0 (a), rule 1 (b) of HTTPRoute gw/parent answers 500"
    );
    let [some, foreign_then] = told(&bound[..1]);
    assert_eq!(
        some,
        format!(
            "until a child route attaches, rule 1 (b) of HTTPRoute gw/parent answers 500; for rule 0 (a), {others}"
        )
    );
    assert_eq!(told(&bound)[0], format!("until it attaches, {others}"));
    assert_eq!(foreign, foreign_then, "a stranger learns nothing of other children");
}

/// Binding again from what is known comes to the same, and to the same value where nothing is
/// different.
#[test]
fn what_is_known_is_taken_over() {
    let parent = shop(json!([{"matches": prefix("/s"), "allowedRoutes": {}}]));
    let child = |name: &str, path: &str| {
        let rules = json!([{"matches": prefix(path), "backendRefs": to(name)}]);
        route(&format!("gw/{name}"), json!({"parentRefs": child_of("gw/parent", None), "rules": rules}))
    };
    let before = [child("a", "/a"), child("b", "/b")];
    let now = [before[0].clone(), child("b", "/other")];
    let known = bind_all(&parent, &before);
    let bind = |children: &[_], known| bind(&parent, children, &World::new(Granting::None), known);
    assert!(Arc::ptr_eq(&bind(&before, Some(&known)), &known));
    let again = bind(&now, Some(&known));
    assert_eq!(printed(&again), printed(&bind(&now, None)));
    assert!(Arc::ptr_eq(&again.children[0], &known.children[0]));
    let different: Vec<_> = again.different_from(&known).map(|key| &*key.name.name).collect();
    assert_eq!(different, ["b", "b"], "as it was and as it is");
}
