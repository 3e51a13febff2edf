//! The ephemeral route as objects to apply: HTTPRoutes (GRPCRoutes), and the ReferenceGrants that
//! they need, and the RouteFilters of children. A printed rule stands in the parent's namespace,
//! where other rights hold than in its child's: what the child may refer to is granted, and what it
//! may not leads nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use portcullis_api::types::shared::{HttpRouteFilter, PolicyTargetReference};
use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey, Objects};
use portcullis_model::{ObjectName, RuleId};
use serde_json::{Map, Value, json};

use super::assemble::Item;
use super::{Ephemeral, Family, Names};
use crate::Grants;
use crate::default_scope::DefaultScope;
use crate::route::{
    Draft, ParsedBackendRef, ParsedRoute, ParsedRule, Referred, RuleFilters, carried_from, not_permitted,
    print_draft,
};

/// By the CRD, of a ReferenceGrant.
const TARGETS_OF_A_GRANT: usize = 16;

/// Names the source of every rule, one line each, and what of it is printed otherwise.
pub const SOURCES_ANNOTATION: &str = "portcullis.dev/sources";

/// Stands for a Service that the rule's author has no right to refer to: "When a HTTPBackendRef
/// refers to an unknown or unsupported kind of resource", its share is answered with 500 in every
/// namespace.
const REFUSED_GROUP: &str = "portcullis.dev";
const REFUSED_KIND: &str = "NotPermitted";

// === impl Family ===

impl Family {
    /// Routes that serve the same as the family when they are applied in its place. None for a
    /// parent that no Gateway accepts.
    pub fn objects(&self, names: &mut Names, grants: Grants<'_>) -> Vec<Value> {
        let parts = self.printed();
        let own = names.parts(&self.parent.key, parts.len());
        parts.iter().zip(own).map(|(part, name)| part.object(&self.parent, &name, names, grants)).collect()
    }

    /// Permission for routes of the parent's namespace to refer to what the children may.
    pub fn grants(&self, names: &mut Names, grants: Grants<'_>) -> Vec<Value> {
        let kind = self.parent.key.kind;
        let own = &self.parent.key.name.namespace;
        let rules = self.printed().iter().flat_map(|part| &part.route.rules);
        let mut services = BTreeMap::<_, BTreeSet<_>>::new();
        for rule in rules {
            let mirrors: Vec<_> = mirrors(rule).map(|(_, to)| to).collect();
            let mirrors = mirrors.iter().map(ParsedBackendRef::referred);
            for to in rule.references().chain(mirrors).filter(|to| is_service(*to)) {
                if may_refer(grants, kind, to.owner, to) && !may_refer(grants, kind, own, to) {
                    services.entry(to.namespace.clone()).or_default().insert(to.name.clone());
                }
            }
        }
        let mut printed = Vec::new();
        for (namespace, services) in services {
            let services: Vec<_> = services.into_iter().collect();
            for services in services.chunks(TARGETS_OF_A_GRANT) {
                let name = names.grant(&self.parent.key, &namespace);
                printed.push(grant(&self.parent.key, &name, &namespace, services));
            }
        }
        printed
    }

    /// TrafficPolicies that hold for rules of the family and not for the same rules of `routes`,
    /// which are its [`Self::objects`]: a line for each target.
    pub fn policies_left_behind(&self, routes: &[Value], objects: &Objects) -> Vec<String> {
        let mut lines = Vec::new();
        for (policy, declared) in &objects.traffic_policies {
            for reference in &declared.spec.target_refs {
                if Kind::of(&reference.group, &reference.kind) != Some(self.parent.key.kind) {
                    continue;
                }
                let target = PolicyTarget::of(&policy.namespace, reference);
                let places = self.left_behind(&target, routes);
                if !places.is_empty() {
                    lines.push(target.left_behind(policy, &places));
                }
            }
        }
        lines
    }

