//! The rule and backend that take a connection, or datagrams, which are passed on as they are.

use std::sync::Arc;

use portcullis_model::{HostMap, L4Action, L4Rule, L4Target, Listener, ServerNames};

use super::{Answer, Outcome};

impl Answer<'_> {
    /// A connection that the server name of its ClientHello leads to a listener that passes it on.
    pub(super) fn server_name(
        &mut self,
        listeners: &HostMap<Arc<Listener>>,
        listener: &Arc<Listener>,
        rules: &ServerNames,
    ) -> Outcome {
        let name = self.request.server_name.clone().unwrap_or_default();
        for (_, other) in listeners.sorted() {
            self.listener_line(&name, other, Some(listener));
        }
        let Some(rule) = rules.most_specific(&name) else {
            return self.none(&format!("{} has no route for this server name, TLS is refused", listener.id));
        };
        let mut others = Vec::new();
        for (pattern, other) in rules.sorted() {
            if Arc::ptr_eq(other, rule) && pattern.matches(&name) && others.is_empty() {
                self.at.host = Some(pattern.to_string());
                self.rule_line(listener, rule, &format!(": server name {pattern}"));
                continue;
            }
            let why = match pattern.matches(&name) {
                true => "it matches, too, but is less specific",
                false => "it does not match",
            };
            if pattern.matches(&name) || self.all {
                others.push(format!("{}: server name {pattern}: {why}", owner(other)));
            }
        }
        self.service(listener);
        let outcome = self.l4_action(rule);
        for other in others {
            self.line("not", &other);
        }
        outcome
    }

    /// A connection, or a datagram, that can only be for one listener.
    pub(super) fn only_listener(&mut self, listener: &Listener) -> Outcome {
        self.at.listener = Some(listener.id.to_string());
        self.node_line("listener", &format!("{}: takes all that comes to the port", listener.id));
        self.service(listener);
        let Some(rule) = listener.serves.only_rule() else { return Outcome::Unanswered };
        if rule.id.is_some() {
            self.at.host = Some("*".to_owned());
            self.rule_line(listener, rule, "");
        }
        self.l4_action(rule)
    }

    fn rule_line(&mut self, listener: &Listener, rule: &L4Rule, why: &str) {
        self.at.r#match = Some(listener.serves.protocol().to_owned());
        self.at.rule = Some(owner(rule));
        self.node_line("rule", &format!("{}{why}", owner(rule)));
    }

    fn l4_action(&mut self, rule: &L4Rule) -> Outcome {
        let split = match &rule.action {
            L4Action::Forward(split) => split,
            L4Action::Refuse(reason) => return self.none(&format!("refused: {reason}")),
        };
        let total = split.total();
        for backend in split.backends() {
            let (name, target) = match &backend.target {
                L4Target::Known(name) => {
                    (Some(name), format!("{name} → {}", self.endpoints(name, "refused")))
                }
                L4Target::Refuse(reason) => (None, format!("refused: {reason}")),
            };
            self.backend_line(name, &format!("{} of {total}: {target}", backend.weight));
        }
        Outcome::Answered
    }
}

fn owner(rule: &L4Rule) -> String {
    rule.id.as_ref().map(ToString::to_string).unwrap_or_default()
}
