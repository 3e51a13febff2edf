// Answers each request that is complete with what it was, as net/http reads it.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	answer := func(writer http.ResponseWriter, request *http.Request) {
		length, err := io.Copy(io.Discard, request.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		writer.Header().Set("X-Seen", fmt.Sprint(request.Method, " ", request.RequestURI, " ", length))
		writer.WriteHeader(http.StatusNoContent)
	}
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[1], http.HandlerFunc(answer)))
	os.Exit(1)
}
