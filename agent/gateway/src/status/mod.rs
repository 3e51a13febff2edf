//! The plan of statuses: what every object of ours should say. Written by others, compared with what is there; nothing here
//! reads a status.

mod class;
mod gateway;
mod listener;
mod listener_set;
mod route;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::gateways::GatewayStatus;
use crate::api::listenersets::ListenerSetStatus;
use crate::api::shared::{ClassStatus, RouteStatus};
use crate::listener::Trouble;
use crate::{ConditionType, Reason, condition};

pub(crate) use class::class_status;
pub(crate) use gateway::{ChildView, RootView, child_status, root_status};
pub(crate) use listener::{ListenerView, Overlap};
pub(crate) use listener_set::{SetView, set_status};
pub(crate) use route::{ParentVerdict, route_status};

#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    GatewayClass(ClassStatus),
    Gateway(GatewayStatus),
    ListenerSet(ListenerSetStatus),
    /// Only the `parents` that are ours; those of other controllers are to be left alone.
    Route(RouteStatus),
}

/// The conditions of one thing, all with the same observed generation.
struct Conditions {
    generation: i64,
    list: Vec<Condition>,
}

impl Conditions {
    fn new(generation: i64) -> Self {
        Self { generation, list: Vec::with_capacity(4) }
    }

    /// True with `reason`.
    fn holds(&mut self, r#type: ConditionType, reason: Reason) {
        self.list.push(condition(r#type, true, reason, "", self.generation));
    }

    fn push(&mut self, r#type: ConditionType, status: bool, trouble: &Trouble) {
        self.list.push(condition(r#type, status, trouble.reason, trouble.message.clone(), self.generation));
    }

    /// False with the trouble if there is one, else true with `reason`.
    fn check(&mut self, r#type: ConditionType, trouble: Option<&Trouble>, reason: Reason) {
        match trouble {
            Some(trouble) => self.push(r#type, false, trouble),
            None => self.holds(r#type, reason),
        }
    }
}