    /// The printed rules that a policy held for, and does not any more: `HTTPRoute edge/web
    /// rules[0]`.
    fn left_behind(&self, target: &PolicyTarget<'_>, routes: &[Value]) -> Vec<String> {
        let namespace = &self.parent.key.name.namespace;
        let mut places = Vec::new();
        for (part, route) in self.printed().iter().zip(routes) {
            let name = route["metadata"]["name"].as_str().unwrap_or_default();
            let key = ObjectKey::new(self.parent.key.kind, ObjectName::new(namespace.clone(), name));
            for (at, item) in part.items.iter().enumerate() {
                let holds = target.covers(&key.name, item.draft.name.as_deref());
                let held = item.sources().any(|id| target.covers(&id.route, id.name.as_deref()));
                if held && !holds {
                    places.push(format!("{key} rules[{at}]"));
                }
            }
        }
        places
    }

    fn printed(&self) -> &[Arc<Ephemeral>] {
        if self.parent.refusal().is_none() { &self.ephemeral } else { &[] }
    }
}

/// The RouteFilters of children that the printed routes of their parents refer to: copies, since
/// such a reference stays in its namespace.
pub fn copied_filters(names: &mut Names, objects: &Objects) -> Vec<Value> {
    let copies = names.take_copies().into_iter();
    let copies = copies.filter_map(|(original, copy)| Some((objects.route_filters.get(&original)?, copy)));
    let copies = copies.map(|(original, copy)| {
        json!({
            "apiVersion": Kind::RouteFilter.api_version(),
            "kind": Kind::RouteFilter.as_str(),
            "metadata": {"name": &*copy.name, "namespace": &*copy.namespace},
            "spec": original.spec,
        })
    });
    copies.collect()
}

fn grant(parent: &ObjectKey, name: &str, namespace: &str, services: &[Arc<str>]) -> Value {
    let from =
        json!({"group": GATEWAY_GROUP, "kind": parent.kind.as_str(), "namespace": &*parent.name.namespace});
    let to: Vec<_> = services
        .iter()
        .map(|name| json!({"group": Kind::Service.group(), "kind": Kind::Service.as_str(), "name": **name}))
        .collect();
    json!({
        "apiVersion": Kind::ReferenceGrant.api_version(),
        "kind": Kind::ReferenceGrant.as_str(),
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"from": [from], "to": to},
    })
}

/// A route, or a rule of one, that a policy names.
struct PolicyTarget<'t> {
    kind: &'t str,
    route: ObjectName,
    rule: Option<&'t str>,
}

/// Of the places in a message.
const PLACES_NAMED: usize = 8;

/// A mirror of a rule: which one of all mirrors of the rule, or of one of its backends.
#[derive(Clone, Copy)]
struct MirrorPlace {
    backend: Option<usize>,
    number: usize,
}

/// All mirrors of a rule.
fn mirrors(rule: &ParsedRule) -> impl Iterator<Item = (MirrorPlace, ParsedBackendRef)> + '_ {
    let of_rule = std::iter::once((None, &rule.filters));
    let of_backends = rule.backend_refs.iter().enumerate().map(|(at, to)| (Some(at), &to.filters));
    of_rule.chain(of_backends).flat_map(|(backend, filters)| {
        let mirrors = filters.mirrors.iter().enumerate();
        mirrors.map(move |(number, mirror)| {
            (MirrorPlace { backend, number }, ParsedBackendRef::of_mirror(mirror))
        })
    })
}

fn is_service(to: Referred<'_>) -> bool {
    Kind::of(to.group, to.kind) == Some(Kind::Service)
}

fn may_refer(grants: Grants<'_>, kind: Kind, namespace: &str, to: Referred<'_>) -> bool {
    grants.permits(kind, namespace, Kind::Service, to.namespace, to.name)
}

// === impl Ephemeral ===

impl Ephemeral {
    fn object(&self, parent: &ParsedRoute, name: &str, names: &mut Names, grants: Grants<'_>) -> Value {
        let key = &self.route.key;
        json!({
            "apiVersion": key.kind.api_version(),
            "kind": key.kind.as_str(),
            "metadata": self.metadata(parent, name, grants),
            "spec": self.spec(parent, names, grants),
        })
    }

