// Command acmesolver is what cert-manager's pods for challenges run: its solver, with the flags
// that the controller gives them.
package main

import (
	"flag"
	"log"

	"github.com/go-logr/stdr"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/http/solver"
)

func main() {
	var solve solver.HTTP01Solver
	flag.IntVar(&solve.ListenPort, "listen-port", 8089, "the port")
	flag.StringVar(&solve.Domain, "domain", "", "the name that is to be proven")
	flag.StringVar(&solve.Token, "token", "", "of the challenge")
	flag.StringVar(&solve.Key, "key", "", "the answer")
	flag.Parse()
	log.Fatal(solve.Listen(stdr.New(log.Default())))
}
