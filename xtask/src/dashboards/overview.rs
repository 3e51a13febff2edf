//! All Gateways: whether there is trouble, and where to look next.

use super::panel::{
    Dashboard, Measure, Panel, Row, Variable, lines, number, quantiles, query, share_of_class,
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "overview",
        title: "Portcullis / Overview",
        description: "All Gateways and agents: whether there is trouble, and where to look next.",
        variables: &[Variable::Job, Variable::Instance, Variable::Gateway],
        rows: vec![
            Row { title: "Now", panels: now() },
            Row { title: "Requests", panels: requests() },
            Row { title: "Clients", panels: clients() },
            Row { title: "Backends", panels: backends() },
            Row { title: "Configuration", panels: configuration() },
            Row { title: "Cluster", panels: cluster() },
        ],
    }
}

fn now() -> Vec<Panel> {
    vec![
        number(
            "Agents",
            "Agents that were scraped. Fewer than nodes: look at the pods of the DaemonSet that are missing.",
            Measure::Count,
            "count(portcullis_agent_info{@agent})",
        ),
        number(
            "Requests",
            "Requests that were answered each second.",
            Measure::Requests,
            "sum(rate(http_server_requests_total{@gateway}[@rate]))",
        ),
        number(
            "Answered with 5xx",
            "Share of answers that were the fault of a backend or of the gateway. Above the objective: the panels of own \
             answers below and of backends in Routes say which.",
            Measure::Share,
            &share_of_class("5xx", "", "http_server_requests_total", "@gateway"),
        ),
        number(
            "99 % within",
            "Time in which all but the slowest hundredth of requests were answered.",
            Measure::Seconds,
            "histogram_quantile(0.99, sum by (le) (rate(http_server_request_duration_seconds_bucket{@gateway}[@rate])))",
        ),
        number(
            "Problems in the configuration",
            "What is wrong with the input now. Above 0: `portcullis status` of an agent lists it.",
            Measure::Count,
            "max(portcullis_config_problems{@agent})",
        ),
        number(
            "First certificate ends in",
            "Time until the first certificate that a listener serves ends. Days: look for what should have renewed it; Listeners \
             has the table.",
            Measure::Seconds,
            "min(tls_certificate_expiry_timestamp_seconds{@gateway}) - time()",
        ),
    ]
}

fn requests() -> Vec<Panel> {
    vec![
        lines(
            "Requests by status",
            "Answered requests by the class of their status.",
            Measure::Requests,
            vec![query(
                "sum by (http_response_status_class) (rate(http_server_requests_total{@gateway}[@rate]))",
                "{{http_response_status_class}}",
            )],
        ),
        lines(
            "Answered with 5xx by Gateway",
            "Share of a Gateway's answers that were 5xx. One Gateway alone: its tenants' backends; all of them: the nodes.",
            Measure::Share,
            vec![query(
                &share_of_class("5xx", "gateway", "http_server_requests_total", "@gateway"),
                "{{gateway}}",
            )],
        ),
        lines(
            "Duration",
            "Time from a request's head to the end of its response, with what the client takes to read it. Where it grows and \
             that of backends in Routes does not, look at the processors in Node.",
            Measure::Seconds,
            quantiles("http_server_request_duration_seconds_bucket{@gateway}"),
        ),
        lines(
            "Within 250 ms by Gateway",
            "Share of requests that were answered within a quarter of a second: the objective of the alerts is 99 %.",
            Measure::Share,
            vec![query(
                "sum by (gateway) (rate(http_server_request_duration_seconds_bucket{@gateway,le=\"0.25\"}[@rate])) / \
                 sum by (gateway) (rate(http_server_request_duration_seconds_count{@gateway}[@rate]))",
                "{{gateway}}",
            )],
        ),
        lines(
            "Own answers",
            "Requests that the gateway answered itself, by reason. `no_route` is mostly clients that ask for what is not there; \
             reasons about backends say that there is none that works.",
            Measure::Requests,
            vec![query("sum by (reason) (rate(http_server_own_answers_total{@agent}[@rate]))", "{{reason}}")],
        ),
        lines(
            "Without a route",
            "Requests that no listener or route took, or that were refused before routing. A step up after a change: a route or \
             a hostname is gone.",
            Measure::Requests,
            vec![query(
                "sum by (instance) (rate(http_server_requests_unrouted_total{@agent}[@rate]))",
                "{{instance}}",
            )],
        ),
    ]
}

