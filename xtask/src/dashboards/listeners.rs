//! One listener or tenant, from the handshake to the response.

use super::panel::{
    Dashboard, Measure, Panel, Row, Variable, heatmap, lines, quantiles, query, share_of_class, table,
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "listeners",
        title: "Portcullis / Listeners",
        description: "Listeners of Gateways and ListenerSets, and so of tenants: requests, TLS, forwarded connections, clients \
                      kept out.",
        variables: &[
            Variable::Job,
            Variable::Instance,
            Variable::Gateway,
            Variable::Parent,
            Variable::Listener,
        ],
        rows: vec![
            Row { title: "Requests", panels: requests() },
            Row { title: "TLS", panels: tls() },
            Row { title: "TLS, TCP and UDP forwarded as they are", panels: forwarded() },
            Row { title: "Clients kept out", panels: kept_out() },
        ],
    }
}

fn requests() -> Vec<Panel> {
    vec![
        lines(
            "Requests by status",
            "Answered requests by the class of their status.",
            Measure::Requests,
            vec![query(
                "sum by (http_response_status_class) (rate(http_server_requests_total{@listener}[@rate]))",
                "{{http_response_status_class}}",
            )],
        ),
        lines(
            "Requests by listener",
            "The ten listeners that are asked most.",
            Measure::Requests,
            vec![query(
                "topk(10, sum by (gateway, parent, listener) (rate(http_server_requests_total{@listener}[@rate])))",
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
        lines(
            "Answered with 5xx",
            "Share of a listener's answers that were 5xx, of the ten with the most. Routes says which route and backend.",
            Measure::Share,
            vec![query(
                &format!(
                    "topk(10, {})",
                    share_of_class(
                        "5xx",
                        "gateway, parent, listener",
                        "http_server_requests_total",
                        "@listener"
                    )
                ),
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
        lines(
            "Duration",
            "Time from a request's head to the end of its response, own answers included.",
            Measure::Seconds,
            quantiles("http_server_request_duration_seconds_bucket{@listener}"),
        ),
        heatmap(
            "Durations",
            "How many requests took how long: two bands are two kinds of requests, which a quantile hides.",
            "http_server_request_duration_seconds_bucket{@listener}",
        ),
        lines(
            "Within 250 ms",
            "Share of a listener's requests that were answered within a quarter of a second, of the ten with the least: the \
             objective of the alerts is 99 %.",
            Measure::Share,
            vec![query(
                "bottomk(10, sum by (gateway, parent, listener) \
                 (rate(http_server_request_duration_seconds_bucket{@listener,le=\"0.25\"}[@rate])) / \
                 sum by (gateway, parent, listener) (rate(http_server_request_duration_seconds_count{@listener}[@rate])))",
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
    ]
}

fn tls() -> Vec<Panel> {
    vec![
        lines(
            "TLS connections",
            "Handshakes that were completed, of the ten listeners with the most.",
            Measure::PerSecond,
            vec![query(
                "topk(10, sum by (gateway, parent, listener) (rate(tls_server_connections_total{@listener}[@rate])))",
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
        lines(
            "Handshake duration",
            "Time from a ClientHello to the end of its handshake, with the client's part: mostly its distance. All of them \
             slower: the processors in Node.",
            Measure::Seconds,
            quantiles("tls_server_handshake_duration_seconds_bucket{@listener}"),
        ),
        table(
            "Certificates end in",
            "Time until the first certificate that a listener serves, or one of its chain, ends; below 0 it has. Look for what \
             should have renewed the Secret.",
            Measure::Seconds,
            "sort(min by (gateway, parent_kind, parent, listener) (tls_certificate_expiry_timestamp_seconds{@listener}) - time())",
        ),
    ]
}

fn forwarded() -> Vec<Panel> {
    vec![
        lines(
            "New connections",
            "Connections and sessions of UDP that began to be forwarded, of the ten listeners with the most.",
            Measure::PerSecond,
            vec![query(
                "topk(10, sum by (gateway, parent, listener) (rate(l4_server_connections_total{@listener}[@rate])))",
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
        lines(
            "Connections open",
            "Of those, open now.",
            Measure::Count,
            vec![query(
                "topk(10, sum by (gateway, parent, listener) (l4_server_connections_open{@listener}))",
                "{{gateway}} {{parent}} {{listener}}",
            )],
        ),
        lines(
            "Bytes",
            "Bytes from clients (`receive`) and to them (`transmit`).",
            Measure::BytesPerSecond,
            vec![query(
                "sum by (network_io_direction) (rate(l4_server_io_bytes_total{@listener}[@rate]))",
                "{{network_io_direction}}",
            )],
        ),
        lines(
            "Ends",
            "How they ended, by reason; of UDP also datagrams that were not forwarded. Reasons about endpoints: the backend \
             has none that takes connections.",
            Measure::PerSecond,
            vec![query(
                "sum by (reason) (rate(l4_server_connections_ended_total{@listener}[@rate]))",
                "{{reason}}",
            )],
        ),
    ]
}

fn kept_out() -> Vec<Panel> {
    vec![
        lines(
            "Not admitted",
            "Clients that policies kept out, by reason. Those that should be let in: compare their address with the lists.",
            Measure::PerSecond,
            vec![query(
                "sum by (parent, listener, reason) (rate(network_server_clients_not_admitted_total{@listener}[@rate]))",
                "{{parent}} {{listener}} {{reason}}",
            )],
        ),
        lines(
            "Budgets: let in",
            "New connections that a budget let in, by whose it is; without a listener, all of the object share it.",
            Measure::PerSecond,
            vec![query(
                "sum by (parent, listener) (rate(network_server_budget_taken_total{@budget}[@rate]))",
                "{{parent}} {{listener}}",
            )],
        ),
        lines(
            "Budgets: refused",
            "New connections that a budget refused, by whose it is and what enforced it. For long: an attack, or a budget that \
             is too small.",
            Measure::PerSecond,
            vec![query(
                "sum by (parent, listener, enforced_by) (rate(network_server_budget_refused_total{@budget}[@rate]))",
                "{{parent}} {{listener}} {{enforced_by}}",
            )],
        ),
    ]
}
