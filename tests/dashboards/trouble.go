package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
)

const (
	of      = `gateway="infra/edge",parent_kind="Gateway",parent="infra/edge",listener="https"`
	agent   = `portcullis_agent_info{version="1",datapath="ebpf"} 1 1`
	traffic = `http_server_requests_total{` + of + `,http_response_status_class="2xx"} 0 3600`
	failing = `http_server_requests_total{` + of + `,http_response_status_class="5xx"} 0 360`
	slow    = `http_server_request_duration_seconds_bucket{` + of + `,le="0.25"} 0 1800`
	all     = `http_server_request_duration_seconds_count{` + of + `} 0 3600`
	fast    = `http_server_request_duration_seconds_bucket{` + of + `,le="0.25"} 0 3600`
)

// An hour in which all is well: series with the first and the last of their values; `+`: from now.
var well = []string{
	agent, "up 1 1", traffic, all, fast,
	`tls_certificate_expiry_timestamp_seconds{` + of + `} +2592000 +2592000`,
	"process_start_time_seconds 1 1", "process_open_fds 10 20", "process_max_fds 1000 1000",
	"portcullis_panics_total 1 1", "network_server_accept_errors_total 3 3",
	`portcullis_datapath_without_programs{reason="asked-for"} 1 1`,
	"http_server_access_log_lost_total 2 2",
	`portcullis_otlp_items_total{signal="traces",outcome="lost"} 2 2`,
	`portcullis_duration_series{of="route"} 1 499`, "portcullis_duration_series_limit 500 500",
	"portcullis_config_problems 0 0", "portcullis_frontends_refused 0 0", "portcullis_cluster_read 1 1",
	"portcullis_leader 1 1", "portcullis_mesh_unclaimed 0 0", "portcullis_gateways_without_objects 0 0",
	"portcullis_external_hosts_without_address 0 0",
	`network_server_connections_refused_total{gateway="infra/edge",reason="connections"} 7 7`,
	"http_client_connections_failed_total 0 10", "http_client_connections_opened_total 0 3600",
	`http_client_requests_total{backend="app/web:80",http_response_status_class="2xx"} 0 3600`,
	`http_client_requests_total{backend="app/web:80",http_response_status_class="none"} 0 10`,
	`portcullis_backend_refused_total{backend="app/web:80",reason="requests"} 5 5`,
	`http_server_external_auth_total{outcome="failed"} 4 4`,
	`portcullis_key_set_fetches_total{backend="a/b:80",path="/c",outcome="failed"} 0 10`,
	`portcullis_key_set_fetches_total{backend="a/b:80",path="/c",outcome="fetched"} 0 10`,
}

// An hour of what each alert is about.
var trouble = map[string][]string{
	"PortcullisErrorsBurnFast":              {traffic, failing},
	"PortcullisErrorsBurnSlow":              {traffic, failing},
	"PortcullisErrorsBurnSteady":            {traffic, failing},
	"PortcullisLatencyBurnFast":             {traffic, all, slow},
	"PortcullisLatencyBurnSlow":             {traffic, all, slow},
	"PortcullisLatencyBurnSteady":           {traffic, all, slow},
	"PortcullisCertificateEndsSoon":         {`tls_certificate_expiry_timestamp_seconds{` + of + `} +864000 +864000`},
	"PortcullisCertificateEnds":             {`tls_certificate_expiry_timestamp_seconds{` + of + `} +86400 +86400`},
	"PortcullisAgentMissing":                {agent, "up 0 0"},
	"PortcullisNoAgents":                    {"up 1 1"},
	"PortcullisAgentRestarts":               {agent, "process_start_time_seconds 1 9"},
	"PortcullisPanics":                      {"portcullis_panics_total 0 2"},
	"PortcullisFileDescriptors":             {agent, "process_open_fds 800 800", "process_max_fds 1000 1000"},
	"PortcullisAcceptErrors":                {"network_server_accept_errors_total 0 60"},
	"PortcullisInterfaceUnguarded":          {`portcullis_interface_unguarded{interface="eth0",reason="attach"} 1 1`},
	"PortcullisInterfaceUnread":             {`portcullis_interface_unread{interface="eth0",reason="attach"} 1 1`},
	"PortcullisWithoutKernelPrograms":       {`portcullis_datapath_without_programs{reason="no-tcx"} 1 1`},
	"PortcullisAccessLogLost":               {"http_server_access_log_lost_total 0 60"},
	"PortcullisTelemetryLost":               {`portcullis_otlp_items_total{signal="traces",outcome="lost"} 0 60`},
	"PortcullisDurationSeriesFull":          {`portcullis_duration_series{of="route"} 1 500`, "portcullis_duration_series_limit 500 500"},
	"PortcullisConfigProblems":              {"portcullis_config_problems 2 2"},
	"PortcullisFrontendsRefused":            {"portcullis_frontends_refused 1 1"},
	"PortcullisClusterNotRead":              {"portcullis_cluster_read 0 0"},
	"PortcullisNoLeader":                    {"portcullis_leader 0 0"},
	"PortcullisSeveralLeaders":              {"portcullis_leader 2 2"},
	"PortcullisMeshUnclaimed":               {"portcullis_mesh_unclaimed 1 1"},
	"PortcullisGatewaysWithoutObjects":      {"portcullis_gateways_without_objects 1 1"},
	"PortcullisExternalHostsWithoutAddress": {"portcullis_external_hosts_without_address 1 1"},
	"PortcullisConnectionsRefused": {
		`network_server_connections_refused_total{gateway="infra/edge",reason="connections"} 0 60`,
	},
	"PortcullisBackendsNotReached": {
		"http_client_connections_failed_total 0 600", "http_client_connections_opened_total 0 3600",
	},
	"PortcullisBackendWithoutResponse": {
		`http_client_requests_total{backend="app/web:80",http_response_status_class="none"} 0 60`,
	},
	"PortcullisEndpointsOut": {
		`portcullis_endpoint_out{backend="app/web:80",endpoint="10.0.0.1:80",reason="ejected"} 1 1`,
	},
	"PortcullisBackendLimit":      {`portcullis_backend_refused_total{backend="app/web:80",reason="requests"} 0 60`},
	"PortcullisExternalAuthFails": {`http_server_external_auth_total{outcome="failed"} 0 60`},
	"PortcullisKeySetNotFetched":  {`portcullis_key_set_fetches_total{backend="a/b:80",path="/c",outcome="failed"} 0 10`},
}

