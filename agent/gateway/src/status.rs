//! The plan of statuses: what every object of ours should say. Written by others, compared with
//! what is there; nothing here reads a status.

mod class;
pub(crate) mod dump;
mod gateway;
mod listener;
mod listener_set;
mod policy;
mod route;
mod route_filter;
pub(crate) mod summary;
mod targeted;

use portcullis_api::types::gateways::GatewayStatus;
use portcullis_api::types::listenersets::ListenerSetStatus;
use portcullis_api::types::routefilters::RouteFilterStatus;
use portcullis_api::types::shared::{ClassStatus, PolicyStatus, RouteStatus};
use serde_json::Value;

use crate::{Fault, Reason};

pub(crate) use class::class_status;
pub(crate) use gateway::{
    ChildView, DefaultGateway, FrontendValidationMode, GatewayView, child_status, classless_status,
    gateway_status,
};
pub(crate) use listener::{ListenerView, Names, Overlap};
pub(crate) use listener_set::{SetView, set_status};
pub(crate) use policy::{PolicyVerdict, policy_status};
pub(crate) use route::{ParentVerdict, route_status};
pub(crate) use route_filter::route_filter_status;
pub(crate) use targeted::{Effect, TargetVerdict, targeted_status};

#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    GatewayClass(ClassStatus),
    Gateway(GatewayStatus),
    ListenerSet(ListenerSetStatus),
    /// Only the `parents` that are ours; those of other controllers are to be left alone.
    Route(RouteStatus),
    /// Only the `ancestors` that are ours.
    Policy(PolicyStatus),
    RouteFilter(RouteFilterStatus),
}

// === impl Status ===

impl Status {
    /// As it stands in an object.
    pub fn to_json(&self) -> Value {
        let json = match self {
            Self::GatewayClass(status) => serde_json::to_value(status),
            Self::Gateway(status) => serde_json::to_value(status),
            Self::ListenerSet(status) => serde_json::to_value(status),
            Self::Route(status) => serde_json::to_value(status),
            Self::Policy(status) => serde_json::to_value(status),
            Self::RouteFilter(status) => serde_json::to_value(status),
        };
        // Generated types have string keys only, which always serialise.
        json.unwrap_or_default()
    }

    /// True if any condition reports a fault: of the object, a listener, a parent, a grandparent or
    /// an ancestor.
    pub fn has_fault(&self) -> bool {
        let own = match self {
            Self::GatewayClass(ClassStatus { conditions, .. })
            | Self::Gateway(GatewayStatus { conditions, .. })
            | Self::ListenerSet(ListenerSetStatus { conditions, .. })
            | Self::RouteFilter(RouteFilterStatus { conditions }) => conditions.as_deref(),
            Self::Route(_) | Self::Policy(_) => None,
        };
        let listeners = match self {
            Self::Gateway(GatewayStatus { listeners, .. })
            | Self::ListenerSet(ListenerSetStatus { listeners, .. }) => listeners.as_deref(),
            Self::GatewayClass(_) | Self::Route(_) | Self::Policy(_) | Self::RouteFilter(_) => None,
        };
        let parents = match self {
            Self::Route(status) => status.parents.as_slice(),
            Self::GatewayClass(_)
            | Self::Gateway(_)
            | Self::ListenerSet(_)
            | Self::Policy(_)
            | Self::RouteFilter(_) => &[],
        };
        let ancestors = match self {
            Self::Policy(status) => status.ancestors.as_slice(),
            Self::GatewayClass(_)
            | Self::Gateway(_)
            | Self::ListenerSet(_)
            | Self::Route(_)
            | Self::RouteFilter(_) => &[],
        };
        let grandparents = parents.iter().flat_map(|parent| parent.grandparents.iter().flatten());
        let own = own.into_iter().flatten();
        own.chain(listeners.into_iter().flatten().flat_map(|listener| &listener.conditions))
            .chain(parents.iter().flat_map(|parent| &parent.conditions))
            .chain(ancestors.iter().flat_map(|ancestor| &ancestor.conditions))
            .chain(grandparents.flat_map(|grandparent| grandparent.conditions.iter().flatten()))
            .any(summary::is_fault)
    }
}

/// The fault for which an object is not programmed, once it is known what the cluster did not give.
/// Other reasons stay, but for an address that is missing: this is why.
pub(crate) fn provisioned(unprogrammed: Option<Fault>, unprovisioned: Option<&Fault>) -> Option<Fault> {
    match (unprogrammed, unprovisioned) {
        (Some(fault), Some(why)) if fault.reason == Reason::AddressNotAssigned => Some(why.clone()),
        (Some(fault), _) => Some(fault),
        (None, why) => why.cloned(),
    }
}
