//! Objects and their conditions as a table, the conditions that are not as they should be, and the
//! choice of objects by kind, name and namespace.

use portcullis_api::{Kind, StatusUse};
use portcullis_gateway::{ConditionSummary, parent_name};
use serde_json::Value;

use crate::table::{Cell, Table};

/// The objects that are asked for; each part that is missing excludes none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub kinds: Vec<Kind>,
    /// `NAME` or `NAMESPACE/NAME`.
    pub name: Option<String>,
    /// Objects of the cluster are in each, if their kind is asked for.
    pub namespace: Option<String>,
    pub conditions: Conditions,
}

/// The state of the objects that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conditions {
    #[default]
    Any,
    /// One of them is not as it should be.
    Faulty,
}

/// A part of an object that is not well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `Gateway infra/web`, `listener https`, or `-` for the object itself.
    pub part: String,
    /// `Accepted=False/NoMatchingParent`
    pub state: String,
    pub message: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("no kind with a status is called {0:?}: they are {known}", known = kinds_with_status())]
    Kind(String),
    #[error("{0}/{1}: a name is given twice: write KIND/NAME, or KIND NAME")]
    NamedTwice(String, String),
}

// === impl Selection ===

impl Selection {
    /// Takes kinds and names as kubectl does: `gw`, `gateways,httproute`, `gateway/web`.
    ///
    /// # Errors
    /// When there is no such kind, or two names.
    pub fn parse(kinds: Option<&str>, name: Option<&str>) -> Result<Self, SelectionError> {
        let (kinds, name) = match (kinds.and_then(|kinds| kinds.split_once('/')), name) {
            (None, name) => (kinds, name),
            (Some((kind, of_kind)), None) => (Some(kind), Some(of_kind)),
            (Some((kind, of_kind)), Some(_)) => {
                return Err(SelectionError::NamedTwice(kind.to_owned(), of_kind.to_owned()));
            }
        };
        let kind = |name: &str| {
            let known = Kind::called(name).filter(|kind| kind.status() == StatusUse::Written);
            known.ok_or_else(|| SelectionError::Kind(name.to_owned()))
        };
        let kinds = kinds.into_iter().flat_map(|kinds| kinds.split(',')).map(kind);
        Ok(Self { kinds: kinds.collect::<Result<_, _>>()?, name: name.map(str::to_owned), ..Self::default() })
    }

    pub fn contains(&self, object: &Value) -> bool {
        let kind = text(&object["kind"]);
        let full = name(object);
        let named = |wanted: &String| full == *wanted || full.ends_with(&format!("/{wanted}"));
        let is_in = |namespace: &String| match object["metadata"]["namespace"].as_str() {
            Some(its) => its == namespace,
            None => !self.kinds.is_empty(),
        };
        (self.kinds.is_empty() || self.kinds.iter().any(|wanted| wanted.as_str() == kind))
            && self.name.as_ref().is_none_or(named)
            && self.namespace.as_ref().is_none_or(is_in)
            && (self.conditions == Conditions::Any || !faults(object).is_empty())
    }
}

