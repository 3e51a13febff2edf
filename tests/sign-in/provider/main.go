// Command provider is an OpenID provider for one test: zitadel's library with the storage and the
// sign-in page of its example, one client and users from a file.
package main

import (
	"flag"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

func main() {
	listen := flag.String("listen", "", "address and port, which the issuer's URL is made of")
	client := flag.String("client", "", "the client's ID")
	secret := flag.String("secret", "", "the client's secret")
	redirect := flag.String("redirect", "", "the URL to which users return")
	users := flag.String("users", "", "file with the users, as JSON")
	flag.Parse()
	store, err := storage.StoreFromFile(*users)
	if err != nil {
		log.Fatal(err)
	}
	storage.RegisterClients(storage.WebClient(*client, *secret, *redirect))
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	issuer := "http://" + listener.Addr().String()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	log.Fatal(http.Serve(listener, exampleop.SetupServer(issuer, storage.NewStorage(store), logger, false)))
}
