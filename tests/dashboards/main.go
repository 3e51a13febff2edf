// Scrapes an agent, as Prometheus does and with its own packages, and runs every query of the
// dashboards and the alerts on what came. Fails on a type that is not the one of docs/metrics.md,
// on a query that is refused, and on a panel that is empty without a reason.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

// What Prometheus sends, without what it does not ask for by default, and what old ones send.
const (
	openMetrics = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	plainText   = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)

// A scrape takes no longer, however many routes there are.
const bar = 200 * time.Millisecond

// Metrics that the load does not move, and why; a query about them may be empty.
var empty = map[string]string{
	"http_client_mirrored_requests_total":       "no route mirrors",
	"http_server_external_auth_total":           "no route asks an auth service",
	"l4_server_io_bytes_total":                  "the kernel forwards it, where it does",
	"network_server_budget_refused_total":       "no listener has a budget",
	"network_server_budget_taken_total":         "no listener has a budget",
	"network_server_clients_not_admitted_total": "no policy keeps clients out",
	"network_server_connections_refused_total":  "no connection is over a limit",
	"portcullis_backend_in_use":                 "no backend has a policy",
	"portcullis_backend_refused_total":          "no backend has a policy",
	"portcullis_cluster_read":                   "not in a cluster",
	"portcullis_datapath_without_programs":      "there are kernel programs, if so",
	"portcullis_datapath_verdicts_total":        "there are no kernel programs, if so",
	"portcullis_endpoint_checks_total":          "no backend has a policy",
	"portcullis_endpoint_ejections_total":       "no backend has a policy",
	"portcullis_endpoint_out":                   "no backend has a policy",
	"portcullis_endpoints_chosen_total":         "endpoints do not say where they are",
	"portcullis_gateways_without_objects":       "not in a cluster",
	"portcullis_interface_unguarded":            "no interface should have a guard",
	"portcullis_otlp_items_total":               "there is no collector",
	"portcullis_interface_unread":               "no interface should be read",
	"portcullis_key_set_age_seconds":            "no key sets are fetched",
	"portcullis_key_set_fetches_total":          "no key sets are fetched",
	"portcullis_leader":                         "not in a cluster",
	"portcullis_mesh_unclaimed":                 "not in a cluster",
	"portcullis_terms_enforced":                 "no listener has terms",
}

// Alerts about what the load does: a quarter of its requests have a backend that is not there.
var mustFire = []string{
	"PortcullisErrorsBurnFast", "PortcullisErrorsBurnSlow", "PortcullisErrorsBurnSteady",
	"PortcullisBackendsNotReached", "PortcullisBackendWithoutResponse",
}

type options struct {
	socket, dashboards, alerts, page string
	scrapes                          int
	every                            time.Duration
	sizeOnly                         bool
}

