//! ListenerSet status.

use portcullis_api::types::listenersets::ListenerSetStatus;

use super::gateway::invalid;
use super::listener::unserved;
use super::{ListenerView, provisioned};
use crate::conditions::{Affected, Conditions};
use crate::{ConditionType, Fault, Reason};

pub(crate) struct SetView<'a> {
    pub(crate) generation: i64,
    /// The fault for which the parent does not take the set.
    pub(crate) refusal: Option<&'a Fault>,
    /// The fault for which the parent as a whole is not accepted, in words that its children may
    /// read.
    pub(crate) parent_refusal: Option<Fault>,
    /// Missing parts of what is generated for the parent, in words that its children may read.
    pub(crate) parent_unprovisioned: Option<Fault>,
    pub(crate) listeners: Vec<ListenerView<'a>>,
    /// The ListenerPolicies that apply to all listeners.
    pub(crate) affected: Vec<Affected>,
}

/// "Accepted and Programmed conditions, when surfacing details about listeners, MUST only summarize
/// the status.listeners conditions that are exclusive to the ListenerSet."
pub(crate) fn set_status(view: &SetView<'_>) -> ListenerSetStatus {
    let mut conditions = Conditions::new(view.generation);
    let refusal =
        view.refusal.cloned().or_else(|| view.parent_refusal.clone()).or_else(|| view.no_valid_listener());
    let unprogrammed = refusal.clone().or_else(|| view.unprogrammed());
    let unprogrammed = provisioned(unprogrammed, view.parent_unprovisioned.as_ref());
    conditions.check_or(ConditionType::Accepted, refusal.as_ref(), view.acceptance());
    conditions.check(ConditionType::Programmed, unprogrammed.as_ref());
    conditions.affected(&view.affected);
    let listeners = view.listeners.iter().map(|listener| listener.status(view.generation)).collect();
    let listeners = view.refusal.is_none().then_some(listeners);
    ListenerSetStatus { conditions: Some(conditions.list), listeners }
}

impl SetView<'_> {
    /// The listeners that are valid, and those that are not: it is accepted with one of the first.
    fn acceptance(&self) -> String {
        let invalid = invalid(&self.listeners, None);
        invalid.map_or_else(|| ConditionType::Accepted.good_message().to_owned(), |fault| fault.message)
    }

    /// A set with at least one valid listener is accepted, and serves it.
    fn no_valid_listener(&self) -> Option<Fault> {
        let any = self.listeners.iter().any(|listener| listener.acceptance.is_accepted());
        (!any).then(|| {
            Fault::not_accepted(
                Reason::ListenersNotValid,
                "no listener of the set is valid; see status.listeners",
            )
        })
    }

    /// The fault that keeps all of its listeners from being served: a port is their own matter, an
    /// address is the Gateway's.
    fn unprogrammed(&self) -> Option<Fault> {
        let fault = unserved(&self.listeners)?;
        let is_port = fault.reason == Reason::PortUnavailable;
        Some(if is_port { fault } else { fault.because(Reason::ParentNotProgrammed) })
    }
}
