use std::sync::Arc;

use portcullis_model::ParentKind;

use super::*;

#[path = "metrics_queries_tests.rs"]
mod queries;

fn everything() -> Metrics {
    let gateway = ObjectName::new("infra", "web");
    let listener = ListenerId {
        gateway: gateway.clone(),
        kind: ParentKind::ListenerSet,
        parent: ObjectName::new("shop", "shop"),
        name: Arc::from("http"),
    };
    Metrics {
        agent: Agent {
            version: "1.2.3",
            datapath: "ebpf",
            without_programs: Some("capabilities"),
            panics: 0,
        },
        process: Process {
            cpu: Duration::from_millis(1500),
            resident: 26,
            open_descriptors: 27,
            ..Process::default()
        },
        durations: Durations {
            listeners: vec![
                (
                    Some(listener.clone()),
                    ListenerDurations { requests: histogram([28, 0, 2]), handshakes: histogram([0, 3, 0]) },
                ),
                (None, ListenerDurations { requests: histogram([1, 0, 0]), ..Default::default() }),
            ],
            routes: vec![(
                Some(RouteSeries {
                    kind: "HTTPRoute",
                    route: ObjectName::new("shop", "cart"),
                    parent: Some(ObjectName::new("infra", "edge")),
                }),
                Requests { requests: [0, 0, 4, 0, 0, 1, 3], durations: histogram([5, 0, 0]) },
            )],
            backends: vec![
                (
                    Some(BackendName("app/web:80".into())),
                    Requests { requests: [2, 0, 4, 0, 0, 0, 0], durations: histogram([0, 0, 6]) },
                ),
                (None, Requests::default()),
            ],
            limit: 29,
        },
        traffic: Traffic {
            gateways: vec![(
                gateway,
                GatewayTraffic {
                    open: 3,
                    refused: vec![("connections", 1)],
                    not_admitted: vec![("address", 12)],
                },
            )],
            listeners: vec![(
                listener.clone(),
                ListenerTraffic {
                    tls_connections: 2,
                    requests: [0, 0, 7, 0, 1, 0, 0],
                    forwarded: ForwardedTraffic {
                        begun: 6,
                        open: 1,
                        received: 10,
                        sent: 20,
                        endings: vec![("closed", 5)],
                    },
                    not_admitted: vec![("connections", 11)],
                },
            )],
            budgets: vec![BudgetTraffic {
                owner: BudgetOwner {
                    kind: ParentKind::Gateway,
                    name: ObjectName::new("infra", "web"),
                    listener: None,
                },
                taken: 13,
                refused: 14,
                refused_by_kernel: 15,
            }],
            own_answers: vec![("no_route", 4)],
            auth: vec![("denied", 6)],
            handshake_failures: vec![("timeout", 5)],
            mirrored: vec![("behind", 8)],
            http1_by_library: 23,
            exported: vec![("traces", "lost", 26)],
            traces_over_budget: 27,
            cores: vec![24, 25],
            chosen: vec![("node", 7)],
            backends: vec![(
                BackendName("app/web:80".into()),
                BackendTraffic {
                    out: vec![("10.0.0.1:80".parse().unwrap(), "ejected")],
                    ejections: 3,
                    checks: vec![("failed", 4)],
                    open: vec![("requests", 5)],
                    refused: vec![("connections", 6)],
                },
            )],
            checked_endpoints: 2,
            key_sets: vec![(
                RemoteKeySet {
                    backend: BackendName("auth/login:80".into()),
                    host: "login.auth.svc".into(),
                    path: "/certs?key=s3cret".into(),
                    lifetime: Duration::from_secs(300),
                },
                KeySetTraffic { age: Some(Duration::from_secs(21)), fetches: vec![("failed", 22)] },
            )],
            ..Traffic::default()
        },
        certificate_expiries: vec![(listener, 1_800_000_000)],
        verdicts: vec![("steered", 9)],
        forwarding: Forwarding { kernel: 2, userspace: vec![("off", 1)], flows: 7 },
        unguarded: vec![("eth0".into(), "foreign-program")],
        unread: vec![("eth1".into(), "no-interface")],
        enforced: vec![("clients", "sk_lookup", 3)],
        configuration: Configuration {
            age: Duration::from_secs(12),
            frontends: 2,
            ..Configuration::default()
        },
        cluster: Some(Cluster { is_read: true, duties: Some(Duties::default()) }),
    }
}