fn kinds_with_status() -> String {
    let kinds = Kind::ALL.iter().filter(|kind| kind.status() == StatusUse::Written);
    let names = kinds.map(|kind| match kind.short_names().last() {
        Some(short) if !short.eq_ignore_ascii_case(kind.as_str()) => format!("{kind} ({short})"),
        _ => kind.to_string(),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// A table of objects with statuses.
pub fn statuses(objects: &[Value]) -> Table {
    let rows = objects.iter().flat_map(|object| {
        let row = |(part, summary): (String, Option<ConditionSummary>)| {
            let (state, message) = match summary {
                Some(summary) => (Cell::bad(summary.state), summary.message),
                None => (Cell::good("ok"), String::new()),
            };
            vec![
                text(&object["kind"]).to_owned().into(),
                name(object).into(),
                part.into(),
                state,
                message.into(),
            ]
        };
        parts(object).into_iter().map(row)
    });
    Table::new(&["KIND", "NAME", "FOR", "STATE", "MESSAGE"], rows)
}

/// A table of the parts of objects that are not well.
pub fn faulty_statuses(objects: &[Value]) -> Table {
    let rows = objects.iter().flat_map(|object| {
        let row = |Fault { part, state, message }| {
            let (kind, name) = (text(&object["kind"]).to_owned(), name(object));
            vec![kind.into(), name.into(), part.into(), Cell::bad(state), message.into()]
        };
        faults(object).into_iter().map(row)
    });
    Table::new(&["KIND", "NAME", "FOR", "STATE", "MESSAGE"], rows)
}

/// The parts of an object whose conditions are not as they should be.
pub fn faults(object: &Value) -> Vec<Fault> {
    let parts = parts(object).into_iter();
    let fault = |(part, summary): (String, Option<ConditionSummary>)| {
        let ConditionSummary { state, message } = summary?;
        Some(Fault { part, state, message })
    };
    parts.filter_map(fault).collect()
}

/// The object, its parents or ancestors, and each listener with a fault.
fn parts(object: &Value) -> Vec<(String, Option<ConditionSummary>)> {
    let status = &object["status"];
    let own = status.get("conditions").map(|own| ("-".to_owned(), ConditionSummary::of_json(own)));
    let parents = list(&status["parents"]).map(|parent| (&parent["parentRef"], parent));
    let ancestors = list(&status["ancestors"]).map(|ancestor| (&ancestor["ancestorRef"], ancestor));
    let parents = parents
        .chain(ancestors)
        .map(|(reference, entry)| (parent_name(reference), ConditionSummary::of_json(&entry["conditions"])));
    let listeners = list(&status["listeners"]).filter_map(|listener| {
        let summary = ConditionSummary::of_json(&listener["conditions"])?;
        Some((format!("listener {}", text(&listener["name"])), Some(summary)))
    });
    own.into_iter().chain(parents).chain(listeners).collect()
}

/// `shop/cart`, or `portcullis` of an object of the cluster.
pub(crate) fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    format!("{}{}", namespace.unwrap_or_default(), text(&metadata["name"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects() -> [Value; 3] {
        let accepted = json!([{"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""}]);
        let conflict = json!([{"type": "Conflicted", "status": "True", "reason": "HostnameConflict", "message": "taken"}]);
        [
            json!({"kind": "Gateway", "metadata": {"namespace": "infra", "name": "web"}, "status": {
                "conditions": accepted,
                "listeners": [{"name": "a", "conditions": accepted}, {"name": "b", "conditions": conflict}]}}),
            json!({"kind": "HTTPRoute", "metadata": {"namespace": "shop", "name": "cart"}, "status": {
                "parents": [{"parentRef": {"kind": "Gateway", "namespace": "infra", "name": "web"},
                    "conditions": accepted}]}}),
            json!({"kind": "GatewayClass", "metadata": {"name": "web"}, "status": {"conditions": accepted}}),
        ]
    }

    /// The kinds of the objects that are selected.
    fn selected(selection: &Selection) -> Vec<String> {
        let all = objects();
        let selected = all.iter().filter(|object| selection.contains(object));
        selected.map(|object| text(&object["kind"]).to_owned()).collect()
    }

    #[test]
    fn rows_are_of_objects_their_parents_and_listeners_with_faults() {
        let expected = "\
KIND          NAME       FOR                STATE                             MESSAGE
Gateway       infra/web  -                  ok
Gateway       infra/web  listener b         Conflicted=True/HostnameConflict  taken
HTTPRoute     shop/cart  Gateway infra/web  ok
GatewayClass  web        -                  ok
";
        assert_eq!(statuses(&objects()).to_string(), expected);
        let expected = "\
KIND     NAME       FOR         STATE                             MESSAGE
Gateway  infra/web  listener b  Conflicted=True/HostnameConflict  taken
";
        assert_eq!(faulty_statuses(&objects()).to_string(), expected);
    }

    #[test]
    fn kinds_and_names_are_taken_as_kubectl_takes_them() {
        for (kind, name, expected) in [
            (None, None, &["Gateway", "HTTPRoute", "GatewayClass"][..]),
            (Some("httproute"), None, &["HTTPRoute"]),
            (Some("HTTPRoute"), None, &["HTTPRoute"]),
            (Some("httproutes"), None, &["HTTPRoute"]),
            (Some("gw"), None, &["Gateway"]),
            (Some("gtw,httproutes"), None, &["Gateway", "HTTPRoute"]),
            (Some("gc"), Some("web"), &["GatewayClass"]),
            (Some("gateways.gateway.networking.k8s.io"), None, &["Gateway"]),
            (Some("gateway/web"), None, &["Gateway"]),
            (Some("gateway/infra/web"), None, &["Gateway"]),
            (Some("gateway"), Some("infra/web"), &["Gateway"]),
            (None, Some("eb"), &[]),
        ] {
            assert_eq!(selected(&Selection::parse(kind, name).unwrap()), expected, "{kind:?} {name:?}");
        }
        let error = Selection::parse(Some("gate"), None).unwrap_err().to_string();
        assert!(
            error.contains(
                "\"gate\": they are GatewayClass (gc), Gateway (gw), ListenerSet (ls), HTTPRoute, "
            )
        );
        assert!(Selection::parse(Some("secret"), None).is_err(), "it has no status");
        assert!(Selection::parse(Some("gateway/a"), Some("b")).is_err());
    }

    #[test]
    fn objects_of_the_cluster_are_in_each_namespace_if_their_kind_is_asked_for() {
        let of = |kinds: Option<&str>, namespace: &str| {
            let namespace = Some(namespace.to_owned());
            selected(&Selection { namespace, ..Selection::parse(kinds, None).unwrap() })
        };
        assert_eq!(of(None, "shop"), ["HTTPRoute"]);
        assert_eq!(of(Some("gc,gateway"), "shop"), ["GatewayClass"]);
    }

    #[test]
    fn an_object_is_faulty_if_one_of_its_parts_is() {
        let selection = Selection { conditions: Conditions::Faulty, ..Selection::default() };
        assert_eq!(selected(&selection), ["Gateway"]);
    }
}
