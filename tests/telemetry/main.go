// A collector and an instrumented application, for tests of traces and of logs by OTLP. The
// collector is OpenTelemetry's own receiver; what it takes goes to standard output, a line of
// OTLP's JSON for each message. The application is a backend, an auth service and a client, with
// OpenTelemetry's own instrumentation, whose spans go to that collector. The client asks what is
// read from standard input, a request in a line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// A request for the client.
type question struct {
	URL string `json:"url"`
	// In the place of the URL's.
	Host string `json:"host"`
	// Over HTTP/2 without TLS.
	HTTP2 bool `json:"http2"`
	// Begins a trace that is recorded.
	Traced bool              `json:"traced"`
	Fields map[string]string `json:"fields"`
}

// A line of standard output; one of its fields is there.
type line struct {
	Listening *listening      `json:"listening,omitempty"`
	Traces    json.RawMessage `json:"traces,omitempty"`
	Logs      json.RawMessage `json:"logs,omitempty"`
	// Of the message, as it came to the collector in TLS.
	Authorization []string `json:"authorization,omitempty"`
	Answer        *answer  `json:"answer,omitempty"`
}

type listening struct {
	Collector string `json:"collector"`
	// One that is spoken to in TLS, if it has a certificate.
	Secure  string `json:"secure"`
	Backend string `json:"backend"`
	// Takes connections and messages, and never answers.
	Slow string `json:"slow"`
}

type answer struct {
	Status int    `json:"status"`
	Body   string `json:"body"`
	Error  string `json:"error,omitempty"`
}

var output struct {
	sync.Mutex
	*json.Encoder
}

func main() {
	address := flag.String("address", "127.0.0.1", "the address to listen at")
	certificate := flag.String("certificate", "", "a certificate (PEM) for a collector in TLS")
	key := flag.String("key", "", "its key (PEM)")
	flag.Parse()
	output.Encoder = json.NewEncoder(os.Stdout)
	if err := run(*address, *certificate, *key); err != nil {
		fmt.Fprintln(os.Stderr, "telemetry:", err)
		os.Exit(1)
	}
}

func run(address, certificate, key string) error {
	ctx := context.Background()
	collector, err := collect(ctx, address, nil)
	if err != nil {
		return err
	}
	secure := ""
	if certificate != "" {
		tls := configtls.NewDefaultServerConfig()
		tls.CertFile, tls.KeyFile = certificate, key
		if secure, err = collect(ctx, address, &tls); err != nil {
			return err
		}
	}
	slow, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	go takeAndSayNothing(slow)
	backends, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	provider, err := provide(ctx, collector, "backend", trace.NeverSample())
	if err != nil {
		return err
	}
	instrumented := otelhttp.NewHandler(http.HandlerFunc(serve), "backend",
		otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagation.TraceContext{}))
	server := &http.Server{Handler: instrumented, ReadHeaderTimeout: time.Minute}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(backends)
	say(line{Listening: &listening{collector, secure, backends.Addr().String(), slow.Addr().String()}})
	return ask(ctx, collector)
}

func say(told line) {
	output.Lock()
	defer output.Unlock()
	output.Encode(told)
}

// --- the collector ---

// Starts the receiver, and returns its address. It opens its port by itself, which is free a moment
// before.
func collect(ctx context.Context, address string, tls *configtls.ServerConfig) (string, error) {
	var problem error
	for range 10 {
		free, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			return "", err
		}
		place := free.Addr().String()
		free.Close()
		if problem = receive(ctx, place, tls); problem == nil {
			return place, nil
		}
	}
	return "", problem
}