fn histogram(counts: [u64; 3]) -> Histogram {
    let bounds = [0.5, 1.0, f64::INFINITY];
    Histogram { buckets: bounds.into_iter().zip(counts).collect(), sum: Duration::from_millis(250) }
}

#[test]
fn everything_given_is_shown() {
    let text = metrics(&everything(), MetricsFormat::Text);
    let listener = "gateway=\"infra/web\",parent_kind=\"ListenerSet\",parent=\"shop/shop\",listener=\"http\"";
    let route = "route_kind=\"HTTPRoute\",route=\"shop/cart\",parent_route=\"infra/edge\"";
    let budget = "parent_kind=\"Gateway\",parent=\"infra/web\",listener=\"\"";
    for line in [
        "portcullis_agent_info{version=\"1.2.3\",datapath=\"ebpf\"} 1".to_owned(),
        "process_cpu_seconds_total 1.5".to_owned(),
        "process_resident_memory_bytes 26".to_owned(),
        "process_open_fds 27".to_owned(),
        format!("http_server_request_duration_seconds_bucket{{le=\"0.5\",{listener}}} 28"),
        format!("http_server_request_duration_seconds_bucket{{le=\"1.0\",{listener}}} 28"),
        format!("http_server_request_duration_seconds_bucket{{le=\"+Inf\",{listener}}} 30"),
        format!("http_server_request_duration_seconds_count{{{listener}}} 30"),
        format!("http_server_request_duration_seconds_sum{{{listener}}} 0.25"),
        "http_server_request_duration_seconds_count{gateway=\"other\",parent_kind=\"\",parent=\"\",\
         listener=\"\"} 1"
            .to_owned(),
        format!("tls_server_handshake_duration_seconds_count{{{listener}}} 3"),
        format!("portcullis_route_requests_total{{{route},http_response_status_class=\"5xx\"}} 1"),
        format!("portcullis_route_requests_total{{{route},http_response_status_class=\"aborted\"}} 3"),
        format!("portcullis_route_request_duration_seconds_count{{{route}}} 5"),
        "http_client_requests_total{backend=\"app/web:80\",http_response_status_class=\"none\"} 2".to_owned(),
        "http_client_request_duration_seconds_count{backend=\"app/web:80\"} 6".to_owned(),
        "portcullis_duration_series{of=\"backend\"} 1".to_owned(),
        "portcullis_duration_series_limit 29".to_owned(),
        format!("http_server_requests_total{{{listener},http_response_status_class=\"2xx\"}} 7"),
        format!("tls_server_connections_total{{{listener}}} 2"),
        format!("tls_certificate_expiry_timestamp_seconds{{{listener}}} 1800000000"),
        "network_server_connections_open{gateway=\"infra/web\"} 3".to_owned(),
        format!("l4_server_connections_total{{{listener}}} 6"),
        format!("l4_server_connections_open{{{listener}}} 1"),
        format!("l4_server_io_bytes_total{{{listener},network_io_direction=\"transmit\"}} 20"),
        format!("l4_server_connections_ended_total{{{listener},reason=\"closed\"}} 5"),
        "network_server_connections_refused_total{gateway=\"infra/web\",reason=\"connections\"} 1".to_owned(),
        format!("network_server_clients_not_admitted_total{{{listener},reason=\"connections\"}} 11"),
        "network_server_clients_not_admitted_total{gateway=\"infra/web\",parent_kind=\"\",parent=\"\",\
         listener=\"\",reason=\"address\"} 12"
            .to_owned(),
        format!("network_server_budget_taken_total{{{budget}}} 13"),
        format!("network_server_budget_refused_total{{{budget},enforced_by=\"kernel\"}} 15"),
        format!("network_server_budget_refused_total{{{budget},enforced_by=\"userspace\"}} 14"),
        "http_server_own_answers_total{reason=\"no_route\"} 4".to_owned(),
        "http_server_external_auth_total{outcome=\"denied\"} 6".to_owned(),
        "tls_server_handshake_failures_total{error_type=\"timeout\"} 5".to_owned(),
        "http_client_mirrored_requests_total{outcome=\"behind\"} 8".to_owned(),
        "portcullis_endpoints_chosen_total{locality=\"node\"} 7".to_owned(),
        "portcullis_endpoint_out{backend=\"app/web:80\",endpoint=\"10.0.0.1:80\",reason=\"ejected\"} 1"
            .to_owned(),
        "portcullis_http1_by_library_total 23".to_owned(),
        "portcullis_otlp_items_total{signal=\"traces\",outcome=\"lost\"} 26".to_owned(),
        "portcullis_traces_over_budget_total 27".to_owned(),
        "portcullis_endpoint_ejections_total{backend=\"app/web:80\"} 3".to_owned(),
        "portcullis_endpoint_checks_total{backend=\"app/web:80\",outcome=\"failed\"} 4".to_owned(),
        "portcullis_endpoints_checked 2".to_owned(),
        "portcullis_core_connections{core=\"1\"} 25".to_owned(),
        "portcullis_key_set_age_seconds{backend=\"auth/login:80\",path=\"/certs\"} 21".to_owned(),
        "portcullis_key_set_fetches_total{backend=\"auth/login:80\",path=\"/certs\",outcome=\"failed\"} 22"
            .to_owned(),
        "portcullis_backend_in_use{backend=\"app/web:80\",reason=\"requests\"} 5".to_owned(),
        "portcullis_backend_refused_total{backend=\"app/web:80\",reason=\"connections\"} 6".to_owned(),
        "portcullis_datapath_verdicts_total{reason=\"steered\"} 9".to_owned(),
        "portcullis_l4_frontends{mechanism=\"kernel\",reason=\"\"} 2".to_owned(),
        "portcullis_l4_frontends{mechanism=\"userspace\",reason=\"off\"} 1".to_owned(),
        "portcullis_interface_unguarded{interface=\"eth0\",reason=\"foreign-program\"} 1".to_owned(),
        "portcullis_datapath_without_programs{reason=\"capabilities\"} 1".to_owned(),
        "portcullis_terms_enforced{terms=\"clients\",enforced_by=\"sk_lookup\"} 3".to_owned(),
        "portcullis_forwarded_flows 7".to_owned(),
        "portcullis_config_age_seconds 12".to_owned(),
        "portcullis_frontends 2".to_owned(),
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in {text}");
    }
    assert!(!text.contains("1xx") && !text.contains("status_class=\"3xx\""), "{text}");
    assert!(!text.contains("backend=\"other\""), "what did not happen has no series: {text}");
}

