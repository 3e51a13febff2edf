//! `Programmed` is true when the data plane says so, not when translation hopes so: what it refused turns the planned
//! conditions of the listeners and Gateways concerned.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_gateway::{Kind, ObjectKey, Reason};
use portcullis_model::{FrontendKey, ParentKind, Snapshot};
use serde_json::{Value, json};

/// The data plane's answer to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Frontends that cannot be served, and why. All others of the snapshot are.
    pub refused: BTreeMap<FrontendKey, String>,
}

/// What was refused, by the object whose status says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<ObjectKey, Refused>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// One line per frontend.
    whole: Vec<String>,
    /// By listener name.
    listeners: BTreeMap<String, Vec<String>>,
}

// === impl Refusals ===

impl Refusals {
    pub fn new(acknowledgement: &Acknowledgement, snapshot: &Snapshot) -> Self {
        let mut refusals = Self::default();
        for (frontend, why) in &acknowledgement.refused {
            refusals.add(frontend, &format!("{frontend}: {why}"), snapshot);
        }
        refusals
    }

    /// The objects whose statuses differ between two answers.
    pub fn difference(&self, other: &Self) -> Vec<ObjectKey> {
        let keys = self.0.keys().chain(other.0.keys());
        keys.filter(|key| self.0.get(*key) != other.0.get(*key)).cloned().collect()
    }

    /// Turns the planned status of an object into what holds.
    pub fn amend(&self, key: &ObjectKey, status: &mut Value) {
        let Some(refused) = self.0.get(key) else { return };
        if !refused.whole.is_empty() {
            deny(status, Reason::AddressNotUsable, &refused.whole);
        }
        for listener in status.get_mut("listeners").and_then(Value::as_array_mut).into_iter().flatten() {
            let lines =
                listener.get("name").and_then(Value::as_str).and_then(|name| refused.listeners.get(name));
            if let Some(lines) = lines {
                deny(listener, Reason::PortUnavailable, lines);
            }
        }
        if !any_listener_is_programmed(status) {
            deny(status, unserved_reason(key.kind), &refused.lines());
        }
    }

    fn add(&mut self, frontend: &FrontendKey, line: &str, snapshot: &Snapshot) {
        let Some(port) = snapshot.frontends.get(frontend) else { return };
        let gateway = ObjectKey::new(Kind::Gateway, port.gateway.name.clone());
        self.0.entry(gateway).or_default().whole.push(line.to_owned());
        for listener in port.listeners.iter() {
            let kind = match listener.id.kind {
                ParentKind::Gateway => Kind::Gateway,
                ParentKind::ListenerSet => Kind::ListenerSet,
            };
            let refused = self.0.entry(ObjectKey::new(kind, listener.id.parent.clone())).or_default();
            refused.listeners.entry(listener.id.name.to_string()).or_default().push(line.to_owned());
        }
    }
}

impl Refused {
    /// Each once.
    fn lines(&self) -> Vec<String> {
        let lines: BTreeSet<_> = self.listeners.values().flatten().collect();
        lines.into_iter().cloned().collect()
    }
}

/// "Programmed ... only reflects the listeners in that ListenerSet" (GEP-1713); the same goes for an attached Gateway. With
/// none of them served, it is not either.
fn any_listener_is_programmed(status: &Value) -> bool {
    let listeners = status.get("listeners").and_then(Value::as_array);
    listeners.into_iter().flatten().any(|listener| programmed(listener).is_some())
}

/// "Additional reasons for this condition to be False are influenced by child ListenerEntry conditions: PortUnavailable".
fn unserved_reason(kind: Kind) -> Reason {
    match kind {
        Kind::ListenerSet => Reason::PortUnavailable,
        _ => Reason::AddressNotUsable,
    }
}

/// What is false for another reason stays as it is.
fn deny(holder: &mut Value, reason: Reason, lines: &[String]) {
    if let Some(at) = programmed(holder) {
        let condition = &mut holder["conditions"][at];
        condition["status"] = json!("False");
        condition["reason"] = json!(reason.as_str());
        condition["message"] = json!(format!("not served: {}", lines.join("; ")));
    }
}

/// Which of its conditions says that it is.
fn programmed(holder: &Value) -> Option<usize> {
    let conditions = holder.get("conditions").and_then(Value::as_array)?;
    conditions.iter().position(|it| it["type"] == "Programmed" && it["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_model::{
        Gateway, HostPattern, Listener, ListenerId, ObjectName, Port, PortKey, PortListeners, Serves,
    };
    use std::sync::Arc;

    fn frontend(port: u16) -> FrontendKey {
        FrontendKey::new([127, 0, 0, 1].into(), PortKey::tcp(port))
    }

    fn snapshot() -> Snapshot {
        let gateway = ObjectName::new("infra", "web");
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: ParentKind::ListenerSet,
            parent: ObjectName::new("shop", "set"),
            name: "http".into(),
        };
        let listener = Listener { id, hostname: HostPattern::Any, serves: Serves::Http(Arc::default()) };
        let listeners = PortListeners::of(Arc::new(listener));
        let gateway = Arc::new(Gateway::new(gateway));
        let port = Arc::new(Port { gateway, key: frontend(80).port_key(), listeners });
        Snapshot { frontends: [(frontend(80), port)].into(), ..Snapshot::default() }
    }

    fn planned(status: &str) -> Value {
        json!({
            "conditions": [{"type": "Programmed", "status": status, "reason": "R", "message": ""}],
            "listeners": [{"name": "http", "conditions": [{"type": "Programmed", "status": status, "reason": "R"}]}],
        })
    }

    #[test]
    fn a_refused_frontend_turns_its_gateway_and_its_listeners() {
        let answer = Acknowledgement { refused: [(frontend(80), "address in use".to_owned())].into() };
        let refusals = Refusals::new(&answer, &snapshot());
        let gateway = ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "web"));
        let set = ObjectKey::new(Kind::ListenerSet, ObjectName::new("shop", "set"));
        assert_eq!(refusals.difference(&Refusals::default()), [gateway.clone(), set.clone()]);

        let mut status = planned("True");
        refusals.amend(&gateway, &mut status);
        assert_eq!(status["conditions"][0]["reason"], "AddressNotUsable");
        assert_eq!(status["conditions"][0]["message"], "not served: tcp/127.0.0.1:80: address in use");
        assert_eq!(status["listeners"][0]["conditions"][0]["status"], "True");

        let mut status = planned("True");
        let served = json!({"name": "https", "conditions": status["conditions"]});
        status["listeners"].as_array_mut().unwrap().push(served);
        refusals.amend(&set, &mut status);
        assert_eq!(status["listeners"][0]["conditions"][0]["reason"], "PortUnavailable");
        assert_eq!(status["conditions"][0]["status"], "True", "another listener of the set is served");

        let mut status = planned("True");
        refusals.amend(&set, &mut status);
        assert_eq!(status["conditions"][0]["reason"], "PortUnavailable", "none is");
        assert_eq!(status["conditions"][0]["message"], "not served: tcp/127.0.0.1:80: address in use");

        let mut status = planned("False");
        refusals.amend(&gateway, &mut status);
        assert_eq!(status, planned("False"));
    }
}