func main() {
	var o options
	flag.StringVar(&o.socket, "socket", "", "the agent's admin socket")
	flag.StringVar(&o.dashboards, "dashboards", "", "folder of dashboards")
	flag.StringVar(&o.alerts, "alerts", "", "rule file")
	flag.StringVar(&o.page, "page", "", "docs/metrics.md")
	flag.IntVar(&o.scrapes, "scrapes", 15, "scrapes")
	flag.DurationVar(&o.every, "every", time.Second, "time between scrapes")
	flag.BoolVar(&o.sizeOnly, "size", false, "only say how long scrapes take and how many series they have")
	flag.Parse()
	run := try
	if o.sizeOnly {
		run = size
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func size(o options) error {
	var took []time.Duration
	var series, bytes int
	for range o.scrapes {
		scraped, err := scrape(o.socket, openMetrics)
		if err != nil {
			return err
		}
		samples, _, err := scraped.parse()
		if err != nil {
			return err
		}
		took, series, bytes = append(took, scraped.took), len(samples), len(scraped.body)
	}
	slices.Sort(took)
	median := took[len(took)/2]
	fmt.Printf("dashboards: %d series, %d bytes; a scrape took %s (median of %d; %s at most)\n",
		series, bytes, median, len(took), took[len(took)-1])
	if median > bar {
		return fmt.Errorf("a scrape takes longer than %s", bar)
	}
	return nil
}

func try(o options) error {
	directory, err := os.MkdirTemp("", "portcullis-dashboards-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	storage, err := newPrometheus(directory)
	if err != nil {
		return err
	}
	defer storage.db.Close()
	for scrapes := range o.scrapes {
		if scrapes > 0 {
			time.Sleep(o.every)
		}
		scraped, err := scrape(o.socket, openMetrics)
		if err != nil {
			return err
		}
		samples, _, err := scraped.parse()
		if err != nil {
			return err
		}
		if err := storage.store(scraped.at, samples); err != nil {
			return err
		}
	}
	return errors.Join(checkTypes(o), storage.runDashboards(o), storage.runAlerts(o), checkTroubles(o))
}

// === scraping

type scraped struct {
	at          time.Time
	took        time.Duration
	contentType string
	body        []byte
}

type sample struct {
	labels labels.Labels
	value  float64
}

func scrape(socket, accept string) (scraped, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest("GET", "http://localhost/metrics", nil)
	if err != nil {
		return scraped{}, err
	}
	request.Header.Set("Accept", accept)
	begin := time.Now()
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return scraped{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("a scrape was answered with %s", response.Status)
	}
	return scraped{begin, time.Since(begin), response.Header.Get("Content-Type"), body}, err
}

// Samples, and the types of their families.
func (s scraped) parse() ([]sample, map[string]model.MetricType, error) {
	p, err := textparse.New(s.body, s.contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return nil, nil, err
	}
	var samples []sample
	types := map[string]model.MetricType{}
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return samples, types, nil
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", s.contentType, err)
		case entry == textparse.EntryType:
			name, kind := p.Type()
			types[string(name)] = kind
		case entry == textparse.EntrySeries:
			var of labels.Labels
			p.Labels(&of)
			_, _, value := p.Series()
			samples = append(samples, sample{of, value})
		}
	}
}

// In both formats, as the page has them.
func checkTypes(o options) error {
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	for _, accept := range []string{openMetrics, plainText} {
		scraped, err := scrape(o.socket, accept)
		if err != nil {
			return err
		}
		_, types, err := scraped.parse()
		if err != nil {
			return err
		}
		checked := 0
		for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z0-9_`, ]+`) \\| (\\w*)").FindAllStringSubmatch(string(page), -1) {
			for _, name := range strings.Split(strings.ReplaceAll(row[1], "`", ""), ", ") {
				want := model.MetricType(row[2])
				if want == "" {
					want = model.MetricTypeCounter
				}
				family := name
				if strings.HasPrefix(scraped.contentType, "application/openmetrics-text") {
					family = strings.TrimSuffix(name, "_total")
				}
				kind, known := types[family]
				if !known {
					continue // Of a cluster.
				}
				if kind != want {
					return fmt.Errorf("%s: %s is a %s, not a %s", scraped.contentType, name, kind, want)
				}
				checked++
			}
		}
		if checked < len(types) {
			return fmt.Errorf("%s: %d types, and %d of them on the page", scraped.contentType, len(types), checked)
		}
		fmt.Printf("dashboards: %d types are right in %s\n", checked, scraped.contentType)
	}
	return nil
}

// === queries

// Of PromQL, in dashboards and in alerts.
var reader = parser.NewParser(parser.Options{})

type prometheus struct {
	db     *tsdb.DB
	engine *promql.Engine
	// Time of the last scrape.
	now time.Time
}

func newPrometheus(directory string) (*prometheus, error) {
	db, err := tsdb.Open(directory, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return nil, err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50_000_000, Timeout: time.Minute, Parser: reader})
	return &prometheus{db: db, engine: engine}, nil
}

// As of a target that was found.
func (p *prometheus) store(at time.Time, samples []sample) error {
	return p.storeExactly(at, append(samples, sample{labels.FromStrings("__name__", "up"), 1}))
}