/// Tenants have as many backends with policies as they like.
#[test]
fn backends_without_series_of_their_own_share_some() {
    let backend = |at: usize, open| {
        let traffic = BackendTraffic {
            ejections: open,
            checks: vec![("passed", open)],
            open: vec![("requests", open)],
            ..BackendTraffic::default()
        };
        (BackendName(format!("app/web{at:04}:80").into()), traffic)
    };
    let busy = (0..2000).map(|at| backend(at, 1));
    let idle = (2000..3000).map(|at| backend(at, 0));
    let traffic = Traffic { backends: idle.chain(busy).collect(), ..Traffic::default() };
    let durations = Durations { limit: 500, ..Durations::default() };
    let text = metrics(&Metrics { traffic, durations, ..everything() }, MetricsFormat::Text);
    assert_eq!(text.lines().filter(|line| line.contains("{backend=")).count(), 3 * 501);
    assert!(!text.contains("web2000"), "what did not happen has no series");
    for line in [
        "portcullis_backend_in_use{backend=\"other\",reason=\"requests\"} 1500",
        "portcullis_endpoint_ejections_total{backend=\"other\"} 1500",
        "portcullis_endpoint_checks_total{backend=\"other\",outcome=\"passed\"} 1500",
        "portcullis_backend_in_use{backend=\"app/web0499:80\",reason=\"requests\"} 1",
    ] {
        assert!(text.lines().any(|it| it == line), "no {line}");
    }
}