// Every alert fires in its trouble, and none while all is well.
func checkTroubles(o options) error {
	var problems []error
	quiet, err := fired(o, well)
	if err != nil {
		return err
	}
	for alert := range quiet {
		problems = append(problems, fmt.Errorf("%s fires while all is well", alert))
	}
	for alert, series := range trouble {
		fires, err := fired(o, series)
		if err == nil && !fires[alert] {
			err = fmt.Errorf("%s does not fire in its trouble, or is none", alert)
		}
		problems = append(problems, err)
	}
	alerts := 0
	groups, err := rules(o)
	if err != nil {
		return err
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			if rule.Alert != "" {
				alerts++
			}
		}
	}
	if alerts != len(trouble) {
		problems = append(problems, fmt.Errorf("there are %d alerts, and troubles for %d", alerts, len(trouble)))
	}
	fmt.Printf("dashboards: troubles of %d alerts were made up\n", len(trouble))
	return errors.Join(problems...)
}

// Alerts that fire after an hour of such series.
func fired(o options, series []string) (map[string]bool, error) {
	directory, err := os.MkdirTemp("", "portcullis-dashboards-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	storage, err := newPrometheus(directory)
	if err != nil {
		return nil, err
	}
	defer storage.db.Close()
	now := time.Now()
	const minutes = 60
	for minute := range minutes + 1 {
		at := now.Add(time.Duration(minute-minutes) * time.Minute)
		samples, err := samplesAt(series, float64(minute)/minutes, now)
		if err != nil {
			return nil, err
		}
		if err := storage.storeExactly(at, samples); err != nil {
			return nil, err
		}
	}
	groups, err := rules(o)
	if err != nil {
		return nil, err
	}
	fires := map[string]bool{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			vector, err := storage.ask(rule.Expr)
			if err != nil {
				return nil, fmt.Errorf("%s%s: %w", rule.Alert, rule.Record, err)
			}
			if rule.Record != "" && len(vector) > 0 {
				if err := storage.record(rule.Record, vector); err != nil {
					return nil, err
				}
			} else if rule.Alert != "" && len(vector) > 0 {
				fires[rule.Alert] = true
			}
		}
	}
	return fires, nil
}

// At a share of the hour.
func samplesAt(series []string, share float64, now time.Time) ([]sample, error) {
	var samples []sample
	for _, line := range series {
		words := strings.Fields(line)
		name := strings.Join(words[:len(words)-2], " ")
		metric, err := reader.ParseMetric(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var ends [2]float64
		for i, word := range words[len(words)-2:] {
			if ends[i], err = strconv.ParseFloat(word, 64); err != nil {
				return nil, err
			}
			if strings.HasPrefix(word, "+") {
				ends[i] += float64(now.Unix())
			}
		}
		samples = append(samples, sample{metric, ends[0] + share*(ends[1]-ends[0])})
	}
	return samples, nil
}

func rules(o options) (*rulefmt.RuleGroups, error) {
	groups, errs := rulefmt.ParseFile(o.alerts, false, model.UTF8Validation, reader, slog.Default())
	return groups, errors.Join(errs...)
}
