// Command external-dns is external-dns with one provider, RFC 2136: its flags, sources, plans and
// registry of TXT records, in a loop like its own. Its own command has the libraries of thirty
// providers, and takes twice the time to build.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sigs.k8s.io/external-dns/endpoint"
	"sigs.k8s.io/external-dns/pkg/apis/externaldns"
	"sigs.k8s.io/external-dns/plan"
	"sigs.k8s.io/external-dns/provider/rfc2136"
	"sigs.k8s.io/external-dns/registry"
	"sigs.k8s.io/external-dns/registry/txt"
	"sigs.k8s.io/external-dns/source"
	"sigs.k8s.io/external-dns/source/annotations"
	"sigs.k8s.io/external-dns/source/wrappers"
)

func main() {
	config := externaldns.NewConfig()
	if err := config.ParseFlags(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, config); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, config *externaldns.Config) error {
	annotations.SetAnnotationPrefix(config.AnnotationPrefix)
	ofSource, err := source.NewSourceConfig(config)
	if err != nil {
		return err
	}
	from, err := wrappers.Build(ctx, ofSource)
	if err != nil {
		return err
	}
	domains := endpoint.NewDomainFilterWithOptions(endpoint.WithDomainFilter(config.DomainFilter))
	provider, err := rfc2136.New(ctx, config, domains)
	if err != nil {
		return err
	}
	to, err := txt.New(config, provider)
	if err != nil {
		return err
	}
	for {
		if err := once(ctx, config, domains, from, to); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(config.Interval):
		}
	}
}

// once makes the zone what the sources say.
func once(ctx context.Context, config *externaldns.Config, domains *endpoint.DomainFilter, from source.Source, to registry.Registry) error {
	current, err := to.Records(ctx)
	if err != nil {
		return err
	}
	wanted, err := from.Endpoints(ctx)
	if err != nil {
		return err
	}
	wanted, err = to.AdjustEndpoints(wanted)
	if err != nil {
		return err
	}
	policy, ok := plan.Policies[config.Policy]
	if !ok {
		return errors.New("unknown policy: " + config.Policy)
	}
	next := (&plan.Plan{
		Policies:       []plan.Policy{policy},
		Current:        current,
		Desired:        wanted,
		DomainFilter:   endpoint.MatchAllDomainFilters{domains, to.GetDomainFilter()},
		ManagedRecords: config.ManagedDNSRecordTypes,
		ExcludeRecords: config.ExcludeDNSRecordTypes,
		OwnerID:        to.OwnerID(),
	}).Calculate()
	if !next.Changes.HasChanges() {
		return nil
	}
	return to.ApplyChanges(ctx, next.Changes)
}
