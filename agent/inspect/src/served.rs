//! The part of a node that serves each listener, and the places there at which its terms hold.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::net::IpAddr;

use portcullis_model::{ListenerId, PortKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plain::escaped;
use crate::routes::number;
use crate::table::{Look, Table, subject_line};

/// An agent's node, and the listeners that it serves there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The kernel programs, or why there are none.
    pub datapath: String,
    /// The interfaces with the packet guard, and why not others.
    pub guard: String,
    /// The interfaces on which server names are read, and why not others.
    pub names: String,
    /// The interfaces between which the kernel forwards, or why it does not.
    pub forwarding: String,
    pub listeners: Vec<ServedListener>,
}

/// A listener at those of its addresses for which all of this is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedListener {
    pub gateway: String,
    /// The object that defines it.
    pub parent_kind: String,
    pub parent: String,
    pub listener: String,
    /// `443`, or `53/udp`.
    pub port: String,
    pub addresses: Vec<IpAddr>,
    pub served_by: Part,
    /// The way by which connections come to that.
    pub steered_by: Part,
    /// The earliest place that refuses clients by their address, if there are such terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<Part>,
    /// The earliest place that refuses connections beyond a budget, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budgets: Option<Part>,
    /// The time at which a certificate ends, if that is soon, or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// A part of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub by: String,
    /// The reason for which it is not an earlier or cheaper one; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The listeners of an object, or one of them.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    kind: String,
    name: String,
    listener: Option<String>,
}

// === impl NodeStatus ===

impl NodeStatus {
    /// Only the listeners of the object `NAME` or `NAMESPACE/NAME`: a Gateway has all that are
    /// merged into it.
    pub fn retain_of(&mut self, wanted: &str) {
        let is_named = |name: &str| name == wanted || name.ends_with(&format!("/{wanted}"));
        self.listeners.retain(|it| is_named(&it.gateway) || is_named(&it.parent));
    }

    /// Only the listeners that objects of this namespace define.
    pub fn retain_of_namespace(&mut self, namespace: &str) {
        let of = |name: &str| name.split('/').next() == Some(namespace);
        self.listeners.retain(|it| of(&it.parent));
    }

    /// Only the listeners of these Gateways and ListenerSets, and those that these policies are
    /// about.
    pub fn retain_of_objects(&mut self, objects: &[Value]) {
        let targets: BTreeSet<_> = objects.iter().flat_map(targets).collect();
        self.listeners.retain(|it| it.targets().iter().any(|target| targets.contains(target)));
    }
}

impl NodeStatus {
    /// The node, and a row for each listener.
    pub fn text(&self, look: Look) -> String {
        let Self { datapath, guard, names, forwarding, listeners } = self;
        let facts = [("datapath", datapath), ("guard", guard), ("names", names), ("forwarding", forwarding)];
        let facts = facts.map(|(what, value)| subject_line(what, value, 12, look));
        let mut text: String = facts.into_iter().collect();
        let header =
            ["PORT", "LISTENER", "ON", "SERVED BY", "STEERED BY", "CLIENTS REFUSED BY", "BUDGETS KEPT BY"];
        let rows: Vec<_> = listeners.iter().map(ServedListener::row).collect();
        if !rows.is_empty() {
            text.push('\n');
            text += &Table::new(&header, rows).text(look);
        }
        // At some of its addresses a listener may have a row of its own.
        let expiring: BTreeSet<_> = listeners.iter().filter_map(ServedListener::expiring).collect();
        for (at, line) in expiring.iter().enumerate() {
            let gap = if at == 0 { "\n" } else { "" };
            text += &format!("{gap}{}\n", escaped(line));
        }
        text
    }
}

