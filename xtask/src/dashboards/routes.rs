//! One route or backend.

use super::panel::{
    Dashboard, Measure, Panel, Row, Variable, heatmap, lines, quantiles, query, share_of_class, table,
};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        name: "routes",
        title: "Portcullis / Routes and backends",
        description: "Routes, the routes that include them, and backends. `other` is all that have no series of their own.",
        variables: &[
            Variable::Job,
            Variable::Instance,
            Variable::ParentRoute,
            Variable::Route,
            Variable::Backend,
        ],
        rows: vec![
            Row { title: "Routes", panels: routes() },
            Row { title: "Backends", panels: backends() },
            Row { title: "Endpoints and limits (BackendPolicy)", panels: endpoints() },
            Row { title: "Key sets of token issuers", panels: key_sets() },
            Row { title: "Series", panels: series() },
        ],
    }
}

fn routes() -> Vec<Panel> {
    vec![
        lines(
            "Requests by status",
            "Answered requests that a rule of a route took.",
            Measure::Requests,
            vec![query(
                "sum by (http_response_status_class) (rate(portcullis_route_requests_total{@route}[@rate]))",
                "{{http_response_status_class}}",
            )],
        ),
        lines(
            "Requests by route",
            "The ten routes that are asked most.",
            Measure::Requests,
            vec![query(
                "topk(10, sum by (route_kind, route) (rate(portcullis_route_requests_total{@route}[@rate])))",
                "{{route_kind}} {{route}}",
            )],
        ),
        lines(
            "Requests by the route that includes them",
            "What a platform team's route passed to the routes that it includes.",
            Measure::Requests,
            vec![query(
                "sum by (parent_route) (rate(portcullis_route_requests_total{@route,parent_route!=\"\"}[@rate]))",
                "{{parent_route}}",
            )],
        ),
        lines(
            "Answered with 5xx",
            "Share of a route's answers that were 5xx, of the ten with the most. Its backends below: where they answer well, \
             the gateway did not reach them.",
            Measure::Share,
            vec![query(
                &format!(
                    "topk(10, {})",
                    share_of_class("5xx", "route", "portcullis_route_requests_total", "@route")
                ),
                "{{route}}",
            )],
        ),
        lines(
            "Duration",
            "Time from a request's head to the end of its response.",
            Measure::Seconds,
            quantiles("portcullis_route_request_duration_seconds_bucket{@route}"),
        ),
        lines(
            "Slowest routes",
            "Time in which all but the slowest hundredth of a route's requests were answered, of the ten with the most.",
            Measure::Seconds,
            vec![query(
                "topk(10, histogram_quantile(0.99, sum by (le, route) \
                 (rate(portcullis_route_request_duration_seconds_bucket{@route}[@rate]))))",
                "{{route}}",
            )],
        ),
    ]
}

fn backends() -> Vec<Panel> {
    vec![
        lines(
            "Requests by status",
            "Requests that were sent on, by the status of the backend. `none`: there was no response, because no connection \
             could be made or it broke; `portcullis explain` names the endpoints.",
            Measure::Requests,
            vec![query(
                "sum by (http_response_status_class) (rate(http_client_requests_total{@backend}[@rate]))",
                "{{http_response_status_class}}",
            )],
        ),
        lines(
            "Requests by backend",
            "The ten backends that are asked most.",
            Measure::Requests,
            vec![query(
                "topk(10, sum by (backend) (rate(http_client_requests_total{@backend}[@rate])))",
                "{{backend}}",
            )],
        ),
        lines(
            "Failing backends",
            "Requests that a backend answered with 5xx or not at all, of the ten with the most.",
            Measure::Requests,
            vec![query(
                "topk(10, sum by (backend) \
                 (rate(http_client_requests_total{@backend,http_response_status_class=~\"5xx|none\"}[@rate])))",
                "{{backend}}",
            )],
        ),
        lines(
            "Time until the response",
            "Time until the head of a backend's response, with connecting, retries and the body of the request.",
            Measure::Seconds,
            quantiles("http_client_request_duration_seconds_bucket{@backend}"),
        ),
        lines(
            "Slowest backends",
            "Time in which all but the slowest hundredth of a backend's responses began, of the ten with the most.",
            Measure::Seconds,
            vec![query(
                "topk(10, histogram_quantile(0.99, sum by (le, backend) \
                 (rate(http_client_request_duration_seconds_bucket{@backend}[@rate]))))",
                "{{backend}}",
            )],
        ),
        heatmap(
            "Times until the response",
            "How many responses began after how long.",
            "http_client_request_duration_seconds_bucket{@backend}",
        ),
    ]
}

fn endpoints() -> Vec<Panel> {
    vec![
        table(
            "Endpoints that are out",
            "Endpoints that are asked only if there is no other, by the number of agents that see them so. `unhealthy`: its \
             checks fail; `ejected`: its answers did.",
            Measure::Count,
            "count by (backend, endpoint, reason) (portcullis_endpoint_out{@backend})",
        ),
        lines(
            "Ejections",
            "Endpoints that were ejected because of their answers.",
            Measure::PerSecond,
            vec![query(
                "sum by (backend) (rate(portcullis_endpoint_ejections_total{@backend}[@rate]))",
                "{{backend}}",
            )],
        ),
        lines(
            "Checks",
            "Checks of endpoints by outcome, and endpoints that are being checked. All of a backend's fail: compare the \
             policy's path and port with the application.",
            Measure::PerSecond,
            vec![
                query(
                    "sum by (backend, outcome) (rate(portcullis_endpoint_checks_total{@backend}[@rate]))",
                    "{{backend}} {{outcome}}",
                ),
                query("max(portcullis_endpoints_checked{@agent})", "endpoints checked"),
            ],
        ),
        lines(
            "In use",
            "Requests, requests that wait, and connections that a backend with such a policy has now.",
            Measure::Count,
            vec![query(
                "sum by (backend, reason) (portcullis_backend_in_use{@backend})",
                "{{backend}} {{reason}}",
            )],
        ),
        lines(
            "Refused by limits",
            "Requests and connections beyond the limits of the policy: the backend is slower than it should be, or the limit \
             is too small.",
            Measure::PerSecond,
            vec![query(
                "sum by (backend, reason) (rate(portcullis_backend_refused_total{@backend}[@rate]))",
                "{{backend}} {{reason}}",
            )],
        ),
    ]
}

fn key_sets() -> Vec<Panel> {
    vec![
        lines(
            "Age",
            "Time since a key set was fetched. Older than `cacheDuration`: the issuer does not answer, and tokens with new \
             keys are refused.",
            Measure::Seconds,
            vec![query(
                "max by (backend, path) (portcullis_key_set_age_seconds{@backend})",
                "{{backend}} {{path}}",
            )],
        ),
        lines(
            "Fetches",
            "Fetches of key sets by outcome. `failed`: the agent's log says why.",
            Measure::PerSecond,
            vec![query(
                "sum by (backend, path, outcome) (rate(portcullis_key_set_fetches_total{@backend}[@rate]))",
                "{{backend}} {{path}} {{outcome}}",
            )],
        ),
    ]
}

fn series() -> Vec<Panel> {
    vec![lines(
        "Series of durations",
        "Listeners, routes and backends with series of their own, on the agent with the most, and as many as may have. At the \
         limit, the others are `other`: raise `--duration-series`.",
        Measure::Count,
        vec![
            query("max by (of) (portcullis_duration_series{@agent})", "{{of}}"),
            query("max(portcullis_duration_series_limit{@agent})", "limit"),
        ],
    )]
}
