package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startTimeout is how long etcd may take to elect itself; it needs well under a second.
const startTimeout = 60 * time.Second

// runEtcd serves one etcd member on loopback until it is told to stop.
func runEtcd() int {
	directory := flag.String("data-dir", "", "where the data is kept")
	flag.Parse()
	if err := serveEtcd(*directory); err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	return 0
}

func serveEtcd(directory string) error {
	member, err := embed.StartEtcd(etcdConfig(directory))
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-member.Server.ReadyNotify():
	case <-time.After(startTimeout):
		return errors.New("not ready in time")
	}
	return untilStopped(member.Err())
}

func etcdConfig(directory string) *embed.Config {
	config := embed.NewConfig()
	config.Dir = directory
	config.LogLevel = "warn"
	// The data need not outlive the machine.
	config.UnsafeNoFsync = true
	client, peer := loopback("2379"), loopback("2380")
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	return config
}

func loopback(port string) []url.URL {
	return []url.URL{{Scheme: "http", Host: "127.0.0.1:" + port}}
}

func untilStopped(failed <-chan error) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	select {
	case <-stop:
		return nil
	case err := <-failed:
		return err
	}
}
