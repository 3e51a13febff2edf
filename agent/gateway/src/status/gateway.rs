//! Gateway status: of one that stands on its own, and of one that is attached to another.

use super::listener::unserved;
use super::{Conditions, ListenerView};
use crate::address::Addresses;
use crate::api::gateways::{GatewayStatus, GatewayStatusAddresses};
use crate::listener::Trouble;
use crate::merge::Verdict;
use crate::{ConditionType, Reason};

pub(crate) struct RootView<'a> {
    pub(crate) generation: i64,
    pub(crate) addresses: &'a Addresses,
    /// Why the Gateway as a whole is not accepted.
    pub(crate) refusal: Option<&'a Trouble>,
    pub(crate) own: OwnListeners<'a>,
    /// Whether a listener of an attached Gateway is not valid.
    pub(crate) invalid_below: bool,
    /// Whether any listener of the merged list is valid.
    pub(crate) valid_anywhere: bool,
    /// Why the Gateway does not have all of its ports.
    pub(crate) lost: Option<Trouble>,
    pub(crate) attached_sets: usize,
    pub(crate) attached_gateways: Option<usize>,
}

pub(crate) struct ChildView<'a> {
    pub(crate) generation: i64,
    /// Why the parent does not take the child.
    pub(crate) refusal: Option<&'a Trouble>,
    /// Why the parent as a whole is not accepted, in words that its children may read.
    pub(crate) parent_refusal: Option<Trouble>,
    pub(crate) parent: Option<&'a Addresses>,
    pub(crate) own: OwnListeners<'a>,
}

pub(crate) type OwnListeners<'a> = Vec<ListenerView<'a>>;

/// "For parent gateways, Accepted should be set based on the entire set of merged listeners" where children are Gateways;
/// for ListenerSets the conditions "remain unchanged and reflect the status of the local configuration".
pub(crate) fn root_status(view: &RootView<'_>) -> GatewayStatus {
    let mut conditions = Conditions::new(view.generation);
    let accepted = accept(&mut conditions, view.refusal, view.listeners_not_valid(), view.valid_anywhere);
    let not_accepted = (!accepted).then(not_accepted);
    let unprogrammed = not_accepted.or_else(|| view.addresses.unusable.clone()).or_else(|| view.lost.clone());
    conditions.check(ConditionType::Programmed, unprogrammed.as_ref(), Reason::Programmed);
    let addresses = if view.refusal.is_none() { view.addresses.status() } else { Vec::new() };
    GatewayStatus {
        addresses: Some(addresses),
        attached_gateways: view.attached_gateways.map(count),
        attached_listener_sets: Some(count(view.attached_sets)),
        conditions: Some(conditions.list),
        listeners: Some(view.own.iter().map(|listener| listener.status(view.generation)).collect()),
    }
}

/// "Accepted and Programmed should consider the overall merged Gateway status, but only the child's own listeners."
pub(crate) fn child_status(view: &ChildView<'_>) -> GatewayStatus {
    let mut conditions = Conditions::new(view.generation);
    let refusal = view.refusal.or(view.parent_refusal.as_ref());
    let accepted = accept(&mut conditions, refusal, invalid(&view.own, false), any_valid(&view.own));
    let addresses = view.parent.filter(|_| refusal.is_none()).map(Addresses::status).unwrap_or_default();
    let unprogrammed =
        (!accepted).then(not_accepted).or_else(|| unaddressed(&addresses)).or_else(|| lost_ports(&view.own));
    conditions.check(ConditionType::Programmed, unprogrammed.as_ref(), Reason::Programmed);
    let listeners = view.own.iter().map(|listener| listener.status(view.generation)).collect();
    GatewayStatus {
        addresses: Some(addresses),
        attached_gateways: None,
        attached_listener_sets: Some(0),
        conditions: Some(conditions.list),
        listeners: Some(if view.refusal.is_some() { Vec::new() } else { listeners }),
    }
}

fn unaddressed(addresses: &[GatewayStatusAddresses]) -> Option<Trouble> {
    let message = "the parent Gateway has no address to serve the listeners on";
    addresses.is_empty().then(|| Trouble::new(Reason::AddressNotAssigned, message))
}

/// As at a parent: listeners lose a port, their Gateway an address with that port.
fn lost_ports(own: &[ListenerView<'_>]) -> Option<Trouble> {
    Some(Trouble { reason: Reason::AddressNotUsable, ..unserved(own)? })
}

impl RootView<'_> {
    fn listeners_not_valid(&self) -> Option<Trouble> {
        invalid(&self.own, self.invalid_below)
    }
}

/// `ListenersNotValid` "can be the reason when Accepted is True or False, depending on whether the listener being invalid
/// causes the entire Gateway to not be accepted".
fn accept(
    conditions: &mut Conditions,
    refusal: Option<&Trouble>,
    invalid: Option<Trouble>,
    any_valid: bool,
) -> bool {
    let accepted = refusal.is_none() && (invalid.is_none() || any_valid);
    match refusal.or(invalid.as_ref()) {
        Some(trouble) => conditions.push(ConditionType::Accepted, accepted, trouble),
        None => conditions.holds(ConditionType::Accepted, Reason::Accepted),
    }
    accepted
}

/// "That Condition SHOULD clearly indicate in the Message which Listeners are conflicted, and which are Accepted."
fn invalid(own: &[ListenerView<'_>], invalid_below: bool) -> Option<Trouble> {
    let (valid, invalid): (Vec<_>, Vec<_>) = own.iter().partition(|view| view.verdict.is_accepted());
    let mut parts = Vec::new();
    if !invalid.is_empty() {
        let describe = |view: &&ListenerView<'_>| {
            let reason = match view.verdict {
                Verdict::Accepted => Reason::Accepted,
                Verdict::Refused(trouble) => trouble.reason,
                Verdict::Conflicted(conflict) => conflict.reason,
            };
            format!("{} ({reason})", view.listener.name)
        };
        parts.push(format!("not valid: {}", invalid.iter().map(describe).collect::<Vec<_>>().join(", ")));
    }
    if invalid_below {
        parts.push("a listener of an attached Gateway is not valid".to_owned());
    }
    if !valid.is_empty() {
        let names: Vec<_> = valid.iter().map(|view| &*view.listener.name).collect();
        parts.push(format!("accepted: {}", names.join(", ")));
    }
    (!invalid.is_empty() || invalid_below).then(|| Trouble::new(Reason::ListenersNotValid, parts.join("; ")))
}

fn any_valid(own: &[ListenerView<'_>]) -> bool {
    own.iter().any(|view| view.verdict.is_accepted())
}

fn not_accepted() -> Trouble {
    Trouble::new(Reason::Invalid, "the Gateway is not accepted")
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
