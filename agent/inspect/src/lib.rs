//! Answers to operators' questions about a configuration: the dump, the routes in the order they
//! are matched, the rule that takes a request and why not the others, statuses, readiness, problems
//! and metrics. Pure: values in, text or JSON out, so that the answer is the same from a running
//! agent and from manifests.
//!
//! This crate does not know where a snapshot comes from or who asks, and decides nothing that the
//! data plane decides: precedence and the choice of a listener are the model's.

mod age;
mod dump;
mod explain;
mod metrics;
mod plain;
mod readiness;
mod routes;
mod served;
mod statuses;
mod table;
mod text;

pub use age::decided_by_age;
pub use dump::{dump_served, dump_snapshot};
pub use explain::request::{EarlyAnswer, Question, QuestionError, ReadPart, Reading};
pub use explain::{Explanation, Line, Outcome, explain};
pub use metrics::{
    Agent, BackendTraffic, BudgetTraffic, Cluster, Configuration, Durations, Duties, ForwardedTraffic,
    Forwarding, GatewayTraffic, Histogram, KeySetTraffic, ListenerDurations, ListenerTraffic, Metrics,
    MetricsFormat, Process, Requests, RouteSeries, Traffic, metrics,
};
pub use plain::{escaped, is_obeyed};
pub use readiness::{Progress, problems, served_frontends};
pub use routes::{RouteRow, Routes, TermRow, routes};
pub use served::{NodeStatus, Part, ServedListener};
pub use statuses::{Conditions, Fault, Selection, SelectionError, faults, faulty_statuses, statuses};
pub use table::{Cell, Colours, Look, Table};