/// The listeners that an object with a status is about.
fn targets(object: &Value) -> Vec<Target> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = |namespace: &Value, name: &Value| format!("{}/{}", text(namespace), text(name));
    match object["kind"].as_str() {
        Some(kind @ ("Gateway" | "ListenerSet")) => {
            let metadata = &object["metadata"];
            let name = name(&metadata["namespace"], &metadata["name"]);
            vec![Target { kind: kind.to_owned(), name, listener: None }]
        }
        Some("ListenerPolicy") => {
            let ancestors = object["status"]["ancestors"].as_array().into_iter().flatten();
            let references = ancestors.map(|it| &it["ancestorRef"]);
            let target = |reference: &Value| Target {
                kind: text(&reference["kind"]),
                name: name(&reference["namespace"], &reference["name"]),
                listener: reference["sectionName"].as_str().map(str::to_owned),
            };
            references.map(target).collect()
        }
        _ => Vec::new(),
    }
}

// === impl ServedListener ===

impl ServedListener {
    /// Nothing but names; who serves it is to be filled in.
    pub fn new(id: &ListenerId, port: PortKey) -> Self {
        Self {
            gateway: id.gateway.to_string(),
            parent_kind: format!("{:?}", id.kind),
            parent: id.parent.to_string(),
            listener: id.name.to_string(),
            port: number(port),
            addresses: Vec::new(),
            served_by: Part::default(),
            steered_by: Part::default(),
            clients: None,
            budgets: None,
            certificate: None,
        }
    }

    fn expiring(&self) -> Option<String> {
        self.certificate.as_ref().map(|certificate| format!("{}: {certificate}", self.name()))
    }

    /// True if the other one is the same at other addresses.
    pub fn is_same(&self, other: &Self) -> bool {
        *self == Self { addresses: self.addresses.clone(), ..other.clone() }
    }

    /// `Gateway infra/web listener https`
    pub fn name(&self) -> String {
        format!("{} {} listener {}", self.parent_kind, self.parent, self.listener)
    }

    pub(crate) fn is(&self, id: &ListenerId, port: u16) -> bool {
        let number = self.port.split('/').next().and_then(|number| number.parse().ok());
        self.name() == id.to_string() && self.gateway == id.gateway.to_string() && number == Some(port)
    }

    /// True if it is served at the address; of a question without one, always.
    pub(crate) fn is_at(&self, address: Option<IpAddr>) -> bool {
        let serves = |wanted: &IpAddr| {
            self.addresses
                .iter()
                .any(|it| it == wanted || it.is_unspecified() && it.is_ipv4() == wanted.is_ipv4())
        };
        address.as_ref().is_none_or(serves)
    }

    /// Lines of text, each with its subject.
    pub(crate) fn sentences(&self) -> Vec<(&'static str, String)> {
        let terms = [("clients", &self.clients, "refused"), ("budget", &self.budgets, "kept")];
        let terms = terms.into_iter().filter_map(|(what, part, verb)| Some((what, verb, part.as_ref()?)));
        let served = [("served", "served", &self.served_by), ("steered", "steered", &self.steered_by)];
        let lines = served.into_iter().filter(|(.., part)| !part.by.is_empty()).chain(terms);
        lines.map(|(what, verb, part)| (what, format!("{verb} by {part}"))).collect()
    }

    /// The objects by which it can be asked for.
    fn targets(&self) -> [Target; 3] {
        let target = |kind: &str, name: &String, listener: Option<&String>| Target {
            kind: kind.to_owned(),
            name: name.clone(),
            listener: listener.cloned(),
        };
        [
            target("Gateway", &self.gateway, None),
            target(&self.parent_kind, &self.parent, None),
            target(&self.parent_kind, &self.parent, Some(&self.listener)),
        ]
    }

    fn row(&self) -> Vec<String> {
        /// Addresses that are named.
        const SHOWN: usize = 2;
        let shown: Vec<_> = self.addresses.iter().take(SHOWN).map(ToString::to_string).collect();
        let more = match self.addresses.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let optional = |part: &Option<Part>| part.as_ref().map_or("-".to_owned(), ToString::to_string);
        vec![
            self.port.clone(),
            self.name(),
            format!("{}{more}", shown.join(", ")),
            self.served_by.to_string(),
            self.steered_by.to_string(),
            optional(&self.clients),
            optional(&self.budgets),
        ]
    }
}