#[test]
fn the_page_lists_all_metrics_and_no_others() {
    let page = include_str!("../../../docs/metrics.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let listed: BTreeSet<_> = cells.flat_map(|(names, _)| names.split("`, `")).map(str::to_owned).collect();
    let text = metrics(&everything(), MetricsFormat::Text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    assert_eq!(listed, types.map(|(name, _)| name.to_owned()).collect());
}

#[test]
fn counters_have_their_type_in_both_formats() {
    let describes = |text: &str, name: &str| {
        assert!(text.contains(&format!("# HELP {name} ")), "{text}");
        text.contains(&format!("# TYPE {name} counter\n"))
    };
    let open = metrics(&everything(), MetricsFormat::OpenMetrics);
    assert!(open.ends_with("# EOF\n") && describes(&open, "http_server_requests"), "{open}");
    let text = metrics(&everything(), MetricsFormat::Text);
    assert!(!text.contains("# EOF") && describes(&text, "http_server_requests_total"), "{text}");
    assert!(!text.contains("# UNIT") && describes(&text, "portcullis_config_apply_time_seconds_total"));
    // A set: a family prints its label sets in no particular order.
    let samples = |text: &str| -> BTreeSet<_> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&open), samples(&text));
}

#[test]
fn a_scrape_gets_the_format_it_wants() {
    use MetricsFormat::{OpenMetrics, Text};
    // Prometheus 2.5 and later.
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                      application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, format) in [
        (prometheus, OpenMetrics),
        ("application/openmetrics-text", OpenMetrics),
        ("Application/OpenMetrics-Text; version=1.0.0, text/plain", OpenMetrics),
        ("text/plain, application/openmetrics-text; q=0.9", Text),
        ("application/openmetrics-text;q=0", Text),
        ("application/openmetrics-text;q=nonsense", Text),
        ("*/*", Text),
        ("", Text),
    ] {
        assert_eq!(MetricsFormat::accepted(accept), format, "{accept}");
    }
}

#[test]
fn a_mesh_of_another_controller_is_counted() {
    let in_cluster = |duties| {
        let cluster = Some(Cluster { is_read: true, duties });
        metrics(&Metrics { cluster, ..everything() }, MetricsFormat::Text)
    };
    let scraped = |mesh_unclaimed| in_cluster(Some(Duties { mesh_unclaimed, ..Duties::default() }));
    assert!(scraped(false).contains("\nportcullis_mesh_unclaimed 0\n"), "{}", scraped(false));
    assert!(scraped(true).contains("\nportcullis_mesh_unclaimed 1\n"), "{}", scraped(true));
    let of_one_gateway = in_cluster(None);
    assert!(of_one_gateway.contains("\nportcullis_cluster_read 1\n"), "{of_one_gateway}");
    assert!(!of_one_gateway.contains("portcullis_leader"), "{of_one_gateway}");
    let alone = metrics(&Metrics { cluster: None, ..everything() }, MetricsFormat::Text);
    assert!(!alone.contains("portcullis_leader"), "{alone}");
}