func receive(ctx context.Context, place string, tls *configtls.ServerConfig) error {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC = otlpreceiver.Protocols{}.GRPC
	server := &config.Protocols.HTTP.GetOrInsertDefault().ServerConfig
	server.NetAddr.Endpoint = place
	server.IncludeMetadata = true
	if tls != nil {
		server.TLS = configoptional.Some(*tls)
	}
	traces, err := consumer.NewTraces(func(ctx context.Context, traces ptrace.Traces) error {
		text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
		authorization := client.FromContext(ctx).Metadata.Get("authorization")
		say(line{Traces: text, Authorization: authorization})
		return err
	})
	if err != nil {
		return err
	}
	logs, err := consumer.NewLogs(func(_ context.Context, logs plog.Logs) error {
		text, err := (&plog.JSONMarshaler{}).MarshalLogs(logs)
		say(line{Logs: text})
		return err
	})
	if err != nil {
		return err
	}
	settings := receivertest.NewNopSettings(factory.Type())
	ofTraces, err := factory.CreateTraces(ctx, settings, config, traces)
	if err != nil {
		return err
	}
	ofLogs, err := factory.CreateLogs(ctx, settings, config, logs)
	if err != nil {
		return err
	}
	for _, part := range []component.Component{ofTraces, ofLogs} {
		if err := part.Start(ctx, componenttest.NewNopHost()); err != nil {
			return err
		}
	}
	return nil
}

func takeAndSayNothing(slow net.Listener) {
	for {
		connection, err := slow.Accept()
		if err != nil {
			return
		}
		go io.Copy(io.Discard, connection)
	}
}

// --- the application ---

func provide(ctx context.Context, collector, name string, own trace.Sampler) (*trace.TracerProvider, error) {
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpoint(collector), otlptracehttp.WithInsecure())
	if err != nil {
		return nil, err
	}
	return trace.NewTracerProvider(
		trace.WithSyncer(exporter),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", name))),
		trace.WithSampler(trace.ParentBased(own)),
	), nil
}

var (
	mutex sync.Mutex
	asked = map[string]int{}
)

// /fail/N/… answers 503 the first N times. /deny answers 403. Anything else tells the fields that
// came.
func serve(writer http.ResponseWriter, request *http.Request) {
	parts := strings.Split(request.URL.Path, "/")
	if len(parts) > 2 && parts[1] == "fail" {
		most, _ := strconv.Atoi(parts[2])
		mutex.Lock()
		asked[request.URL.Path]++
		times := asked[request.URL.Path]
		mutex.Unlock()
		if times <= most {
			writer.WriteHeader(http.StatusServiceUnavailable)
			return
		}
	}
	if parts[1] == "deny" {
		writer.WriteHeader(http.StatusForbidden)
		return
	}
	fields := map[string][]string{}
	for _, name := range []string{"Traceparent", "Tracestate", "X-Request-Id"} {
		if values := request.Header.Values(name); values != nil {
			fields[strings.ToLower(name)] = values
		}
	}
	json.NewEncoder(writer).Encode(fields)
}

func ask(ctx context.Context, collector string) error {
	provider, err := provide(ctx, collector, "client", trace.AlwaysSample())
	if err != nil {
		return err
	}
	clients := map[bool]*http.Transport{}
	for _, http2 := range []bool{false, true} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetUnencryptedHTTP2(http2)
		clients[http2] = transport
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		var transport http.RoundTripper = clients[asked.HTTP2]
		if asked.Traced {
			transport = otelhttp.NewTransport(transport, otelhttp.WithTracerProvider(provider),
				otelhttp.WithPropagators(propagation.TraceContext{}))
		}
		say(line{Answer: exchange(ctx, transport, asked)})
	}
	return lines.Err()
}

func exchange(ctx context.Context, transport http.RoundTripper, asked question) *answer {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, asked.URL, nil)
	if err != nil {
		return &answer{Error: err.Error()}
	}
	request.Host = asked.Host
	for name, value := range asked.Fields {
		request.Header.Set(name, value)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return &answer{Error: err.Error()}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return &answer{Error: err.Error()}
	}
	return &answer{Status: response.StatusCode, Body: string(body)}
}