    fn metadata(&self, parent: &ParsedRoute, name: &str, grants: Grants<'_>) -> Value {
        let mut metadata = json!({
            "name": name,
            "namespace": &*parent.key.name.namespace,
            "annotations": {SOURCES_ANNOTATION: self.sources(grants)},
        });
        // Age decides between routes with equal matches.
        if let (Some(created), Some(fields)) =
            (parent.source.metadata().creation_timestamp.clone(), metadata.as_object_mut())
        {
            fields.insert("creationTimestamp".to_owned(), json!(created));
        }
        metadata
    }

    fn sources(&self, grants: Grants<'_>) -> String {
        let kind = self.route.key.kind;
        let mut lines = String::new();
        for (at, item) in self.items.iter().enumerate() {
            let further: String = item.rule.joined.iter().map(|id| format!(" + {id}")).collect();
            lines += &format!("rules[{at}]: {}{further}\n", item.rule.id);
            for (place, to) in item.refused(kind, grants) {
                let service = ObjectName::new(to.namespace.clone(), to.name.clone());
                let why = not_permitted(kind, to.owner, &service).message;
                lines += &format!("rules[{at}]{place}: leads nowhere, since {why}\n");
            }
            for (place, to) in item.refused_mirrors(kind, grants) {
                let service = ObjectName::new(to.namespace.clone(), to.name.clone());
                let why = not_permitted(kind, &to.owner, &service).message;
                lines += &format!("rules[{at}].{place}: leads nowhere, since {why}\n");
            }
        }
        lines
    }

    fn spec(&self, parent: &ParsedRoute, names: &mut Names, grants: Grants<'_>) -> Value {
        let mut spec = Map::new();
        let parent_refs = self.route.parent_refs.iter();
        let written = parent.parent_refs.iter().enumerate();
        let written: Vec<_> = written
            .filter(|(_, reference)| parent_refs.clone().any(|kept| kept == *reference))
            .filter_map(|(index, _)| parent.written_parent_ref(index))
            .collect();
        spec.insert("parentRefs".to_owned(), json!(written));
        if parent.default_scope == DefaultScope::All {
            spec.insert("useDefaultGateways".to_owned(), json!("All"));
        }
        let hostnames: Vec<_> =
            self.route.hostnames.iter().map(ToString::to_string).filter(|name| name != "*").collect();
        if !hostnames.is_empty() {
            spec.insert("hostnames".to_owned(), json!(hostnames));
        }
        let kind = self.route.key.kind;
        let mut rules = Vec::with_capacity(self.items.len());
        for item in &self.items {
            let mut draft = item.printed(kind, grants);
            refer_to_copies(&mut draft, &parent.key.name.namespace, names);
            rules.push(print_draft(kind, &draft));
        }
        spec.insert("rules".to_owned(), rules.into());
        Value::Object(spec)
    }
}

// === impl MirrorPlace ===

impl MirrorPlace {
    fn filter(self, draft: &mut Draft) -> Option<&mut HttpRouteFilter> {
        let filters = match self.backend {
            None => &mut draft.filters,
            Some(at) => draft.backend_refs.get_mut(at)?.filters.as_mut()?,
        };
        filters.iter_mut().filter(|filter| filter.r#type == "RequestMirror").nth(self.number)
    }
}

/// `backendRefs[0]: RequestMirror 1`, as the annotation names it.
impl fmt::Display for MirrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(backend) = self.backend {
            write!(f, "backendRefs[{backend}].")?;
        }
        write!(f, "filters: RequestMirror {}", self.number)
    }
}

fn refer_to_copies(draft: &mut Draft, namespace: &Arc<str>, names: &mut Names) {
    let of_backends = draft.backend_refs.iter_mut().flat_map(|to| to.filters.iter_mut().flatten());
    for extension in draft.filters.iter_mut().chain(of_backends).filter_map(|it| it.extension_ref.as_mut()) {
        if let Some(original) = carried_from(&extension.name) {
            extension.name = names.copy(namespace, original).to_string();
        }
    }
}

// === impl PolicyTarget ===

impl<'t> PolicyTarget<'t> {
    fn of(namespace: &Arc<str>, reference: &'t PolicyTargetReference) -> Self {
        Self {
            kind: &reference.kind,
            route: ObjectName::new(namespace.clone(), reference.name.as_str()),
            rule: reference.section_name.as_deref().filter(|section| !section.is_empty()),
        }
    }