func (p *prometheus) storeExactly(at time.Time, samples []sample) error {
	p.now = at
	appender := p.db.Appender(context.Background())
	for _, it := range samples {
		of := labels.NewBuilder(it.labels).Set("job", "portcullis").Set("instance", "192.0.2.1:9271").Labels()
		if _, err := appender.Append(0, of, at.UnixMilli(), it.value); err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
	}
	return appender.Commit()
}

func (p *prometheus) ask(expression string) (promql.Vector, error) {
	query, err := p.engine.NewInstantQuery(context.Background(), p.db, nil, expression, p.now)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	if scalar, err := result.Scalar(); err == nil {
		return promql.Vector{{F: scalar.V}}, nil
	}
	vector, err := result.Vector()
	return slices.Clone(vector), err
}

type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func (p *prometheus) runDashboards(o options) error {
	files, err := filepath.Glob(filepath.Join(o.dashboards, "*.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no dashboards in %s", o.dashboards)
	}
	var problems []error
	var answered, excused int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var it dashboard
		if err := json.Unmarshal(text, &it); err != nil {
			return err
		}
		var asked [][2]string
		for _, panel := range it.Panels {
			for _, target := range panel.Targets {
				asked = append(asked, [2]string{panel.Title, target.Expr})
			}
		}
		for _, variable := range it.Templating.List {
			if series, found := strings.CutPrefix(variable.Definition, "label_values("); found {
				asked = append(asked, [2]string{variable.Name, series[:strings.LastIndex(series, ",")]})
			}
		}
		for _, query := range asked {
			expression := withVariables(query[1], it)
			place := fmt.Sprintf("%s, %s: %s", filepath.Base(file), query[0], expression)
			vector, err := p.ask(expression)
			switch {
			case err != nil:
				problems = append(problems, fmt.Errorf("%s: %w", place, err))
			case slices.ContainsFunc(vector, isNumber):
				answered++
			case isExcused(expression):
				excused++
			default:
				problems = append(problems, fmt.Errorf("%s: is empty", place))
			}
		}
	}
	fmt.Printf("dashboards: %d queries have data, %d have none and a reason, %d are wrong\n",
		answered, excused, len(problems))
	return errors.Join(problems...)
}

// A quotient of nothing is none, and Grafana shows nothing for it.
func isNumber(it promql.Sample) bool { return !math.IsNaN(it.F) }

// As Grafana does for "All", and for a scrape a second.
func withVariables(expression string, of dashboard) string {
	expression = strings.ReplaceAll(expression, "$__rate_interval", "10s")
	for _, variable := range of.Templating.List {
		expression = strings.ReplaceAll(expression, `"$`+variable.Name+`"`, `".*"`)
	}
	return expression
}

func isExcused(expression string) bool {
	for name := range empty {
		if regexp.MustCompile(`\b` + name + `\b`).MatchString(expression) {
			return true
		}
	}
	return false
}

func (p *prometheus) runAlerts(o options) error {
	groups, err := rules(o)
	if err != nil {
		return err
	}
	var problems []error
	var quiet int
	var fires []string
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			vector, err := p.ask(rule.Expr)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s%s: %w", rule.Alert, rule.Record, err))
				continue
			}
			if rule.Record != "" {
				problems = append(problems, p.record(rule.Record, vector))
			} else if len(vector) > 0 {
				fires = append(fires, rule.Alert)
			} else {
				quiet++
			}
		}
	}
	fmt.Printf("dashboards: %d alerts are quiet; those that would fire, if it went on: %s\n",
		quiet, strings.Join(fires, ", "))
	for _, name := range mustFire {
		if !slices.Contains(fires, name) {
			problems = append(problems, fmt.Errorf("%s does not fire", name))
		}
	}
	return errors.Join(problems...)
}

func (p *prometheus) record(name string, vector promql.Vector) error {
	if len(vector) == 0 {
		return fmt.Errorf("%s: is empty", name)
	}
	appender := p.db.Appender(context.Background())
	for _, it := range vector {
		of := labels.NewBuilder(it.Metric).Set("__name__", name).Labels()
		if _, err := appender.Append(0, of, p.now.UnixMilli(), it.F); err != nil {
			return err
		}
	}
	return appender.Commit()
}