// === impl Part ===

impl Part {
    pub fn new(by: impl Into<String>, why: impl Into<String>) -> Self {
        Self { by: by.into(), why: why.into() }
    }
}

/// `user space: --forwarding is off`
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.by)?;
        if self.why.is_empty() { Ok(()) } else { f.write_char(':').and_then(|()| write!(f, " {}", self.why)) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_model::{ObjectName, ParentKind};
    use serde_json::json;

    use super::*;

    fn served(kind: ParentKind, parent: &str, listener: &str) -> ServedListener {
        let id = ListenerId {
            gateway: ObjectName::new("infra", "web"),
            kind,
            parent: ObjectName::new("infra", parent),
            name: Arc::from(listener),
        };
        ServedListener {
            addresses: ["10.0.0.1", "fd00::1", "fd00::2"].map(|it| it.parse().unwrap()).into(),
            served_by: Part::new("user space (HTTP)", "requests are read"),
            steered_by: Part::new("sk_lookup", ""),
            ..ServedListener::new(&id, PortKey::tcp(80))
        }
    }

    fn status() -> NodeStatus {
        let http = ServedListener {
            clients: Some(Part::new("xdp on eth0", "")),
            certificate: Some("a certificate expires in 3 days".into()),
            ..served(ParentKind::Gateway, "web", "http")
        };
        NodeStatus {
            datapath: "ebpf".into(),
            guard: "none".into(),
            names: "none".into(),
            forwarding: "none".into(),
            listeners: vec![http, served(ParentKind::ListenerSet, "shop", "http")],
        }
    }

    #[test]
    fn a_row_says_by_whom_a_listener_is_served() {
        let expected = "\
datapath    ebpf
guard       none
names       none
forwarding  none

PORT  LISTENER                             ON                            SERVED BY                             STEERED BY  CLIENTS REFUSED BY  BUDGETS KEPT BY
80    Gateway infra/web listener http      10.0.0.1, fd00::1 and 1 more  user space (HTTP): requests are read  sk_lookup   xdp on eth0         -
80    ListenerSet infra/shop listener http  10.0.0.1, fd00::1 and 1 more  user space (HTTP): requests are read  sk_lookup   -                   -

Gateway infra/web listener http: a certificate expires in 3 days
";
        let squeezed = |text: &str| {
            text.split('\n')
                .map(|line| {
                    line.split("  ").filter(|it| !it.is_empty()).map(str::trim).collect::<Vec<_>>().join("|")
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(squeezed(&status().text(Look::default())), squeezed(expected));
        let read: NodeStatus = serde_json::from_value(json!(status())).unwrap();
        assert_eq!(read, status());
    }

    #[test]
    fn listeners_are_found_by_their_objects_and_by_policies_on_them() {
        let found = |objects: &[Value]| {
            let mut status = status();
            status.retain_of_objects(objects);
            status.listeners.iter().map(ServedListener::name).collect::<Vec<_>>()
        };
        let object =
            |kind: &str, name: &str| json!({"kind": kind, "metadata": {"namespace": "infra", "name": name}});
        assert_eq!(found(&[object("Gateway", "web")]).len(), 2);
        assert_eq!(found(&[object("ListenerSet", "shop")]), ["ListenerSet infra/shop listener http"]);
        assert_eq!(found(&[object("HTTPRoute", "web")]).len(), 0);
        let policy = |target: Value| json!({"kind": "ListenerPolicy", "status": {"ancestors": [{"ancestorRef": target}]}});
        let target = json!({"kind": "Gateway", "namespace": "infra", "name": "web", "sectionName": "http"});
        assert_eq!(found(&[policy(target)]), ["Gateway infra/web listener http"]);
        let target = json!({"kind": "Gateway", "namespace": "infra", "name": "web"});
        assert_eq!(found(&[policy(target)]).len(), 2);
        let mut by_name = status();
        by_name.retain_of("shop");
        assert_eq!(by_name.listeners.len(), 1);
    }
}