fn clients() -> Vec<Panel> {
    vec![
        lines(
            "Connections open",
            "Client connections open now, tunnels included. Near `limits.connections` of a Gateway, new ones are refused.",
            Measure::Count,
            vec![query("sum by (gateway) (network_server_connections_open{@gateway})", "{{gateway}}")],
        ),
        lines(
            "New connections",
            "Client connections that were accepted, and TLS handshakes that were completed. Many more than requests: clients \
             do not keep their connections.",
            Measure::PerSecond,
            vec![
                query("sum(rate(network_server_connections_total{@agent}[@rate]))", "accepted"),
                query("sum(rate(tls_server_connections_total{@gateway}[@rate]))", "TLS"),
            ],
        ),
        lines(
            "TLS handshakes that failed",
            "By cause. `unknown-name` and `protocol` are mostly scanners; `no-certificate` is a listener whose Secret is \
             missing; `timeout` is clients that stall, or too little processor.",
            Measure::PerSecond,
            vec![query(
                "sum by (error_type) (rate(tls_server_handshake_failures_total{@agent}[@rate]))",
                "{{error_type}}",
            )],
        ),
        lines(
            "Connections ended by a limit",
            "By Gateway, and by the limit of it that ended them. `connections`: raise it, or look for who holds them open.",
            Measure::PerSecond,
            vec![query(
                "sum by (gateway, reason) (rate(network_server_connections_refused_total{@gateway}[@rate]))",
                "{{gateway}} {{reason}}",
            )],
        ),
        lines(
            "Clients not admitted",
            "Connections, requests and datagrams that a ListenerPolicy or TrafficPolicy kept out, by reason. Clients that \
             should be let in: compare their address with the policy's lists.",
            Measure::PerSecond,
            vec![query(
                "sum by (gateway, reason) (rate(network_server_clients_not_admitted_total{@gateway}[@rate]))",
                "{{gateway}} {{reason}}",
            )],
        ),
        lines(
            "Bytes forwarded as they are",
            "Of TLS, TCP and UDP listeners, from clients (`receive`) and to them (`transmit`); what the kernel forwards is not \
             among them.",
            Measure::BytesPerSecond,
            vec![query(
                "sum by (gateway, network_io_direction) (rate(l4_server_io_bytes_total{@gateway}[@rate]))",
                "{{gateway}} {{network_io_direction}}",
            )],
        ),
    ]
}

