//! The labels of the metrics, as they are spelt.

use portcullis_model::{BudgetOwner, ListenerId, ParentKind};
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GatewayLabels {
    pub(super) gateway: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CoreLabels {
    pub(super) core: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LocalityLabels {
    pub(super) locality: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BackendLabels {
    pub(super) backend: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BackendClassLabels {
    pub(super) backend: String,
    /// As [`class_label`].
    pub(super) http_response_status_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabels {
    pub(super) route_kind: String,
    pub(super) route: String,
    /// The route that it is included by; empty for one that is not.
    pub(super) parent_route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteClassLabels {
    pub(super) route_kind: String,
    pub(super) route: String,
    pub(super) parent_route: String,
    pub(super) http_response_status_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SeriesLabels {
    /// `listener`, `route` or `backend`.
    pub(super) of: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KeySetLabels {
    pub(super) backend: String,
    pub(super) path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KeySetOutcomeLabels {
    pub(super) backend: String,
    pub(super) path: String,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EndpointLabels {
    pub(super) backend: String,
    pub(super) endpoint: String,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BackendOutcomeLabels {
    pub(super) backend: String,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BackendLimitLabels {
    pub(super) backend: String,
    /// The field of `limits`.
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct SignalLabels {
    pub(super) signal: &'static str,
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OutcomeLabels {
    pub(super) outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ExceededLimitLabels {
    pub(super) gateway: String,
    /// The field of `limits`.
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct MechanismLabels {
    pub(super) mechanism: &'static str,
    /// For which it is not the kernel.
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EnforcementLabels {
    /// `clients` or `budgets`.
    pub(super) terms: &'static str,
    pub(super) enforced_by: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ListenerLabels {
    pub(super) gateway: String,
    /// `Gateway` or `ListenerSet`.
    pub(super) parent_kind: String,
    pub(super) parent: String,
    pub(super) listener: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ListenerReasonLabels {
    pub(super) gateway: String,
    pub(super) parent_kind: String,
    pub(super) parent: String,
    pub(super) listener: String,
    pub(super) reason: &'static str,
}

/// `listener` is empty for a budget that all listeners of an object share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BudgetLabels {
    pub(super) parent_kind: &'static str,
    pub(super) parent: String,
    pub(super) listener: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BudgetRefusalLabels {
    pub(super) parent_kind: &'static str,
    pub(super) parent: String,
    pub(super) listener: String,
    /// `kernel` or `userspace`.
    pub(super) enforced_by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BytesLabels {
    pub(super) gateway: String,
    pub(super) parent_kind: String,
    pub(super) parent: String,
    pub(super) listener: String,
    /// As the gateway sees it: `receive` from clients, `transmit` to them.
    pub(super) network_io_direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) gateway: String,
    pub(super) parent_kind: String,
    pub(super) parent: String,
    pub(super) listener: String,
    /// `2xx`
    pub(super) http_response_status_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ErrorLabels {
    pub(super) error_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct InterfaceLabels {
    pub(super) interface: String,
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct AgentLabels {
    pub(super) version: &'static str,
    pub(super) datapath: &'static str,
}

pub(super) fn listener_labels(id: &ListenerId) -> ListenerLabels {
    ListenerLabels {
        gateway: id.gateway.to_string(),
        parent_kind: parent_kind(id.kind).to_owned(),
        parent: id.parent.to_string(),
        listener: id.name.to_string(),
    }
}

pub(super) fn budget_labels(owner: &BudgetOwner) -> BudgetLabels {
    BudgetLabels {
        parent_kind: parent_kind(owner.kind),
        parent: owner.name.to_string(),
        listener: owner.listener.as_deref().unwrap_or_default().to_owned(),
    }
}

pub(super) fn with_reason(labels: ListenerLabels, reason: &'static str) -> ListenerReasonLabels {
    let ListenerLabels { gateway, parent_kind, parent, listener } = labels;
    ListenerReasonLabels { gateway, parent_kind, parent, listener, reason }
}

pub(super) fn request_labels(id: &ListenerId, class: usize) -> RequestLabels {
    let ListenerLabels { gateway, parent_kind, parent, listener } = listener_labels(id);
    RequestLabels { gateway, parent_kind, parent, listener, http_response_status_class: class_label(class) }
}

/// `2xx`, `none` without a response, `aborted` where the client did not wait for one.
pub(super) fn class_label(class: usize) -> String {
    match class {
        0 => "none".to_owned(),
        6 => "aborted".to_owned(),
        class => format!("{class}xx"),
    }
}

fn parent_kind(kind: ParentKind) -> &'static str {
    match kind {
        ParentKind::Gateway => "Gateway",
        ParentKind::ListenerSet => "ListenerSet",
    }
}