    /// True if a policy with this target holds for a rule of the route.
    fn covers(&self, route: &ObjectName, rule: Option<&str>) -> bool {
        self.route == *route && (self.rule.is_none() || self.rule == rule)
    }

    fn left_behind(&self, policy: &ObjectName, places: &[String]) -> String {
        let rule = self.rule.map(|rule| format!(" rule {rule}")).unwrap_or_default();
        let named = places.iter().take(PLACES_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = places.len().saturating_sub(PLACES_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "TrafficPolicy {policy} holds for {} {}{rule}, and not for what is printed of it here ({named}{more}): this goes \
             without the policy until one targets it",
            self.kind, self.route
        )
    }
}

// === impl Item ===

impl Item {
    /// The rules that it is made of: of children, and of the parent.
    fn sources(&self) -> impl Iterator<Item = &RuleId> {
        let ids = std::iter::once(&self.rule.id).chain(&self.rule.joined);
        ids.flat_map(|id| id.parent.as_deref().into_iter().chain([&**id]))
    }

    fn printed(&self, kind: Kind, grants: Grants<'_>) -> Draft {
        let mut draft = self.draft.clone();
        print_filters(&mut draft.filters, &self.rule.filters, kind, grants);
        for (reference, parsed) in draft.backend_refs.iter_mut().zip(&self.rule.backend_refs) {
            print_filters(
                reference.filters.as_deref_mut().unwrap_or_default(),
                &parsed.filters,
                kind,
                grants,
            );
            if is_refused(parsed.referred(), kind, grants) {
                reference.group = Some(REFUSED_GROUP.to_owned());
                reference.kind = Some(REFUSED_KIND.to_owned());
            }
        }
        for (place, _) in self.refused_mirrors(kind, grants) {
            if let Some(mirror) = place.filter(&mut draft).and_then(|filter| filter.request_mirror.as_mut()) {
                mirror.backend_ref.group = Some(REFUSED_GROUP.to_owned());
                mirror.backend_ref.kind = Some(REFUSED_KIND.to_owned());
            }
        }
        draft
    }

    /// The mirrors whose Services their author has no right to refer to.
    fn refused_mirrors<'i>(
        &'i self,
        kind: Kind,
        grants: Grants<'i>,
    ) -> impl Iterator<Item = (MirrorPlace, ParsedBackendRef)> + 'i {
        mirrors(&self.rule).filter(move |(_, to)| is_refused(to.referred(), kind, grants))
    }

    /// The other Services that its author has no right to refer to, by place.
    fn refused(&self, kind: Kind, grants: Grants<'_>) -> Vec<(String, Referred<'_>)> {
        let of_rule = self.rule.filters.services().map(|to| (".filters".to_owned(), to));
        let backends = self.rule.backend_refs.iter().enumerate();
        let of_backends = backends.flat_map(|(at, backend)| {
            let place = format!(".backendRefs[{at}]");
            let filters = backend.filters.services().map(|to| (format!(".backendRefs[{at}].filters"), to));
            filters.chain([(place, backend.referred())]).collect::<Vec<_>>()
        });
        of_rule.chain(of_backends).filter(|(_, to)| is_refused(*to, kind, grants)).collect()
    }
}

/// Services of filters that the author has no right to refer to lead nowhere, too.
fn print_filters(written: &mut [HttpRouteFilter], parsed: &RuleFilters, kind: Kind, grants: Grants<'_>) {
    let written = written.iter_mut().filter_map(|filter| filter.external_auth.as_mut());
    for (written, to) in written.zip(parsed.services()) {
        if is_refused(to, kind, grants) {
            written.backend_ref.group = Some(REFUSED_GROUP.to_owned());
            written.backend_ref.kind = Some(REFUSED_KIND.to_owned());
        }
    }
}

fn is_refused(to: Referred<'_>, kind: Kind, grants: Grants<'_>) -> bool {
    is_service(to) && !may_refer(grants, kind, to.owner, to)
}
