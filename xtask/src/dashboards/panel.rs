//! A dashboard as rows of panels, with the queries that fill them. Knows PromQL, not Grafana's
//! files.
//!
//! In queries, `@agent`, `@gateway`, `@listener`, `@budget`, `@route` and `@backend` stand for the
//! matchers of the variables that are about the metric, and `@rate` for the window that fits how
//! often Prometheus scrapes.

/// A dashboard, one file.
pub(super) struct Dashboard {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) variables: &'static [Variable],
    pub(super) rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) panels: Vec<Panel>,
}

pub(super) struct Panel {
    pub(super) title: &'static str,
    /// The meaning, and the thing to do when it is off.
    pub(super) description: &'static str,
    pub(super) unit: Measure,
    pub(super) shape: Shape,
    pub(super) queries: Vec<Query>,
}

pub(super) struct Query {
    pub(super) expression: String,
    /// With `{{label}}`.
    pub(super) legend: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Lines,
    /// One number.
    Number,
    /// A row for each series, with its labels as columns.
    Table,
    /// Durations by the number of those that took as long.
    Heatmap,
}

#[derive(Clone, Copy)]
pub(super) enum Measure {
    Count,
    PerSecond,
    Requests,
    Seconds,
    /// From 0 to 1.
    Share,
    Bytes,
    BytesPerSecond,
}

/// A choice at the top of a dashboard, besides the data source.
#[derive(Clone, Copy)]
pub(super) enum Variable {
    /// The agents' job, by which other programs' metrics of the same names are left out.
    Job,
    Instance,
    Gateway,
    Parent,
    Listener,
    Route,
    ParentRoute,
    Backend,
}

const MATCHERS: &[(&str, &str)] = &[
    ("@agent", r#"job=~"$job",instance=~"$instance""#),
    ("@gateway", r#"job=~"$job",instance=~"$instance",gateway=~"$gateway""#),
    (
        "@listener",
        r#"job=~"$job",instance=~"$instance",gateway=~"$gateway",parent=~"$parent",listener=~"$listener""#,
    ),
    ("@budget", r#"job=~"$job",instance=~"$instance",parent=~"$parent""#),
    ("@route", r#"job=~"$job",instance=~"$instance",route=~"$route",parent_route=~"$parent_route""#),
    ("@backend", r#"job=~"$job",instance=~"$instance",backend=~"$backend""#),
    ("@rate", "$__rate_interval"),
];

pub(super) fn lines(
    title: &'static str,
    description: &'static str,
    unit: Measure,
    queries: Vec<Query>,
) -> Panel {
    Panel { title, description, unit, shape: Shape::Lines, queries }
}

pub(super) fn number(
    title: &'static str,
    description: &'static str,
    unit: Measure,
    expression: &str,
) -> Panel {
    Panel { title, description, unit, shape: Shape::Number, queries: vec![query(expression, "")] }
}

pub(super) fn table(
    title: &'static str,
    description: &'static str,
    unit: Measure,
    expression: &str,
) -> Panel {
    Panel { title, description, unit, shape: Shape::Table, queries: vec![query(expression, "")] }
}

/// Of a histogram of durations.
pub(super) fn heatmap(title: &'static str, description: &'static str, buckets: &str) -> Panel {
    let expression = format!("sum by (le) (increase({buckets}[@rate]))");
    let queries = vec![query(&expression, "{{le}}")];
    Panel { title, description, unit: Measure::Seconds, shape: Shape::Heatmap, queries }
}

pub(super) fn query(expression: &str, legend: &'static str) -> Query {
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    Query { expression: MATCHERS.iter().fold(expression.to_owned(), replace), legend }
}

/// The median, and what the slowest tenth and hundredth takes at least.
pub(super) fn quantiles(buckets: &str) -> Vec<Query> {
    [("0.5", "half within"), ("0.9", "90 % within"), ("0.99", "99 % within")]
        .map(|(quantile, legend)| {
            let expression = format!("histogram_quantile({quantile}, sum by (le) (rate({buckets}[@rate])))");
            query(&expression, legend)
        })
        .into()
}

/// The share of a counter's increase that has this status class, 0 where there is none yet.
pub(super) fn share_of_class(class: &str, by: &str, counter: &str, matchers: &str) -> String {
    let all = format!("sum by ({by}) (rate({counter}{{{matchers}}}[@rate]))");
    let some = format!(
        r#"sum by ({by}) (rate({counter}{{{matchers},http_response_status_class="{class}"}}[@rate]))"#
    );
    format!("({some} or 0 * {all}) / {all}")
}

// === impl Measure ===

impl Measure {
    pub(super) fn as_grafana(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "cps",
            Self::Requests => "reqps",
            Self::Seconds => "s",
            Self::Share => "percentunit",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "Bps",
        }
    }
}

// === impl Variable ===

impl Variable {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Instance => "instance",
            Self::Gateway => "gateway",
            Self::Parent => "parent",
            Self::Listener => "listener",
            Self::Route => "route",
            Self::ParentRoute => "parent_route",
            Self::Backend => "backend",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::Instance => "Agent",
            Self::Gateway => "Gateway",
            Self::Parent => "Gateway or ListenerSet",
            Self::Listener => "Listener",
            Self::Route => "Route",
            Self::ParentRoute => "Included by",
            Self::Backend => "Backend",
        }
    }

    pub(super) fn query(self) -> &'static str {
        match self {
            Self::Job => "label_values(portcullis_agent_info, job)",
            Self::Instance => r#"label_values(portcullis_agent_info{job=~"$job"}, instance)"#,
            Self::Gateway => r#"label_values(network_server_connections_open{job=~"$job"}, gateway)"#,
            Self::Parent => {
                r#"label_values(tls_server_connections_total{job=~"$job",gateway=~"$gateway"}, parent)"#
            }
            Self::Listener => {
                r#"label_values(tls_server_connections_total{job=~"$job",parent=~"$parent"}, listener)"#
            }
            Self::Route => r#"label_values(portcullis_route_requests_total{job=~"$job"}, route)"#,
            Self::ParentRoute => {
                r#"label_values(portcullis_route_requests_total{job=~"$job"}, parent_route)"#
            }
            Self::Backend => r#"label_values(http_client_requests_total{job=~"$job"}, backend)"#,
        }
    }
}