fn backends() -> Vec<Panel> {
    vec![
        lines(
            "Requests to backends",
            "Requests that were sent on, by the status of the backend; `none`: there was no response.",
            Measure::Requests,
            vec![query(
                "sum by (http_response_status_class) (rate(http_client_requests_total{@agent,backend!=\"\"}[@rate]))",
                "{{http_response_status_class}}",
            )],
        ),
        lines(
            "Connections to backends",
            "Connections that were opened, attempts that failed, and requests that were sent again. Failures of one agent: its \
             node's network; of all: the endpoints.",
            Measure::PerSecond,
            vec![
                query("sum(rate(http_client_connections_opened_total{@agent}[@rate]))", "opened"),
                query("sum(rate(http_client_connections_failed_total{@agent}[@rate]))", "failed"),
                query("sum(rate(http_client_retries_total{@agent}[@rate]))", "retries"),
            ],
        ),
        lines(
            "Endpoints chosen",
            "By how near they are to the agent. More `other` than before: the endpoints near it are gone or not ready.",
            Measure::PerSecond,
            vec![query(
                "sum by (locality) (rate(portcullis_endpoints_chosen_total{@agent}[@rate]))",
                "{{locality}}",
            )],
        ),
        lines(
            "External auth",
            "Questions to auth services by outcome. `failed`: the service did not answer, and its requests are refused or let \
             through as the policy says.",
            Measure::PerSecond,
            vec![query(
                "sum by (outcome) (rate(http_server_external_auth_total{@agent}[@rate]))",
                "{{outcome}}",
            )],
        ),
        lines(
            "Mirrored requests",
            "Copies of requests by what became of them. `busy` and `behind`: the mirror is slower than what it mirrors.",
            Measure::Requests,
            vec![query(
                "sum by (outcome) (rate(http_client_mirrored_requests_total{@agent}[@rate]))",
                "{{outcome}}",
            )],
        ),
    ]
}

fn configuration() -> Vec<Panel> {
    vec![
        lines(
            "Changes",
            "Changes that took effect each second, on the agent with the most. Many without a deployment: an object is \
             written over and over.",
            Measure::PerSecond,
            vec![query("max(rate(portcullis_config_applied_total{@agent}[@rate]))", "changes")],
        ),
        lines(
            "Time until a change is served",
            "Mean time from a change being read to the data plane serving it. It grows with the number of objects; seconds: \
             look at the agents' processors.",
            Measure::Seconds,
            vec![query(
                "sum by (instance) (rate(portcullis_config_apply_time_seconds_total{@agent}[@rate])) / \
                 (sum by (instance) (rate(portcullis_config_applied_total{@agent}[@rate])) > 0)",
                "{{instance}}",
            )],
        ),
        lines(
            "Problems",
            "What is wrong with the input, as each agent sees it: `portcullis status` lists it. Agents that differ for minutes: \
             one of them does not follow the API server.",
            Measure::Count,
            vec![query("portcullis_config_problems{@agent}", "{{instance}}")],
        ),
        lines(
            "Frontends",
            "Addresses and ports of Gateways, and those of them that an agent does not serve: another process may have the \
             port, the agent's log says which.",
            Measure::Count,
            vec![
                query("max(portcullis_frontends{@agent})", "frontends"),
                query("max(portcullis_frontends_refused{@agent})", "refused"),
            ],
        ),
        lines(
            "Backends in use",
            "Service ports and hosts outside the cluster, and those hosts that have no address that may be sent to: the \
             statuses of their XBackends say why.",
            Measure::Count,
            vec![
                query("max(portcullis_backends{@agent})", "backends"),
                query("max(portcullis_external_hosts{@agent})", "external hosts"),
                query("max(portcullis_external_hosts_without_address{@agent})", "without address"),
            ],
        ),
    ]
}

fn cluster() -> Vec<Panel> {
    vec![
        number(
            "Leaders",
            "Agents that write statuses: 1. 0: statuses are not written, two: the Lease cannot be read; traffic is served.",
            Measure::Count,
            "sum(portcullis_leader{@agent})",
        ),
        number(
            "Agents without the API server's objects",
            "Agents that have not read and applied everything. For minutes: their logs say what they may not read or reach.",
            Measure::Count,
            "count(portcullis_cluster_read{@agent}) - sum(portcullis_cluster_read{@agent})",
        ),
        number(
            "Gateways without objects",
            "Gateways that cannot have what is generated for them: their statuses say why.",
            Measure::Count,
            "max(portcullis_gateways_without_objects{@agent})",
        ),
        number(
            "Mesh unclaimed",
            "1: no XMesh of the expected name is ours, and the agents' number is written nowhere; the log says why.",
            Measure::Count,
            "max(portcullis_mesh_unclaimed{@agent})",
        ),
    ]
}
