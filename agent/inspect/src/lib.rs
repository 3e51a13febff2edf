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
mod key_sets;
mod metrics;
mod node_report;
mod overview;
mod paging;
mod plain;
mod problems;
mod readiness;
mod remedies;
mod routes;
mod served;
mod statuses;
mod table;
mod text;
mod traffic;
mod tree;
mod watch;
mod withheld;

pub use age::decided_by_age;
pub use dump::{dump_served, dump_snapshot};
pub use explain::request::{EarlyAnswer, Question, QuestionError, ReadPart, Reading, Search};
pub use explain::{Explanation, Line, Outcome, TreePath, explain};
pub use key_sets::FailingKeySet;
pub use metrics::{
    Agent, BackendTraffic, BudgetTraffic, Cluster, Configuration, Durations, Duties, ForwardedTraffic,
    Forwarding, GatewayTraffic, Histogram, KeySetTraffic, ListenerDurations, ListenerTraffic, Metrics,
    MetricsFormat, Process, Requests, RouteSeries, Traffic, metrics,
};
pub use node_report::{Fallback, NodeConnections, NodeReport, node_report};
pub use overview::{CertificateRow, Overview, Size, certificates};
pub use paging::{Page, Query, QueryError, Window};
pub use plain::escaped;
pub use problems::{Problem, ProblemSources, Severity, all_problems, status_problems};
pub use readiness::{Progress, problems, served_frontends};
pub use routes::{BackendShare, RouteRow, Routes, TermRow, routes};
pub use served::{NodeStatus, Part, ServedListener};
pub use statuses::{Conditions, Fault, Selection, SelectionError, faults, faulty_statuses, statuses};
pub use table::{Cell, Colours, Look, Table};
pub use traffic::{
    ConnectionCounts, Counts, ForwardedCounts, Rate, Rates, TrafficSample, quantile, traffic_sample,
};
pub use tree::{
    BackendNode, EndpointNode, GatewayNode, HostNode, ListenerNode, OutEndpoints, backends, endpoints,
    gateways, host_nodes, listeners, route_rows,
};
pub use watch::{Ended, RequestSteps, Step, WatchReport, foretold};
pub use withheld::{withhold, without_quoted_values};
