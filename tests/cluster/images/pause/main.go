// Command pause holds namespaces open until it is told to stop, and reaps the orphans that pid 1 of
// a pid namespace inherits. It is the sandbox of every pod, and the holder of the whole cluster.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	whileStdin := flag.Bool("while-stdin", false, "also end when standard input does: with the process that holds its other end")
	flag.Parse()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	if *whileStdin {
		go endWithStdin()
	}
	fmt.Println("holding")
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

func endWithStdin() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// reap collects every child that has ended; one signal may stand for several.
func reap() {
	for {
		if child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || child <= 0 {
			return
		}
	}
}
