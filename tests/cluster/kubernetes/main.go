// Command kubernetes is every part of a Kubernetes node and control plane in one binary, chosen by
// its first argument, and kubectl when started by that name. The parts share nine tenths of their
// packages, so one program links once where seven would link seven times.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "usage: kubernetes etcd|apiserver|controller-manager|scheduler|kubelet|proxy [FLAGS]; kubectl when started by that name"

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(runKubectl())
	}
	if len(os.Args) < 2 {
		fail(usage)
	}
	// Each part parses os.Args itself, as if it had been started under its own name.
	os.Args = os.Args[1:]
	os.Exit(run(os.Args[0]))
}

func run(part string) int {
	if part == "etcd" {
		return runEtcd()
	}
	command := component(part)
	if command == nil {
		fail("unknown part " + part + "; " + usage)
	}
	return cli.Run(command)
}

func component(part string) *cobra.Command {
	switch part {
	case "apiserver":
		return apiserver.NewAPIServerCommand()
	case "controller-manager":
		return controllers.NewControllerManagerCommand()
	case "scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "proxy":
		return proxy.NewProxyCommand()
	}
	return nil
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		// Prints what kubectl prints, and ends with its exit code.
		kubectlutil.CheckErr(err)
	}
	return 0
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(2)
}
